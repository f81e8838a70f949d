"""A process counts and waits only by its bent clock; if a wall clock is stepped, only the time of day jumps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from neli_router.core.clock import host_clock
from tests.chaos.clocks import BentClocks, WallClock, missing
from tests.conftest import require

pytestmark = pytest.mark.process

WAITED = 0.1

SLEWED = 0.05
"""Seconds by which NTP may slew a clock meanwhile."""

PROGRAM = f"""
import json, select, threading, time
from neli_router.core.clock import host_clock

def condition():
    one = threading.Condition()
    with one:
        one.wait({WAITED})

def passed(wait):
    # The day around the clocks: however long a reading takes, no less passed by the day than by them.
    day, monotonic, host = time.time(), time.monotonic(), host_clock()
    wait()
    return [host_clock() - host, time.monotonic() - monotonic, time.time() - day]

def shortest(wait):
    # On a busy machine a thread may be late. One that waits by another clock is late each time.
    tries = []
    while len(tries) < 50 and not (tries and tries[-1][0] < 1.3 * {WAITED}):
        tries.append(passed(wait))
    return min(tries)

waits = [
    lambda: time.sleep({WAITED}),
    lambda: threading.Event().wait({WAITED}),
    condition,
    lambda: select.poll().poll({WAITED} * 1000),
    lambda: select.select([], [], [], {WAITED}),
    lambda: select.epoll().poll({WAITED}),
]
print(json.dumps([host_clock(), *map(shortest, waits)]))
"""


@pytest.mark.parametrize("rate", [0.5, 2.0])
def test_a_process_counts_and_waits_by_its_bent_clock(tmp_path: Path, rate: float) -> None:
    require(missing())
    began_at = host_clock()
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": str(Path(__file__).parents[2]), **BentClocks(tmp_path, {"m1": rate}).environment("m1")},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    read_at, *waits = json.loads(said.stdout)
    # Its reading, divided by the rate, is the true time: ours, which is not bent.
    assert began_at < read_at / rate < host_clock()
    for host, monotonic, day in waits:
        assert 0.99 * WAITED <= host < 1.3 * WAITED
        assert 0.99 * WAITED <= monotonic
        assert host / rate <= day + SLEWED
        assert monotonic / rate <= day + SLEWED


LOOKER = """
import json, sys, threading, time
from neli_router.core.clock import host_clock

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
    require(missing())
    clock = WallClock(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", LOOKER],
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
    # The other clocks were read between two readings of the host's clock, however long that took.
    shortest, longest = after[0] - before[-1] - SLEWED, after[-1] - before[0] + SLEWED
    day, monotonic = (after[clock] - before[clock] for clock in (1, 2))
    assert shortest <= day - ahead <= longest
    assert shortest <= monotonic <= longest
    assert 0.1 - SLEWED <= waited
