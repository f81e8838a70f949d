"""The referee: reads every record at the moment it is appended, and holds the fold and all its readers to the rules.

    log --every record--> the state of every prefix --compared with--> each reader's state, at the place it has read to
                 |
                 '--> may this record do what it did? by rules that are restated here, briefly

The states come from the shipped fold, from the first record on. They are compared with those of readers that read only
a part of the log, began at a snapshot, or read it twice. Whether the fold does only what it may is judged from the
outside, by what changed:

    a member goes      by its own Leave, by a Join under its name, by an Expire that names its last sign of life, or by
                       a certificate of its death, or by a Drain if it is away; and never comes back
    an owner changes   if it went, or by its own Handover under the current term; and only to the target
    a standby          is a member of another zone than the target, and the next owner if that zone is lost as a whole
    a term changes     to base + the offset of the record, and only upwards; a valid Handover always changes it
    the version rises  if every member knows the new one; no member ever has a version that it does not know
"""

from collections.abc import Callable

from neli_router.lab.sim.world import Violation
from neli_router.protocols.induction.digest import difference
from neli_router.protocols.induction.fold import DEPARTED_MAX, State, fold
from neli_router.protocols.induction.records import (
    Beat,
    Certify,
    Drain,
    Expire,
    Handover,
    Join,
    Leave,
    Record,
    decode,
    is_known,
)

__all__ = ["Referee"]

JUDGED = ("away", "seats", "owners", "terms", "targets", "standbys", "genesis")
"""The parts of a state that decide who may act, or is to act next."""

UNCHANGED = ("away", "drains", "loads", "owners", "pins", "seats", "weights")
"""If these have not changed, a member that comes back gets all that it had."""

DIGEST_EVERY = 50
"""Records between two digests that are computed from the whole state: each costs as much as a hundred Beats."""


class Referee:
    """`on_unseated` is called for each member whose membership another's record ends, `on_change` when owners or
    members changed, and `on_certified` for each incarnation whose death is certified, rightly or not."""

    def __init__(
        self,
        *,
        on_unseated: Callable[[str, Certify | Expire | Join], None],
        on_change: Callable[[State, State], None],
        on_certified: Callable[[str], None],
    ) -> None:
        self._on_unseated, self._on_change, self._on_certified = on_unseated, on_change, on_certified
        self.state = State()
        self.states: dict[int, State] = {0: self.state}
        """The state at each offset where a reader can stand."""
        self._signs: dict[str, int] = {}
        """The last sign of life of each member: its Join or its last Beat."""
        self._graces: dict[str, float] = {}
        """The grace in the Join of each member that has one."""
        self._went: dict[str, State] = {}
        """The state in which each went away alone, when no partition was to move."""
        self._departed: list[str] = []
        self._prefix: list[bytes] = []

    def read(self, offset: int, payload: bytes) -> None:
        """`payload` was appended at `offset`."""
        self._prefix.append(payload)
        record = decode(payload)
        before = self.state
        after = self.state = fold(before, offset, record)
        self.states[after.at] = after
        if any(getattr(after, part) is not getattr(before, part) for part in JUDGED):
            assert record is not None
            self._judge(before, offset, record, after)
        if after.owners is not before.owners or after.seats is not before.seats:
            self._on_change(before, after)
        there = (seat.versions for incarnation, seat in after.seats.items() if after.is_member(incarnation))
        if any(not low <= after.version <= high for low, high in there):
            assert record is not None
            self._object("a member does not know the group's version after", offset, record)
        if record is not None and is_known(record, before.version):
            self._require_effect(before, record, after)
        if isinstance(record, Certify):
            self._on_certified(record.incarnation)
            self._bury(before, record.incarnation)
        if (
            isinstance(record, Beat | Join)
            and after.is_member(record.by)
            and (isinstance(record, Beat) or record.by not in before.seats)
        ):
            self._signs[record.by] = offset
            if isinstance(record, Join) and isinstance(record.grace, float):
                self._graces[record.by] = record.grace
        if len(self._prefix) % DIGEST_EVERY == 0:
            self.require_digest()

    def require_same(self, label: str, state: State) -> None:
        """Require that `state`, as `label` computed it, is the state of the records below `state.at`."""
        mine = self.states.get(state.at)
        if mine is None:
            raise Violation("equal_prefixes", f"{label} stands at {state.at}, where no record ends")
        if state != mine:
            fields = [name for name in state.__struct_fields__ if getattr(state, name) != getattr(mine, name)]
            theirs = {name: getattr(state, name) for name in fields}
            ours = {name: getattr(mine, name) for name in fields}
            raise Violation(
                "equal_prefixes", f"{label} at {state.at} holds {theirs}, from the first record it is {ours}"
            )

    def agrees(self, state: State) -> bool:
        """Whether `state` matches the present ledger."""
        return self.states.get(state.at) == state

    def require_digest(self) -> None:
        """Require that the incremental digest equals the digest of the whole state."""
        if (digest := difference(State(), self.state)) != self.state.digest:
            raise Violation(
                "digest", f"the digest at {self.state.at} is {self.state.digest:x}, of its facts {digest:x}"
            )

    def rewind(self, keep: int, offsets: list[int]) -> None:
        """The ledger lost all but the first `keep` records; `offsets` are theirs."""
        kept, self._prefix = self._prefix[:keep], []
        self.state = State()
        self.states = {0: self.state}
        self._signs.clear()
        self._departed.clear()
        for offset, payload in zip(offsets, kept, strict=True):
            self.read(offset, payload)

    def _judge(self, before: State, offset: int, record: Record, after: State) -> None:
        gone = before.seats.keys() - after.seats.keys()
        going = after.away.keys() - before.away.keys()
        for incarnation in gone | going:
            if not self._may_unseat(before, record, incarnation):
                self._object(f"{incarnation} is no longer a member after", offset, record)
            if isinstance(record, Certify | Expire | Join) and incarnation not in before.away:
                self._on_unseated(incarnation, record)
        for incarnation in going:
            self._signs[incarnation] = offset
            if before.owners == before.targets and not gone:
                self._went[incarnation] = after
            if not self._has_grace(before, record, incarnation):
                self._object(f"{incarnation} keeps partitions though it has no grace after", offset, record)
        for incarnation in gone:
            if isinstance(record, Join):
                self._require_return(before, offset, record, after, incarnation)
            del self._signs[incarnation]
            self._graces.pop(incarnation, None)
        self._departed = [*self._departed, *gone][-DEPARTED_MAX:]
        for incarnation in after.seats.keys() - before.seats.keys():
            if incarnation != record.by:
                self._object("another incarnation is a member after", offset, record)
            if incarnation in self._departed:
                self._object("who departed is a member again after", offset, record)
        if before.genesis is not None and after.genesis is not before.genesis:
            self._object("the group was founded again by", offset, record)
        self._require_standbys(before, offset, record, after)
        if after.base < before.base:
            self._object("later terms would fall after", offset, record)
        term = after.base + offset
        for partition, owner in enumerate(after.owners):
            was = before.owners[partition] if before.owners else None
            if (owner is None) == bool(after.seats):
                self._object(
                    f"{owner} owns partition {partition}, of {len(after.seats)} members, after", offset, record
                )
            if owner is not None and owner not in after.seats:
                self._object(f"{owner} is not a member but owns partition {partition} after", offset, record)
            if owner is None or (
                owner == was and (not before.terms or after.terms[partition] == before.terms[partition])
            ):
                continue
            if after.terms[partition] != term or term <= (before.terms[partition] if before.terms else -1):
                self._object(
                    f"partition {partition} has term {after.terms[partition]} and not {term} after", offset, record
                )
            if owner != after.targets[partition] and not (owner == was and after.targets[partition] in after.away):
                self._object(f"partition {partition} went to another than its target by", offset, record)
            if was in going and was != before.targets[partition]:
                continue  # It was on its way to another member.
            if was is not None and was not in gone and not _gives(record, was, partition, before.terms[partition]):
                self._object(f"partition {partition} moved needlessly from {was} to {owner} by", offset, record)

    def _require_standbys(self, before: State, offset: int, record: Record, after: State) -> None:
        """Each standby is a member in another zone than the target, and gets the partition if that zone is lost."""
        zones = {q: seat.zone for q, seat in after.seats.items()}
        present = {q: seat for q, seat in after.members.items() if seat.name not in after.drains}
        weighty = {q for q, seat in present.items() if after.weights.get(seat.name, seat.weight)} or present.keys()
        for partition, standby in enumerate(after.standbys):
            zone = zones.get(after.targets[partition] or "")
            others = {q for q in weighty if zones[q] != zone}
            if standby not in others and (others or standby is not None):
                self._object(f"{standby} cannot stand by for partition {partition} after", offset, record)
        gone = {q: seat.zone for q, seat in before.seats.items() if q not in after.seats}
        is_zone_lost = len({*gone.values()}) == 1 and not {*gone.values()} & {*zones.values()}
        if not is_zone_lost or after.away.keys() - before.away.keys() or before.owners != before.targets or after.loads:
            return
        for partition, standby in enumerate(before.standbys):
            if before.owners[partition] in gone and after.owners[partition] != standby is not None:
                self._object(f"partition {partition} did not go to its standby {standby} after", offset, record)

    def _bury(self, before: State, incarnation: str) -> None:
        """Remember an incarnation that was certified before it joined: from then on, it must not join."""
        if before.genesis is not None and incarnation not in (*before.seats, *self._departed):
            self._departed = [*self._departed, incarnation][-DEPARTED_MAX:]

    def _may_unseat(self, before: State, record: Record, incarnation: str) -> bool:
        match record:
            case Leave():
                return record.by == incarnation
            case Certify():
                return record.incarnation == incarnation
            case Join():
                return record.name == before.seats[incarnation].name
            case Expire():
                return before.is_member(record.by) and record.last_beats.get(incarnation) == self._signs[incarnation]
            case Drain():
                return incarnation in before.away and record.name == before.seats[incarnation].name
            case _:
                return False

    def _has_grace(self, before: State, record: Record, incarnation: str) -> bool:
        if before.seats[incarnation].name in before.drains:
            return False
        return record.grace > 0 if isinstance(record, Leave) else incarnation in self._graces

    def _require_return(self, before: State, offset: int, record: Join, after: State, older: str) -> None:
        """A member that comes back within its grace owns all that it had, if nothing else changed."""
        went = self._went.pop(older, None)
        if went is None or before.targets != before.owners or before.seats[older].weight != record.weight:
            return
        is_same = all(getattr(before, part) == getattr(went, part) for part in UNCHANGED)
        kept = [i for i, owner in enumerate(before.owners) if owner == older]
        if is_same and any(after.owners[i] != record.by for i in kept):
            self._object(f"{record.by} came back and did not get all that was kept for it after", offset, record)

    def _require_effect(self, before: State, record: Record, after: State) -> None:
        """A valid Handover, Expire, Leave or Certify must have its effect."""
        match record:
            case Handover():
                for partition, owner in enumerate(before.owners):
                    term = before.terms[partition]
                    gives = owner is not None and before.is_member(owner) and _gives(record, owner, partition, term)
                    if gives and after.terms[partition] == term:
                        self._object(
                            f"partition {partition} keeps its term, under which none may act, after", 0, record
                        )
            case Expire(by) if before.is_member(by):
                if any(after.is_member(q) and sign == self._signs.get(q) for q, sign in record.last_beats.items()):
                    self._object("who was rightly accused is still a member after", 0, record)
            case Leave(by) if after.is_member(by):
                self._object("who left is still a member after", 0, record)
            case Certify() if after.is_member(record.incarnation):
                self._object("who is certified dead is still a member after", 0, record)
            case _:
                pass

    def _object(self, what: str, offset: int, record: Record) -> None:
        raise Violation("no_needless_move", f"{what} {record} at offset {offset or self.state.at - 1}")


def _gives(record: Record, owner: str, partition: int, term: int) -> bool:
    return isinstance(record, Handover) and record.by == owner and record.terms.get(partition) == term
