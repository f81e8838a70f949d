"""The referee: did two processes ever act for one partition at the same time? It knows only their notes, no protocol.

    notes --of one process--> Life: its spans --side by side, for each partition--> Verdict

    process a, term 5   |=========|==done            handover: the process itself ended the span
    process b, term 9              |======|          takeover: the span just ended, its process killed or too late
    process c, term 12                 |==========|  OVERLAP with b, for as long as both continue

Two spans of a partition that share a moment are an overlap, unless they are of the same process and term: a process
that was expired and joins again is a new owner, like any other process. Over time, the terms of a partition may only
rise. `regressions` are spans with a lower term than an earlier span had, or with the term of another process.
`relapses` are spans under a term that their process had already noted as done, under the same lease.

A gap between the first and the last span of a partition is not a fault, but users have to wait for it to end (`unled`).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from math import inf

import msgspec

from neli_router.core.clock import NARROW_NS
from neli_router.status.notes import Acts, Done, Failed, Halted, LeasesLost, Left, Note, Opened, Span, SpanLog, Woke

__all__ = ["CLOCK_ERROR", "Life", "LifePhase", "Overlap", "Unled", "Verdict", "in_true_time", "judged"]

CLOCK_ERROR = NARROW_NS / 1e9
"""How far two processes of one host may differ in reading its clock. A shorter overlap is invisible to both."""


LifePhase = Enum("LifePhase", "STARTING MEMBER STOPPED KILLED LEAVING LEFT FAILED")


@dataclass(slots=True)
class Life(SpanLog):
    """One process from its start to its end, by its notes. The second process of member m1 is `m1.2`."""

    pid: int = 0
    started_at: float = 0.0
    phase: LifePhase = LifePhase.STARTING
    held: dict[int, Span] = field(default_factory=dict)
    """By partition: spans that the process has not noted as over. They end at `until` if it notes nothing further."""
    until: float = 0.0
    halted: list[Halted] = field(default_factory=list)
    woke: list[Woke] = field(default_factory=list)
    acts: int = 0
    error: str = ""
    killed_at: float = inf
    """When it was about to be killed: from then on it no longer acts, whatever its lease allowed. Its last instructions
    take far less time than a takeover, and the tests of witnesses show that no takeover begins before they are over."""

    @property
    def name(self) -> str:
        """The name of the member."""
        return self.label.partition(".")[0]

    def hear(self, note: Note) -> None:
        SpanLog.hear(self, note)  # Not `super()`, which does not find a dataclass with slots.
        match note:
            case Acts(_, until, terms):
                self.until, self.acts = until, self.acts + len(terms)
                self.held |= {partition: self._latest[partition, term] for partition, term in terms.items()}
            case Done(_, terms) | LeasesLost(_, terms):
                for partition, term in terms.items():
                    if (held := self.held.get(partition)) is not None and held.term == term:
                        del self.held[partition]
            case Opened():
                self.phase = LifePhase.MEMBER
            case Halted():
                self.halted.append(note)
            case Woke():
                self.woke.append(note)
            case Left():
                self.phase = LifePhase.LEFT
            case Failed(error):
                self.phase, self.error = LifePhase.FAILED, error


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two spans share `seconds` of time."""

    first: Span
    second: Span
    seconds: float

    def __str__(self) -> str:
        return f"partition {self.first.partition}: {self.first} and {self.second}, {1e3 * self.seconds:.3f} ms"


@dataclass(frozen=True, slots=True)
class Unled:
    """No process acted for a partition from `since` to `until`."""

    partition: int
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The findings of the referee."""

    overlaps: Sequence[Overlap]
    regressions: Sequence[tuple[Span, Span]]
    """Pairs of an earlier span and a later one whose term is not higher."""
    relapses: Sequence[Span]
    acts: int
    """Acts for single partitions."""
    handovers: int
    takeovers: int
    """Partitions that passed on although their holder had not noted `done`."""
    processes: dict[int, set[str]]
    """Partition -> the processes that acted for it."""
    terms: set[tuple[int, int, str]]
    """Every combination of partition, term and process that acted."""
    unled: Sequence[Unled]

    @property
    def faults(self) -> list[str]:
        """Everything that must never happen, in words."""
        return [
            *(f"overlap of {overlap}" for overlap in self.overlaps),
            *(f"partition {one.partition}: a term went back from {one} to {two}" for one, two in self.regressions),
            *(f"partition {span.partition}: done, and yet again {span}" for span in self.relapses),
        ]


def judged(lives: Iterable[Life]) -> Verdict:
    """The verdict on everything that was heard from these processes."""
    lives = list(lives)
    by_partition: dict[int, list[Span]] = defaultdict(list)
    acted = [replace(span, until=min(span.until, life.killed_at)) for life in lives for span in life.spans]
    for span in sorted(acted, key=lambda span: span.since):
        by_partition[span.partition].append(span)
    changes = [(a, b) for spans in by_partition.values() for a, b in pairwise(spans) if a.process != b.process]
    return Verdict(
        overlaps=[overlap for spans in by_partition.values() for overlap in _overlaps(spans)],
        regressions=[pair for spans in by_partition.values() for pair in _regressions(spans)],
        relapses=[span for life in lives for span in life.relapses],
        acts=sum(life.acts for life in lives),
        handovers=sum(former.done for former, _ in changes),
        takeovers=sum(not former.done for former, _ in changes),
        processes={partition: {span.process for span in spans} for partition, spans in by_partition.items()},
        terms={(span.partition, span.term, span.process) for life in lives for span in life.spans},
        unled=[time for spans in by_partition.values() for time in _unled(spans)],
    )


# Each of these gets the spans of one partition, ordered by when they begin.


def _overlaps(spans: Sequence[Span]) -> Iterator[Overlap]:
    for place, first in enumerate(spans):
        for second in spans[place + 1 :]:
            if first.until - second.since <= CLOCK_ERROR:
                break
            # Even if the second span is very short, because an act takes no time.
            if (first.process, first.term) != (second.process, second.term) and second.until > second.since:
                yield Overlap(first, second, min(first.until, second.until) - second.since)


def _regressions(spans: Sequence[Span]) -> Iterator[tuple[Span, Span]]:
    """Every span whose term is below the highest before it, or equals the term of another process."""
    highest = spans[0]
    for span in spans[1:]:
        if (highest.process, highest.term) != (span.process, span.term) and span.term <= highest.term:
            yield highest, span
        else:
            highest = span


def _unled(spans: Sequence[Span]) -> Iterator[Unled]:
    covered = spans[0].until
    for span in spans:
        if span.since > covered:
            yield Unled(span.partition, covered, span.since)
        covered = max(covered, span.until)


def in_true_time(note: Note, rate: float) -> Note:
    """A note in true time, written by a process whose clock a test has bent to run at `rate` times the true time."""
    match note:
        case Acts(since, until, terms):
            return Acts(since / rate, until / rate, terms)
        case Woke(at, asleep, refusal):
            return Woke(at / rate, asleep / rate, refusal)
        case Failed():
            return note
    return msgspec.structs.replace(note, at=note.at / rate)
