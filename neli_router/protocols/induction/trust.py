"""Trust in the ledger: does it still hold what it held, and do the others read the same records as I do?

    a record's offset is not above the last ----------------------.
    an acknowledged record of mine is not at its offset ----------+--> LedgerRewound: nothing leads on such a ledger
                                                                  |
    a Genesis whose writer read past the first without it ---.    |
    a Beat whose writer had read further than its own place -+---------two in a row from one member
    a digest that is not mine -------------------------------|         '--of a digest, from most--> Diverged: it leaves
                                                             '--> doubt: is what I read still there? (Evidence)

A ledger may lose its tail: a recreated topic, an unclean election, a Redis that restarted from an old file. A member
that had read that tail holds terms that the ledger will assign again. So it must detect the loss, and end.

A reader observes two of the signs itself, and they are final. The other signs are claims in records, and any writer can
write a record in any name: if one line could stop every reader, that would be a cheap way to stop a group. So each of
those only raises a doubt. The ledger itself cannot be forged that way. The reader goes back, reads again what it had
read, and compares. If everything is there, this reader has read nothing that was lost, and goes on:

    read --remember--> the last RING_MAX offsets, each with a hash of its bytes
                            |
    a doubt --begin--> read them once more --check--> all there: go on after them
                                                '-----> one is not: LedgerRewound

A member's claim counts for more, since it may have read lost records that I had not. But a single line may be forged in
its name. The real member keeps beating: one Beat of its own that contradicts the line withdraws the claim, and a second
line that says the same confirms it. I ignore a line in my own name that I did not write.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Sequence

import mmh3
from msgspec import UNSET

from neli_router.errors import Diverged, LedgerRewound, NeliError
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Beat, Genesis, Record, Snapshot

__all__ = ["OWN_MAX", "RING_MAX", "Evidence", "LedgerTrust"]

RING_MAX = 4096
"""Digests kept for comparison, one per record. With fewer, a Beat that was delayed for longer would go unchecked. As
many records are kept as evidence: more would take longer to read again, and no older sign is understood."""

OWN_MAX = 1024
"""Own records remembered, because a confirmation may arrive after the record itself was read, or long before."""

REMEDY = "find out why it lost records, restore it or make a new one, and start the members again"

Entry = tuple[int, bytes]
"""An offset, and the bytes read there."""


class LedgerTrust:
    """One reader's memory of a ledger, from the state it started with."""

    def __init__(self, state: State) -> None:
        self._start = state.at
        self._digests: OrderedDict[int, int] = OrderedDict({state.at: state.digest})
        self._own: deque[int] = deque(maxlen=OWN_MAX)
        self._acknowledged: deque[int] = deque(maxlen=OWN_MAX)  # Write-only members confirm forever.
        self._ahead: set[str] = set()
        """Members whose last Beat said that they had read more than stands before it."""
        self._doubted: set[str] = set()
        """Members whose last digest differed from mine."""
        self._disagreeing: set[str] = set()
        """Members whose last two digests differed from mine."""
        self._seats = state.seats
        self._in_doubt = False

    def acknowledge(self, offsets: Sequence[int], at: int) -> NeliError | None:
        """The ledger confirmed own records at `offsets`; everything below `at` was read."""
        for offset in offsets:
            if offset >= at:
                self._acknowledged.append(offset)
            elif offset >= self._start and offset not in self._own and not self._forgotten(offset):
                return self._lost_own(offset)
        return None

    def doubts(self) -> bool:
        """Whether there was a sign since the last call: if so, check the evidence."""
        doubts, self._in_doubt = self._in_doubt, False
        return doubts

    def vouches(self, record: Snapshot) -> bool:
        """Whether I folded the same records to the same state. If so, newcomers do not need the records below."""
        return self._digests.get(record.upto) == int(record.state.digest, 16)

    def before(self, state: State, offset: int, record: Record | None, own: Collection[str]) -> NeliError | None:
        """The error if `record` cannot stand at `offset` in `state`. `own` are the names that my records carry."""
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
        if isinstance(record, Beat):
            if record.at <= offset:
                self._ahead.discard(record.by)
                return None
            self._in_doubt = True
            if record.by in self._ahead:
                return LedgerRewound(
                    "every Beat stands above what its writer had read",
                    f"one at offset {offset} says that its writer had read up to {record.at}",
                    REMEDY,
                )
            if record.by in state.seats and record.by not in own:
                self._ahead.add(record.by)
        elif isinstance(record, Genesis) and state.genesis is not None and record.at > state.genesis_at:
            self._in_doubt = True
        return None

    def before_beats(
        self, state: State, beats: Sequence[tuple[int, Beat]], own: Collection[str]
    ) -> tuple[Sequence[tuple[int, Beat]], NeliError | None]:
        """`before` for Beats in a row, in ascending order: those up to the first error, and that error."""
        for count, (offset, beat) in enumerate(beats):
            if error := self.before(state, offset, beat, own):
                return beats[:count], error
        return beats, None

    def after(self, state: State, record: Record | None, *, forged: bool = False) -> NeliError | None:
        """Remember `state`, and compare the digest that `record` gives for an earlier state.

        `forged` says that the record carries my name but that I did not write it.
        """
        if state.seats is not self._seats:
            departed = self._seats.keys() - state.seats.keys()
            self._ahead, self._doubted = self._ahead - departed, self._doubted - departed
            self._disagreeing -= departed
            self._seats = state.seats
        self._remember(state.at, state.digest)
        if isinstance(record, Beat):
            if record.digest is UNSET:
                return None
            return self._compare(state, record.by, record.at, record.digest, forged=forged)
        if isinstance(record, Snapshot):
            return self._compare(state, record.by, record.upto, record.state.digest, forged=forged)
        return None

    def after_beats(self, state: State, beats: Sequence[tuple[int, Beat]], digests: Sequence[int]) -> NeliError | None:
        """`after` for Beats of others in a row; `digests` are those after each of them, `state` is after all."""
        error: NeliError | None = None
        for (offset, beat), digest in zip(beats, digests, strict=True):
            self._remember(offset + 1, digest)
            if beat.digest is not UNSET and error is None:
                error = self._compare(state, beat.by, beat.at, beat.digest, forged=False)
        return error

    def _remember(self, at: int, digest: int) -> None:
        self._digests[at] = digest
        if len(self._digests) > RING_MAX:
            self._digests.popitem(last=False)

    def _compare(self, state: State, by: str, at: int, digest: str, *, forged: bool) -> NeliError | None:
        mine = self._digests.get(at)
        if mine is None:
            return None  # Beyond the ring, or from before I started.
        if mine == int(digest, 16):
            self._doubted.discard(by)
            self._disagreeing.discard(by)
            return None
        self._in_doubt = True
        if by not in state.seats or forged:
            # In its own table it may be a member. Then one of us read lost records, and this reader has no evidence.
            return None
        if by not in self._doubted:
            self._doubted.add(by)
            return None
        self._disagreeing.add(by)
        agreeing = len(state.members.keys() - self._disagreeing)
        if agreeing > len(self._disagreeing):
            return None
        return Diverged(
            f"most of {agreeing + len(self._disagreeing)} members were expected to hold this member's table",
            f"{len(self._disagreeing)} hold another one at offset {at} (the last to say so was {by})",
            "run `neli doctor` for this ledger, which names the members that differ: all must run one release of neli; "
            "if they do, test this host's memory",
        )

    def _forgotten(self, offset: int) -> bool:
        return len(self._own) == OWN_MAX and offset < self._own[0]

    def _lost_own(self, offset: int) -> LedgerRewound:
        return LedgerRewound(
            f"this member's own record was confirmed at offset {offset}", "another one or none was read there", REMEDY
        )


class Evidence:
    """One reader's memory of the records that it read.

    The last record alone would not be enough: a reader of lost records may have read new ones after them, before it met
    the first sign. The hash guards against accidents: replacing the bytes of a record takes more than the right to
    write to the ledger.
    """

    def __init__(self) -> None:
        self._remembered: deque[tuple[int, int]] = deque(maxlen=RING_MAX)
        self._checked: int | None = None

    def is_checking(self) -> bool:
        """Whether the records that come next were read before."""
        return self._checked is not None

    def remember(self, entries: Sequence[Entry]) -> None:
        """`entries` were read."""
        self._remembered.extend((offset, _hash_of(payload)) for offset, payload in entries)

    def begin(self, start: int = 0) -> int | None:
        """The offset to read again from; None if nothing was read. The ledger retains nothing below `start`."""
        if not self._remembered:
            return None
        behind = self._remembered[-1][0] + 1
        while self._remembered and self._remembered[0][0] < start:
            self._remembered.popleft()
        self._checked = 0 if self._remembered else None
        return self._remembered[0][0] if self._remembered else behind

    def check(self, entries: Sequence[Entry], *, at_tip: bool) -> tuple[int, LedgerRewound | None]:
        """How many of `entries` were read before, and the error if they are not what was read."""
        assert self._checked is not None, "a check was begun"
        known = 0
        for offset, payload in entries:
            if self._checked == len(self._remembered):
                break
            expected, hashed = self._remembered[self._checked]
            if (offset, _hash_of(payload)) != (expected, hashed):
                return known, _gone(expected)
            known, self._checked = known + 1, self._checked + 1
        if self._checked == len(self._remembered):
            self._checked = None
        elif at_tip:
            return known, _gone(self._remembered[self._checked][0])
        return known, None


def _hash_of(payload: bytes) -> int:
    return mmh3.mmh3_x64_128_uintdigest(payload) & 0xFFFF_FFFF_FFFF_FFFF


def _gone(offset: int) -> LedgerRewound:
    return LedgerRewound(f"the record that was read at offset {offset} was to be there", "it is not any more", REMEDY)
