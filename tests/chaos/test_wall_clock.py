"""The wall clock that chaos steps: the time of day jumps, and nothing that counts time does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.wall_clock import WallClock
from tests.conftest import require

pytestmark = pytest.mark.process

SLEWED = 0.05
"""Seconds by which NTP may bend one of the clocks meanwhile."""

PROGRAM = """
import json, sys, threading, time
from neli_router.clock import host_clock

def look():
    return [host_clock(), time.time(), time.monotonic(), host_clock()]

print(json.dumps(look()), flush=True)
sys.stdin.readline()
began_at = host_clock()
threading.Event().wait(0.1)
print(json.dumps([*look(), host_clock() - began_at]), flush=True)
"""


@pytest.mark.parametrize("ahead", [-86_400, 3600])
def test_the_time_of_day_jumps_and_nothing_else_does(tmp_path: Path, ahead: int) -> None:
    require(WallClock.missing())
    clock = WallClock(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": str(Path(__file__).parents[2]), **clock.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before: list[float] = json.loads(process.stdout.readline())
        clock.step(ahead)
        process.stdin.write("go on\n")
        process.stdin.flush()
        *after, waited = json.loads(process.stdout.readline())
    # The other clocks were read between two readings of the host's: however long those took, these passed in between.
    shortest, longest = after[0] - before[-1] - SLEWED, after[-1] - before[0] + SLEWED
    day, monotonic = (after[clock] - before[clock] for clock in (1, 2))
    assert shortest <= day - ahead <= longest
    assert shortest <= monotonic <= longest
    assert 0.1 - SLEWED <= waited
