"""The referee: did two ever act for one partition at once? It knows what was noted, and nothing about the protocol.

    notes --of one process, partition and term--> spans --side by side, for each partition--> verdict

    process a, term 5   |=========|==done            handover: the span was ended by who held it
    process b, term 9              |======|          takeover: the span just ended, its process killed or too late
    process c, term 12                 |==========|  OVERLAP with b, for as long as the two go on beside each other

A *span* is an unbroken time in which one process might act for one partition under one term. Two spans of a partition
that share a moment are an overlap, unless they are of the same process and the same term: a process that was expired
and joins again is as much somebody else as another process is. And along time, the terms of a partition may only rise:
`regressions` are spans with a lower term than an earlier span had, or with the term of another process; `relapses` are
spans under a term that their process had noted to be done with.

A *gap* is a time, after its first span, in which nobody acted for a partition: no fault, but what a user waits for. And
the referee counts what the fence refused: each such write is one that a lease alone would have let through.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks._processes.notes import Acts, Done, Note, Refused, Wrote

__all__ = ["CLOCK_ERROR", "Gap", "Overlap", "Referee", "Span", "Verdict"]

CLOCK_ERROR = 20e-6
"""How far two processes of one host may be apart in reading its clock. An overlap below that is none that was seen."""


@dataclass(slots=True)
class Span:
    """One process might act for one partition under one term, without a break."""

    process: str
    partition: int
    term: int
    since: float
    until: float
    done: bool = False
    """Whether the process ended it by its own word."""

    def __str__(self) -> str:
        return f"{self.process} under {self.term} from {self.since:.6f} to {self.until:.6f}"


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two spans share `seconds` of time."""

    first: Span
    second: Span
    seconds: float

    def __str__(self) -> str:
        return f"partition {self.first.partition}: {self.first} beside {self.second}, {1e3 * self.seconds:.3f} ms"


@dataclass(frozen=True, slots=True)
class Gap:
    """Nobody acted for a partition from `since` to `until`."""

    partition: int
    since: float
    until: float

    @property
    def seconds(self) -> float:
        return self.until - self.since


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the notes show."""

    overlaps: Sequence[Overlap]
    regressions: Sequence[tuple[Span, Span]]
    """Pairs of an earlier span and a later one whose term is not higher."""
    relapses: Sequence[Span]
    acts: int
    """Acts for single partitions."""
    handovers: int
    takeovers: int
    """Partitions that changed hands without their holder's word."""
    processes: dict[int, set[str]] = field(default_factory=dict)
    """Partition -> who acted for it."""
    gaps: Sequence[Gap] = ()
    writes: int = 0
    refusals: Sequence[tuple[str, int, int]] = ()
    """The process, partition and term of each write that the fence refused."""

    @property
    def faults(self) -> list[str]:
        """All that must never be, in words."""
        return [
            *(f"overlap of {overlap}" for overlap in self.overlaps),
            *(f"partition {one.partition}: a term went back from {one} to {two}" for one, two in self.regressions),
            *(f"partition {span.partition}: done, and yet again {span}" for span in self.relapses),
        ]


class Referee:
    """Hears the notes of any number of processes, each in its own order."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, int, int], list[Span]] = defaultdict(list)
        self._relapses: list[Span] = []
        self._acts = self._writes = 0
        self._refusals: list[tuple[str, int, int]] = []

    def hear(self, process: str, notes: Iterable[Note]) -> None:
        """Take `notes` into account, which go on where the last ones of `process` ended."""
        for note in notes:
            for partition, term in note.terms.items():
                match note:
                    case Acts(since, until):
                        self._acts += 1
                        spans = self._spans[process, partition, term]
                        self._extend(spans, Span(process, partition, term, since, until))
                    case Done(at):
                        self._end(self._spans[process, partition, term], at)
                    case Wrote():
                        self._writes += 1
                    case Refused():
                        self._refusals.append((process, partition, term))

    def verdict(self) -> Verdict:
        """What all that was heard until now shows."""
        by_partition: dict[int, list[Span]] = defaultdict(list)
        for spans in self._spans.values():
            for span in spans:
                by_partition[span.partition].append(span)
        for spans in by_partition.values():
            spans.sort(key=lambda span: span.since)
        changes = [(a, b) for spans in by_partition.values() for a, b in pairwise(spans) if a.process != b.process]
        return Verdict(
            overlaps=[overlap for spans in by_partition.values() for overlap in _overlaps(spans)],
            regressions=[pair for spans in by_partition.values() for pair in _regressions(spans)],
            relapses=list(self._relapses),
            acts=self._acts,
            handovers=sum(former.done for former, _ in changes),
            takeovers=sum(not former.done for former, _ in changes),
            processes={i: {span.process for span in spans} for i, spans in by_partition.items()},
            gaps=[gap for spans in by_partition.values() for gap in _gaps(spans)],
            writes=self._writes,
            refusals=list(self._refusals),
        )

    def terms(self) -> set[tuple[int, int, str]]:
        """Every partition, term and process that acted."""
        return {(partition, term, process) for process, partition, term in self._spans}

    def _extend(self, spans: list[Span], span: Span) -> None:
        if spans and spans[-1].done:
            self._relapses.append(span)
        if spans and span.since <= spans[-1].until:
            spans[-1].until = max(spans[-1].until, span.until)
        else:
            spans.append(span)

    def _end(self, spans: list[Span], at: float) -> None:
        for span in spans:
            span.until, span.done = min(span.until, at), True


def _overlaps(spans: Sequence[Span]) -> Iterator[Overlap]:
    """Every pair of `spans`, which are in order of their beginning, that shares time."""
    for place, first in enumerate(spans):
        for second in spans[place + 1 :]:
            if second.since >= first.until - CLOCK_ERROR:
                break
            shared = min(first.until, second.until) - second.since
            if (first.process, first.term) != (second.process, second.term) and shared > CLOCK_ERROR:
                yield Overlap(first, second, shared)


def _regressions(spans: Sequence[Span]) -> Iterator[tuple[Span, Span]]:
    """Every span of a partition whose term is below the highest before it, or is another process's."""
    highest: Span | None = None
    for span in spans:
        if highest is not None:
            same = (highest.process, highest.term) == (span.process, span.term)
            if not same and span.term <= highest.term:
                yield highest, span
                continue
        highest = span


def _gaps(spans: Sequence[Span]) -> Iterator[Gap]:
    """Every time between two of `spans`, which are in order of their beginning, that none of them covers."""
    covered = spans[0].until if spans else 0.0
    for span in spans:
        if span.since > covered:
            yield Gap(span.partition, covered, span.since)
        covered = max(covered, span.until)
