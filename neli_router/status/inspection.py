"""An inspection: what a ledger shows about its group to a reader that takes no part in the group.

    ledger --read up to the current tip--> is there a group? its members, partitions and settings
           --its members' Beats---------> which of them could not expire a dead member, and which hold another state
           --read on for some seconds---> the name of a member that wrote in that time, or None
           --dropped before it was read-> all of it again, from a newer snapshot

`neli doctor`, `neli upgrade` and `neli group delete` use it. It appends nothing. A wish is not a sign of life, because
an operator can write one when no member is left.

A Beat says when it was sent, and how far its writer had read by then. So the ledger alone shows how old the member's
newest own Beat was, of those that it had read back, when it sent the next one. A member may accuse others after a lease
in which that age was always less than a lease (`induction/suspicion.py`). All of it is on the member's own clock.

A Beat also carries the digest of its writer's state at that place. This reader folds the same records, so a digest that
is not its own means that one of the two computes otherwise: another release, or a fault.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from msgspec import UNSET

from neli_router.core.clock import host_clock
from neli_router.drivers.ledgers.base import Entry, Ledger
from neli_router.drivers.ledgers.pump import oldest_state
from neli_router.errors import GroupMismatch, LedgerTrimmed
from neli_router.protocols.induction.admission import mismatch
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Beat, Expire, Genesis, Handover, Join, Leave, Snapshot, decode
from neli_router.protocols.induction.suspicion import POWERLESS_LEASES
from neli_router.protocols.induction.trust import RING_MAX
from neli_router.protocols.protocol import Settings
from neli_router.status.replay import Transition, untrimmed

__all__ = ["Inspection"]

READ_MAX_SECONDS = 0.5

UNREAD_MAX = 256
"""Beats of one member that it has not read back. A member with more of them is far later than any lease."""

# Certify is not among them: the witness that wrote the certificate may be the child of a dead member.
BY_MEMBERS = Join | Beat | Expire | Handover | Leave | Genesis | Snapshot


@dataclass(slots=True)
class _Echo:
    """How soon one incarnation reads its own Beats, according to the Beats themselves."""

    unread: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=UNREAD_MAX))
    age: float = 0.0
    """The age of the newest Beat that it had read back when it sent its last."""
    _back: float | None = None
    _sent: float = -inf
    _hearing_since: float = inf
    _late_since: float = inf

    def hear(self, offset: int, beat: Beat, lease: float) -> None:
        sent, pause = beat.sent_at, min(beat.sent_at - self._sent, lease / 4)
        while self.unread and self.unread[0][0] < beat.at:
            self._back = self.unread.popleft()[1]
        self.unread.append((offset, sent))
        self._sent = sent
        if self._back is None:
            return
        self._late_since = min(self._late_since, sent)
        self.age = sent - self._back
        # Beats come in steps, so a small delay shows as a delay of up to half a step.
        self._hearing_since = inf if self.age > lease - pause / 2 else min(self._hearing_since, sent)
        if sent >= self._hearing_since + lease:
            self._late_since = sent

    def is_powerless(self, lease: float) -> bool:
        return self._sent >= self._late_since + POWERLESS_LEASES * lease


class Inspection:
    """Reads `ledger` to its tip, and stays there: the caller must not read from it meanwhile. Raises LedgerError."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        untrimmed(self._begin)

    def _begin(self) -> None:
        ledger, digests = self._ledger, dict[int, int]()
        self._state = oldest_state(ledger)
        self._echoes: dict[str, _Echo] = {}
        self._digests: dict[str, tuple[int, bool]] = {}
        ledger.seek(self._state.at)
        tip = ledger.tip()
        # Only up to the current tip: a busy group never stops writing, and `living` will notice that.
        while self._state.at < tip and (entries := ledger.read(READ_MAX_SECONDS)):
            for entry in entries:
                record, genesis = self._take(entry).record, self._state.genesis
                digests[self._state.at] = self._state.digest
                if len(digests) > RING_MAX:
                    del digests[next(iter(digests))]
                if isinstance(record, Beat) and genesis is not None and record.by in self._state.seats:
                    self._echoes.setdefault(record.by, _Echo()).hear(entry.offset, record, genesis.lease)
                    if record.digest is not UNSET and (mine := digests.get(record.at)) is not None:
                        self._digests[record.by] = record.at, mine == int(record.digest, 16)

    def _following(self, seconds: float) -> Iterator[list[Transition]]:
        """Yields the changes of each read, for `seconds`. If records were dropped unread, it starts over. It does not
        listen meanwhile, so the `seconds` start over, too."""
        give_up_at = host_clock() + seconds
        while (left := give_up_at - host_clock()) > 0:
            try:
                entries = self._ledger.read(min(left, READ_MAX_SECONDS))
            except LedgerTrimmed:
                untrimmed(self._begin)
                give_up_at, entries = host_clock() + seconds, []
            yield [self._take(entry) for entry in entries]

    def _take(self, entry: Entry) -> Transition:
        # Of any version: `mismatch` compares that with the settings, and the rest can be told all the same.
        change = Transition.of(self._state, entry.offset, decode(entry.payload))
        self._state = change.after
        return change

    @property
    def state(self) -> State:
        """The state at the last record that was read."""
        return self._state

    @property
    def is_founded(self) -> bool:
        """Whether there is a group at all."""
        return self._state.genesis is not None

    @property
    def records(self) -> int:
        return self._state.at

    @property
    def lease(self) -> float | None:
        """The group's lease, in seconds; None before there is a group."""
        return None if self._state.genesis is None else self._state.genesis.lease

    @property
    def members(self) -> list[str]:
        """The names of the members at the last record. They may have died since."""
        return sorted(seat.name for seat in self._state.seats.values())

    @property
    def powerless(self) -> dict[str, float]:
        """The names of members that could not expire any other, and how many seconds their Beats take to come back."""
        echoes = {seat.name: self._echoes.get(seat.incarnation, _Echo()) for seat in self._state.seats.values()}
        lease = self.lease or inf
        return {name: echo.age for name, echo in sorted(echoes.items()) if echo.is_powerless(lease)}

    @property
    def digests(self) -> dict[str, tuple[int, bool]]:
        """For each member's name: the offset that its last digest was about, and whether this release computes it."""
        seats = self._state.seats.values()
        return {seat.name: self._digests[seat.incarnation] for seat in seats if seat.incarnation in self._digests}

    @property
    def highest_term(self) -> int:
        return max(self._state.terms, default=0)

    @property
    def partitions(self) -> int:
        return len(self._state.owners)

    @property
    def unowned(self) -> int:
        """Partitions without an owner."""
        return sum(owner is None for owner in self._state.owners)

    def mismatch(self, settings: Settings) -> GroupMismatch | None:
        """Why a member with `settings` may not join this group, if there is a reason."""
        return mismatch(settings, self._state)

    def await_state(self, ready: Callable[[State], bool], seconds: float) -> bool:
        """Read on until the state is `ready`, for at most `seconds`; return whether it is. Raises LedgerError."""
        news = self._following(seconds)
        while not ready(self._state) and next(news, None) is not None:
            pass
        return ready(self._state)

    def living(self, seconds: float, *, name: str | None = None) -> str | None:
        """The name of a member that writes within `seconds`, or None. With `name`, only members of that name count.

        Raises LedgerError.
        """
        for changes in self._following(seconds):
            for change in changes:
                if isinstance(record := change.record, BY_MEMBERS):
                    seat = change.after.seats.get(record.by)
                    writer = record.by if seat is None else seat.name
                    if name is None or writer == name:
                        return writer
        return None
