"""`neli agent`: how it starts and ends, and how its log reads."""

import json
import signal
import socket
from pathlib import Path

import pytest

from neli_router.hosts.descendants import children
from tests.support.processes.forked import Program
from tests.support.waiting import PATIENCE

PROGRAM = "from neli_router.commands.configuration import agent_command; agent_command()"

LOGGING = """
import logging, sys
from neli_router.commands.configuration import log_to_standard_error
from neli_router.config.agent_options import AgentOptions
from neli_router.core.logs import logger

logging.basicConfig()  # As a library may do, before the agent.
log_to_standard_error(AgentOptions("/run/a.sock", log_format=sys.argv[1]))
logger().info("agent.started", member="alice", led=3)
logging.getLogger("neli_router").debug("agent.detail")
try:
    raise ValueError("a defect")
except ValueError:
    logging.getLogger("asyncio").exception("task %s failed", 7)
"""


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


def test_the_log_is_lines_for_people_or_objects_for_machines(tmp_path: Path) -> None:
    """Also what other libraries say."""
    logs = [Program(LOGGING, log_format, folder=tmp_path).communicate()[1] for log_format in ("console", "json")]
    lines, objects = (log.splitlines() for log in logs)
    assert lines[0].endswith(" INFO    agent.started member=alice led=3")
    started, failed = map(json.loads, objects)
    assert ("info", "agent.started", "alice", 3) == tuple(started[key] for key in ("level", "event", "member", "led"))
    assert ("error", "task 7 failed", True) == (failed["level"], failed["event"], "a defect" in failed["traceback"])
