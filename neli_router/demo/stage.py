"""The stage: where a story takes place. It keeps the record, hears the workers and tells the audience.

    crew's notes --take--> run (the record) --> is what is awaited there?
                    '----> events -----------> screen

Everything here happens on the main thread, in `wait`: the record needs no lock, and Ctrl-C is noticed at once.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from queue import Empty
from typing import NamedTuple, Protocol

from neli_router.clock import host_clock
from neli_router.demo.crew import Crew, Worker
from neli_router.demo.notes import Fenced, Left, Note, Opened, Order, Woke
from neli_router.demo.record import Deed, DeedKind, Life, Phase, Run

__all__ = ["Event", "Screen", "Stage", "Unfinished", "milliseconds"]

LOOK_EVERY = 0.02
"""Seconds between two looks at what is awaited. It delays the story and no measurement: notes carry their own times."""

ENDS_WITHIN = 5.0
"""Seconds in which a process must have ended after its member has left. An interpreter needs some milliseconds."""


class Event(NamedTuple):
    """One line of the story. `at` is in seconds since it began; `who` is a member's name, or `all`."""

    at: float
    kind: str
    who: str
    text: str


class Screen(Protocol):
    """Where the story is told."""

    def tell(self, event: Event) -> None:
        """Something happened."""

    def refresh(self) -> None:
        """Time has passed."""


class Unfinished(Exception):
    """The story cannot go on. The text says why, in words for the user."""


class Stage:
    """One run's. `run` is what has happened so far."""

    def __init__(self, run: Run, crew: Crew, screen: Screen) -> None:
        self.run, self._crew, self._screen = run, crew, screen
        self._workers: dict[int, tuple[Worker, Life]] = {}

    # What happens

    def tell(self, kind: str, who: str, text: str, *, at: float | None = None) -> None:
        """Tell the audience; `at` is the host's clock, now unless given."""
        moment = host_clock() if at is None else at
        self._screen.tell(Event(moment - self.run.started_at, kind, who, text))

    def wait(self, awaited: Callable[[], bool], at_most: float) -> bool:
        """Wait until it is so, at most for so many seconds; whether it is. Raises Unfinished if a worker is lost."""
        give_up_at = host_clock() + at_most
        while not awaited():
            patience = give_up_at - host_clock()
            if patience <= 0:
                return False
            with suppress(Empty):
                self._take(*self._crew.notes.get(timeout=min(LOOK_EVERY, patience)))
            self._screen.refresh()
        return True

    # What is done

    def start(self, order: Order) -> Life:
        started_at = host_clock()
        try:
            worker = self._crew.hire(order)
        except OSError as error:
            raise Unfinished(f"no process could be started for member {order.name}: {error}") from error
        life = Life(order.name, worker.pid, started_at)
        self._workers[worker.pid] = worker, life
        self.run.lives.append(life)
        return life

    def do(self, kind: DeedKind, life: Life, phase: Phase) -> Deed:
        """Do it to the worker of `life`, which is then in this phase."""
        worker, _ = self._workers[life.pid]
        # Counted from before the signal: what is measured shall not be flattered by the time that sending it takes.
        deed = Deed(kind, life, host_clock(), tuple(sorted(life.held)))
        self.run.deeds.append(deed)
        life.phase = phase
        match kind:
            case DeedKind.KILL:
                worker.kill()
            case DeedKind.STOP:
                worker.stop()
            case DeedKind.WAKE:
                worker.wake()
            case DeedKind.LEAVE:
                worker.ask_to_end()
        return deed

    # What is so

    def led_again(self, deed: Deed) -> bool:
        """Whether all that was taken from a worker by this deed is led by others."""
        others = [life for life in self.run.living if life is not deed.life]
        return all(any(partition in life.held for life in others) for partition in deed.took)

    def is_shared_by(self, names: Collection[str]) -> bool:
        """Whether these members, all of them, lead everything, in equal shares."""
        shares = [len(life.held) for life in self.run.living if life.name in names]
        is_everything = sum(shares) == self.run.partitions
        return len(shares) == len(names) and is_everything and max(shares) - min(shares) <= 1

    def has_ended(self, life: Life) -> bool:
        """Whether the process is no more."""
        return life.pid not in self._workers

    def last_words(self, life: Life) -> str:
        """The last line of the log of a process that has not ended."""
        return self._workers[life.pid][0].last_words if life.pid in self._workers else ""

    # What the workers say

    def _take(self, worker: Worker, note: Note | None) -> None:
        _, life = self._workers[worker.pid]
        if note is None:
            self._end(worker, life)
            return
        life.take(note)
        match note:
            case Opened(at):
                self.tell(
                    "open", life.name, "has opened the ledger, and reads along for a lease before it joins", at=at
                )
            case Woke(at, asleep, refusal):
                answer = f'its lease says: "{refusal}"' if refusal else "its lease still holds"
                self.tell("woke", life.name, f"finds that it has not run for {asleep:.2f} s; {answer}", at=at)
            case Fenced(at, partitions, reason):
                self.tell("fence", life.name, f"is told to stop at once, for {partitions} partitions: {reason}", at=at)
            case Left(at):
                self.tell("left", life.name, "has handed over and left", at=at)
            case _:
                pass  # What is held is shown by itself, and a worker that failed is about to end.

    def _end(self, worker: Worker, life: Life) -> None:
        del self._workers[worker.pid]
        code = worker.end(ENDS_WITHIN)
        if life.phase is Phase.KILLED or (life.phase is Phase.LEFT and code == 0):
            return
        error = life.error or worker.last_words or f"exit code {code}, and its log is empty"
        life.phase = Phase.FAILED
        raise Unfinished(f"member {life.name} (process {life.pid}) failed: {error}")


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"
