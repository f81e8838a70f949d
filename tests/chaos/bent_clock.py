"""Hosts whose clocks run at different rates, while the test's own is right.

    m1 --environment--> bent_clock.c, preloaded by its processes: host_clock() = true time * 1.08955
    m2 --environment--> bent_clock.c                                             true time * 0.91045

A lease is counted on the leader's clock, and the promises to it on others'. So a group of one machine, where all read
one clock, never shows whether the bound of drift is allowed for. The bent clocks start with the host, as the true ones
do: what a process reads, divided by its rate, is the true time. So its notes are judged by the true time, too.
"""

import random
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["BentClocks"]

SOURCE = Path(__file__).with_name("bent_clock.c")


class BentClocks:
    """`rates` are those of the hosts, by name. The library is made in `folder`."""

    def __init__(self, folder: Path, rates: Mapping[str, float]) -> None:
        self.rates = rates
        self._library = folder / "bent_clock.so"
        subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-o", str(self._library), str(SOURCE), "-ldl"],  # noqa: S607
            check=True,
            capture_output=True,
        )

    def environment(self, name: str) -> Mapping[str, str]:
        """Of the processes of that host."""
        return {"LD_PRELOAD": str(self._library), "CLOCK_RATE_PPM": str(round((self.rates[name] - 1) * 1e6))}

    @staticmethod
    def draw(names: Sequence[str], off: float, rng: random.Random) -> Mapping[str, float]:
        """A rate for each host, too slow or too fast by `off`: the extremes, because whoever bears them bears the rest.
        Of an odd number most are too fast: so a majority can elect another beside a leader whose clock is slow."""
        shuffled = rng.sample(names, len(names))
        return {name: 1 + (-off if place % 2 else off) for place, name in enumerate(shuffled)}

    @staticmethod
    def missing() -> str:
        """Why there can be no such clocks here, or nothing."""
        if sys.platform != "linux":
            return f"clocks are bent by what Linux's loader preloads, and this is {sys.platform}"
        return "" if shutil.which("cc") else "no C compiler (cc) is installed"
