"""`neli agent`: how it starts and ends, and how its log reads."""

import io
import json
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neli_router.commands.configuration import log_to_standard_error
from neli_router.config.agent_options import AgentOptions
from neli_router.core.logs import logger
from neli_router.hosts.descendants import children
from tests.support.processes.forked import Program
from tests.support.waiting import PATIENCE

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


@pytest.mark.process
def test_an_agent_starts_reads_its_configuration_again_and_ends(tmp_path: Path) -> None:
    """A real process: SIGHUP changes the weight and names what needs a restart; SIGTERM ends it with 0."""
    file = tmp_path / "neli.toml"

    def write(more: str) -> None:
        text = f'ledger = "sqlite://{tmp_path}/jobs.db"\nname = "alice"\n{more}\n[agent]\nlog_format = "json"\n'
        file.write_text(f'{text}socket = "{tmp_path}/agent.sock"\n', encoding="utf-8")

    write("lease = 0.2")
    with Program(PROGRAM, "--config", str(file), folder=tmp_path) as process:
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
        assert 0 == process.wait(PATIENCE)


@pytest.mark.usefixtures("own_log")
def test_the_log_is_lines_for_people_or_objects_for_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what other libraries say."""
    written = dict[str, io.StringIO]()
    for log_format in ("console", "json"):
        written[log_format] = io.StringIO()
        monkeypatch.setattr(sys, "stderr", written[log_format])
        log_to_standard_error(AgentOptions("/run/a.sock", log_format=log_format))
        logger().info("agent.started", member="alice", led=3)
        logging.getLogger("neli_router").debug("agent.detail")
    assert written["console"].getvalue().endswith(" INFO    agent.started member=alice led=3\n")
    found = json.loads(written["json"].getvalue())
    assert ("info", "agent.started", "alice", 3) == tuple(found[key] for key in ("level", "event", "member", "led"))
    try:
        raise ValueError("a defect")
    except ValueError:
        logging.getLogger("asyncio").exception("task %s failed", 7)
    found = json.loads(written["json"].getvalue().splitlines()[-1])
    assert ("error", "task 7 failed", True) == (found["level"], found["event"], "a defect" in found["traceback"])
