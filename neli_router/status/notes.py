"""The notes of a member process: one line of JSON each, by the host's clock, written before the act that it allows.

    acts  since, until, terms   may act for these partitions, under these terms, from `since` to `until`
    acts  since, until          the same for all that the last `acts` named
    done  at, terms             no longer acts for these under these terms
    lost  at, terms             found that the leases of these are lost
    opened, halted, woke, left, failed  events of its member

**What a line claims.** The worker reads the clock (t0), asks every lease how long it still holds, and reads the clock
again (t1). The shortest answer, r, was computed at some moment from t0 to t1, so every lease holds at least from t1
until t0 + r. A process that was killed or stopped at t1 may still act until then, and no other process may. A worker
that is stopped between the two readings finds that t1 is beyond t0 + r, and claims nothing. The time of the check
counts, not the time of the act: it is up to fencing to refuse a late act.

**What ends a claim early.** When the worker is asked to give a partition up, it notes `done` before it answers, so the
claim has ended before another process can get the partition. A lost lease does not end a claim: it lasts until the end
that was noted.

Each line is one `write` to a file opened for appending, so it survives kill -9. A missing line means that less is
claimed than was true, never more.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import msgspec
from msgspec import Struct

__all__ = [
    "Acts",
    "Done",
    "Failed",
    "Halted",
    "LeasesLost",
    "Left",
    "LineReader",
    "Note",
    "NoteReader",
    "Notebook",
    "Opened",
    "Span",
    "SpanLog",
    "Woke",
]


class _Note(Struct, frozen=True, tag=str.lower, omit_defaults=True):
    pass


class Acts(_Note, frozen=True):
    """The writer may act from `since` to `until` for these partitions under these terms."""

    since: float
    until: float
    terms: dict[int, int] = {}


class _Terms(_Note, frozen=True):
    at: float
    terms: dict[int, int]


class Done(_Terms, frozen=True):
    """From `at` on, the writer no longer acts for these partitions under these terms."""


class LeasesLost(_Terms, frozen=True):
    """At `at`, the writer found that it no longer holds the leases of these partitions under these terms."""


class Opened(_Note, frozen=True):
    """The member has opened the ledger."""

    at: float


class Halted(_Note, frozen=True):
    """The member ordered its program to stop immediately, for this many partitions."""

    at: float
    partitions: int
    reason: str


class Woke(_Note, frozen=True):
    """The worker found that it had not run for `asleep` seconds. Before anything else, it asked a lease that it had
    held: `refusal` is the lease's answer, and is empty if the lease still holds."""

    at: float
    asleep: float
    refusal: str


class Left(_Note, frozen=True):
    """The member left the group in good order."""

    at: float


class Failed(_Note, frozen=True):
    """The member could not start, or ended with an error."""

    error: str


Note = Acts | Done | LeasesLost | Opened | Halted | Woke | Left | Failed


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Note] = msgspec.json.Decoder(Note)


class Notebook:
    """Where one process writes its notes. Threads may share it, except for `Acts`."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._terms: dict[int, int] = {}

    def write(self, note: Note) -> None:
        if isinstance(note, Acts):
            before, self._terms = self._terms, note.terms
            note = Acts(note.since, note.until) if note.terms == before else note
        os.write(self._file, _encoder.encode(note) + b"\n")


class LineReader:
    """Follows a file to which a process appends lines."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    def fresh(self) -> list[bytes]:
        """The lines since the last call. An unfinished one is left for the next call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            lines, _, unfinished = file.read().rpartition(b"\n")
            self._position = file.tell() - len(unfinished)
        return lines.splitlines()


class NoteReader:
    """Follows what one process notes."""

    def __init__(self, path: Path) -> None:
        self._lines = LineReader(path)
        self._terms: dict[int, int] = {}

    def fresh(self) -> Iterator[Note]:
        """The notes since the last call."""
        for note in map(_decoder.decode, self._lines.fresh()):
            if isinstance(note, Acts):
                self._terms = note.terms or self._terms
                yield Acts(note.since, note.until, self._terms)
            else:
                yield note


@dataclass(slots=True)
class Span:
    """By its own notes, one process might act for one partition under one term without a break, on its own clock."""

    process: str
    partition: int
    term: int
    since: float
    until: float
    again: bool = False
    """Whether the process had already noted that it was done with this partition under this term: see `SpanLog`."""
    done: bool = False
    """Whether the process ended it by its own note."""

    def __str__(self) -> str:
        return f"{self.process} under {self.term} from {self.since:.6f} to {self.until:.6f}"


@dataclass(slots=True)
class SpanLog:
    """When one process might act, by its notes.

    A process that is done with a partition under a term does not act under it again while it holds its lease. If the
    lease runs out before the Handover was sent, the partition stays with the process, which may lead it again under the
    same term.
    """

    label: str
    spans: list[Span] = field(default_factory=list, kw_only=True)
    relapses: list[Span] = field(default_factory=list, kw_only=True)
    """Those that are `again`."""
    _latest: dict[tuple[int, int], Span] = field(default_factory=dict, kw_only=True)
    """By partition and term."""
    _done: set[tuple[int, int]] = field(default_factory=set, kw_only=True)
    """Those that were noted as done under the present lease."""
    _claimed_until: float = field(default=-inf, kw_only=True)

    def hear(self, note: Note) -> None:
        """Take the next note into account, in the order of writing."""
        match note:
            case Acts(since, until, terms):
                if since > self._claimed_until:  # For a moment it held no lease at all.
                    self._done.clear()
                self._claimed_until = max(self._claimed_until, until)
                for place in terms.items():
                    self._act(place, since, until)
            case Done(at, terms):
                for place in terms.items():
                    if (span := self._latest.get(place)) is not None:
                        span.until, span.done = min(span.until, at), True
                        self._done.add(place)

    def _act(self, place: tuple[int, int], since: float, until: float) -> None:
        span = self._latest.get(place)
        if place in self._done:
            self.relapses.append(Span(self.label, *place, since, until, again=True))
        if span is not None and since <= span.until:
            span.until = max(span.until, until)
        else:
            span = self._latest[place] = Span(self.label, *place, since, until)
            self.spans.append(span)
