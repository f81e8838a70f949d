"""A contest: three processes that want one role from one server. Each notes when it has the role, or has lost it.

with Contest(rival, address, setting) as contest:      settled: one holds it, the others wait
    contest.takeover(rng)                              kill -9 of the holder ... the next one holds it
    contest.look()                                     who lost it, or got it, without a kill: `false_expiries`
"""

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from benchmarks._peers.contender import Note, NoteReader
from neli_router.core.clock import host_clock
from tests.support.waiting import PATIENCE

__all__ = ["Contest"]

ROOT = Path(__file__).resolve().parents[2]
CONTENDERS = 3
LOOK_EVERY = 0.005


class Contender:
    """One process of the contest, from its start to its kill."""

    def __init__(self, folder: Path, name: str, order: dict[str, object]) -> None:
        self.name = name
        self.waits = self.holds = False
        notes = folder / f"{name}.notes"
        self._reader = NoteReader(notes)
        self.complaints = folder / f"{name}.stderr"
        with self.complaints.open("wb") as complaints:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "benchmarks._peers.contender",
                    json.dumps({**order, "notes": str(notes), "name": name}),
                ],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stderr=complaints,
            )

    def fresh(self) -> list[Note]:
        notes = self._reader.fresh()
        for note in notes:
            self.waits, self.holds = note.kind == "waits", note.kind == "holds"
        return notes

    def kill(self) -> float:
        """Kill the process with -9; return the time just before."""
        at = host_clock()
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        return at


class Contest:
    """Three contenders of one rival, at one setting in seconds."""

    def __init__(self, rival: str, address: str, setting: float) -> None:
        self.rival, self.setting = rival, setting
        self._order: dict[str, object] = {"rival": rival, "address": address, "setting": setting}
        self._stack = ExitStack()
        self._started = 0
        self._present: list[Contender] = []
        self.false_expiries = 0

    def __enter__(self) -> Self:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="neli-contest-")))
        for _ in range(CONTENDERS):
            self._start()
        self._await(self._is_settled, "one of three was to hold the role")
        return self

    def __exit__(self, *_: object) -> None:
        for contender in self._present:
            contender.kill()
        self._stack.close()

    def look(self) -> None:
        """Count what was lost or passed on, although no process was killed."""
        for contender in self._present:
            self.false_expiries += sum(note.kind in ("lost", "holds") for note in contender.fresh())

    def takeover(self, rng: random.Random) -> float:
        """Kill the holder at a random moment; return seconds until another process holds the role."""
        time.sleep(self.setting * rng.random())
        self.look()
        self._await(self._is_settled, "one was to hold the role")
        holder = next(contender for contender in self._present if contender.holds)
        killed_at = holder.kill()
        self._present.remove(holder)
        held: list[float] = []

        def is_held() -> bool:
            held.extend(note.at for it in self._present for note in it.fresh() if note.kind == "holds")
            return bool(held)

        self._await(is_held, "another was to hold the role")
        self._start()
        self._await(self._is_settled, "three were to contend again")
        return min(held) - killed_at

    def _start(self) -> None:
        self._started += 1
        self._present.append(Contender(self._folder, f"c{self._started}", self._order))

    def _is_settled(self) -> bool:
        for contender in self._present:
            contender.fresh()
        return sum(it.holds for it in self._present) == 1 and all(it.holds or it.waits for it in self._present)

    def _await(self, ready: Callable[[], bool], wanted: str) -> None:
        give_up_at = host_clock() + PATIENCE
        while not ready():
            if host_clock() >= give_up_at:
                said = "\n".join(it.complaints.read_text(errors="replace")[-2000:] for it in self._present)
                raise TimeoutError(f"{wanted} from {self.rival} within {PATIENCE:g} s:\n{said}")
            time.sleep(LOOK_EVERY)
