"""The journal: a member's log lines, written on a separate thread so that threads which must not wait never do.

    pump, handlers --note(level, event, fields)--> [ note | note | ... ] --own thread--> structlog or logging
                                                     at most NOTES_MAX; beyond that they are counted, not kept

A log may block: a full pipe to a container's runtime, a slow disk. A member whose heartbeat waited for a log line
would lose its leases. So only the thread of this lane writes.

Every event has a constant name. Partitions and terms are logged. Keys are never logged, and neither is the text of a
program's own errors, which may quote a key.
"""

import sys
import traceback
from collections.abc import Callable, Mapping

from neli_router.core import logs
from neli_router.core.keyspace import spelled
from neli_router.member.runtime import Lane
from neli_router.protocols.protocol import Acquired, Fenced, News, Notice, Revoked, Standby

__all__ = ["NOTES_MAX", "Journal"]

NOTES_MAX = 1000
"""How many notes may wait while the log blocks: several minutes of a very bad day. More would cost memory."""

QUIET = frozenset(
    {"election.won", "leader.ceded", "leader.found", "ledger.available", "member.joined", "member.sheds"}
    | {"member.sheds_nothing", "peers.alive", "peers.majority_heard", "peers.moved", "peers.resolved", "witness.found"}
)
"""Notices that do not report trouble."""


class Journal:
    """One member's journal. May be shared between threads."""

    def __init__(self, member: str, lane_name: str, on_end: Callable[[], None]) -> None:
        self._log = logs.logger().bind(member=member)
        self._dropped = 0
        self.lane: Lane[tuple[str, str, Mapping[str, object]]] = Lane(lane_name, self._write, on_end)

    def tell(self, news: News) -> None:
        """Log `news` if it is meant for operators."""
        match news:
            case Acquired(terms=terms):
                self.note("info", "leader.acquired", **_fields(terms))
            case Revoked(terms=terms):
                self.note("info", "leader.revoked", **_fields(terms))
            case Fenced(terms=terms, reason=reason):
                self.note("warning", "leader.fenced", **_fields(terms), reason=reason)
            case Standby(partitions):
                self.note("info", "leader.standby", partitions=spelled(partitions), count=len(partitions))
            case Notice(event, fields):
                self.note("info" if event in QUIET else "warning", event, **fields)
            case _:
                pass

    def note(self, level: str, event: str, /, **fields: object) -> None:
        """Log this soon. Never waits, never raises."""
        if self.lane.length < NOTES_MAX:
            self.lane.put((level, event, fields))
        else:
            self._dropped += 1

    def _write(self, note: tuple[str, str, Mapping[str, object]]) -> None:
        level, event, fields = note
        try:
            getattr(self._log, level)(event, **fields)
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                self._log.warning("journal.dropped", notes=dropped)
        except Exception:  # noqa: BLE001 - like `logging` itself: a broken log must not end what it reports on.
            traceback.print_exc(file=sys.stderr)


def _fields(terms: Mapping[int, int]) -> dict[str, object]:
    return {"partitions": spelled(terms), "count": len(terms), "term": max(terms.values())}
