"""Canonical keys: worlds with the same key can only do the same from here on.

    absolute                        in the key
    a time                          its age, capped at the lease: no formula distinguishes a lease ago from a year ago
    an incarnation                  its slot's place in a fixed order, or a number for one without a slot
    a term                          its rank among those in sight: new terms are only ever higher
    last Beats, joins, offsets      nothing: an accusation is made from the tip, a newcomer's Join from what it read
    a name                          nothing: a newcomer under a member's name is explored as taking its place
    the departed                    whether a slot was certified: no other departed incarnation has a Join to come

A key is bytes, not a hash of them: an exploration that calls itself complete must not depend on luck.
"""

from neli_router.lab.sim.induction.miniature import Miniature, Slot
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Beat, Certify, Expire, Handover, Join, Leave, Load

__all__ = ["key_of"]

NOBODY = 255
NONE = 254
KINDS: dict[type, int] = {Beat: 1, Expire: 2, Handover: 3, Join: 4, Leave: 5, Load: 6, Certify: 7}


def key_of(world: Miniature, cap: int, births: int | None) -> bytes:
    """The key of `world`; an age beyond `cap` changes nothing. Flat code: most of the time is spent here."""
    now, base, tail, slots = world.now, world.base, world.tail, world.slots
    tip = tail[-1].after if tail else base
    if len(slots) > 1:
        seats = list(tip.seats)
        slots = tuple(sorted(slots, key=lambda slot: _rank(slot, seats, now, cap)))
    names: dict[str | None, int] = {None: NOBODY}
    for slot in slots:
        names[slot.incarnation] = len(names)
    terms: dict[int, int] = {}  # Terms grow along the ledger, so the order in which they appear is their rank.
    key = [len(slots), len(tail), 0 if births is None else world.born]
    _add_state(key, base, names, terms)
    before = base
    for place, entry in enumerate(tail):
        record, after = entry.record, entry.after
        key.append(KINDS[type(record)])
        if isinstance(record, Beat):
            key.append(names.setdefault(record.by, len(names)))
            key.append(_sent(record, slots, place, now, cap))
        if (
            after.owners is not before.owners
            or after.seats is not before.seats
            or after.targets is not before.targets
            or after.away is not before.away
            or after.clear is not before.clear
        ):
            _add_state(key, after, names, terms)
            before = after
        else:
            key.append(NONE)
    for slot in slots:
        tenure = slot.tenure
        given = tenure.given.get(0)
        is_free = slot.alive and 0 in tenure.free
        is_clear = not slot.alive and tip.owners[0] == slot.incarnation and slot.claimed > tip.began[0]
        key.append(
            slot.alive | slot.joined << 1 | tenure.left << 2 | slot.certified << 3 | is_free << 4 | is_clear << 5
        )
        key.append(NONE if given is None else terms.get(given, NONE))
        if not slot.alive:  # When a ghost sent its Beats does not matter, unless a client acts for it.
            key.append(int(now - tenure.sent) if slot.acts(now) else NONE)
            continue
        sent, busy = now - tenure.sent, tenure.busy_until(0) - now
        key.append(slot.place)
        key.append(int(sent) if sent < cap else cap)
        key.append(int(busy) if busy > 0 else 0)
        # Its own age is left out: only the next owner of its partitions would need it, and that is another incarnation.
        me, heard = slot.incarnation, tenure.heard
        for other in slot.state.seats:
            if other != me:
                age = now - heard[other]
                key.append(int(age) if age < cap else cap)
        if slot.state is not (tail[slot.place - 1].after if slot.place else base):
            key.append(NONE)
            _add_state(key, slot.state, names, terms)
    return bytes(key)


def _rank(slot: Slot, seats: list[str], now: int, cap: int) -> tuple[int, int, float]:
    # Members by the order in which they joined; the others by what distinguishes them, so that newcomers are alike.
    if slot.incarnation in seats:
        return (0, seats.index(slot.incarnation), 0)
    if not slot.alive:
        return (3, slot.certified, now - slot.tenure.sent if slot.acts(now) else 0)
    return (1 + slot.joined, slot.place, max(0, min(cap, slot.tenure.busy_until(0) - now)))


def _sent(beat: Beat, slots: tuple[Slot, ...], place: int, now: int, cap: int) -> int:
    """The time of sending matters only to the Beat's writer, and only until the writer has read it."""
    for slot in slots:
        if slot.incarnation == beat.by and slot.alive and slot.place <= place:
            return min(cap, now - int(beat.sent_at))
    return NONE


def _add_state(key: list[int], state: State, names: dict[str | None, int], terms: dict[int, int]) -> None:
    key.append(len(state.seats))
    key.extend([names.setdefault(incarnation, len(names)) for incarnation in state.seats])
    if state.away:
        key.append(NONE)
        key.extend([names[incarnation] for incarnation in state.away])
    key.append(names.setdefault(state.owners[0], len(names)))
    key.append(terms.setdefault(state.terms[0], len(terms)))
    key.append(names.setdefault(state.targets[0], len(names)))
    owner = state.owners[0]
    if owner in state.clear and state.clear[owner] > state.began[0]:
        key.append(NONE)
