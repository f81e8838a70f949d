"""The record of a run: what the workers noted, what was done to them, and what was routed. Checks and screens read it.

    Run -- lives --> Life (one process, from its start to its end) -- tenures --> Tenure
        |- deeds ---> Deed: a process was killed, stopped, woken up or asked to leave
        |- pauses --> Pause: nothing is on the move, and so every partition should be led
        |- routed --> Routed: the look-ups that were made all along
        '- ledger --> its records, read once more at the end

A `Tenure` is one time that one process may act for one partition: from `start`, until `end`. While it is open, `end` is
where it ends if nothing more is heard from the process.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from neli_router.demo.notes import Ended, Failed, Fenced, Held, Left, Note, Opened, Renewed, Woke
from neli_router.induction.records import Record

__all__ = ["Deed", "DeedKind", "Life", "Pause", "Phase", "Routed", "Run", "Tenure"]

Phase = Enum("Phase", "STARTING MEMBER STOPPED KILLED LEAVING LEFT FAILED")
DeedKind = Enum("DeedKind", "KILL STOP WAKE LEAVE")


@dataclass(slots=True)
class Tenure:
    """One time that a process may act for a partition. Times are the host's clock."""

    partition: int
    term: int
    start: float
    end: float


@dataclass(slots=True)
class Life:
    """One process that was member `name`, from its start to its end."""

    name: str
    pid: int
    started_at: float
    phase: Phase = Phase.STARTING
    tenures: list[Tenure] = field(default_factory=list)
    held: dict[int, Tenure] = field(default_factory=dict)
    """The open ones, by partition."""
    until: float = 0.0
    """The end of the lease, as last noted."""
    fenced: list[Fenced] = field(default_factory=list)
    woke: list[Woke] = field(default_factory=list)
    error: str = ""

    def take(self, note: Note) -> None:
        match note:
            case Opened():
                self.phase = Phase.MEMBER
            case Held(at, until, terms):
                for partition, term in terms.items():
                    tenure = Tenure(partition, term, at, until)
                    self.held[partition] = tenure
                    self.tenures.append(tenure)
                self._renew(until)
            case Renewed(until):
                self._renew(until)
            case Ended(at, terms):
                for partition in terms:
                    self.held.pop(partition).end = at
            case Fenced():
                self.fenced.append(note)
            case Woke():
                self.woke.append(note)
            case Left():
                self.phase = Phase.LEFT
            case Failed(error):
                self.phase, self.error = Phase.FAILED, error

    def _renew(self, until: float) -> None:
        self.until = until
        for tenure in self.held.values():
            tenure.end = until


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that the demo did to a process, at `at` or just after it."""

    kind: DeedKind
    life: Life
    at: float
    took: Sequence[int] = ()
    """The partitions that the process led then."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A moment at which nothing was on the move, with the names of those who should have shared everything."""

    at: float
    sharing: Sequence[str]


@dataclass(slots=True)
class Routed:
    """The look-ups of the demo's router."""

    lookups: int = 0
    seconds: float = 0.0
    """Spent in look-ups alone."""
    answers: dict[str, int] = field(default_factory=dict)
    """How many named each member."""
    unanswered: int = 0
    """Raised NoOwner, StaleTable or another error."""
    why_unanswered: str = ""
    outdated: int = 0
    """Named a member whose process had been killed or stopped, and that the others had not missed yet."""
    outdated_for: float = 0.0
    """The longest time after which one did."""
    terms_lowered: int = 0
    """Came with a lower term for a partition than an earlier one."""
    samples: dict[str, str] = field(default_factory=dict)
    """Some keys, and the name of the member that each was routed to last."""


@dataclass(slots=True)
class Run:
    """All of it."""

    partitions: int
    lease: float
    started_at: float
    lives: list[Life] = field(default_factory=list)
    deeds: list[Deed] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    routed: Routed = field(default_factory=Routed)
    ledger: Sequence[tuple[int, Record | None]] = ()
    unfinished: str = ""
    """Why the story did not come to its end; empty if it did."""

    @property
    def living(self) -> list[Life]:
        """Those whose process runs and has not begun to leave."""
        return [life for life in self.lives if life.phase is Phase.MEMBER]

    def latest(self, name: str) -> Life:
        """The present life of member `name`."""
        return next(life for life in reversed(self.lives) if life.name == name)
