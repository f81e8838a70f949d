"""Tests of commands share a folder of their own, a stand-in for the agent, and a program that becomes root."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.support.agents.stand_in import StandIn, standing_in


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of the developer's lies here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NELI_CONFIG", raising=False)


@pytest.fixture(name="place")
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The agent that commands ask."""
    with standing_in(tmp_path) as (agent, address):
        monkeypatch.setenv("NELI_AGENT", address)
        yield agent


@pytest.fixture(name="as_root")
def _as_root() -> Iterator[Path]:
    """A program that becomes root, whoever starts it, and does as its arguments say: for others to start, too."""
    setpriv = shutil.which("setpriv")
    require("only root can make a program that becomes root" if os.getuid() else "")
    require("" if setpriv else "there is no setpriv, of util-linux")
    assert setpriv is not None
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # Pytest's own folders are closed to other users.
        Path(folder).chmod(0o755)
        program = Path(shutil.copy(setpriv, folder))
        program.chmod(0o4755)
        require("its folder is mounted with nosuid" if os.statvfs(folder).f_flag & os.ST_NOSUID else "")
        yield program
