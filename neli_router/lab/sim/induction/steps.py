"""The steps of the miniature: everything that can come next, from any world.

    time passes | a live slot reads one record, sends a Handover, sends a Leave, crashes | a newcomer starts
    a record is appended: Join, Beat, Handover or Leave of a slot; Expire of any member; a change of target;
                          the certificate that a slot has crashed

Nothing else decides who may act, and no member's policy is relied on: any member may be expired at any time, any target
chosen, any Handover sent.

These are all, although neither time nor the ledger's length is bounded, because:
- *When a record was sent is chosen when it is appended.* A Beat changes nothing at its writer before it comes back. So
  it may have been sent at any earlier time, even before one that was appended earlier, and even by a process that has
  crashed since. A Handover and a Leave do change their writer when sent; from then on they may be appended at any time,
  any number of times, or never. So loss, delay, duplication, reordering and failed sends that are appended later need
  no queue.
- *Reading late is being paused*: a slot that does not read acts by what it knows.
- *A certificate* has another writer than the records of the dead: it comes at any time after the crash, before or after
  any of those records, or never. A second certificate is void. A slot that crashed as it led may have lent its lease: a
  client acts on as the slot could have, and no certificate comes before that lease has ended.
- *A newcomer* may start from any prefix in sight. A member that was expired goes on as a newcomer, too.
- *A grace* ends at any time: one that is away may be expired in the next record. It keeps its seat without a slot,
  because its records are void. Seats are never more than slots.
"""

from collections.abc import Iterator, Sequence
from math import ceil

from msgspec.structs import replace

from neli_router.lab.sim.explore import Label
from neli_router.lab.sim.induction.canon import key_of
from neli_router.lab.sim.induction.miniature import (
    PARTITION,
    Bounds,
    FoldedRecord,
    Miniature,
    Slot,
    acting,
    broken_rule,
    genesis_world,
)
from neli_router.protocols.induction.assignment import Candidate
from neli_router.protocols.induction.fold import FOLD_VERSIONS, State, fold
from neli_router.protocols.induction.records import BATCHES, Beat, Certify, Expire, Handover, Join, Leave, Load, Record
from neli_router.protocols.induction.snapshots import restore, snapshot
from neli_router.protocols.induction.tenure import Tenure
from neli_router.protocols.protocol import Settings

__all__ = ["LedgerMiniatures", "successors", "trimmed"]

CHANGES = ("seats", "owners", "terms", "targets", "last_beats", "departed", "clear")
"""A record that changes none of these is void."""


class LedgerMiniatures:
    """All worlds of a small group that shares a ledger."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._genesis, self._settings = genesis_world(bounds)
        self._cap = ceil(max(self._settings.lasts, self._settings.wait))

    def first(self) -> Miniature:
        return self._genesis

    def steps(self, world: Miniature) -> Iterator[tuple[Label, Miniature]]:
        return successors(world, self.bounds, self._settings)

    def key(self, world: Miniature) -> bytes:
        return key_of(world, self._cap, self.bounds.births)

    def broken_rule(self, world: Miniature) -> str | None:
        return broken_rule(world)

    def tell(self, label: Label, world: Miniature) -> str:
        verb, *rest = label
        words = " ".join(_words(part) for part in rest if part is not None)
        active = ", ".join(acting(world)) or "none"
        return f"t={world.now:<3} {verb!s:14} {words:58} acting: {active}"


def successors(world: Miniature, bounds: Bounds, settings: Settings) -> Iterator[tuple[Label, Miniature]]:
    """Every step that can come next."""
    yield ("tick",), _cleared(world._replace(now=world.now + 1), bounds)
    tip, tail = world.tip, world.tail
    for index, slot in enumerate(world.slots):
        if slot.alive:
            yield from _steps_of(world, index, slot, bounds)
    if bounds.births is None or world.born < bounds.births:
        for room in _rooms(world, bounds):
            for place in range(len(tail) + 1):
                yield _start(room, place, settings)
    if len(tail) >= bounds.apart:
        return
    for slot in world.slots:
        yield from _appends_of(world, slot, tip, bounds)
    seats = list(tip.seats)
    for accused in seats:
        accuser = next((by for by in seats if by != accused and tip.is_member(by)), None)
        if accuser is None:
            continue
        accusation = Expire(by=accuser, last_beats={accused: tip.last_beats[accused]})
        yield from _append(world, ("expire", accused), accusation, bounds)
    if len(seats) > 1:
        yield from _append(world, ("retarget",), Load(by="m", loads={PARTITION: float(1 + tip.at)}), bounds)


def _steps_of(world: Miniature, index: int, slot: Slot, bounds: Bounds) -> Iterator[tuple[Label, Miniature]]:
    """The steps that a live process takes on its own."""
    me = slot.incarnation
    if slot.place < len(world.tail):
        yield ("read", me, world.tail[slot.place].record), _with(world, index, _read(world, slot), bounds)
    if slot.state.owners[PARTITION] == me:
        term = slot.state.terms[PARTITION]
        if slot.tenure.given.get(PARTITION) != term:
            gave = slot._replace(tenure=slot.tenure.gave({PARTITION: term}))
            yield ("send handover", me), _with(world, index, gave, bounds)
    if bounds.leave and not slot.tenure.left and me in slot.state.seats:
        yield ("send leave", me), _with(world, index, slot._replace(tenure=slot.tenure.leaving()), bounds)
    if bounds.crash:
        ghost = slot._replace(alive=False, claimed=slot.clear(world.now) if bounds.grace else 0)
        yield ("crash", me), _with(world, index, ghost, bounds)
        if bounds.certify and slot.acts(world.now):
            yield ("crash as it lends", me), _with(world, index, ghost._replace(lent=True), bounds)


def _appends_of(world: Miniature, slot: Slot, tip: State, bounds: Bounds) -> Iterator[tuple[Label, Miniature]]:
    """Records that this slot may have sent at some time, appended now."""
    me = slot.incarnation
    if not slot.joined:
        new = () if len(tip.seats) >= bounds.slots else (me,)
        for name in (*new, *(seat.name for seat in tip.seats.values())):
            joining = Join(by=me, name=name, versions=FOLD_VERSIONS, at=tip.at)
            if bounds.grace:
                joining = replace(joining, v=BATCHES, grace=1.0)
            yield from _append(world, ("join", me, name), joining, bounds)
    if bounds.certify and not slot.alive and not slot.acts(world.now):
        yield from _append(world, ("certify", me), Certify(by="w", incarnation=me), bounds)
    if not tip.is_member(me):
        return
    oldest = world.now - bounds.lease
    for sent in range(oldest, world.now + 1) if slot.alive else (oldest,):
        beat = Beat(by=me, sent_at=float(sent), at=tip.at, digest="0" * 16)
        yield from _append(world, ("beat", me, world.now - sent), beat, bounds)
    if bounds.grace and tip.owners[PARTITION] == me and slot.clear(world.now) > tip.began[PARTITION]:
        # When it was sent proves less than the Beats above do.
        beat = Beat(by=me, v=BATCHES, sent_at=float(oldest), at=tip.at, clear=slot.clear(world.now))
        yield from _append(world, ("beat that all is clear", me), beat, bounds)
    if tip.owners[PARTITION] == me and slot.tenure.given.get(PARTITION) == tip.terms[PARTITION]:
        handing = Handover(by=me, terms={PARTITION: tip.terms[PARTITION]})
        yield from _append(world, ("handover", me), handing, bounds)
    if slot.tenure.left:
        yield from _append(world, ("leave", me), Leave(by=me), bounds)
        if bounds.grace:
            yield from _append(world, ("leave for a while", me), Leave(by=me, grace=1.0), bounds)


def _append(world: Miniature, label: Label, record: Record, bounds: Bounds) -> Iterator[tuple[Label, Miniature]]:
    """`record` after the tip, once for each target that an assignment could choose."""
    tip = world.tip
    dead = record.incarnation if isinstance(record, Certify) else None
    chooser = _Chooser(assigns=bounds.assigns)
    while chooser.more():
        after = fold(tip, tip.at, record, chooser)
        if all(getattr(after, part) == getattr(tip, part) for part in CHANGES) and not any(
            slot.incarnation == dead and not slot.certified for slot in world.slots
        ):
            continue  # Void: its readers learn nothing from it.
        entry = FoldedRecord(record, chooser.target, after)
        found = world._replace(tail=(*world.tail, entry))
        if dead is not None or after.seats is not tip.seats or after.away is not tip.away:
            slots = tuple(
                slot._replace(
                    joined=slot.joined or slot.incarnation in after.seats,
                    certified=slot.certified or slot.incarnation == dead,
                )
                for slot in world.slots
            )
            found = _cleared(found._replace(slots=slots), bounds)
        said = label if chooser.target is None else (*label, chooser.target)
        yield said, trimmed(found)


class _Chooser:
    """An assignment that makes every choice, one after another."""

    def __init__(self, *, assigns: bool) -> None:
        self.target: str | None = None
        self._assigns = assigns
        self._turn = -1
        self._choices = 1

    def more(self) -> bool:
        self._turn += 1
        return self._turn < self._choices

    def __call__(self, candidates: Sequence[Candidate], *_: object, **__: object) -> tuple[str | None, ...]:
        candidates = candidates if self._assigns else ()
        self._choices = max(1, len(candidates))
        self.target = candidates[self._turn].incarnation if candidates else None
        return (self.target,)


def _read(world: Miniature, slot: Slot) -> Slot:
    entry = world.tail[slot.place]
    if slot.state is world.prefix(slot.place):
        after = entry.after
    else:  # A newcomer whose snapshot differs from the others' fold goes its own way.
        after = fold(slot.state, entry.after.at - 1, entry.record, lambda *_, **__: (entry.target,))
    tenure = slot.tenure.read(slot.state, entry.record, after, float(world.now))
    return slot._replace(place=slot.place + 1, state=after, tenure=tenure)


def _start(world: Miniature, place: int, settings: Settings) -> tuple[Label, Miniature]:
    """A newcomer starts from a snapshot of this prefix, read just now."""
    prefix = world.prefix(place)
    state = restore(snapshot("m", prefix))
    place += state.at - prefix.at  # Replay goes on at `upto`, which is the end of this prefix, or should be.
    place = min(max(place, 0), len(world.tail))
    if state == prefix:
        state = prefix
    incarnation = f"i{world.born}"
    tenure = Tenure.begin(incarnation, settings, state, float(world.now), lingering={})
    slot = Slot(incarnation, alive=True, place=place, state=state, tenure=tenure, joined=False)
    started = world._replace(slots=(*world.slots, slot), born=world.born + 1)
    return ("start", incarnation, prefix.at), started


def _rooms(world: Miniature, bounds: Bounds) -> Iterator[Miniature]:
    """The worlds in which a newcomer finds a slot: this one, or one in which a dead process's Join never arrives."""
    if len(world.slots) < bounds.slots:
        yield world
        return
    for index, slot in enumerate(world.slots):
        if not slot.alive and not world.tip.is_member(slot.incarnation) and not slot.acts(world.now):
            yield world._replace(slots=(*world.slots[:index], *world.slots[index + 1 :]))


def _with(world: Miniature, index: int, slot: Slot, bounds: Bounds) -> Miniature:
    slots = (*world.slots[:index], slot, *world.slots[index + 1 :])
    return trimmed(_cleared(world._replace(slots=slots), bounds))


def _cleared(world: Miniature, bounds: Bounds) -> Miniature:
    """Drop the slots that can have no further effect."""
    tip = world.tip
    slots = tuple(slot for slot in world.slots if tip.is_member(slot.incarnation) or _matters(slot, world, bounds))
    return world if len(slots) == len(world.slots) else world._replace(slots=slots)


def _matters(slot: Slot, world: Miniature, bounds: Bounds) -> bool:
    """Whether a slot that is not a member can still have an effect."""
    if slot.alive:  # After reading that it departed, it can only start again.
        return slot.incarnation not in slot.state.departed and slot.incarnation not in slot.state.away
    # A ghost's records are now void, except a Join. Its Join is like one that came just before the crash; with
    # certificates it is not, because one may come in between.
    certifies = bounds.certify and slot.incarnation not in world.tip.away
    return slot.acts(world.now) or (certifies and not (slot.joined and slot.certified))


def trimmed(world: Miniature) -> Miniature:
    """Forget the records that every live slot has read."""
    read = min((slot.place for slot in world.slots if slot.alive), default=len(world.tail))
    if read == 0:
        return world
    slots = tuple(slot._replace(place=slot.place - read if slot.alive else 0) for slot in world.slots)
    return world._replace(base=world.prefix(read), tail=world.tail[read:], slots=slots)


def _words(part: object) -> str:
    """A record without its bookkeeping; anything else unchanged."""
    if not isinstance(part, Record):
        return str(part)
    kind = type(part).__name__
    match part:
        case Beat():
            return f"{kind}({part.by}, sent at {part.sent_at:g})"
        case Expire():
            return f"{kind}({', '.join(part.last_beats)})"
        case Certify():
            return f"{kind}({part.incarnation})"
        case Handover():
            return f"{kind}({part.by}, term {part.terms[PARTITION]})"
        case Join():
            return f"{kind}({part.by}{'' if part.name == part.by else f' as {part.name}'})"
        case _:
            return f"{kind}({part.by})"
