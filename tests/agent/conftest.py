"""Fixtures that the tests of the agent share: an agent that is a member, alone in its group, and leads all of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from neli_router.settings.agent_options import AgentOptions
from tests.support.agents.running import PARTITIONS, STEADY, TOKEN, Running, configured, running
from tests.support.waiting import until


@pytest.fixture(name="socket")
def path(tmp_path: Path) -> str:
    return str(tmp_path / "agent.sock")


@pytest.fixture(name="agent", scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """On both kinds of socket. Shared by a module's tests, which leave it as they found it."""
    folder = tmp_path_factory.mktemp("agent")
    options = AgentOptions(socket=str(folder / "agent.sock"), listen="127.0.0.1:0", token=TOKEN)
    with running(configured(folder, lease=STEADY), options) as agent:
        until(lambda: PARTITIONS == len(agent.agent.member.led), "the lead of all partitions")
        yield agent
