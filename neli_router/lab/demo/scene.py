"""The scene: where the story takes place. It reads the processes' notes, keeps the run's record and feeds the screen.

    notes of the processes --> Run: lives, actions, pauses, look-ups, records --> is what is awaited there?
                         '---> events --> screen

Everything here happens on the main thread, in `wait`: the record needs no lock, and Ctrl-C takes effect immediately.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Protocol

from neli_router.core.clock import host_clock
from neli_router.drivers.ledgers.base import Entry
from neli_router.lab.demo.traffic import LookUps
from neli_router.lab.processes.group import MemberProcess, ProcessGroup, shared_by
from neli_router.lab.referee import Life, LifePhase
from neli_router.status.notes import Halted, Left, Opened, Woke

__all__ = ["Action", "ActionKind", "Pause", "Run", "Scene", "Screen", "StoryEvent", "Unfinished"]

LOOK_EVERY = 0.02
"""Seconds between two looks at what is awaited. It delays the story but no measurement: notes carry their own times."""

ActionKind = Enum("ActionKind", "KILL STOP WAKE LEAVE")


@dataclass(frozen=True, slots=True)
class Action:
    """Something that the demo did to a process, at `at` or just after it."""

    kind: ActionKind
    life: Life
    at: float
    took: Sequence[int] = ()
    """The partitions the process led at that time."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A moment at which nothing was moving, with the names of the members that should have shared everything."""

    at: float
    sharing: Sequence[str]


@dataclass(slots=True)
class Run:
    """All that happened, for checks and screens."""

    partitions: int
    lease: float
    started_at: float
    lives: list[Life] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    routed: LookUps = field(default_factory=LookUps)
    ledger: Sequence[Entry] = ()
    """The ledger's records, read once more at the end."""
    unfinished: str = ""
    """Why the story did not finish; empty if it did."""

    @property
    def living(self) -> list[Life]:
        """Members whose process runs and has not begun to leave."""
        return [life for life in self.lives if life.phase is LifePhase.MEMBER]


class StoryEvent(NamedTuple):
    """One line of the story. `at` is in seconds since it began; `who` is a member's name, or `all`."""

    at: float
    kind: str
    who: str
    text: str


class Screen(Protocol):
    """Where the story is shown."""

    def tell(self, event: StoryEvent) -> None:
        """Something happened."""

    def refresh(self) -> None:
        """Time has passed."""


class Unfinished(Exception):
    """The story cannot go on. The text says why, in words for the user."""


class Scene:
    """One run of the demo. `run` is what has happened so far."""

    def __init__(self, run: Run, group: ProcessGroup, screen: Screen) -> None:
        self.run, self._group, self._screen = run, group, screen
        self._present: dict[str, MemberProcess] = {}

    def tell(self, kind: str, who: str, text: str, *, at: float | None = None) -> None:
        """Show an event to the audience; `at` is the host's clock, now unless given."""
        moment = host_clock() if at is None else at
        self._screen.tell(StoryEvent(moment - self.run.started_at, kind, who, text))

    def wait(self, awaited: Callable[[], bool], at_most: float) -> bool:
        """Wait up to `at_most` seconds for `awaited`; return whether it holds. Raises Unfinished if a process fails."""
        give_up_at = host_clock() + at_most
        while not awaited():
            patience = give_up_at - host_clock()
            if patience <= 0:
                return False
            time.sleep(min(LOOK_EVERY, patience))
            self._listen()
            self._screen.refresh()
        return True

    def start(self, name: str) -> Life:
        try:
            process = self._present[name] = self._group.start(name)
        except OSError as error:
            raise Unfinished(f"no process could be started for member {name}: {error}") from error
        self.run.lives.append(process.life)
        return process.life

    def do(self, kind: ActionKind, name: str) -> Action:
        """Do it to the current process of that member."""
        process = self._present[name]
        # Counted from before the signal: the time that sending it takes must not flatter a measurement.
        action = Action(kind, process.life, host_clock(), tuple(sorted(process.life.held)))
        self.run.actions.append(action)
        match kind:
            case ActionKind.KILL:
                process.kill()
            case ActionKind.STOP:
                process.stop(at_rest=Path(self._group.ledger.partition(":")[2]))
            case ActionKind.WAKE:
                process.resume()
            case ActionKind.LEAVE:
                process.ask_to_leave()
        return action

    def is_shared_by(self, names: Collection[str]) -> bool:
        """Whether exactly these members lead everything, in equal shares."""
        sharing = [life for life in self.run.living if life.name in names]
        return len(sharing) == len(names) and shared_by(sharing, self.run.partitions)

    def has_ended(self, life: Life) -> bool:
        """Whether the process has ended."""
        return self._present[life.name].has_ended

    def last_words(self, life: Life) -> str:
        """The last line of the process's log: also what an interpreter prints that could not even run the module."""
        return next(reversed(self._present[life.name].log.strip().splitlines()), "")

    def _listen(self) -> None:
        for process, note in self._group.read_notes():
            name = process.life.name
            match note:
                case Opened(at):
                    self.tell("open", name, "has opened the ledger, and reads along for a lease before it joins", at=at)
                case Woke(at, asleep, refusal):
                    answer = f'its lease says: "{refusal}"' if refusal else "its lease still holds"
                    self.tell("woke", name, f"finds that it has not run for {asleep:.2f} s; {answer}", at=at)
                case Halted(at, count, reason):
                    self.tell("fence", name, f"is fenced for {count} partitions: {reason}", at=at)
                case Left(at):
                    self.tell("left", name, "has handed over and left", at=at)
                case _:
                    pass  # The screen shows what is held, and a process that failed is about to end.
        for life, process in ((process.life, process) for process in self._present.values() if process.has_ended):
            code = process.exit_code()
            if life.phase is not LifePhase.KILLED and (life.phase is not LifePhase.LEFT or code):
                error = life.error or self.last_words(life) or f"exit code {code}, and its log is empty"
                life.phase = LifePhase.FAILED
                raise Unfinished(f"member {life.name} (process {life.pid}) failed: {error}")
