"""Assignment: which member should own which partition. A pure function that gives every member the same result.

    members, pins, drains --> how many each is to own --+
                                                        v
    owners ---------------> keep as many --> hand out the rest --> exchange hot for cold --> target
                                                                  (only if loads differ)

**How many.** A member's share of M partitions is M * w / W, where w is its weight and W the sum of all weights. It
should own its share rounded down or up, so less than one off. The counts must add up to M, so some members get the
ceiling instead of the floor: first those that own more than their floor now; among equals the emptiest for its weight,
so a newcomer above all; then in join order.

**Why no balanced target makes fewer moves.** A member keeps at most what it owns now, and at most what it should own.
It can always keep the smaller of the two, whatever the others keep, so the number of moves depends on the counts alone.
A ceiling in place of a floor saves one move if its member owns more than the floor, and none otherwise. Ceilings go
first to the members where they save a move. With equal weights, a join moves partitions only to the newcomer, and an
expiry moves only those of the dead member. With unequal weights, rounding may occasionally force a move between other
members, too.

**Which.** A giver gives up partitions that are spread evenly over those it has, and keeps its first one. Numbered roles
are low numbers: without the spread, one member would get all of them; if the first one were given up, every join would
move role zero. The freed partitions go, one by one, to the taker that carries the least load for its weight.

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
"""

import math
from bisect import bisect_left, insort
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heapreplace

from sortedcontainers import SortedKeyList

__all__ = ["ASSIGNMENT_VERSION", "LOAD_MOVES_MAX", "Candidate", "assign"]

ASSIGNMENT_VERSION = 1
"""Part of the fold's version. An edit that changes any target must raise it: otherwise two releases compute different
tables from one ledger, and each considers its own right."""

LOAD_MOVES_MAX = 16
"""The most partitions that change owner because of load at one change; an exchange takes two. Each partition is idle
during its handover: a higher limit evens out faster, a lower one disturbs less."""

SHIFT_MIN = 8
"""To be worth two handovers, an exchange must shift more than this fraction (1/n) of an average load. A larger n evens
out more finely, a smaller n chases less noise."""

NOBODY = -1  # In this module a member is its position in join order; this stands for no member.
Weighed = tuple[int, int]  # Load and partition, in this order, so that tuples sort by load.


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member, as assignment sees it. Incarnations and names are unique: the fold replaces a member that joins again.

    `weight` is a whole number, zero or more, so that shares are exact. If all weights that count are zero, all members
    count equally. This version ignores `zone`.
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
    moves_max: int = LOAD_MOVES_MAX,
) -> tuple[str | None, ...]:
    """The incarnation that should own each partition: balanced and minimal as above. All None without members.

    `members` are in join order. `owners[i]` is the incarnation that owns partition i now; an incarnation without a
    member counts as None. `pins` (partition to name) and `drains` go by name, and take effect once a member has that
    name. Entries for a partition that does not exist are ignored.

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
    weights = _weights(members, drains)
    weighed = _weighed(loads, len(owners))
    target = _balance(holders, pinned, weights, weighed)
    if len(set(weighed)) > 1:
        _exchange(target, pinned, weights, weighed, moves_max // 2)
    return tuple([members[position].incarnation for position in target])


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


def _counts(weights: Sequence[int], given: Sequence[int], held: Sequence[int], partitions: int) -> list[int]:
    """How many partitions each member should own. `given` counts those pinned to it, `held` its others, not pinned."""
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
    for member in rounded[:ceilings]:
        floors[member] += 1
    return [floors.get(member, own) for member, own in enumerate(given)]  # One that left the sharing owns its pins.


def _balance(owners: Sequence[int], pins: Mapping[int, int], weights: Sequence[int], loads: Sequence[int]) -> list[int]:
    """The balanced target that makes the fewest moves."""
    given, held, met, carried = ([0] * len(weights) for _ in range(4))
    for partition, owner in enumerate(owners):
        if partition in pins:
            given[pins[partition]] += 1
        elif owner != NOBODY:
            held[owner] += 1
    counts = _counts(weights, given, held, len(owners))
    target = [NOBODY] * len(owners)
    homeless: list[int] = []
    # The sort is stable, so partitions with equal loads stay in the order of their numbers.
    for partition in sorted(range(len(owners)), key=loads.__getitem__, reverse=True):
        member = pins.get(partition, owners[partition])
        if partition not in pins and member != NOBODY:
            # The remainder is below `keeps` for exactly `keeps` of the `held`, evenly spread and including the first.
            keeps = counts[member] - given[member]
            met[member] += 1
            if (met[member] - 1) * keeps % held[member] >= keeps:
                member = NOBODY
        if member == NOBODY:
            homeless.append(partition)
        else:
            target[partition] = member
            carried[member] += loads[partition]
    room = [max(0, count - own - has) for count, own, has in zip(counts, given, held, strict=True)]
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
