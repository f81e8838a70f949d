"""The wall clock that chaos steps: the time of day jumps, and nothing that counts time does."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.wall_clock import WallClock
from tests.conftest import require

pytestmark = pytest.mark.process

PROGRAM = """
import json, sys, threading, time
from neli_router.clock import host_clock

def look():
    return {"day": time.time(), "host": host_clock(), "monotonic": time.monotonic()}

print(json.dumps(look()), flush=True)
sys.stdin.readline()
began_at = host_clock()
threading.Event().wait(0.1)
print(json.dumps({**look(), "waited": host_clock() - began_at}), flush=True)
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
        before: dict[str, Any] = json.loads(process.stdout.readline())
        clock.step(ahead)
        process.stdin.write("go on\n")
        process.stdin.flush()
        after: dict[str, Any] = json.loads(process.stdout.readline())
    passed = {name: after[name] - before[name] for name in before}
    assert passed["day"] - ahead == pytest.approx(passed["host"], abs=0.05)
    assert passed["monotonic"] == pytest.approx(passed["host"], abs=0.05)
    assert 0.1 <= after["waited"] < 60
