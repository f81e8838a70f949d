"""Clocks that are bent: a process counts and waits by them and by no other, and the time of day stays."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from neli_router.clock import host_clock
from tests.chaos.bent_clock import BentClocks
from tests.conftest import require

pytestmark = pytest.mark.process

WAITED = 0.1
"""Seconds of each wait."""

SLEWED = 0.05
"""Seconds by which NTP may bend the time of day meanwhile."""

PROGRAM = f"""
import json, select, threading, time
from neli_router.clock import host_clock

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


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0])
def test_a_process_counts_and_waits_by_its_bent_clock(tmp_path: Path, rate: float) -> None:
    require(BentClocks.missing())
    began_at = host_clock()
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PYTHONPATH": str(Path(__file__).parents[2]), **BentClocks(tmp_path, {"m1": rate}).environment("m1")},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    read_at, *waits = json.loads(said.stdout)
    # What it read, divided by the rate, is the true time: ours, which is not bent.
    assert began_at < read_at / rate < host_clock()
    for host, monotonic, day in waits:
        assert 0.99 * WAITED <= host < 1.3 * WAITED
        assert 0.99 * WAITED <= monotonic
        assert host / rate <= day + SLEWED
        assert monotonic / rate <= day + SLEWED
