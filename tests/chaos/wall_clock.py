"""The wall clock of some processes, which a test steps while they run.

    step(+3600) --writes--> [ 8 bytes ] <--maps-- wall_clock.c, preloaded by every process that has `environment`

Only the time of day jumps. The clock by which a member counts its leases must not, and this shows that it does not.
"""

import mmap
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["WallClock"]

SOURCE = Path(__file__).with_name("wall_clock.c")


class WallClock:
    """Ahead of the true time by nothing at first. Its library and its file are made in `folder`."""

    def __init__(self, folder: Path) -> None:
        library, file = folder / "wall_clock.so", folder / "ahead"
        subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"],  # noqa: S607
            check=True,
            capture_output=True,
        )
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._ahead = mmap.mmap(opened.fileno(), 8)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), "WALL_CLOCK_AHEAD": str(file)}
        """Of the processes that shall live by it."""

    def step(self, seconds: int) -> None:
        """From now on it is that much ahead of the true time."""
        self._ahead[:] = struct.pack("q", seconds)

    @staticmethod
    def missing() -> str:
        """Why there can be no such clock here, or nothing."""
        if sys.platform != "linux":
            return f"clocks are stepped by what Linux's loader preloads, and this is {sys.platform}"
        return "" if shutil.which("cc") else "no C compiler (cc) is installed"
