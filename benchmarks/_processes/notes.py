"""What a worker notes about its acts: one line each, written before the act, by the host's clock.

    acts 12.031 12.488 0:1700000000000012 5:1700000000000044     may act for these, from one time to the other
    done 12.350 5:1700000000000044                               will never act for these again under these terms
    wrote 12.401 0:1700000000000012                              the fence let it write for these (see `writer`)
    refused 12.401 5:1700000000000044                            the fence did not

**What a line claims.** The worker reads the clock (t0), asks every lease how long it still holds, and reads the clock
again (t1). The shortest answer, r, was computed at some moment from t0 to t1, and so every lease holds from t1 until
t0 + r: whatever else happens, a process that was killed or stopped at t1 may still be acting until then, and nobody
else may. A worker that is stopped between the two readings finds that t1 is beyond t0 + r, and claims nothing. The
check, not the act, is what counts: an act that follows its check too late is for fencing to refuse.

**What ends a claim early.** When the worker is asked to give a partition up, it notes `done` before it answers, so that
the claim has ended before anybody else can be given the partition.

One `write` to a file opened for appending is all that a line takes. What was written before kill -9 stays. A line that
is not there claims less than was true, never more.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Acts", "Done", "Note", "Notebook", "Reader", "Refused", "Wrote"]


@dataclass(frozen=True, slots=True)
class Acts:
    """The writer may act from `since` to `until` for these partitions under these terms."""

    since: float
    until: float
    terms: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Done:
    """The writer does not act for these partitions any more, under these terms, from `at` on."""

    at: float
    terms: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Wrote:
    """By `at`, the writer had written for these partitions under these terms."""

    at: float
    terms: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Refused:
    """By `at`, the writer had tried to write for these partitions under these terms, and a higher one stood there."""

    at: float
    terms: Mapping[int, int]


Note = Acts | Done | Wrote | Refused

_AT_ONE_TIME: Mapping[str, type[Done | Wrote | Refused]] = {"done": Done, "wrote": Wrote, "refused": Refused}
_KINDS = {kind: word for word, kind in _AT_ONE_TIME.items()}


class Notebook:
    """Where one process writes its notes. May be shared between threads."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, note: Note) -> None:
        terms = " ".join(f"{partition}:{term}" for partition, term in note.terms.items())
        head = f"acts {note.since!r} {note.until!r}" if isinstance(note, Acts) else f"{_KINDS[type(note)]} {note.at!r}"
        os.write(self._file, f"{head} {terms}\n".encode())


class Reader:
    """Reads along what one process notes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def fresh(self) -> Iterator[Note]:
        """What was noted since the last call. A line that is not finished yet is left for the next."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            lines, _, unfinished = file.read().rpartition(b"\n")
            self._position = file.tell() - len(unfinished)
        for line in lines.splitlines():
            yield _parsed(line.decode())


def _parsed(line: str) -> Note:
    kind, *words = line.split()
    times = [float(word) for word in words if ":" not in word]
    pairs = (word.split(":") for word in words if ":" in word)
    terms = {int(partition): int(term) for partition, term in pairs}
    if kind == "acts":
        since, until = times
        return Acts(since, until, terms)
    (at,) = times
    return _AT_ONE_TIME[kind](at, terms)
