"""`neli agent`: what it refuses before it starts, and how its log reads."""

import io
import json
import logging
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from neli_router.commands.configuration import log_to_standard_error
from neli_router.config.agent_options import AgentOptions
from neli_router.core.logs import logger
from neli_router.hosts.descendants import children
from tests.support.commands import neli
from tests.support.processes.forked import Program, without_neli

PROGRAM = "from neli_router.commands.configuration import agent_command; agent_command()"


@pytest.fixture
def own_log() -> Iterator[None]:
    """Restores the process's logging afterwards."""
    root, ours = logging.getLogger(), logging.getLogger("neli_router")
    before = root.handlers[:], root.level, ours.level
    root.handlers[:] = []  # Otherwise `force` would close the handlers of pytest.
    yield
    root.handlers[:], level, ours_level = before
    root.setLevel(level)
    ours.setLevel(ours_level)


@pytest.mark.usefixtures("own_log")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--lease", "long", "--socket", "here"),
            "lease='long' must be a number of seconds above 0 (flag --lease)",
        ),
        (
            ("--ledger", "memory://jobs"),
            "is within one process, so no other member could join this agent's group: name",
        ),
        (("--ledger", "sqlite::memory:"), "would be in memory, where no other connection finds it: name a file, or"),
        (("--ledger", "sqlite:///:memory:"), "would be in memory, where no other connection finds it: name a file"),
        (("--socket", ""), "the agent would listen nowhere: name a socket, or an address to listen on\n"),
    ],
)
def test_a_configuration_that_is_not_usable_is_refused_with_every_problem(words: Sequence[str], said: str) -> None:
    result = neli("agent", "--ledger", "sqlite:jobs.db", *words)
    assert (2, len(words) // 2, True) == (result.exit_code, len(result.stderr.splitlines()), said in result.stderr)


@pytest.mark.process
def test_an_agent_starts_reads_its_configuration_again_and_ends(tmp_path: Path) -> None:
    """A real process: SIGHUP changes the weight and names what needs a restart; SIGTERM ends it with 0."""
    file = tmp_path / "neli.toml"

    def write(more: str) -> None:
        text = f'ledger = "sqlite://{tmp_path}/jobs.db"\nname = "alice"\n{more}\n[agent]\nlog_format = "json"\n'
        file.write_text(f'{text}socket = "{tmp_path}/agent.sock"\n', encoding="utf-8")

    write("lease = 0.2")
    with Program(PROGRAM, "--config", str(file), folder=tmp_path, environment=without_neli()) as process:
        events = (json.loads(line) for line in process.stderr)
        assert "agent.started" in (event["event"] for event in events)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{tmp_path}/agent.sock")
        assert [] == children(process.pid)  # It starts a witness only on request.
        write("lease = 0.4\nweight = 3")
        process.send_signal(signal.SIGHUP)
        waiting = next(event for event in events if event["event"] == "agent.restart_wanted")
        assert "lease" == waiting["options"]
        reloaded = next(event for event in events if event["event"] == "agent.reloaded")
        assert 3 == reloaded["weight"]
        process.send_signal(signal.SIGTERM)
        assert "agent.stopped" in (event["event"] for event in events)
        assert 0 == process.wait(60)


@pytest.mark.usefixtures("own_log")
def test_the_log_is_lines_for_people_or_objects_for_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    written = {}
    for log_format in ("console", "json"):
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        options = AgentOptions("/run/a.sock", log_format=log_format)
        log_to_standard_error(options)
        logger().info("agent.started", member="alice", led=3)
        logger().debug("agent.detail")
        written[log_format] = stream.getvalue()
    assert written["console"].endswith(" INFO    agent.started member=alice led=3\n")
    found = json.loads(written["json"])
    assert ("info", "agent.started", "alice", 3) == tuple(found[key] for key in ("level", "event", "member", "led"))


@pytest.mark.usefixtures("own_log")
def test_what_other_libraries_say_is_an_object_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    log_to_standard_error(AgentOptions("/run/a.sock", log_format="json"))
    try:
        raise ValueError("a defect")
    except ValueError:
        logging.getLogger("asyncio").exception("task %s failed", 7)
    found = json.loads(stream.getvalue())
    assert ("error", "task 7 failed", True) == (found["level"], found["event"], "a defect" in found["traceback"])
