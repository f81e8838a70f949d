"""The number of calls for a lease's check, for a pump's turn that reads a Beat, and for a client's block of work.

Every call of one of our functions is a hop for the reader and a cost for the interpreter. Calls are counted, not timed,
so the figures are the same on any machine, except for the threads behind a client, for which the median is used. The
benchmark uses only public names, so the same file also counts on an older commit:

    PYTHONPATH=/path/to/older/checkout python benchmarks/hops.py
"""

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from subprocess import DEVNULL, Popen
from types import FrameType

import neli_router
from neli_router import Config, Member
from neli_router.agent import Client
from neli_router.errors import NeliError

__all__ = ["Options", "run"]

HOME = neli_router.__file__.rpartition("/")[0]
LEASE = 1.0
TURN = ("pump.py", "turn")
DECODE = ("records.py", "decode")


class _Counter:
    """Counts calls of our functions on the caller's thread, and on every thread that starts while it counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.turns: list[int] = []
        self._inside: dict[int, tuple[FrameType, int, int]] = {}
        """Thread -> its current turn, the calls so far, and the records that it decoded."""

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if not path.startswith(HOME):
            return
        thread, function = threading.get_ident(), (path.rpartition("/")[2], name)
        if event == "call":
            self.calls += 1
            if function == TURN:
                self._inside[thread] = frame, 0, 0
            elif thread in self._inside:
                turn, calls, decoded = self._inside[thread]
                self._inside[thread] = turn, calls + 1, decoded + (function == DECODE)
        elif event == "return" and self._inside.get(thread, (None,))[0] is frame:
            _, calls, decoded = self._inside.pop(thread)
            if decoded == 1:
                self.turns.append(calls)

    @contextmanager
    def counting(self) -> Iterator[None]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


@dataclass(frozen=True)
class Options:
    trials: int = 20


def run(options: Options) -> dict[str, float | int | str | bool | None]:
    trials = max(1, options.trials)
    with tempfile.TemporaryDirectory() as folder:
        turn, check = _of_a_member(f"sqlite://{folder}/member.db", trials)
        client = _of_a_client(folder, trials)
    return {"check_calls": check, "turn_with_a_beat_calls_median": turn, "client_leading_calls_median": client}


def _of_a_member(ledger: str, trials: int) -> tuple[float, int]:
    turns, check = _Counter(), _Counter()
    with turns.counting():  # The member's threads start here, and are counted for as long as they live.
        member = Member(Config(ledger, name="a", lease=LEASE))
    with member, member.leading("role") as lease:
        with check.counting():
            lease.check()
        first = len(turns.turns)
        _until(lambda: len(turns.turns) >= first + trials)
        return median(turns.turns[first:]), check.calls


def _of_a_client(folder: str, trials: int) -> float:
    neli = [sys.executable, "-c", "import sys; from neli_router.commands.cli import main; sys.argv[0] = 'neli'; main()"]
    options = ["--ledger", f"sqlite://{folder}/agent.db", "--socket", f"{folder}/agent.sock", "--lease", str(LEASE)]
    agent = Popen([*neli, "agent", *options], stdout=DEVNULL, stderr=DEVNULL)
    try:
        counts = []
        with Client(f"{folder}/agent.sock") as client:
            _until(lambda: _leads(client))
            for _ in range(trials):
                counter = _Counter()
                with counter.counting(), client.leading("role") as lease:
                    lease.check()
                counts.append(counter.calls)
        return median(counts)
    finally:
        agent.terminate()
        agent.wait()


def _leads(client: Client) -> bool:
    try:
        with client.leading("role", timeout=1.0):
            return True
    except NeliError:
        return False


def _until(ready: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 60
    while not ready():
        if time.monotonic() > give_up_at:
            raise TimeoutError("no member beats and leads within a minute")
        time.sleep(0.05)


if __name__ == "__main__":
    print(run(Options()))
