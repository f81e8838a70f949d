"""Assignment: which member should own which partition, and which one stands by. Pure functions: every member gets the
same result.

    members, pins, drains --> how many each is to own --+
                                                        v
    owners ---------------> keep as many --> hand out the rest --> exchange hot for cold --> target
                                                                  (only if loads differ)

**How many.** A member's share of M partitions is M * w / W, where w is its weight and W the sum of all weights. It
should own its share rounded down or up, so less than one off. The counts must add up to M, so some members get the
ceiling instead of the floor: first those that own more than their floor now; among equals the emptiest for its weight,
so a newcomer above all; then the zones take turns, each with its members in join order. So rounding favours no zone.

**Why no balanced target makes fewer moves.** A member keeps at most what it owns now, and at most what it should own.
It can always keep the smaller of the two, whatever the others keep, so the number of moves depends on the counts alone.
A ceiling in place of a floor saves one move if its member owns more than the floor, and none otherwise. Ceilings go
first to the members where they save a move. With equal weights, a join moves partitions only to the newcomer, and an
expiry moves only those of the dead member. With unequal weights, rounding may occasionally force a move between other
members, too.

**Which.** A giver gives up partitions that are spread evenly over those it has, and keeps its first one. Numbered roles
are low numbers: without the spread, one member would get all of them; if the first one were given up, every join would
move role zero. The freed partitions go, one by one, to the taker that carries the least load for its weight.

**Preferred.** A partition may have a preferred member: the one that it was promised to, or its standby. It goes there
if that member has room. A giver gives up such partitions first, even to other members: its program may be letting go of
them already. The counts decide who gives and who has room, so balance and the number of moves are the same with any
preferences. Partitions without an owner choose first, because no member leads them now.

**Pins and drains.** A drained member counts with weight zero. If all members are drained, the drains are ignored: there
must be an owner. A pin outranks a drain, because a pin is a person's decision about one partition and a drain is about
all of them. Pins count towards a share, and may make balance impossible. Then a member whose pins exceed its share by
one or more owns just those, and the others share the rest as if neither it nor its partitions existed. If no member has
that many pins, but more members are above their share than there are ceilings, then those members own just their pins.
Then the counts are computed again.

**Loads** change only which partitions a member owns, never how many: otherwise the next change of members would undo
the move. So all of the above holds with loads, too. Partitions are processed from the heaviest to the lightest, which
spreads the load of those that move anyway. Then the member that carries the most for its weight exchanges a hot
partition for a colder one. After an exchange, both members carry less for their weight than the heavier one did before:
the largest load over weight never grows, and repeated exchanges come to a halt. The price: the owner of one very hot
partition still owns its full count of others. Loads are first scaled to whole numbers, so that two members cannot
differ because they summed in a different order.

**Standbys.** The standby of a partition is a member in another zone than its target. It takes over if that whole zone
is lost in one record. So for each zone, count how many partitions each member outside would own without it. A member
stands by for that many, less those that it is to own now. This is its room after the loss, so each partition of the
zone finds room at its standby, and the result is balanced.

    targets, without zone z --> counts --> less what each is to own --> keep present standbys --> deal out the rest

The partitions of each single member are dealt out in turn to all members outside, in a shuffled order of their numbers.
So if only that member is lost, most of its partitions find room at their standbys, too. Without the shuffle, a newcomer
that takes every third partition could get those with one and the same standby. A standby stays while its count allows.
A member that is drained, or has no weight, does not stand by. The cost is that of the partitions once, and of the
members once for each zone; beyond ZONES_MAX zones, several count as one.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heapreplace
from zlib import crc32

import mmh3
from sortedcontainers import SortedKeyList

__all__ = ["ASSIGNMENT_VERSION", "LOAD_MOVES_MAX", "ZONES_MAX", "Candidate", "assign", "standbys"]

ASSIGNMENT_VERSION = 1
"""Part of the fold's version. An edit that changes any target must raise it: otherwise two releases compute different
tables from one ledger, and each considers its own right."""

LOAD_MOVES_MAX = 16
"""The most partitions that change owner because of load at one change; an exchange takes two. Each partition is idle
during its handover: a higher limit evens out faster, a lower one disturbs less."""

SHIFT_MIN = 8
"""To be worth two handovers, an exchange must shift more than this fraction (1/n) of an average load. A larger n evens
out more finely, a smaller n chases less noise."""

ZONES_MAX = 16
"""With more zones, such as one for each host, they are hashed into this many, and a standby is outside of all that
share its target's. With a higher limit, more groups get exact standbys, and a change of members costs more."""

NOBODY = -1  # In this module a member is its position in join order; this stands for no member.
Weighed = tuple[int, int]  # Load and partition, in this order, so that tuples sort by load.


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member, as assignment sees it. Incarnations and names are unique: the fold replaces a member that joins again.

    `weight` is a whole number, zero or more, so that shares are exact. If all weights that count are zero, all members
    count equally. Members with the same `zone` may be lost together; an empty one is a zone, too.
    """

    incarnation: str
    name: str
    weight: int
    zone: str


@dataclass(slots=True, eq=False)
class _Carrier:
    """A member while loads are evened out; `movable` are its partitions without a pin, coldest first."""

    position: int
    weight: int
    load: int
    movable: list[Weighed]


def assign(
    members: Sequence[Candidate],
    owners: Sequence[str | None],
    *,
    pins: Mapping[int, str] = {},
    drains: Collection[str] = (),
    loads: Mapping[int, float] = {},
    preferred: Sequence[str | None] = (),
    moves_max: int = LOAD_MOVES_MAX,
) -> tuple[str | None, ...]:
    """The incarnation that should own each partition: balanced and minimal as above. All None without members.

    `members` are in join order. `owners[i]` is the incarnation that owns partition i now; an incarnation without a
    member counts as None. `pins` (partition to name) and `drains` go by name, and take effect once a member has that
    name. Entries for a partition that does not exist are ignored. `preferred[i]` is the incarnation that gets partition
    i if it must move and there is room; if a member must give, partitions that prefer another go first.

    At most `moves_max` partitions change hands because of `loads`, beyond what members, pins and drains force. A
    partition without a load counts as the mean of those with one; a load that is negative, infinite or not a number
    counts as missing.
    """
    if not members:
        return (None,) * len(owners)
    incarnations: dict[str | None, int] = {member.incarnation: position for position, member in enumerate(members)}
    names = {member.name: position for position, member in enumerate(members)}
    assert len(incarnations) == len(names) == len(members)
    holders = [incarnations.get(owner, NOBODY) for owner in owners]
    pinned = {partition: names[name] for partition, name in pins.items() if name in names}
    wanted = {
        partition: incarnations.get(preferred[partition], NOBODY)
        for partition in _shuffled(len(preferred))
        if preferred[partition] not in (None, owners[partition]) and partition not in pinned
    }
    weights = _weights(members, drains)
    weighed = _weighed(loads, len(owners))
    target = _balance(holders, pinned, weights, [member.zone for member in members], weighed, wanted)
    if len(set(weighed)) > 1:
        _exchange(target, pinned, weights, weighed, moves_max // 2)
    return tuple([members[position].incarnation for position in target])


def standbys(
    members: Sequence[Candidate],
    targets: Sequence[str | None],
    present: Sequence[str | None],
    *,
    pins: Mapping[int, str] = {},
    drains: Collection[str] = (),
) -> tuple[str | None, ...]:
    """The incarnation that stands by for each partition; None if no member outside of its zone can. () with one zone.

    `targets` are what `assign` returned, for the same members, pins and drains; `present` are the standbys until now.
    """
    zones = [member.zone for member in members]
    places = _places(zones)
    if len(set(places)) < 2 or all(member.name in drains for member in members):
        return ()
    positions: dict[str | None, int] = {member.incarnation: position for position, member in enumerate(members)}
    names = {member.name for member in members}
    target = [positions.get(member, NOBODY) for member in targets]
    former = [positions.get(member, NOBODY) for member in present] or [NOBODY] * len(target)
    weights = _weights(members, drains)
    pinned = {partition: at for partition, at in enumerate(target) if pins.get(partition) in names}
    given, held = _tally(target, pinned, len(members))
    theirs: list[list[int]] = [[] for _ in members]
    for partition in _shuffled(len(target)):
        theirs[target[partition]].append(partition)
    chosen = [NOBODY] * len(target)
    for place in set(places):  # In any order: no partition is in two places.
        outside = [other != place for other in places]
        lost = [partition for own, out in zip(theirs, outside, strict=True) if not out for partition in own]
        left, kept, had = (
            [out * count for out, count in zip(outside, counts, strict=True)] for counts in (weights, given, held)
        )
        if lost and any(left):
            counts = _counts(left, kept, had, len(target), zones)
            _stand_in(chosen, lost, former, _room(counts, kept, had))
    return tuple([None if position == NOBODY else members[position].incarnation for position in chosen])


def _places(zones: Sequence[str]) -> list[str] | list[int]:
    """For each member, what may be lost with it: its zone, or several if there are too many."""
    return [*zones] if len(set(zones)) <= ZONES_MAX else [crc32(zone.encode()) % ZONES_MAX for zone in zones]


@lru_cache(maxsize=4)
def _shuffled(partitions: int) -> tuple[int, ...]:
    """The partitions in an order that has nothing to do with their numbers."""
    return tuple(sorted(range(partitions), key=lambda partition: mmh3.mmh3_x64_128_uintdigest(b"%d" % partition)))


def _stand_in(chosen: list[int], lost: Sequence[int], former: Sequence[int], room: Sequence[int]) -> None:
    """Choose a standby for each of `lost`, which come member by member; each member may have its `room` of them."""
    had, met = [0] * (len(room) + 1), [0] * (len(room) + 1)  # The last place is for NOBODY.
    for partition in lost:
        had[former[partition]] += 1
    keeps = [*map(min, had, room), 0]
    vacant: list[int] = []
    for partition in lost:
        member = former[partition]
        if _is_kept(met[member], keeps[member], had[member]):
            chosen[partition] = member
        else:
            vacant.append(partition)
        met[member] += 1
    free = [has - kept for has, kept in zip(room, keeps, strict=False)]
    # Each member's turns are evenly spread over all turns. Only equal fractions fall to the member that joined first.
    turns = sorted(
        (((2 * turn + 1) << 32) // count, member) for member, count in enumerate(free) for turn in range(count)
    )
    for partition, (_, member) in zip(vacant, turns, strict=False):  # There may be more turns if pins forbid a balance.
        chosen[partition] = member


def _weights(members: Sequence[Candidate], drains: Collection[str]) -> list[int]:
    """The weight that counts for each member: zero if it is drained, unless all are drained."""
    assert min(member.weight for member in members) >= 0
    drained = [member.name in drains for member in members]
    if all(drained):
        drained = [False] * len(members)
    weights = [0 if out else member.weight for member, out in zip(members, drained, strict=True)]
    return weights if any(weights) else [0 if out else 1 for out in drained]


def _weighed(loads: Mapping[int, float], partitions: int) -> list[int]:
    """All loads as whole numbers in exact proportion; all 1 if the loads are equal."""
    ratios = {
        partition: loads[partition].as_integer_ratio()
        for partition in range(partitions)
        if 0 <= loads.get(partition, math.nan) < math.inf
    }
    unit = math.lcm(*(denominator for _, denominator in ratios.values()))
    known = {partition: numerator * (unit // denominator) for partition, (numerator, denominator) in ratios.items()}
    # All loads are multiplied by the number of known loads, because their mean need not be a whole number.
    mean = sum(known.values())
    weighed = [known[partition] * len(known) if partition in known else mean for partition in range(partitions)]
    return weighed if len(set(weighed)) > 1 else [1] * partitions


def _burden(load: int, weight: int) -> int:
    # Rounding down is safe: a burden that is lower after rounding was lower before. Much cheaper than fractions.
    return (load << 64) // weight


def _tally(owners: Sequence[int], pins: Mapping[int, int], members: int) -> tuple[list[int], list[int]]:
    """How many partitions are pinned to each member (`given`), and how many others it owns that are not (`held`)."""
    given, held = [0] * members, [0] * members
    for partition, owner in enumerate(owners):
        if partition in pins:
            given[pins[partition]] += 1
        elif owner != NOBODY:
            held[owner] += 1
    return given, held


def _counts(
    weights: Sequence[int], given: Sequence[int], held: Sequence[int], partitions: int, zones: Sequence[str]
) -> list[int]:
    """How many partitions each member should own."""
    sharing = list(range(len(weights)))
    while True:
        whole = sum(weights[member] for member in sharing)
        floors = {member: partitions * weights[member] // whole for member in sharing}
        ceilings = partitions - sum(floors.values())
        above = [member for member in sharing if given[member] > floors[member]]
        beyond = [member for member in above if (given[member] - 1) * whole >= partitions * weights[member]]
        leaving = frozenset(beyond or (above if len(above) > ceilings else ()))
        if not leaving:
            break
        # Each leaving member has more than its share, so not all leave: pins do not exceed the partitions left.
        sharing = [member for member in sharing if member not in leaving]
        partitions -= sum(given[member] for member in leaving)

    def claim(member: int) -> tuple[bool, bool, int]:
        owned = given[member] + held[member]
        return given[member] <= floors[member], owned <= floors[member], _burden(owned, weights[member])

    # A share that is a whole number has no ceiling: one more would be one off. Sorting leaves equals in join order.
    rounded = sorted((member for member in sharing if partitions * weights[member] % whole), key=claim)
    turns: Counter[str] = Counter()
    ranked: list[tuple[tuple[bool, bool, int], int, int]] = []
    for place, member in enumerate(rounded):
        ranked.append((claim(member), turns[zones[member]], place))
        turns[zones[member]] += 1
    for _, _, place in sorted(ranked)[:ceilings]:
        floors[rounded[place]] += 1
    return [floors.get(member, own) for member, own in enumerate(given)]  # One that left the sharing owns its pins.


def _room(counts: Sequence[int], given: Sequence[int], held: Sequence[int]) -> list[int]:
    """How many more partitions each member should own than it does."""
    return [max(0, count - own - has) for count, own, has in zip(counts, given, held, strict=True)]


def _is_kept(place: int, keeps: int, held: int) -> bool:
    """Whether the partition at `place` of `held` is among the `keeps` to be kept: evenly spread, the first included."""
    return place * keeps % held < keeps


def _balance(
    owners: Sequence[int],
    pins: Mapping[int, int],
    weights: Sequence[int],
    zones: Sequence[str],
    loads: Sequence[int],
    wanted: Mapping[int, int],
) -> list[int]:
    """The balanced target that makes the fewest moves."""
    given, held = _tally(owners, pins, len(weights))
    counts = _counts(weights, given, held, len(owners), zones)
    room = _room(counts, given, held)
    keeps = [count - own for count, own in zip(counts, given, strict=True)]
    granted = _granted(owners, wanted, keeps, held, room)
    # The sort is stable, so partitions with equal loads stay in the order of their numbers.
    order = sorted(range(len(owners)), key=loads.__getitem__, reverse=True)
    met, carried = [0] * len(weights), [0] * len(weights)
    target = [NOBODY] * len(owners)
    homeless: list[int] = []
    for partition in order:
        member = pins.get(partition, granted.get(partition, owners[partition]))
        if member != NOBODY and partition not in pins and partition not in granted:
            met[member] += 1
            if not _is_kept(met[member] - 1, keeps[member], held[member]):
                member = NOBODY
        if member == NOBODY:
            homeless.append(partition)
        else:
            target[partition] = member
            carried[member] += loads[partition]
    takers = sorted((_burden(carried[member], weights[member]), member) for member, free in enumerate(room) if free)
    for partition in homeless:
        _, member = takers[0]  # A sorted list is a heap, and heapreplace keeps it one.
        target[partition] = member
        carried[member] += loads[partition]
        room[member] -= 1
        if room[member]:
            heapreplace(takers, (_burden(carried[member], weights[member]), member))
        else:
            heappop(takers)
    return target


def _granted(
    owners: Sequence[int], wanted: Mapping[int, int], keeps: Sequence[int], held: list[int], room: list[int]
) -> dict[int, int]:
    """The members that partitions go to because they prefer them; NOBODY for one that goes, but finds no room there.

    Takes the partitions from `held` of their owners, and from `room`.
    """
    granted: dict[int, int] = {}
    for partition in sorted(wanted, key=lambda partition: owners[partition] != NOBODY):
        owner, taker = owners[partition], wanted[partition]
        if taker != NOBODY and room[taker] and (owner == NOBODY or held[owner] > keeps[owner]):
            granted[partition] = taker
            room[taker] -= 1
            if owner != NOBODY:
                held[owner] -= 1
    for partition in wanted:
        owner = owners[partition]
        if partition not in granted and owner != NOBODY and held[owner] > keeps[owner]:
            granted[partition] = NOBODY
            held[owner] -= 1
    return granted


def _exchange(
    target: list[int], pins: Mapping[int, int], weights: Sequence[int], loads: Sequence[int], exchanges_max: int
) -> None:
    """Exchange partitions in `target` until no member above a fair burden can be relieved, or `exchanges_max` times."""
    carriers = [_Carrier(position, weight, 0, []) for position, weight in enumerate(weights)]
    for load, partition in sorted(zip(loads, range(len(loads)), strict=True)):
        carrier = carriers[target[partition]]
        carrier.load += load
        if partition not in pins:
            carrier.movable.append((load, partition))
    ranking = SortedKeyList(
        (carrier for carrier in carriers if carrier.movable),
        key=lambda carrier: (_burden(carrier.load, carrier.weight), carrier.position),
    )
    fair = _burden(sum(carrier.load for carrier in carriers if carrier.weight), sum(weights))
    shift_min = sum(loads) // (SHIFT_MIN * len(loads))
    rank = len(ranking) - 1
    while rank > 0 and exchanges_max > 0 and _burden((heavy := ranking[rank]).load, heavy.weight) > fair:
        hottest, _ = heavy.movable[-1]
        # Measured: trying all other members, too, lowers the largest load by at most two hundredths on average.
        light = min(ranking[:rank], key=lambda other: _burden(other.load + hottest, other.weight))
        if (fit := _fit(heavy, light, shift_min)) is None:
            rank -= 1  # One very hot partition that no member can take must not keep other members from being relieved.
            continue
        hot, cold = fit
        for carrier, loses, gains in ((heavy, hot, cold), (light, cold, hot)):
            ranking.remove(carrier)
            carrier.load += gains[0] - loses[0]
            carrier.movable.remove(loses)
            insort(carrier.movable, gains)
            ranking.add(carrier)
            target[gains[1]] = carrier.position
        exchanges_max -= 1


def _fit(heavy: _Carrier, light: _Carrier, shift_min: int) -> tuple[Weighed, Weighed] | None:
    """The pair of partitions (one of each) whose exchange minimizes the larger burden; None if nothing lowers it."""
    best, peak = None, _burden(heavy.load, heavy.weight)
    # A shift of this size makes the two level, so the best fit is the next one on either side of it.
    level = (heavy.load * light.weight - light.load * heavy.weight) // (heavy.weight + light.weight)
    for hot in reversed(heavy.movable):
        if hot[0] - light.movable[0][0] <= shift_min:
            break
        nearest = bisect_left(light.movable, (hot[0] - level,))  # A shorter tuple sorts before all that begin with it.
        for cold in light.movable[max(0, nearest - 1) : nearest + 1]:
            shift = hot[0] - cold[0]
            after = max(_burden(heavy.load - shift, heavy.weight), _burden(light.load + shift, light.weight))
            if shift > shift_min and after < peak:
                best, peak = (hot, cold), after
    return best
