"""The fold: the state that a prefix of the ledger stands for. All readers of the same prefix have the same state.

    state x record x offset -> state

    members    Join -> member -> Leave, Expire, Certify, or a Join under the same name -> departed, forever
                         '-- the same, with a grace --> away -- Expire or a Join ------^
                                            Certify of one that has not joined ------^
    partition  unowned --any change of members--> owner under term t --its own Handover--> the target, term t'
                  ^                                 |
                  '---- the owner departs ----------'     (goes to its target in that very record)

A *target* is the member that should own a partition, given the members, pins, drains, weights and loads at this offset;
an *owner* is the member that owns it. A live owner keeps a partition until it says itself that it is done, so a change
of targets takes nothing from a member that still works. A term is `base` + the offset at which the ownership began.
Neither ever falls, so a later owner always has a higher term. Each Join raises `base` to its writer's wall clock, less
its offset. Records are written at less than a million a second, so terms stay below the clock. So if the clocks were
right, no term is given twice, even by a ledger that was recreated or restored from an older copy.

**Grace.** A process that is restarted comes back under its name. So a member may have a grace: when it leaves, is
expired or certified, it goes *away* and keeps its partitions, for which no member acts. A Join under its name gets them
back in that record. Otherwise another member ends the grace with an Expire that names the record by which it went, and
then the partitions go to their targets. One that is away cannot act on the ledger: its Beats, accusations and Handovers
are void. Partitions that were on their way to another member go there in that record. A drained member has no grace,
and a Drain ends the grace of one that is away.

**Standbys.** If members have zones, each partition has a standby in another zone than its target. A partition that lost
its owner goes to its target or, if that departed too, to its standby. If targets change during handovers, a partition
still goes to the member that it was promised to. All this as far as balance allows.

**Bounds.** A state has at most MEMBERS_MAX members: a Join beyond that is void, and its writer asks again later. It has
drains, and weights, for at most WISHES_MAX names each. A wish about a member is always granted: in a full table, it
replaces the oldest wish about a name that no member has. So a loop that joins, or one that drains random names, cannot
fill memory or keep people from draining a member. A wish about a name without a member does not compute new targets,
since it cannot change any.

The fold knows no time and asks no other process. To the fold it does not matter whether a suspicion is true, whether a
handover was wise, or how late a record arrived. A state is an immutable value, so threads can share it without copying.
Its digest is the exclusive-or of the hashes of all facts, so a Beat costs two hashes and not a hash of the whole state.

Nearly all records are Beats, and in a large group many come in one read. They are folded together: the one copy of the
map of last Beats costs less than all the hashes.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from msgspec import UNSET, Struct
from msgspec.structs import replace

from neli_router.protocols.induction.assignment import Candidate, assign, standbys
from neli_router.protocols.induction.digest import difference, hash_of
from neli_router.protocols.induction.records import (
    BATCHES_SINCE,
    Beat,
    Certify,
    Drain,
    Expire,
    Genesis,
    Handover,
    Join,
    Leave,
    Load,
    Pin,
    Record,
    Seat,
    Snapshot,
    Undrain,
    Unpin,
    Upgrade,
    Weigh,
    WishRecord,
    is_known,
)

__all__ = [
    "DEPARTED_MAX",
    "FOLD_VERSIONS",
    "MEMBERS_MAX",
    "WISHES_MAX",
    "Assign",
    "State",
    "beats_from",
    "fold",
    "fold_beats",
    "targets_of",
]

FOLD_VERSIONS = (2, 3)
"""The oldest and the newest fold that this code computes. It includes the assignment: see ASSIGNMENT_VERSION."""

DEPARTED_MAX = 64
"""How many departed incarnations to remember, so that a Join still in flight does not bring one back. A larger number
costs space in every snapshot; a smaller one lets a Join that was delayed for longer take a seat until it is expired."""

MEMBERS_MAX = 1024
"""More members would make each change of members slower for all, because it computes all targets again."""

WISHES_MAX = MEMBERS_MAX
"""The most names with a drain, or with a weight of their own. With a lower limit, not all members could be drained."""

Assign = Callable[..., tuple[str | None, ...]]
Key = TypeVar("Key")
Value = TypeVar("Value")


class State(Struct, frozen=True, kw_only=True):
    """Everything that the records below `at` say. The mappings are never changed in place."""

    at: int = 0
    genesis: Genesis | None = None
    genesis_at: int = 0
    version: int = 0
    base: int = 0
    """A term is this much above the offset of the record that gives it."""
    seats: dict[str, Seat] = {}
    last_beats: dict[str, int] = {}
    owners: tuple[str | None, ...] = ()
    terms: tuple[int, ...] = ()
    began: tuple[int, ...] = ()
    """The offset of the record that gave the partition to its owner."""
    targets: tuple[str | None, ...] = ()
    pins: dict[int, str] = {}
    drains: dict[str, int] = {}
    """Name -> the offset of its Drain; the oldest comes first."""
    weights: dict[str, int] = {}
    loads: dict[int, float] = {}
    departed: tuple[str, ...] = ()
    graces: dict[str, float] = {}
    """Incarnation -> the seconds for which it keeps its partitions if others end its membership; those with any."""
    away: dict[str, float] = {}
    """Incarnation -> its grace. It still has its seat, and its last Beat is the record by which it went."""
    clear: dict[str, int] = {}
    """Incarnation -> an offset. All earlier owners of what it got below that have stopped; so has it, if it is away.
    One that was expired has none, because its own lease may not be over."""
    standbys: tuple[str | None, ...] = ()
    """The member that gets each partition if the zone of its target is lost. Empty if all members are in one zone."""
    digest: int = 0

    @property
    def members(self) -> dict[str, Seat]:
        """The seats of those that are not away."""
        return {q: seat for q, seat in self.seats.items() if q not in self.away} if self.away else self.seats

    def is_member(self, incarnation: str) -> bool:
        """Whether it has a seat and is not away."""
        return incarnation in self.seats and incarnation not in self.away

    def holder(self, name: str) -> Seat | None:
        """The member that is called `name`."""
        return next((seat for seat in self.seats.values() if seat.name == name), None)


def fold(state: State, offset: int, record: Record | None, assign: Assign = assign) -> State:
    """The state after `record` at `offset`; None stands for bytes that cannot be decoded."""
    if type(record) is Beat:
        return fold_beats(state, [(offset, record)])[0]
    if record is not None and not is_known(record, _version_of(state, record)):
        record = None
    after = replace(state, at=offset + 1)
    if record is None or isinstance(record, Snapshot):
        return after
    if state.genesis is None:
        if isinstance(record, Genesis):
            after = _begin(after, offset, record)
    else:
        after = _apply(after, offset, record, assign)
    return replace(after, digest=state.digest ^ difference(state, after))


def fold_beats(state: State, beats: Sequence[tuple[int, Beat]]) -> tuple[State, list[int]]:
    """The state after all of `beats`, in their order, and the digest after each of them. There is at least one."""
    last_beats, clear, digest = dict(state.last_beats), state.clear, state.digest
    digests: list[int] = []
    for offset, beat in beats:
        by = beat.by
        last_beat = last_beats.get(by)
        # A Beat in flight when its writer departed brings no member back.
        if last_beat is not None and by not in state.away and is_known(beat, state.version):
            last_beats[by] = offset
            digest ^= hash_of("last_beats", by, last_beat) ^ hash_of("last_beats", by, offset)
            if beat.clear is not UNSET and (upto := min(beat.clear, offset)) > clear.get(by, 0):
                digest ^= hash_of("clear", by, clear[by]) if by in clear else 0
                digest ^= hash_of("clear", by, upto)
                clear = {**clear, by: upto}
        digests.append(digest)
    return replace(state, at=beats[-1][0] + 1, last_beats=last_beats, clear=clear, digest=digest), digests


def beats_from(entries: Sequence[tuple[int, Record | None]], first: int, me: str = "") -> list[tuple[int, Beat]]:
    """Those of `entries`, from the one at index `first` on, that are Beats of others than `me` in a row."""
    beats: list[tuple[int, Beat]] = []
    for index in range(first, len(entries)):
        offset, record = entries[index]
        if type(record) is not Beat or record.by == me or (beats and offset <= beats[-1][0]):
            break
        beats.append((offset, record))
    return beats


def _version_of(state: State, record: Record) -> int:
    """The version under which `record` is read: a Genesis says it itself."""
    return record.version if state.genesis is None and isinstance(record, Genesis) else state.version


def _begin(state: State, offset: int, record: Genesis) -> State:
    unowned, never = (None,) * record.layout.partitions, (0,) * record.layout.partitions
    return replace(
        state,
        genesis=replace(record, ext=UNSET),
        genesis_at=offset,
        version=record.version,
        base=record.base,
        owners=unowned,
        terms=never,
        began=never,
        targets=unowned,
    )


def _apply(state: State, offset: int, record: Record, assign: Assign) -> State:
    match record:
        case Join():
            return _join(state, offset, record, assign)
        case Leave(by) if state.is_member(by):
            return _depart(state, offset, {by: record.grace}, assign)
        case Expire(by) if state.is_member(by):
            silent = [q for q, last_beat in record.last_beats.items() if state.last_beats.get(q) == last_beat]
            graces = {q: 0.0 if q in state.away else state.graces.get(q, 0.0) for q in silent}
            if not graces:
                return state
            clear = {q: upto for q, upto in state.clear.items() if q not in graces}
            return _depart(replace(state, clear=clear), offset, graces, assign)
        case Certify() if record.incarnation in state.away:
            return state  # It is known already that it does not act.
        case Certify() if record.incarnation in state.seats:
            grace = state.graces.get(record.incarnation, 0.0)
            return _depart(state, offset, {record.incarnation: grace}, assign)
        case Certify() if record.incarnation not in state.departed:
            # Its Join may come after this: only the records of one writer keep their order.
            return replace(state, departed=_with_departed(state, [record.incarnation]))
        case Handover(by) if by not in state.away:
            return _give(state, offset, by, record.terms)
        case Upgrade() if state.members and all(low <= record.version <= high for low, high in _versions(state)):
            return _with_standbys(replace(state, version=max(state.version, record.version)))
        case Drain() | Undrain() | Pin() | Unpin() | Weigh() | Load():
            wished = _wish(state, offset, record)
            if wished is state or not _concerns_members(state, record):
                return wished
            gone = state.holder(record.name) if isinstance(record, Drain) else None
            if gone is not None and gone.incarnation in state.away:
                return _depart(wished, offset, {gone.incarnation: 0.0}, assign)
            return _retarget(wished, offset, wished.owners, assign)
        case _:
            return state


def _join(state: State, offset: int, record: Join, assign: Assign) -> State:
    if record.by in state.seats or record.by in state.departed:
        return state
    if not record.versions[0] <= state.version <= record.versions[1]:
        return state
    if record.at > offset:
        return state  # The writer had read records that this ledger lost: it may have died since and been replaced.
    older = state.holder(record.name)
    if older is not None and older.joined >= record.at:
        return state  # The writer had not read the Join that it would replace: it may be the older of the two.
    if older is None and len(state.seats) >= MEMBERS_MAX:
        return state
    seat = Seat(
        record.by, record.name, record.address, record.weight, record.zone, record.versions, offset, record.witness
    )
    kept = state.owners
    if older is not None:
        # The successor under the same name is assigned what its older self had, as if it already owned it.
        kept, targets, standing_by = (
            tuple([record.by if one == older.incarnation else one for one in table])
            for table in (kept, state.targets, state.standbys)
        )
        state = replace(_unseat(state, [older.incarnation]), targets=targets, standbys=standing_by)
    state = replace(
        state,
        base=max(state.base, record.floor - offset),
        seats={**state.seats, record.by: seat},
        last_beats={**state.last_beats, record.by: offset},
        graces={**state.graces, record.by: record.grace} if record.grace is not UNSET else state.graces,
    )
    return _retarget(state, offset, kept, assign)


def _depart(state: State, offset: int, graces: Mapping[str, float], assign: Assign) -> State:
    """Each of `graces` goes away for its grace, or departs for good if that is zero."""
    if state.version < BATCHES_SINCE:
        graces = dict.fromkeys(graces, 0.0)
    going = {q: grace for q, grace in graces.items() if grace > 0 and state.seats[q].name not in state.drains}
    gone = [q for q in graces if q not in going]
    if not going:
        state = _unseat(state, gone)
        return _retarget(state, offset, state.owners, assign)
    state = replace(
        state, away={**state.away, **going}, last_beats={**state.last_beats, **dict.fromkeys(going, offset)}
    )
    pairs = list(enumerate(zip(state.owners, state.targets, strict=True)))
    staying = state.members.keys() - set(gone)
    passing = {i: target for i, (owner, target) in pairs if owner in going and target in staying}
    if not gone and not any(target in going and owner not in going for _, (owner, target) in pairs):
        state = _with_standbys(state)
        return _given(state, offset, passing) if passing else state
    if gone:
        state = _unseat(state, gone)
    kept = [passing.get(i, owner) for i, owner in enumerate(state.owners)]
    return _retarget(state, offset, kept, assign, passing)


def _unseat(state: State, incarnations: Collection[str]) -> State:
    gone = frozenset(incarnations)
    return replace(
        state,
        seats={key: seat for key, seat in state.seats.items() if key not in gone},
        last_beats={key: beat for key, beat in state.last_beats.items() if key not in gone},
        owners=tuple([None if owner in gone else owner for owner in state.owners]),
        departed=_with_departed(state, incarnations),
        graces={key: grace for key, grace in state.graces.items() if key not in gone},
        away={key: grace for key, grace in state.away.items() if key not in gone},
        clear={key: upto for key, upto in state.clear.items() if key not in gone},
    )


def _with_departed(state: State, incarnations: Collection[str]) -> tuple[str, ...]:
    return (*state.departed, *incarnations)[-DEPARTED_MAX:]


def _retarget(
    state: State, offset: int, kept: Sequence[str | None], assign: Assign, passing: Collection[int] = ()
) -> State:
    """Compute new targets, which become the owners of all partitions without one, and of those in `passing`."""
    state = replace(state, targets=targets_of(state, kept, assign, loads=state.loads))
    free = {*(i for i, owner in enumerate(state.owners) if owner is None), *passing}
    given = {i: state.targets[i] for i in free if state.targets[i] is not None}
    return _given(_with_standbys(state), offset, given)


def targets_of(
    state: State, kept: Sequence[str | None], assign: Assign = assign, *, loads: Mapping[int, float] = {}
) -> tuple[str | None, ...]:
    """The targets if the members own `kept`. One that is away keeps what it has, and gets nothing more."""
    members, pins, drains = _situation(state, kept)
    if state.version < BATCHES_SINCE:
        return assign(members, kept, pins=pins, drains=drains, loads=loads)
    alive, standing_by = state.members, state.standbys or (None,) * len(kept)
    preferred = [
        target if target in alive else standby or target
        for target, standby in zip(state.targets, standing_by, strict=True)
    ]
    return assign(members, kept, pins=pins, drains=drains, loads=loads, preferred=preferred)


def _with_standbys(state: State) -> State:
    """Compute new standbys: whatever they depend on may have changed."""
    if state.version < BATCHES_SINCE:
        return state
    members, pins, drains = _situation(state, state.targets)
    found = standbys(members, state.targets, state.standbys, pins=pins, drains=drains)
    return state if found == state.standbys else replace(state, standbys=found)


def _situation(state: State, kept: Sequence[str | None]) -> tuple[list[Candidate], dict[int, str], set[str]]:
    """The members, pins and drains that count if the members own `kept`."""
    has_zones = state.version >= BATCHES_SINCE
    members = [
        Candidate(
            seat.incarnation,
            seat.name,
            state.weights.get(seat.name, seat.weight),
            seat.zone if has_zones else "",
        )
        for seat in state.seats.values()
    ]
    held = {i: state.seats[owner].name for i, owner in enumerate(kept) if owner in state.away} if state.away else {}
    drains = {*state.drains, *(state.seats[q].name for q in state.away)}
    return members, {**held, **state.pins}, drains


def _given(state: State, offset: int, owners: Mapping[int, str | None]) -> State:
    """Each partition in `owners` gets a new owner, under the term of `offset`."""
    return replace(
        state,
        owners=_patched(state.owners, owners),
        terms=_patched(state.terms, dict.fromkeys(owners, state.base + offset)),
        began=_patched(state.began, dict.fromkeys(owners, offset)),
    )


def _patched(table: tuple[Value, ...], changed: Mapping[int, Value]) -> tuple[Value, ...]:
    patched = list(table)
    for i, value in changed.items():
        patched[i] = value
    return tuple(patched)


def _give(state: State, offset: int, by: str, terms: Mapping[int, int]) -> State:
    # A partition goes to the target at this record, even if that is the old owner again. A Handover is final, so if
    # one crossed a change of targets, then without a new term the owner could never act for the partition.
    owned = (
        i for i, term in terms.items() if i < len(state.owners) and state.owners[i] == by and state.terms[i] == term
    )
    given = {i: by if state.targets[i] in state.away else state.targets[i] for i in owned}
    return _given(state, offset, given) if given else state


def _wish(state: State, offset: int, record: WishRecord) -> State:
    match record:
        case Drain() if record.name not in state.drains:
            return replace(state, drains=_with(state, state.drains, record.name, offset))
        case Undrain() if record.name in state.drains:
            return replace(state, drains=_without(state.drains, record.name))
        case Pin() if record.partition < len(state.owners) and state.pins.get(record.partition) != record.name:
            return replace(state, pins={**state.pins, record.partition: record.name})
        case Unpin() if record.partition in state.pins:
            return replace(state, pins=_without(state.pins, record.partition))
        case Weigh() if record.weight is None and record.name in state.weights:
            return replace(state, weights=_without(state.weights, record.name))
        case Weigh() if record.weight is not None and state.weights.get(record.name) != record.weight:
            return replace(state, weights=_with(state, state.weights, record.name, record.weight))
        case Load():
            known = {i: load for i, load in record.loads.items() if i < len(state.owners)}
            loads = {i: load for i, load in {**state.loads, **known}.items() if load > 0}
            if loads != state.loads:
                return replace(state, loads=loads)
        case _:
            pass
    return state


def _with(state: State, wishes: dict[str, int], name: str, value: int) -> dict[str, int]:
    """`wishes` with one more. If they are full, it replaces the oldest one about a name that no member has."""
    if name in wishes or len(wishes) < WISHES_MAX:
        return {**wishes, name: value}
    names = {seat.name for seat in state.seats.values()}
    oldest = next((other for other in wishes if other not in names), None)
    return wishes if oldest is None else {**_without(wishes, oldest), name: value}


def _concerns_members(state: State, record: WishRecord) -> bool:
    """Whether a wish can change a target: a wish about a name that no member has waits for that member to join."""
    match record:
        case Load():
            return True
        case Pin():
            names = {record.name, state.pins.get(record.partition)}
        case Unpin():
            names = {state.pins.get(record.partition)}
        case _:
            names = {record.name}
    return any(seat.name in names for seat in state.seats.values())


def _without(mapping: Mapping[Key, Value], key: Key) -> dict[Key, Value]:
    return {other: value for other, value in mapping.items() if other != key}


def _versions(state: State) -> Iterator[tuple[int, int]]:
    return (seat.versions for seat in state.members.values())
