"""A member of a large group as a process, and when it led what: the notes of the benchmark `large`.

    the process: Acquired, Revoked, Fenced --> gained, lost: the partitions of that event only
                 a lease, now and then ------> led: everything it has is led from `at` to `until`
    the benchmark: lines --> Tenant --> spans: partition, since, until

The worker of `neli_router/lab` notes all that it leads again and again. With 65,536 partitions its notes alone would
keep a core busy, and the benchmark would measure them. Here a line is as long as what changed. All leases of a member
end together, so one lease shows the end of all. A span ends with the last `led` before a gap, so a member whose thread
hangs leads nothing then, even before it reports Fenced.

    python -m benchmarks._large_member ORDER      ORDER as for the worker; SIGTERM ends it without a word
"""

import json
import logging
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any, Literal

import msgspec

from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.hosts.leash import end_with_parent
from neli_router.member.member import Member
from neli_router.protocols.protocol import Acquired, Event, Fenced, Revoked, Standby
from neli_router.status.notes import LineReader

__all__ = ["Line", "Tenant", "main"]

LOOKS_PER_LEASE = 20
"""How often a lease is asked. A gap between two leases is known to a twentieth of one."""


_KINDS: dict[type[Event], Literal["gained", "revoked", "fenced"]] = {
    Acquired: "gained",
    Revoked: "revoked",
    Fenced: "fenced",
}


class Line(msgspec.Struct, frozen=True, array_like=True):
    kind: Literal["gained", "revoked", "fenced", "led"]
    at: float
    until: float = 0.0
    terms: dict[int, int] = {}


class Tenant:
    """The notes of one process."""

    def __init__(self, path: Path) -> None:
        self.at = self.until = -inf
        self.fenced = self.fenced_partitions = 0
        self._lines = LineReader(path)
        self._decoder = msgspec.json.Decoder(Line)
        self._held: dict[int, tuple[int, float]] = {}
        """Partition -> its term, and since when it is led; inf before a lease was seen."""
        self._spans: list[tuple[int, float, float]] = []

    @property
    def leads(self) -> int:
        """How many partitions it leads, as of its last line."""
        return len(self._held) if self.at < self.until else 0

    @property
    def spans(self) -> Iterator[tuple[int, float, float]]:
        yield from self._spans
        yield from ((i, since, self.until) for i, (_, since) in self._held.items() if since < self.until)

    def read(self) -> None:
        """Take in what the process has noted since the last call."""
        for line in map(self._decoder.decode, self._lines.fresh()):
            self.take(line)

    def take(self, line: Line) -> None:
        self.at = line.at
        if line.kind == "led":
            if line.at > self.until:
                for i, (term, since) in self._held.items():
                    self._end(i, since, self.until)
                    self._held[i] = term, line.at
            self.until = max(self.until, line.until)
        elif line.kind == "gained":
            since = line.at if line.at < self.until else inf
            for i, term in line.terms.items():
                self._end(i, self._held.get(i, (0, inf))[1], line.at)
                self._held[i] = term, since
        else:
            # By term: a loss is noted on another thread than a gain, and perhaps after it.
            for i in [i for i, term in line.terms.items() if self._held.get(i, (0, inf))[0] == term]:
                self._end(i, self._held.pop(i)[1], line.at)
            if line.kind == "fenced":
                self.fenced, self.fenced_partitions = self.fenced + 1, self.fenced_partitions + len(line.terms)

    def _end(self, i: int, since: float, at: float) -> None:
        if since < (until := min(at, self.until)):
            self._spans.append((i, since, until))


class _Notes:
    """Writes what a member says, from any of its threads."""

    def __init__(self, path: Path) -> None:
        self.changed = threading.Event()
        self._file, self._lock = path.open("ab", buffering=0), threading.Lock()
        self._led: dict[int, int] = {}
        self._until = -inf

    def on_event(self, event: Event) -> None:
        if isinstance(event, Standby):
            return
        with self._lock:
            self._write(Line(_KINDS[type(event)], host_clock(), terms=dict(event.terms)))
            if isinstance(event, Acquired):
                self._led |= event.terms
            else:
                self._forget(event.terms)
        self.changed.set()

    def look(self, member: Member) -> None:
        with self._lock:
            some = [i for i, _ in zip(reversed(self._led), range(3), strict=False)]
        at = host_clock()
        left = max((lease.remaining() for i in some if (lease := member.lease(i)) is not None), default=0.0)
        if left > 0 and at + left > self._until:
            with self._lock:
                now = host_clock()
                if now < at + left:
                    self._until = at + left
                    self._write(Line("led", now, until=at + left))

    def _forget(self, terms: Mapping[int, int]) -> None:
        for i, term in terms.items():
            if self._led.get(i) == term:
                del self._led[i]

    def _write(self, line: Line) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")


def main(order: dict[str, Any]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the benchmark, which ends us.
    end_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    config, notes = Config.of(order["config"]), _Notes(Path(order["notes"]))
    with Member(config, on_event=notes.on_event, wait=True) as member:
        while not member.closed:
            notes.changed.clear()
            notes.look(member)
            notes.changed.wait(config.lease / LOOKS_PER_LEASE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(json.loads(sys.argv[1])))
