"""What tests of commands share: a program that becomes root, for other users to start."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require


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
