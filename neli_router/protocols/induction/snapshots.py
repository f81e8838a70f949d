"""Snapshots: a fold's state, written into the ledger, so that a newcomer need not read it from the first record.

    | ... records below upto ... | records from upto on ... | Snapshot(state, upto) | ...        offsets grow this way
      folded into `state`          replayed on top of it      may stand much later

A snapshot describes the prefix below `upto`, not the place where the snapshot itself stands. So it changes nothing in
the fold, and its writer need not hurry. Replay starts *at* `upto`: one record later, and the newcomer would miss a
record that all others have; one record earlier, and it would fold a record twice.

Any writer can write a false snapshot. Members compare each snapshot with their own fold, and drop records only below
one that they agree with. So a newcomer starts with the first snapshot that is left, or with no snapshot if nothing was
dropped.
"""

from msgspec import UNSET
from msgspec.structs import replace

from neli_router.protocols.induction.digest import difference, digest_text
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import BATCHES, Image, Snapshot

__all__ = ["Archive", "BadSnapshot", "interval", "restore", "snapshot"]


class BadSnapshot(ValueError):
    """The snapshot contradicts itself: its digest does not match its state."""


def snapshot(by: str, state: State) -> Snapshot:
    """The record that lets a newcomer start with `state`."""
    assert state.genesis is not None, "before its genesis a ledger has no state worth keeping"
    places: dict[str | None, int] = {None: -1, **{incarnation: i for i, incarnation in enumerate(state.seats)}}
    image = Image(
        genesis=state.genesis,
        genesis_at=state.genesis_at,
        version=state.version,
        base=state.base,
        seats=list(state.seats.values()),
        last_beats=[state.last_beats[incarnation] for incarnation in state.seats],
        owners=[places[owner] for owner in state.owners],
        terms=list(state.terms),
        began=list(state.began),
        targets=[places[target] for target in state.targets],
        pins=state.pins,
        drains=state.drains,
        weights=state.weights,
        loads=state.loads,
        departed=list(state.departed),
        digest=digest_text(state.digest),
        graces=state.graces or UNSET,
        away=state.away or UNSET,
        clear=state.clear or UNSET,
        standbys=[places[standby] for standby in state.standbys] or UNSET,
    )
    v = BATCHES if state.graces or state.away or state.clear or state.standbys else 1
    return Snapshot(by=by, v=v, state=image, upto=state.at)


def restore(record: Snapshot) -> State:
    """The state that `record` holds, ready to fold the record at `record.upto`."""
    image = record.state
    standbys = image.targets if image.standbys is UNSET else image.standbys
    tables = (image.owners, image.terms, image.began, image.targets, standbys)
    if {*map(len, tables)} != {image.genesis.layout.partitions}:
        # The digest would miss some of this: a partition without an owner does not count as a fact.
        raise BadSnapshot(f"snapshot upto {record.upto} has a table of another width than its layout says")
    names: list[str | None] = [*(seat.incarnation for seat in image.seats), None]  # -1 finds the None at the end.
    try:
        state = State(
            at=record.upto,
            genesis=image.genesis,
            genesis_at=image.genesis_at,
            version=image.version,
            base=image.base,
            seats={seat.incarnation: seat for seat in image.seats},
            last_beats={seat.incarnation: beat for seat, beat in zip(image.seats, image.last_beats, strict=True)},
            owners=tuple(names[place] for place in image.owners),
            terms=tuple(image.terms),
            began=tuple(image.began),
            targets=tuple(names[place] for place in image.targets),
            pins=image.pins,
            drains=image.drains,
            weights=image.weights,
            loads=image.loads,
            departed=tuple(image.departed),
            graces={} if image.graces is UNSET else image.graces,
            away={} if image.away is UNSET else image.away,
            clear={} if image.clear is UNSET else image.clear,
            standbys=() if image.standbys is UNSET else tuple(names[place] for place in image.standbys),
        )
    except (ValueError, IndexError) as error:
        raise BadSnapshot(f"snapshot upto {record.upto} does not hold together") from error
    digest = difference(State(), state)
    if digest_text(digest) != image.digest:
        raise BadSnapshot(f"snapshot upto {record.upto} has digest {image.digest}, its state {digest_text(digest)}")
    return replace(state, digest=digest)


def interval(every: int, state: State) -> int:
    """How many records lie between two snapshots of the group: `every` at least.

    A snapshot is as long as a Beat for each member and each four partitions. So where the members count most, a
    seventeenth of what is written are snapshots: each of the many members reads them all. Where the partitions count
    most, it is a fifth: with longer intervals, a newcomer would have to read hours of Beats.
    """
    return max(every, len(state.owners) + 16 * len(state.seats))


class Archive:
    """Which snapshots the ledger holds, as one reader saw them, and when the next one is due."""

    def __init__(self, every: int, at: int) -> None:
        self._every = every
        self._uptos: tuple[int, ...] = (at,) if at else ()
        self._marked_at = at

    def read(self, record: Snapshot) -> int | None:
        """A snapshot was read; returns the offset below which no newcomer needs a record from now on."""
        self._marked_at = max(self._marked_at, record.upto)
        if self._uptos and record.upto <= self._uptos[-1]:
            return None  # A retry wrote it twice, or it is late. Counted as a second one, it would drop the first.
        self._uptos = (*self._uptos[-1:], record.upto)
        return self._uptos[0] if len(self._uptos) == 2 else None  # Two are kept: a newcomer may be reading the older.

    def due(self, state: State, rank: int) -> bool:
        """Whether a member that has read up to `state` should write a snapshot; if so, remembers that it did.

        One snapshot is enough, so each rank waits one interval longer than the rank below it.
        """
        at = state.at
        if at - self._marked_at < interval(self._every, state) * (1 + rank):
            return False
        self._marked_at = at
        return True
