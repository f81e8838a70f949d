"""Fixtures for tests of commands: an empty folder, and a stand-in for the agent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agents.stand_in import StandIn, standing_in


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder without the developer's configuration."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(name="place")
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The agent that commands ask."""
    with standing_in(tmp_path) as (agent, address):
        monkeypatch.setenv("NELI_AGENT", address)
        yield agent
