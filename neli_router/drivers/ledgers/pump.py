"""The pump: one machine, one ledger, one loop.

    inbox --(Wish, Released, Close)--.
                                     v
    ledger --read, then the clock--> machine.step --> publish the standing --> carry out the effects, in order
       ^                                                                                  |
       '---------------------------------- append ----------------------------------------'

**A step is short.** A read may bring a thousand records, and a record may change the targets of ten thousand
partitions. So the machine gets the records of one read in slices, each with its own time: in between, it sends the Beat
that is due, and hears the inbox. How long a record takes depends on the group and on the host, so the pump measures: if
a slice took longer than it should, the next one holds half as many changes. A time later than that of the read is safe:
a member that thinks it read a record later than it did waits longer, and accuses later.

**A large group** has thousands of Beats a second, and to read each as it comes would cost more than all else. So the
pump of such a group rests between two reads, for a small part of the lease.

**A doubt** (Recheck) moves the ledger's position back to the first record that is remembered. The records that follow
are compared, and not given to the machine again. The pump rests between two looks. Otherwise a line that raises a
doubt, written again and again, would keep a member from reading on.

Two orderings matter, and both are kept here. The clock is read *after* the ledger, because the records that a read
brings may have been sent while it waited. The standing is published *before* an effect is carried out, so that no
thread of the program still sees a partition as led when its Handover is on the way.

The pump has no thread and no clock of its own: a member gives it both, and a simulator turns it by hand.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Generic, Protocol, TypeVar

from neli_router.drivers.ledgers.base import Entry, Ledger
from neli_router.errors import LedgerRewound, LedgerTrimmed, LedgerUnavailable, LedgerUnusable, RecordTooLong
from neli_router.protocols.induction.events import (
    Acknowledged,
    Append,
    Effect,
    Input,
    LedgerAway,
    LedgerBroken,
    Read,
    Recheck,
    Restart,
    Trim,
)
from neli_router.protocols.induction.fold import FOLD_VERSIONS, State
from neli_router.protocols.induction.records import (
    Beat,
    Expire,
    Genesis,
    Handover,
    Join,
    Leave,
    Record,
    Snapshot,
    decode,
    encode,
    snapshot_version,
)
from neli_router.protocols.induction.snapshots import BadSnapshot, restore
from neli_router.protocols.induction.trust import Evidence
from neli_router.protocols.protocol import RECORD_MAX, TICK, Machine, News, Notice

__all__ = ["FIRST_OFFSET_MAX", "POLL_MAX", "LedgerMachine", "Pump", "Tap", "oldest_state"]

POLL_MAX = 0.5
"""The longest wait for a record. Longer saves nothing; shorter notices sooner that a ledger cannot be read."""

RETRY_EVERY = 0.02
"""The pause after a read that failed immediately: short against any lease that fails over within a second."""

SLICE_MAX, CHANGES_MAX = 256, 64
"""Records in one step, and how many of them may be other than Beats: these change the table, and take the longest.
Higher values delay Beats behind a bad stretch; lower ones report a hundred Handovers to the program in more pieces."""

SLICE_SECONDS = 0.05
"""How long a slice should take at most; it holds one change at least, however long that takes. A quarter of it is short
enough for more changes."""

CROWD = 100
"""The members of a group in which the pump rests. In a smaller one, a takeover would take longer for little gain."""

REST_LEASES, REST_MAX = 0.03, 0.03
"""The rest, as a part of the lease, and its most seconds. A longer one saves processor time and delays all news."""

LOOKS_APART = 10
"""After a look at the evidence, the next one waits for this many times as long as the look took."""

LOOK_REST_MAX = 0.25
"""Seconds. If an outage or a sleep makes one look long, it must not put off the next one too far: a member that read
records which the ledger then lost goes on acting until it looks."""

SPAN = 20_000
"""How far before the tip to look for a snapshot at first: more than two intervals, so that one look is enough."""

LOOKS_MAX = 64
"""How often to look before giving up for now: farther back each time, and from scratch if the start moved meanwhile."""

BY_MEMBERS = Join | Beat | Expire | Handover | Leave | Snapshot
"""Records that only a member writes, so they come after a genesis. A wish may stand in a ledger that has no genesis
yet, and so may a Certify: a process that is not a member writes it about a process that ended before it had joined."""

FIRST_OFFSET_MAX = 1
"""Ledgers count from 0 or from 1. A ledger that starts above this has dropped its beginning. In a ledger that has not,
records may stand before the genesis, from writers that did not know of the new ledger yet. They are void."""


class LedgerMachine(Machine[Input, Effect], Protocol):
    """A machine that folds a ledger."""

    state: State


Driven = TypeVar("Driven", bound=LedgerMachine)


class Tap(Protocol):
    """Another reader of everything that the pump reads, on the pump's thread. Must be quick and must not raise."""

    def begin(self, state: State, now: float) -> None:
        """The records that follow continue `state`."""

    def read(self, records: Sequence[tuple[int, Record | None]], now: float) -> None:
        """These records came next; None stands for one that does not decode."""


class Pump(Generic[Driven]):
    """Drives one machine. Only one thread may call `turn`; any thread may call `post`.

    `begin` makes the machine from the state that the ledger starts it with, and the time just after that was read.
    `publish` is called after every step, before the step's effects. `tell` gets every effect that is not the ledger's.
    `explain`, if given, gets the effects before `publish` is called.
    """

    def __init__(
        self,
        ledger: Ledger,
        begin: Callable[[State, float], Driven],
        *,
        clock: Callable[[], float],
        pause: Callable[[float], None],
        publish: Callable[[Driven, float], None],
        tell: Callable[[News], None],
        explain: Callable[[Sequence[Effect]], None] | None = None,
        tap: Tap | None = None,
    ) -> None:
        self._ledger, self._clock, self._pause = ledger, clock, pause
        self._publish, self._tell, self._explain, self._tap = publish, tell, explain, tap
        self._inbox: deque[Input] = deque()
        self._away: set[str] = set()
        self.fresh_at = -inf
        """When a read last brought everything that there was. The machine's knowledge is as old as this."""
        self._evidence = Evidence()
        self._doubts = False
        self._looked_from = self._look_at = -inf
        self._changes_max = CHANGES_MAX
        self._read_at = -inf
        state = oldest_state(ledger)
        ledger.seek(state.at)
        now = clock()
        self.machine = begin(state, now)
        if tap is not None:
            tap.begin(state, now)

    def post(self, event: Input) -> None:
        """Let the machine take `event` soon. Callable from any thread."""
        self._inbox.append(event)
        self._ledger.wake()

    def turn(self) -> None:
        """One bounded piece of work: the inbox, and at most one read."""
        self._hear()
        wait = 0.0 if self._inbox else self.machine.deadline - self._clock()
        try:
            self._look_back()
            self._rest(wait)
            entries = self._ledger.read(min(POLL_MAX, max(0.0, wait)))
        except LedgerTrimmed:
            self._restart()
        except LedgerUnavailable as error:
            self._note_away("read", error)
            self._step(LedgerAway())
            self._pause(RETRY_EVERY)
        except (LedgerRewound, LedgerUnusable) as error:
            self._step(LedgerBroken(error))
        else:
            now = self._clock()  # Before the age: if the thread stops between the two, its news looks older, not newer.
            age = self._ledger.age()
            if age < inf:
                self.fresh_at = max(self.fresh_at, now - age)
            if entries or age < inf:
                self._note_back("read")
            self._take(entries, age, now - age)
        if offsets := self._ledger.acknowledged():
            self._step(Acknowledged(offsets))

    def _rest(self, wait: float) -> None:
        """In a large group, let some records come before they are read."""
        state = self.machine.state
        if len(state.seats) < CROWD or state.genesis is None:
            return
        rest = self._read_at + min(REST_MAX, REST_LEASES * state.genesis.lease) - self._clock()
        if min(rest, wait) > 0:
            self._pause(min(rest, wait))
        self._read_at = self._clock()

    def _take(self, entries: Sequence[Entry], age: float, known_at: float) -> None:
        if self._evidence.is_checking():
            known, error = self._evidence.check([entry[:2] for entry in entries], at_tip=age < inf)
            if error is not None:
                self._step(LedgerBroken(error))
                return
            if not self._evidence.is_checking():
                now = self._clock()
                self._look_at = now + min(LOOK_REST_MAX, LOOKS_APART * (now - self._looked_from))
            entries = entries[known:]
        self._evidence.remember([entry[:2] for entry in entries])
        if not entries:
            # Woken, or still looking back, and not known to be at the tip.
            now = self._clock()
            self._step(Read([], now - known_at) if age < inf and not self._evidence.is_checking() else TICK, now)
        taken = 0
        while taken < len(entries):
            if taken:
                self._hear()
            began = self._clock()
            records, changes = _slice(entries[taken : taken + SLICE_MAX], self._changes_max)
            taken += len(records)
            if self._tap is not None:
                self._tap.read(records, self._clock())
            now = self._clock()
            self._step(Read(records, now - known_at if taken == len(entries) else inf), now)
            self._measure(changes, self._clock() - began)

    def _measure(self, changes: int, took: float) -> None:
        """Note how long a slice with this number of changes took."""
        if took > SLICE_SECONDS:
            self._changes_max = max(1, changes // 2)
        elif changes and took < SLICE_SECONDS / 4:
            self._changes_max = min(CHANGES_MAX, 2 * self._changes_max)

    def _hear(self) -> None:
        """Step through everything that was posted."""
        for _ in range(len(self._inbox)):
            self._step(self._inbox.popleft())

    def _look_back(self) -> None:
        """If there is a doubt and a look is due, start reading the remembered records again."""
        if not self._doubts or self._evidence.is_checking() or self._clock() < self._look_at:
            return
        self._doubts = False
        if (first := self._evidence.begin()) is not None:
            self._looked_from = self._clock()
            self._ledger.seek(first)

    def _step(self, event: Input, now: float | None = None) -> None:
        now = self._clock() if now is None else now
        effects = self.machine.step(event, now)
        if effects and self._explain is not None:
            self._explain(effects)
        self._publish(self.machine, now)
        for effect in effects:
            match effect:
                case Append(records, lasting):
                    self._append([encode(record) for record in records], lasting=lasting)
                case Trim(before):
                    self._trim(before)
                case Recheck():
                    self._doubts = True
                case _:
                    self._tell(effect)

    def _append(self, payloads: list[bytes], *, lasting: bool) -> None:
        fitting = [payload for payload in payloads if len(payload) <= RECORD_MAX]
        if len(fitting) < len(payloads):
            self._tell(Notice("ledger.record_too_long", {"error": f"no reader takes more than {RECORD_MAX} bytes"}))
        try:
            self._ledger.append(fitting, lasting=lasting)
            self._note_back("append")
        except RecordTooLong as error:  # It is a snapshot: the next is due when as many records were read again.
            self._tell(Notice("ledger.record_too_long", {"error": str(error)}))
        except LedgerUnavailable as error:
            # It may be appended all the same. The machine finds out from what it reads, or from reading nothing.
            self._note_away("append", error)
        except (LedgerRewound, LedgerUnusable) as error:
            self.post(LedgerBroken(error))

    def _trim(self, before: int) -> None:
        try:
            self._ledger.trim(before)
        except (LedgerUnavailable, LedgerUnusable) as error:
            self._tell(Notice("ledger.trim_failed", {"before": before, "error": str(error)}))
        except LedgerRewound as error:
            self.post(LedgerBroken(error))

    def _restart(self) -> None:
        try:
            if self._evidence.is_checking():  # The dropped records were behind us: look at those that are left.
                first = self._evidence.begin(self._ledger.start())
                assert first is not None, "it was read before"
                self._ledger.seek(first)
                return
            state = oldest_state(self._ledger)
            self._ledger.seek(state.at)
        except LedgerUnavailable as error:
            self._note_away("read", error)
            self._step(LedgerAway())
            self._pause(RETRY_EVERY)
        except (LedgerRewound, LedgerUnusable) as error:
            self._step(LedgerBroken(error))
        else:
            self._evidence, self._doubts = Evidence(), False
            if self._tap is not None:
                self._tap.begin(state, self._clock())
            self._step(Restart(state))

    def _note_away(self, what: str, error: LedgerUnavailable) -> None:
        if what not in self._away:  # Once per outage: a line for each failed try would bury the first.
            fields = {"what": what, "ledger": self._ledger.address, "error": str(error)}
            self._tell(Notice("ledger.unavailable", fields))
        self._away.add(what)

    def _note_back(self, what: str) -> None:
        if what in self._away:  # Reads and appends are noted apart: on a full disk only appends fail.
            self._tell(Notice("ledger.available", {"what": what, "ledger": self._ledger.address}))
        self._away.discard(what)


def _slice(entries: Sequence[Entry], changes_max: int) -> tuple[list[tuple[int, Record | None]], int]:
    """The first records of `entries`, with at most `changes_max` changes, and the number of changes."""
    records: list[tuple[int, Record | None]] = []
    changes = 0
    for entry in entries:
        record = decode(entry.payload)
        records.append((entry.offset, record))
        changes += record is not None and type(record) is not Beat
        if changes == changes_max:
            break
    return records, changes


def oldest_state(ledger: Ledger) -> State:
    """The state to read on from: empty if all records are there, otherwise that of the first snapshot among them.

    Leaves the ledger's position anywhere. The newest snapshot would save more reading, but a stranger may have written
    it, and no member may have had the time to contradict it yet. Members drop records only below a snapshot that they
    agree with, so they agreed with the first snapshot that is left. If no snapshot here can be read, but one is of a
    newer fold version, the group moved on: what its other records mean is not known, and no member may found it again.
    """
    span = SPAN
    for _ in range(LOOKS_MAX):
        start, tip = ledger.start(), ledger.tip()
        low = max(start, tip - span)
        if low <= FIRST_OFFSET_MAX:
            return State()
        try:
            found, founded, members, version = _look_through(ledger, low, tip, start)
        except LedgerTrimmed:
            continue  # A member trimmed between the two looks, so there is a newer snapshot.
        if found is not None:
            return found
        if low > start:
            span *= 8
            continue
        oldest, newest = FOLD_VERSIONS
        if version > newest:
            raise LedgerUnusable(
                f"a snapshot of fold version {oldest} to {newest} was wanted in {ledger.address}",
                f"the ledger's group is at version {version}",
                "run a release of neli-router that knows that version",
            )
        # A genesis certainly counts if its writer had read all the dropped records and found no genesis among them.
        if members if founded is None else founded.at < start:
            raise LedgerUnusable(
                f"a genesis or a snapshot was wanted in {ledger.address}",
                f"its records from {start} to {tip} have neither: the ones before were dropped too early",
                "keep records for longer than two snapshots take; start a new ledger, its terms will be higher",
            )
        return State(at=start)
    raise LedgerUnavailable(
        f"a genesis or a snapshot was wanted in {ledger.address}",
        f"its start moved on each of {LOOKS_MAX} times that it was looked for",
        "wait: it will be tried again; if that does not help, keep records for longer",
    )


def _look_through(ledger: Ledger, low: int, tip: int, start: int) -> tuple[State | None, Genesis | None, bool, int]:
    """The first good snapshot in [low, tip); the first genesis before it; whether members' records precede it; and the
    newest fold version of snapshots that cannot be read."""
    founded: Genesis | None = None
    members, version = False, 0
    position = low
    ledger.seek(low)
    while position < tip:
        entries = ledger.read(RETRY_EVERY)
        if not entries and ledger.age() < inf:
            break  # The records that stood there are gone.
        position = entries[-1].offset + 1 if entries else position
        for entry in entries:
            record = decode(entry.payload) if _may_matter(entry, members=members) else None
            members |= isinstance(record, BY_MEMBERS)
            if isinstance(record, Genesis) and founded is None:
                founded = record
            # A snapshot that covers more records than stand before it was meant for a ledger that no longer exists.
            if isinstance(record, Snapshot) and start <= record.upto <= entry.offset:
                try:
                    return restore(record), founded, members, version
                except BadSnapshot:
                    continue  # A later snapshot will do, or the records themselves.
            if record is None and b'"snapshot"' in entry.payload[:40]:
                version = max(version, snapshot_version(entry.payload))
    return None, founded, members, version


def _may_matter(entry: Entry, *, members: bool) -> bool:
    """Avoid decoding a hundred thousand Beats to find one snapshot."""
    return not members or b'"genesis"' in entry.payload[:40] or b'"snapshot"' in entry.payload[:40]
