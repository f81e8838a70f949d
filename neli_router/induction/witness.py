"""The witness: does this ledger still say what it said, and do the others read the same as I?

    a record's offset is not above the last ----------------------.
    a Beat whose writer had read further than its own place ------|
    an acknowledged record of mine is not at its offset ----------+--> LedgerRewound: nothing leads on such a ledger
    a Genesis by a member that read past the first without it ----'
    Beats whose digests are not mine, from most members -------------> Diverged: a member in the minority leaves

A ledger may lose its tail: a topic made anew, an unclean election, a Redis that came back from an old file. A member
that had read that tail holds terms that the ledger will give again. So every sign of it is final for the member that
meets it.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Sequence

from neli_router.errors import Diverged, LedgerRewound, NeliError
from neli_router.induction.fold import State
from neli_router.induction.records import Beat, Genesis, Record, Snapshot

__all__ = ["OWN_MAX", "RING_MAX", "Witness"]

RING_MAX = 4096
"""Digests kept for comparison, one a record. Fewer, and a Beat that was delayed for longer goes unchecked."""

OWN_MAX = 1024
"""Own records remembered, because a confirmation may come after the record itself was read, or long before."""

REMEDY = "find out why it lost records, restore it or make a new one, and start the members again"


class Witness:
    """One reader's memory of a ledger, from the state it started with."""

    def __init__(self, state: State) -> None:
        self._start = state.at
        self._digests: OrderedDict[int, int] = OrderedDict({state.at: state.digest})
        self._own: deque[int] = deque(maxlen=OWN_MAX)
        self._acknowledged: deque[int] = deque(maxlen=OWN_MAX)  # One that can write and not read confirms for ever.
        self._disagreeing: set[str] = set()
        self._seats = state.seats

    def acknowledge(self, offsets: Sequence[int], at: int) -> NeliError | None:
        """The ledger confirmed own records at `offsets`; everything below `at` was read."""
        for offset in offsets:
            if offset >= at:
                self._acknowledged.append(offset)
            elif offset >= self._start and offset not in self._own and not self._forgotten(offset):
                return self._lost_own(offset)
        return None

    def before(self, state: State, offset: int, record: Record | None, own: Collection[str]) -> NeliError | None:
        """The error if `record` cannot stand at `offset` in `state`. `own` are the names that my records bear."""
        if offset < state.at:
            return LedgerRewound(
                f"a record at offset {state.at} or above was expected", f"offset {offset} was read again", REMEDY
            )
        if record is not None and record.by in own:
            self._own.append(offset)
        while self._acknowledged and self._acknowledged[0] <= offset:
            confirmed = self._acknowledged.popleft()
            if confirmed != offset or record is None or record.by not in own:
                return self._lost_own(confirmed)
        if isinstance(record, Beat) and record.at > offset:
            return LedgerRewound(
                "every Beat stands above what its writer had read",
                f"one at offset {offset} says that its writer had read up to {record.at}",
                REMEDY,
            )
        if isinstance(record, Genesis) and state.genesis is not None and record.at > state.genesis_at:
            return LedgerRewound(
                f"the ledger's first record is at offset {state.genesis_at}",
                f"a member that read up to {record.at} found none and began the ledger anew at {offset}",
                REMEDY,
            )
        return None

    def after(self, state: State, record: Record | None) -> NeliError | None:
        """Remember `state`, and compare the digest that `record` gives of an earlier one."""
        if state.seats is not self._seats:
            self._disagreeing -= self._seats.keys() - state.seats.keys()
            self._seats = state.seats
        self._digests[state.at] = state.digest
        if len(self._digests) > RING_MAX:
            self._digests.popitem(last=False)
        if isinstance(record, Beat):
            return self._compare(state, record.by, record.at, record.digest)
        if isinstance(record, Snapshot):
            return self._compare(state, record.by, record.upto, record.state.digest)
        return None

    def _compare(self, state: State, by: str, at: int, digest: str) -> NeliError | None:
        mine = self._digests.get(at)
        if mine is None:
            return None  # Beyond the ring, or from before I started.
        if mine == int(digest, 16):
            self._disagreeing.discard(by)
            return None
        # A writer of Beats is a member by its own table, if not by mine, so its word counts against mine. Otherwise, on
        # a ledger that lost records, two members that each read that the other is gone would lead side by side.
        self._disagreeing.add(by)
        agreeing = len(state.seats.keys() - self._disagreeing)
        if agreeing > len(self._disagreeing):
            return None
        return Diverged(
            f"most of {agreeing + len(self._disagreeing)} members were expected to hold this member's table",
            f"{len(self._disagreeing)} hold another one at offset {at} (the last to say so was {by})",
            "compare the members' releases, run a memory test on this host, keep the ledger for analysis, restart",
        )

    def _forgotten(self, offset: int) -> bool:
        return len(self._own) == OWN_MAX and offset < self._own[0]

    def _lost_own(self, offset: int) -> LedgerRewound:
        return LedgerRewound(
            f"this member's own record was confirmed at offset {offset}", "another one or none was read there", REMEDY
        )
