"""Names are plain text: no error or log line contains control characters for a terminal or a log."""

import pickle
from collections.abc import Iterator
from typing import Any, cast

import pytest
import structlog

from neli_router.core.keyspace import Layout
from neli_router.core.logs import logger
from neli_router.errors import ConfigError, NeliError, plain
from neli_router.protocols.protocol import Settings

COMMANDS = {
    "line feed": "\n",
    "carriage return": "\r",
    "escape": "\x1b[2J",
    "nul": "\0",
    "delete": "\x7f",
    "control sequence": "\x9b2J",
    "right to left": "\u202e",
    "isolate": "\u2066",
    "half a character": "\udcff",
}

each_command = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)


@each_command
def test_neither_an_error_nor_a_line_of_the_log_holds_a_command(command: str, caplog: pytest.LogCaptureFixture) -> None:
    shown = plain(f"é 日本 {command} <b>")
    assert (True, True) == (shown.isprintable(), shown.startswith("é 日本 \\") and shown.endswith(" <b>"))
    error = NeliError(f"wanted {command}", f"found {command}", f"do {command}")
    parts = (str(error), error.wanted, error.found, error.remedy, str(pickle.loads(pickle.dumps(error))))  # noqa: S301
    assert all(part.isprintable() for part in parts)
    with pytest.raises(ConfigError, match="the name must be printable text") as refused:
        Settings(name=f"a{command}", layout=Layout())
    assert str(refused.value).isprintable()
    logger().warning("member.suspected", name=f"a{command}", at=7)
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert {"name": plain(f"a{command}"), "at": 7} == vars(record)["fields"]


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """The log lines of a program that configured structlog in its own way."""
    written: list[str] = []

    class Writer:
        def msg(self, line: str) -> None:
            written.append(line)

        warning = msg

    structlog.configure(
        processors=[structlog.processors.KeyValueRenderer(repr_native_str=False)],
        logger_factory=lambda *_: Writer(),
        cache_logger_on_first_use=False,
    )
    yield written
    structlog.reset_defaults()


@each_command
def test_nor_does_one_of_a_structlog_that_the_program_configured(command: str, lines: list[str]) -> None:
    """Its processors see every line, and those of a test that captures its logs do, too."""
    with structlog.testing.capture_logs() as captured:
        logger().warning("member.suspected", name=f"a{command}")
    assert [plain(f"a{command}")] == [line["name"] for line in captured]
    logger().bind(member="b").warning("member.suspected", name=f"a{command}")
    assert [True] == [line.isprintable() for line in lines]
    assert "member=b" in lines[0]


def test_a_program_may_make_its_loggers_by_a_function(lines: list[str]) -> None:
    """Airflow does this."""

    def make(*given: Any, **named: Any) -> structlog.BoundLogger:
        return structlog.BoundLogger(*given, **named)

    structlog.configure(wrapper_class=cast(Any, make))
    logger().warning("member.suspected", name="a\n")
    assert [True] == [line.isprintable() for line in lines]
