"""Chaos: faults for a group of processes, drawn from a seed.

    every half second or so, to a random running process
       kill    kill -9; a while later a new process starts under its name, and must not take it for alive
       stop    stands still, for less than a lease or for several, then continues
       double  stands still, while a new process starts to replace it; then it continues, and there are two

At most `OUT_MAX` names are out of action at a time. The seed fixes what is drawn, but the outcome also depends on the
machine: a failing seed is a good place to look, but it may not fail again.
"""

import heapq
import random
import time
from collections.abc import Callable
from itertools import count

from neli_router.core.clock import host_clock
from neli_router.lab.processes.group import MemberProcess, ProcessGroup
from neli_router.lab.processes.worker import EXIT_REPLACED
from neli_router.lab.referee import Verdict

__all__ = ["Chaos"]

OUT_MAX = 2
"""Out of five: others must remain, or nothing would ever be taken over."""

LATE_MAX = 180.0
"""Seconds by which chaos may be extended until there was something to see: on a busy machine, little happens."""

ASK_EVERY = 2.0
"""Seconds between two checks whether there was something to see. Each check judges all notes."""

LOOK_EVERY = 0.01
"""Seconds between two looks at the notes, and at what is due."""


class Chaos:
    """Turns a group upside down for some seconds, and then lets it settle."""

    def __init__(self, group: ProcessGroup, names: list[str], *, lease: float, seed: int) -> None:
        self.kills = self.doubles = 0
        self.stops: list[float] = []
        """The duration of each stop."""
        self._group, self._names, self._lease = group, names, lease
        self._rng = random.Random(seed)
        self._present: dict[str, MemberProcess] = {}
        self._out: set[str] = set()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()  # Things due at the same time are done in the order they were drawn.

    def run(self, seconds: float, seen: Callable[[Verdict], object]) -> None:
        """Start the group, and let things happen for `seconds`, or longer until the verdict has `seen` something. Then
        let it settle and leave, which must succeed."""
        self._present = {name: self._group.start(name) for name in self._names}
        self._group.settle()
        end = host_clock() + seconds
        give_up_at = end + LATE_MAX
        self._later(self._rng.expovariate(1 / self._lease), self._strike)
        while True:
            while host_clock() < end:
                self._look()
            if end >= give_up_at or seen(self._group.verdict()):
                break
            end = min(host_clock() + ASK_EVERY, give_up_at)
        while self._out:  # Stopped processes continue, and killed ones come back.
            self._look(strikes=False)
        self._group.settle()
        self._group.leave()

    def _strike(self) -> None:
        """Cause one fault, and decide when the next one comes."""
        self._later(self._rng.expovariate(1 / (2 * self._lease)), self._strike)
        if len(self._out) >= OUT_MAX:
            return
        name = self._rng.choice([name for name in self._names if name not in self._out])
        self._out.add(name)
        length = self._lease * self._rng.uniform(0.2, 4)
        kind = self._rng.choices(["kill", "stop", "double"], [5, 4, 1])[0]
        if kind == "double" and not self._present[name].life.held:
            kind = "stop"  # If it never was a member, it may join after the newer process, and is then the newer.
        match kind:
            case "kill":
                self.kills += 1
                self._present[name].kill()
                self._later(length, lambda: self._start_anew(name))
            case "stop":
                stopped_at = self._present[name].stop()
                self._later(length, lambda: self._resume(name, stopped_at))
            case "double":
                self.doubles += 1
                older = self._present[name]
                older.stop()
                self._start_anew(name, replace=True)
                self._out.add(name)
                self._later(length, lambda: self._let_two_live(name, older))

    def _start_anew(self, name: str, *, replace: bool = False) -> None:
        self._present[name] = self._group.start(name, replace=replace)
        self._out.discard(name)

    def _resume(self, name: str, stopped_at: float) -> None:
        self.stops.append(self._present[name].resume() - stopped_at)
        self._out.discard(name)

    def _let_two_live(self, name: str, older: MemberProcess) -> None:
        """The older process ends on its own: when the newer one joins, or now if it has joined already."""
        older.resume()
        label = older.life.label
        self._group.wait_until(lambda: not older.is_running, f"{label} was to end, being replaced")
        assert EXIT_REPLACED == older.exit_code(), f"{label} ended with\n{older.log}"
        self._out.discard(name)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (host_clock() + seconds, next(self._order), act))

    def _look(self, *, strikes: bool = True) -> None:
        """Do what is due, and read the new notes."""
        while self._due and self._due[0][0] <= host_clock():
            _, _, act = heapq.heappop(self._due)
            if strikes or act != self._strike:
                act()
        self._group.read_notes()
        for name, process in self._present.items():
            assert process.is_running or name in self._out, f"{process.life.label} ended with\n{process.log}"
        time.sleep(LOOK_EVERY)
