"""Assignment is checked against its laws in drawn situations, and for the fewest moves by trying every possible target.

The oracle shares no code with the function it checks: it lists all possible counts, keeps those that the module's essay
calls fair, and tries every target with these counts. This is feasible only for a handful of partitions, so larger
groups are checked only against the laws.
"""

import hashlib
import json
import math
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from operator import ne

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neli_router.protocols.induction.assignment import (
    ASSIGNMENT_VERSION,
    LOAD_MOVES_MAX,
    ZONES_MAX,
    Candidate,
    assign,
    standbys,
)

GOLDEN = {
    1: (
        "5ea59c9aaa846e9faa4a7a28feb582887622bdcfdf47af585778b26df00898dc",
        "ec6ee0e4e5b9286c10618c47ccb74becdd400ef43178fc0b65852fe539373228",
    )
}
"""Two digests of each version's results: in one zone, as in groups of fold version 2, and with zones and standbys. If
one changes, so must the version: that is what the version is for."""


def group(*weights: int, zones: Sequence[str] = ("zone",)) -> list[Candidate]:
    """Members m0, m1 and so on, in join order; `zones` are theirs in turn."""
    return [
        Candidate(f"i{number}", f"m{number}", weight, zones[number % len(zones)])
        for number, weight in enumerate(weights)
    ]


def owned(target: Sequence[str | None]) -> str:
    """A target as text: the number of each partition's owner, or a dot."""
    return "".join("." if owner is None else owner.removeprefix("i") for owner in target)


def owners_of(text: str) -> list[str | None]:
    return [None if letter == "." else f"i{letter}" for letter in text]


def counts_of(members: Sequence[Candidate], target: Sequence[str | None]) -> list[int]:
    tally = Counter(target)
    return [tally[member.incarnation] for member in members]


def moved(members: Sequence[Candidate], owners: Sequence[str | None], target: Sequence[str | None]) -> list[int]:
    """The partitions whose owner is a member and should be another."""
    alive = {member.incarnation for member in members}
    return [at for at, owner in enumerate(owners) if owner in alive and owner != target[at]]


def heaviest(members: Sequence[Candidate], target: Sequence[str | None], loads: Sequence[float]) -> Fraction:
    """The largest load over weight, among members that have a weight. Exact."""
    carried = {member.incarnation: Fraction(0) for member in members}
    for owner, load in zip(target, loads, strict=True):
        assert owner is not None
        carried[owner] += Fraction(load)
    return max(carried[member.incarnation] / member.weight for member in members if member.weight)


@dataclass(frozen=True)
class Situation:
    members: list[Candidate]
    owners: list[str | None]
    pins: dict[int, str] = field(default_factory=dict)
    drains: tuple[str, ...] = ()
    preferred: list[str | None] = field(default_factory=list)

    def weights(self) -> list[int]:
        """The weight that counts for each member."""
        eligible = [member for member in self.members if member.name not in self.drains] or self.members
        equal = all(member.weight == 0 for member in eligible)
        return [(1 if equal else member.weight) if member in eligible else 0 for member in self.members]

    def pinned(self) -> dict[int, int]:
        names = [member.name for member in self.members]
        return {at: names.index(name) for at, name in self.pins.items() if name in names and 0 <= at < len(self.owners)}

    def assign(self, *, loads: Mapping[int, float] = {}, moves_max: int = LOAD_MOVES_MAX) -> tuple[str | None, ...]:
        return assign(
            self.members,
            self.owners,
            pins=self.pins,
            drains=self.drains,
            loads=loads,
            preferred=self.preferred,
            moves_max=moves_max,
        )

    def standbys(self, targets: Sequence[str | None], present: Sequence[str | None] = ()) -> tuple[str | None, ...]:
        return standbys(self.members, targets, present, pins=self.pins, drains=self.drains)

    def after(self, target: Sequence[str | None]) -> "Situation":
        return replace(self, owners=list(target))

    def without(self, zone: str, targets: Sequence[str | None], stand_by: Sequence[str | None]) -> "Situation":
        """The situation of a fold at rest, once all members of `zone` have departed."""
        left = [member for member in self.members if member.zone != zone]
        alive = {member.incarnation for member in left}
        owners = [target if target in alive else None for target in targets]
        preferred = [standby if owner is None else None for owner, standby in zip(owners, stand_by, strict=True)]
        return replace(self, members=left, owners=owners, preferred=preferred)


@st.composite
def situations(
    draw: st.DrawFn, *, members_max: int, partitions_max: int, weight_max: int = 5, orders: bool = True
) -> Situation:
    """Any owners at all, balanced or not, some dead; with `orders`, also pins, drains and preferences, some of
    strangers."""
    weights = draw(st.lists(st.integers(0, weight_max), min_size=1, max_size=members_max))
    members = group(*weights, zones=draw(st.lists(st.sampled_from("xyz"), min_size=1, max_size=5)))
    partitions = draw(st.integers(0, partitions_max))
    owner = st.sampled_from([None, "dead", *(member.incarnation for member in members)])
    owners = draw(st.lists(owner, min_size=partitions, max_size=partitions))
    if not orders:
        return Situation(members, owners)
    name = st.sampled_from(["stranger", *(member.name for member in members)])
    pins = draw(st.dictionaries(st.integers(-1, partitions), name, max_size=partitions + 2))
    pins |= dict.fromkeys(range(draw(st.integers(0, partitions))), draw(name))
    drains = draw(st.lists(name, unique=True))
    preferred = draw(st.just([]) | st.lists(owner, min_size=partitions, max_size=partitions))
    return Situation(members, owners, pins, tuple(drains), preferred)


@st.composite
def loaded(draw: st.DrawFn) -> tuple[Situation, list[float]]:
    situation = draw(situations(members_max=6, partitions_max=24))
    size = len(situation.owners)
    load = st.sampled_from([0.0, 0.1, 0.7, 1.0, 3.0, 20.0]) | st.floats(0, 1e6)
    return situation, draw(st.lists(load, min_size=size, max_size=size))


def all_counts(total: int, least: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if not least:
        if total == 0:
            yield ()
        return
    for count in range(least[0], total + 1):
        for others in all_counts(total - count, least[1:]):
            yield (count, *others)


def fair_counts(weights: Mapping[int, int], pinned: Mapping[int, int], total: int) -> list[dict[int, int]]:
    """Every fair way to divide `total` partitions among the members in `weights`, as the essay defines it."""
    shares = {member: Fraction(total * weight, sum(weights.values())) for member, weight in weights.items()}
    every = (dict(zip(weights, counts, strict=True)) for counts in all_counts(total, [pinned[at] for at in weights]))
    if fair := [counts for counts in every if all(abs(counts[at] - shares[at]) < 1 for at in weights)]:
        return fair
    leaving = [at for at in weights if pinned[at] >= shares[at] + 1]
    leaving = leaving or [at for at in weights if pinned[at] > shares[at]]
    rest = {at: weight for at, weight in weights.items() if at not in leaving}
    gone = {at: pinned[at] for at in leaving}
    return [counts | gone for counts in fair_counts(rest, pinned, total - sum(gone.values()))]


def best_targets(situation: Situation) -> set[tuple[str, ...]]:
    """Every target that obeys the pins, is fair, and makes as few moves as any such target."""
    weights, pinned, total = situation.weights(), situation.pinned(), len(situation.owners)
    given = Counter(pinned.values())
    everyone = {at: given[at] for at in range(len(weights))}
    fair = [[counts[at] for at in everyone] for counts in fair_counts(dict(enumerate(weights)), everyone, total)]
    choices = [[pinned[at]] if at in pinned else range(len(weights)) for at in range(total)]
    targets = [
        tuple(situation.members[at].incarnation for at in positions)
        for positions in product(*choices)
        if [positions.count(at) for at in everyone] in fair
    ]
    fewest = min(len(moved(situation.members, situation.owners, target)) for target in targets)
    return {target for target in targets if len(moved(situation.members, situation.owners, target)) == fewest}


@given(
    situations(members_max=4, partitions_max=5, weight_max=4)
    | situations(members_max=3, partitions_max=7, weight_max=9, orders=False)
)
@settings(max_examples=250)
def test_no_fair_target_makes_fewer_moves(situation: Situation) -> None:
    assert situation.assign() in best_targets(situation)


@given(situations(members_max=4, partitions_max=14, weight_max=9))
@settings(max_examples=200)
def test_counts_are_fair_whatever_is_pinned_and_a_target_that_is_reached_stays(situation: Situation) -> None:
    given = Counter(situation.pinned().values())
    everyone = {at: given[at] for at in range(len(situation.members))}
    fair = fair_counts(dict(enumerate(situation.weights())), everyone, len(situation.owners))
    target = situation.assign()
    assert dict(enumerate(counts_of(situation.members, target))) in fair
    assert target == situation.after(target).assign()
    # Preferences change no count.
    assert counts_of(situation.members, target) == counts_of(
        situation.members, replace(situation, preferred=[]).assign()
    )


@given(situations(members_max=12, partitions_max=90, weight_max=30), st.integers(0, 2**70))
def test_counts_are_less_than_one_off_the_weighted_share(situation: Situation, huge: int) -> None:
    """Drains included. Without pins nothing stands in the way, and no weight is too large."""
    members = [*situation.members, Candidate("huge", "huge", huge, "zone")]
    free = replace(situation, members=members, pins={})
    weights, partitions = free.weights(), len(free.owners)
    counts = counts_of(members, free.assign())
    assert partitions == sum(counts)
    off = [
        abs(count - Fraction(partitions * weight, sum(weights))) for count, weight in zip(counts, weights, strict=True)
    ]
    assert [] == [distance for distance in off if distance >= 1]


def test_a_ceiling_goes_to_who_owns_more_then_to_the_emptiest_and_role_zero_stays_as_low_numbers_are_spread() -> None:
    members = group(1, 1, 1)
    assert [3, 2, 2] == counts_of(members, assign(members, [None] * 7))
    assert [2, 2, 3] == counts_of(members, assign(members, owners_of("2220110")))
    assert [2, 2, 3] == counts_of(members, assign(members, owners_of("00.11..")))
    # Roles are low numbers, and a group begins with one member that owns everything.
    members = group(*[1] * 16)
    owners: tuple[str | None, ...] = (None,) * 16
    history = []
    for size in range(1, 17):
        owners = assign(members[:size], owners)
        history.append(owned(owners))
        assert "i0" == owners[0]
    assert ["0000000000000000", "0101010101010101", "0122010201210201", "0123330201213201"] == history[:4]


def test_what_the_dead_had_is_dealt_out_in_turn_if_there_is_a_member_and_anything_to_own() -> None:
    assert "000111010101" == owned(assign(group(1, 1), owners_of("000111......")))
    assert "0100100" == owned(assign(group(2, 1), owners_of(".......")))
    assert (None, None) == assign([], ["dead", None], pins={0: "m0"}, drains=["m0"], loads={0: 1.0})
    assert () == assign(group(1, 2), [], pins={0: "m0"}, loads={0: 1.0})


@given(loaded(), st.integers(0, 9))
def test_loads_change_which_partitions_move_but_no_pin_and_no_count_and_make_no_more_moves_than_allowed(
    drawn: tuple[Situation, list[float]], moves_max: int
) -> None:
    """Not counting forced moves, of which the second case has none."""
    situation, loads = drawn
    for each in (situation, situation.after(situation.assign())):
        forced, target = each.assign(), each.assign(loads=dict(enumerate(loads)), moves_max=moves_max)
        assert counts_of(situation.members, forced) == counts_of(situation.members, target)
        pinned = {at: each.members[position].incarnation for at, position in each.pinned().items()}
        assert pinned == {at: target[at] for at in pinned}
        moves = [len(moved(each.members, each.owners, reached)) for reached in (target, forced)]
        assert moves[0] <= moves[1] + moves_max


@given(situations(members_max=6, partitions_max=24))
def test_a_partition_that_must_move_goes_where_it_is_preferred_while_there_is_room(situation: Situation) -> None:
    """If one goes elsewhere, then all that came to its preferred member preferred it, too, or are pinned to it."""
    target, alive = situation.assign(), {member.incarnation for member in situation.members}
    came = [at for at, owner in enumerate(situation.owners) if owner != target[at] and at not in situation.pinned()]
    for at, wanted in enumerate(situation.preferred):
        if at in came and wanted in alive and target[at] != wanted:
            assert [] == [i for i in came if target[i] == wanted != situation.preferred[i]]


@pytest.mark.parametrize(
    ("before", "preferred", "after"),
    [
        ("00000000", "........", "01010101"),
        ("00000000", "....1111", "00001111"),  # The promised ones go, and not every second one.
        ("00000000", "11111111", "10010011"),  # No more is given than must be.
        ("0000.1.1", "11111.1.", "00001111"),  # Those without an owner choose first.
        ("00001111", "1111....", "00001111"),  # A preference alone moves nothing.
        ("00000000", "....xxxx", "00001111"),  # Also if it was promised to a member that departed since.
        ("000000..", "......x1", "01001011"),
    ],
)
def test_a_giver_gives_what_was_promised_first(before: str, preferred: str, after: str) -> None:
    """Without promises, every second one."""
    assert after == owned(assign(group(1, 1), owners_of(before), preferred=owners_of(preferred)))


def test_rounding_favours_no_zone() -> None:
    """One ceiling in each zone, not three in the zone that joined first."""
    members = group(1, 1, 1, 1, 1, 1, zones="aabbcc")
    assert [3, 2, 3, 2, 3, 2] == counts_of(members, assign(members, [None] * 15))
    # The first zone has two already, because each of these owns more than its floor.
    owners = owners_of("00011122233445.")
    assert [3, 3, 3, 2, 2, 2] == counts_of(members, assign(members, owners))


@given(situations(members_max=9, partitions_max=40), st.data())
def test_a_standby_is_another_zones_and_gets_its_partitions_if_their_zone_is_lost(
    situation: Situation, data: st.DataObject
) -> None:
    """Whatever the weights, pins, drains and former standbys. All that it stands by for, if the table was at rest."""
    targets = situation.assign()
    size = len(targets)
    one = st.sampled_from([*targets, "dead", None])
    former = data.draw(st.just([]) | st.lists(one, min_size=size, max_size=size))
    stand_by = situation.standbys(targets, former)
    zones = {member.incarnation: member.zone for member in situation.members}
    eligible = {
        member.incarnation for member, weight in zip(situation.members, situation.weights(), strict=True) if weight
    }
    if len(set(zones.values())) == 1 or all(member.name in situation.drains for member in situation.members):
        assert () == stand_by
        return
    for target, standby in zip(targets, stand_by, strict=True):
        assert target is not None
        others = [member for member in eligible if zones[member] != zones[target]]
        assert standby in others if others else standby is None
    for zone in set(zones.values()):
        lost = situation.without(zone, targets, stand_by)
        went = lost.assign()
        assert [] == [at for at, standby in enumerate(lost.preferred) if standby not in (None, went[at])]
    assert stand_by == situation.standbys(targets, stand_by)


def test_the_loss_of_a_zone_needs_no_other_move_and_leaves_equal_shares() -> None:
    """Throughout a life of random expiries and joins, each of which replaces few standbys."""
    rng = random.Random(7)
    whole = Situation(group(*[1] * 9, zones="abc"), [None] * 256)
    targets = whole.assign()
    stand_by = whole.standbys(targets)
    replaced = []
    for life in range(9, 40):
        out = rng.choice(whole.members)
        rest = replace(whole, members=[member for member in whole.members if member != out])
        homeless = [None if target == out.incarnation else target for target in targets]
        rest = replace(rest, owners=homeless, preferred=list(stand_by))
        targets = rest.assign()
        # Six of the eight others are in other zones, and have room for six eighths of the partitions.
        lost = [at for at, target in enumerate(homeless) if target is None]
        assert sum(targets[at] == stand_by[at] for at in lost) >= len(lost) * 6 // 8 - 3
        former, stand_by = stand_by, rest.standbys(targets, stand_by)
        replaced.append(sum(map(ne, former, stand_by)))
        whole = replace(rest, members=[*rest.members, Candidate(f"i{life}", f"m{life}", 1, out.zone)], preferred=[])
        targets = whole.after(targets).assign()
        former, stand_by = stand_by, whole.standbys(targets, stand_by)
        replaced.append(sum(map(ne, former, stand_by)))
        for zone in "abc":
            left = whole.without(zone, targets, stand_by)
            after = left.assign()
            assert [after[at] for at in range(256)] == [
                owner or left.preferred[at] for at, owner in enumerate(left.owners)
            ]
            assert {42, 43} == set(counts_of(left.members, after))
    assert max(replaced) <= 60, "of 256: 29 must change because their standby departed, and 29 for a newcomer"


def test_the_standbys_of_one_member_are_all_members_outside() -> None:
    whole = Situation(group(*[1] * 9, zones="abc"), [None] * 256)
    targets = whole.assign()
    pairs = Counter(zip(targets, whole.standbys(targets), strict=True))
    assert (54, {4, 5}) == (len(pairs), set(pairs.values()))
    # If each host is a zone of its own, several are one to each other, and no partition stands by on its own host.
    hosts = Situation(group(*[1] * 3 * ZONES_MAX, zones=[f"host-{at}" for at in range(3 * ZONES_MAX)]), [None] * 512)
    targets = hosts.assign()
    stand_by = hosts.standbys(targets)
    assert not {None, *targets}.isdisjoint(stand_by)
    assert [] == [at for at, target in enumerate(targets) if stand_by[at] in (None, target)]


@given(loaded())
def test_loads_never_make_the_heaviest_heavier_and_come_to_rest(drawn: tuple[Situation, list[float]]) -> None:
    """Not heavier than without the moves for load and, if nothing else changes, not heavier than before."""
    situation, loads = drawn
    members = [
        Candidate(member.incarnation, member.name, weight, member.zone)
        for member, weight in zip(situation.members, situation.weights(), strict=True)
    ]
    peaks = []
    target = situation.assign(loads=dict(enumerate(loads)), moves_max=0)
    for _ in range(4):
        peaks.append(heaviest(members, target, loads))
        target = situation.after(target).assign(loads=dict(enumerate(loads)), moves_max=4)
    assert sorted(peaks, reverse=True) == peaks
    together = heaviest(members, situation.assign(loads=dict(enumerate(loads)), moves_max=4), loads)
    assert together == peaks[1]
    seen = [situation.assign(loads=dict(enumerate(loads)))]
    while (later := situation.after(seen[-1]).assign(loads=dict(enumerate(loads)))) != seen[-1]:
        assert later not in seen
        seen.append(later)


@given(situations(members_max=6, partitions_max=24), st.floats(0, allow_infinity=False))
def test_equal_loads_are_as_good_as_none(situation: Situation, load: float) -> None:
    assert situation.assign() == situation.assign(loads=dict.fromkeys(range(len(situation.owners)), load))
    assert situation.assign() == situation.assign(loads={0: load})


@given(loaded(), st.sampled_from([math.nan, math.inf, -math.inf, -1.0, -5e-324]), st.data())
def test_a_load_that_is_none_is_left_out(drawn: tuple[Situation, list[float]], bad: float, data: st.DataObject) -> None:
    situation, loads = drawn
    sound = dict(enumerate(loads))
    for at in data.draw(st.sets(st.integers(0, 24))):
        sound.pop(at, None)
    spoiled = dict.fromkeys(range(-2, 30), bad) | sound
    assert situation.assign(loads=sound) == situation.assign(loads=spoiled)


def test_a_partition_without_a_load_counts_as_the_mean() -> None:
    members, owners = group(1, 1), owners_of("00001111")
    named = {0: 9.0, 1: 6.0, 4: 0.0}
    assert assign(members, owners, loads=named) == assign(members, owners, loads=dict.fromkeys(range(8), 5.0) | named)
    assert owned(owners) != owned(assign(members, owners, loads=named))


@pytest.mark.parametrize(
    ("weights", "before", "loads", "moves_max", "after"),
    [
        ((1, 1), "00001111", "99991111", 1, "00001111"),  # An exchange takes two moves.
        ((1, 1), "00001111", "99991111", 2, "00010111"),
        ((1, 1), "00001111", "99991111", 3, "00010111"),
        ((1, 1), "00001111", "99991111", 99, "00110011"),  # Two hot partitions for two cold ones.
        ((1, 1), "00001111", "91111111", 99, "00001111"),  # Passing on the hot partition helps no member ...
        ((1, 4), "0011111111", "9111111111", 99, "1011111110"),  # ... unless another carries it more easily.
        ((1, 1, 1), "000111222", "922633111", 99, "201011220"),
        ((1, 1, 1), "001122", "904400", 99, "001212"),  # Although m0 cannot be relieved, m1 must be.
        ((1, 1, 1), "001122", "902200", 99, "001122"),  # But if m1 carries less than a fair part, it need not be.
        ((1, 1), "00001111", "99998888", 99, "00001111"),  # The shift would be too small to be worth two handovers.
        ((1, 1, 4), "001122222222", "911122211112", 99, "222210122220"),  # m1 carries least; the 9 is not for it.
        # Partitions without an owner and a newcomer's share are dealt out by load, without further moves.
        ((1, 1), "....", "1234", 0, "0110"),
        ((1, 1), "00000000", "99991111", 0, "01010101"),
        ((1, 1), "00000000", "91919191", 0, "00110011"),
    ],
)
def test_a_hot_partition_is_exchanged_for_a_cold_one(
    weights: Sequence[int], before: str, loads: str, moves_max: int, after: str
) -> None:
    heat = {at: float(load) for at, load in enumerate(loads)}
    assert after == owned(assign(group(*weights), owners_of(before), loads=heat, moves_max=moves_max))


def test_a_partition_that_may_not_move_is_no_fair_part_and_an_exchange_that_shifts_little_is_left() -> None:
    """Next to the drained member's 9, m0's 6 looks small; but among the members that can share, it is the most."""
    loads = dict(enumerate([9.0, 3.0, 3.0, 1.0, 1.0]))
    target = assign(group(1, 1, 1), owners_of("20011"), pins={0: "m2"}, drains=["m2"], loads=loads)
    assert "20101" == owned(target)
    # The eighteen and the zero are far apart, but exchanging them would help no member.
    loads = dict(enumerate([18.0, 18.0, 18.0, 35.0, 17.0, 0.0]))
    assert "000111" == owned(assign(group(1, 1), owners_of("000111"), loads=loads))


def drawn_targets(seeds: Collection[int], *, zoned: bool) -> str:
    """A digest of many targets. It draws only with `random()`, the one method that promises equal draws forever."""
    digest = hashlib.sha256()
    for seed in seeds:
        rng = random.Random(seed)
        size, partitions = 1 + int(rng.random() * 9), 1 + int(rng.random() * 60)
        members = group(*[int(rng.random() * 6) for _ in range(size)])
        names = [f"m{at}" for at in range(size + 2)]
        owners = [
            [None, "dead", *(member.incarnation for member in members)][int(rng.random() * (size + 2))]
            for _ in range(partitions)
        ]
        pins = {at: names[int(rng.random() * len(names))] for at in range(partitions) if rng.random() < 0.1}
        drains = {name for name in names if rng.random() < 0.2}
        # Products, not powers: powers come from the C library, which may round differently elsewhere.
        loads = {at: rng.random() * rng.random() for at in range(partitions) if seed % 2 and rng.random() < 0.8}
        preferred: list[str | None] = []
        if zoned:
            members = [replace(member, zone="xyz"[int(rng.random() * 3)]) for member in members]
            preferred = owners[::-1]
        targets = assign(members, owners, pins=pins, drains=drains, loads=loads, preferred=preferred)
        digest.update(json.dumps(targets).encode())
        if zoned:
            digest.update(json.dumps(standbys(members, targets, preferred, pins=pins, drains=drains)).encode())
    return digest.hexdigest()


def test_what_a_version_computes_never_changes() -> None:
    """Every process computes the same, whatever the order of a set: Python draws a new hash seed for each run."""
    digests = drawn_targets(range(400), zoned=False), drawn_targets(range(400), zoned=True)
    assert {ASSIGNMENT_VERSION: digests} == {ASSIGNMENT_VERSION: GOLDEN.get(ASSIGNMENT_VERSION)}
