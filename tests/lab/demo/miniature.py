"""The demo's story in virtual time: real members in memory, the processes' own workers, and a clock moved by hand.

    testing.group --events--> Worker (of each process) --notes--> Life --> Run, which checks and screens are given
        ^---- every STEP: members take their turns, then each running process looks at its leases

No process is started and no real time passes, so a run is the same every time, to the last digit.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from neli_router import testing
from neli_router.drivers.ledgers.memory import MemoryLedger
from neli_router.lab.demo.scene import Action, ActionKind, Pause, Run
from neli_router.lab.processes.worker import Worker
from neli_router.lab.referee import Life, LifePhase
from neli_router.status.notes import Left, Note
from neli_router.testing import Group

__all__ = ["NAMES", "STEP", "Miniature", "miniature", "whole_story"]

NAMES = ("alpha", "bravo", "charlie")
STEP = 0.02
REST_LEASES = 6


class Miniature:
    """One run, with processes numbered from 101. Create it with `miniature`."""

    def __init__(self, partitions: int, lease: float) -> None:
        self.run = Run(partitions, lease, 0.0)
        self.notes: list[Note] = []
        self.workers: dict[str, Worker] = {}
        self.group: Group
        self._lives: dict[str, Life] = {}

    def begin(self, name: str) -> None:
        label = f"{name}.{1 + sum(life.name == name for life in self.run.lives)}"
        life = Life(label, 101 + len(self.run.lives), self.group.now, LifePhase.MEMBER)
        self.run.lives.append(life)

        def note(note: Note) -> None:
            self.notes.append(note)
            life.hear(note)

        self._lives[name] = life
        self.workers[name] = Worker(note, lambda: self.group.now, asleep_min=self.run.lease)

    def advance(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP)):
            self.group.advance(STEP)
            for name, life in self._lives.items():
                if life.phase is LifePhase.MEMBER:
                    self.workers[name].look(self.group[name].lease, self.group[name].led)
            self._route()

    def rest(self, *names: str) -> None:
        """Let things settle; after that, these should share everything."""
        self.advance(REST_LEASES * self.run.lease)
        self.run.pauses.append(Pause(self.group.now, names))
        self.advance(STEP)  # The next event happens later.

    def kill(self, name: str) -> None:
        self._do(ActionKind.KILL, name, LifePhase.KILLED)
        self.group.kill(name)

    def restart(self, name: str) -> None:
        self.begin(name)
        self.group.restart(name)

    def stop(self, name: str) -> None:
        self._do(ActionKind.STOP, name, LifePhase.STOPPED)
        self.group.pause(name)

    def wake(self, name: str) -> None:
        self._do(ActionKind.WAKE, name, LifePhase.MEMBER)
        self.group.resume(name)

    def leave(self, name: str) -> None:
        self._do(ActionKind.LEAVE, name, LifePhase.LEAVING)
        self.group[name].close()
        self._lives[name].hear(Left(self.group.now))

    def _do(self, kind: ActionKind, name: str, phase: LifePhase) -> None:
        life = self._lives[name]
        self.run.actions.append(Action(kind, life, self.group.now, tuple(sorted(life.held))))
        life.phase = phase

    def _route(self) -> None:
        routed = self.run.routed
        for key in ("user-1", "user-2"):
            if (name := self.group.owner(key)) is not None:
                routed.lookups, routed.seconds = routed.lookups + 1, routed.seconds + 0.25e-6
                routed.answers[name] = routed.answers.get(name, 0) + 1
                routed.samples[key] = name


@contextmanager
def miniature(*, partitions: int = 12, lease: float = 1.0) -> Iterator[Miniature]:
    """A miniature in which all of NAMES have started."""
    made = Miniature(partitions, lease)
    handlers = {name: lambda event, name=name: made.workers[name].on_event(event) for name in NAMES}
    with testing.group(partitions=partitions, lease=lease) as made.group:
        for name in NAMES:
            made.begin(name)
            made.group.join(name, on_event=handlers[name])
        yield made


def whole_story() -> Run:
    """A run in which everything is as it should be."""
    with miniature() as small:
        small.rest(*NAMES)
        small.kill("alpha")
        small.rest("bravo", "charlie")
        small.restart("alpha")
        small.rest(*NAMES)
        small.stop("bravo")
        small.rest("alpha", "charlie")
        small.wake("bravo")
        small.rest(*NAMES)
        small.leave("charlie")
        small.rest("alpha", "bravo")
        small.run.ledger = MemoryLedger(small.group.log).read(0.0)
        return small.run
