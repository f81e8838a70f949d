"""Tenure: for which partitions one member may act now, judged by what it has itself sent and read.

                  .------------------ sent Handover(i, v), or Leave: final, whether or not it was appended
                  v
    owner of i under v  +  a Beat of mine that I sent less than a lease ago came back  +  no wait is owed on i
                                                                                           ^
          an Expire took i from q: the read that brought q's last Beat, plus `wait` -------'

Why at most one member acts: an expired owner's last valid Beat was sent before it was appended, and appended before I
read it. So its lease, counted from sending on its own clock, has ended by (my read + wait) on mine; `wait` is the lease
as the slowest allowed clock counts it. A Beat that I never read was sent before I started, so I owe one wait on
everything from my start. An owner that handed over or left had stopped before it said so. A wait is never shortened: a
member that owned i between q and me may itself have been waiting for q. After a member is certified dead no wait is
owed, as if it had left: its process had ended with all its threads, and with all other processes that acted on its
lease, before the certificate was written (`Certify`).

A member that goes away with a grace keeps its partitions, and its lease is remembered as if it had departed: from the
record by which it went, and not from the later one that ends the grace. It owns, but does not act.

**Who comes back** under the name of one that is away need not wait for what the older self can answer for:

    older self: my waits are over --Beat.clear--> its Leave, or a Certify --> the Join of its name: free
                                             '--> an Expire: its own lease may run on, so the wait is owed

The older self owned the partition from below `clear` until it went. So when it sent that Beat, all earlier owners had
stopped, and by the Join it has stopped itself. The new process reads who owns the partition after the Join.

All of this requires that each Beat that I treat as mine is mine: a Beat that another process wrote in my name may carry
any time. The machine remembers what it sent (`beats`), and marks any other Beat in its name as forged.

No clocks are compared across hosts. Loss, delay, duplication, reordering and mistaken suspicions never make a member
unsafe, because nothing above depends on their absence.

Under `available` no member waits. An owner that lost a partition goes on until it has read a Beat that the new owner
sent after learning of its ownership, or until `hold` ends: no partition is without a live owner, but two may overlap.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Beat, Expire, Join, Record
from neli_router.protocols.protocol import Settings

__all__ = ["Linger", "Tenure"]


class Linger(Struct, frozen=True):
    """Under `available`: a partition lost at `lost_at`, still acted for under `term` until `until` at the latest."""

    term: int
    lost_at: int
    until: float


class Tenure(Struct, frozen=True, kw_only=True):
    """An immutable value. `lasts` is how long a Beat proves anything: a lease, or `hold` under `available`."""

    incarnation: str
    exclusive: bool
    lasts: float
    wait: float
    settled: float
    """When the wait that a newcomer owes on everything has passed."""
    sent: float = -inf
    """When I sent the last Beat of mine that came back."""
    asked: float = -inf
    """When I first sent my Join."""
    heard: dict[str, float] = {}
    """The time just after the read that brought each member's last Beat or Join, or the record by which it went away.
    If I read none of a member's, it is my start, because the member sent them before that."""
    heard_at: float = -inf
    """The latest of these times."""
    busy: dict[int, float] = {}
    """Until when I may not act for a partition, where this is known to be later than `settled`."""
    free: frozenset[int] = frozenset()
    """The partitions for which I need not wait until `settled`."""
    given: dict[int, int] = {}
    """Partition -> the term under which I sent its Handover."""
    left: bool = False
    lingering: dict[int, Linger] = {}

    @classmethod
    def begin(
        cls, incarnation: str, settings: Settings, state: State, now: float, lingering: dict[int, Linger]
    ) -> "Tenure":
        """A newcomer's tenure, starting from `state`; `now` is just *after* the read that brought that state."""
        return cls(
            incarnation=incarnation,
            exclusive=settings.exclusive,
            lasts=settings.lasts,
            wait=settings.wait,
            settled=now + settings.wait,
            heard=dict.fromkeys(state.seats, now),
            heard_at=now if state.seats else -inf,
            lingering=lingering,
        )

    # Questions

    def term(self, state: State, partition: int, now: float) -> int | None:
        """The term under which I may act for `partition` at `now`, or None."""
        owned = (partition,) if state.owners[partition] == self.incarnation else ()
        return self.terms(state, owned, now).get(partition)

    def terms(self, state: State, owned: Iterable[int], now: float) -> dict[int, int]:
        """Partition -> term, for each that I may act for at `now`; `owned` are those that I own in `state`.

        A large table is looked through once in C, and the exceptions are taken out.
        """
        may: dict[int, int] = {}
        if now < self.sent + self.lasts and not (self.exclusive and self.left):
            is_settled = not self.exclusive or now >= self.settled
            may = {i: state.terms[i] for i in (owned if is_settled else self.free.intersection(owned))}
            if self.exclusive:
                given = [i for i, term in self.given.items() if may.get(i) == term]
                busy = [i for i, until in self.busy.items() if now < until]
                for i in (*given, *busy):
                    may.pop(i, None)
        for i, linger in self.lingering.items():
            if now < linger.until:
                may.setdefault(i, linger.term)
        return may

    def busy_until(self, partition: int) -> float:
        return max(-inf if partition in self.free else self.settled, self.busy.get(partition, -inf))

    # Sent records: final from the moment they were given to the driver, even if the append fails

    def gave(self, terms: Mapping[int, int]) -> "Tenure":
        return replace(self, given={**self.given, **terms})

    def asking(self, now: float) -> "Tenure":
        return self if self.asked > -inf else replace(self, asked=now)

    def leaving(self) -> "Tenure":
        return replace(self, left=True)

    # Read records

    def read(self, before: State, record: Record | None, after: State, now: float, *, forged: bool = False) -> "Tenure":
        """`record` took the fold from `before` to `after`; `now` is just *after* the read that brought it.

        `forged` says that it is a Beat in my name that I did not send: it proves nothing.
        """
        if isinstance(record, Beat):
            return self.hear([record], after, now, forged=forged)
        if before.owners is after.owners and before.seats is after.seats and before.away is after.away:
            return self
        tenure = self
        gone_away = after.away.keys() - before.away.keys()
        if isinstance(record, Expire | Join):
            ended = {q: self.heard[q] + self.wait for q in before.members.keys() - after.members.keys()}
            busy = {i: max(self.busy.get(i, -inf), at) for q, at in ended.items() for i in _owned(before, q)}
            tenure = replace(tenure, busy={**tenure.busy, **busy})
        if isinstance(record, Join) and record.by in after.seats and record.by not in before.seats:
            tenure = replace(tenure, heard={**tenure.heard, record.by: now}, heard_at=now)
            if record.by == self.incarnation and self.exclusive:
                tenure = replace(tenure, free=_free(before, record))
            elif record.by == self.incarnation:
                # My first Beat shows my predecessor that I know what I own, and it may read the Beat before I do. So I
                # must act by then, on an equally good proof: my Join.
                tenure = replace(tenure, sent=max(tenure.sent, tenure.asked))
        if before.seats is not after.seats or gone_away:
            heard = {q: now if q in gone_away else at for q, at in tenure.heard.items() if q in after.seats}
            tenure = replace(tenure, heard=heard)
        if not self.exclusive:
            tenure = replace(tenure, lingering=self._lingering(before, after))
        return tenure

    def hear(self, beats: Sequence[Beat], after: State, now: float, *, forged: bool = False) -> "Tenure":
        """`read` for Beats in a row: after all of them, the fold was at `after`."""
        heard = [beat for beat in beats if after.is_member(beat.by)]
        if not heard:
            return self
        sent, lingering = self.sent, self.lingering
        for beat in heard:
            if beat.by == self.incarnation and not forged:
                # Counted from sending, not from now: a Beat that sat in a buffer for a minute proves nothing about now.
                sent = max(sent, beat.sent_at)
            if lingering:
                # If a Beat's `at` is past the record that made its writer the owner, the writer had read that it owns.
                lingering = {
                    i: linger
                    for i, linger in lingering.items()
                    if after.owners[i] != beat.by or beat.at <= linger.lost_at
                }
        now_heard = {**self.heard, **{beat.by: now for beat in heard}}
        return replace(self, heard=now_heard, heard_at=now, sent=sent, lingering=lingering)

    def _lingering(self, before: State, after: State) -> dict[int, Linger]:
        lost_at = after.at - 1
        lingering = dict(self.lingering)
        until = self.sent + self.lasts
        for partition in _owned(before, self.incarnation):
            if after.owners[partition] != self.incarnation:
                lingering[partition] = Linger(before.terms[partition], lost_at, until)
        return lingering


def _free(before: State, record: Join) -> frozenset[int]:
    """Partitions that the name's holder owned without a wait. The process that takes the name owes none, either."""
    older = before.holder(record.name)
    if older is None or older.incarnation not in before.clear:
        return frozenset()
    clear = before.clear[older.incarnation]
    return frozenset(i for i in _owned(before, older.incarnation) if before.began[i] < clear)


def _owned(state: State, incarnation: str) -> Iterator[int]:
    return (i for i, owner in enumerate(state.owners) if owner == incarnation)
