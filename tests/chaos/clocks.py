"""Clocks of processes that a test changes: some run at another rate, and the wall clock of some jumps.

    m1 --environment--> bent_clock.c, preloaded by its processes: host_clock() = true time * 1.08955
    m2 --environment--> bent_clock.c                                             true time * 0.91045
    step(+3600) --writes--> [ 8 bytes ] <--maps-- wall_clock.c, preloaded by every process that has its `environment`

A lease is counted on the leader's clock, and the promises to it on the clocks of others. So a group on one machine,
where all processes read the same clock, never shows whether the drift bound is allowed for. The bent clocks agree with
the true ones when the host starts: what a process reads, divided by its rate, is the true time. So its notes are judged
by the true time, too.

If a wall clock is stepped, only the time of day jumps. The clock by which a member counts its leases must not.
"""

import mmap
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["BentClocks", "WallClock", "missing"]


def missing() -> str:
    """Why this machine cannot have such clocks; empty if it can."""
    if sys.platform != "linux":
        return f"clocks are changed by what Linux's loader preloads, and this is {sys.platform}"
    return "" if shutil.which("cc") else "no C compiler (cc) is installed"


def _compiled(name: str, folder: Path) -> str:
    library = str(folder / f"{name}.so")
    source = Path(__file__).with_name(f"{name}.c")
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", library, str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


class BentClocks:
    """`rates` are those of the hosts, by name. The library is built in `folder`."""

    def __init__(self, folder: Path, rates: Mapping[str, float]) -> None:
        self.rates = rates
        self._library = _compiled("bent_clock", folder)

    def environment(self, name: str) -> Mapping[str, str]:
        return {"LD_PRELOAD": self._library, "CLOCK_RATE_PPM": str(round((self.rates[name] - 1) * 1e6))}

    @staticmethod
    def draw(names: Sequence[str], off: float, rng: random.Random) -> Mapping[str, float]:
        """A rate for each host, too slow or too fast by `off`: the extremes, because a group that tolerates them
        tolerates all others. If the number of hosts is odd, most clocks are too fast, so a majority can elect another
        leader while a leader with a slow clock goes on."""
        return {name: 1 + (-off if place % 2 else off) for place, name in enumerate(rng.sample(names, len(names)))}


class WallClock:
    """A wall clock that is at first not ahead of the true time. Its library and its file are made in `folder`."""

    def __init__(self, folder: Path) -> None:
        file = folder / "ahead"
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._ahead = mmap.mmap(opened.fileno(), 8)
        library = _compiled("wall_clock", folder)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": library, "WALL_CLOCK_AHEAD": str(file)}
        """The environment variables of a process that reads this clock."""

    def step(self, seconds: int) -> None:
        """Set the clock that far ahead of the true time from now on."""
        self._ahead[:] = struct.pack("q", seconds)
