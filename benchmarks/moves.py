"""The number of partitions that assignment moves, over the fewest possible, while members come and go.

A history is a group with 256 to 4096 partitions, 1 to 200 members and weights that are all equal or all random. A
change is any number of simultaneous joins, leaves and deaths. Every target counts as reached before the next change.

The fewest moves are calculated here from counts alone, without any code of assignment itself. A member can keep as many
partitions as its share rounded down. A member that has one more can keep that one, too, if its share is not whole, up
to the number of shares that have to be rounded up.

Members are in three zones. After each change, one zone is lost on paper: do its partitions go to their standbys?
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from time import perf_counter

from benchmarks import BenchmarkOptions, Figures, option
from neli_router.protocols.induction.assignment import Candidate, assign, standbys

__all__ = ["Options", "run"]

CHANGES_PER_HISTORY = 20
"""Enough to get far from a group's beginning; few enough that many kinds of groups are seen."""

MEMBERS_MAX = 200
PARTITIONS = (256, 512, 1024, 2048, 4096)
WEIGHT_MAX = 20
ZONES = "xyz"
TIMED_CALLS = 60


@dataclass(frozen=True, slots=True)
class Change:
    """The members after the change, the owners before it, and the target owners and standbys after it."""

    members: list[Candidate]
    before: tuple[str | None, ...]
    after: tuple[str | None, ...]
    standbys: tuple[str | None, ...]


class Options(BenchmarkOptions):
    seed: int = 1
    changes: int = option(4000, "how many times members change")


def run(options: Options) -> Figures:
    changes = max(1, options.changes)
    rng = random.Random(options.seed)
    made: list[int] = []
    fewest: list[int] = []
    spread_max = Fraction(0)
    lost: Counter[bool] = Counter()
    for change in _changes(rng, changes):
        weights = {member.incarnation: member.weight for member in change.members}
        owned = Counter(owner for owner in change.before if owner in weights)
        pairs = zip(change.before, change.after, strict=True)
        made.append(sum(owner in weights and owner != target for owner, target in pairs))
        fewest.append(_fewest(weights, owned, len(change.after)))
        spread_max = max(spread_max, _spread(weights, Counter(change.after)))
        if change.standbys:
            lost += _lost(change, rng.choice(change.members).zone)
    partitions = max(PARTITIONS)
    return {
        "changes": changes,
        "moves": sum(made),
        "moves_minimum": sum(fewest),
        "moves_over_minimum": sum(made) / sum(fewest) if any(fewest) else None,
        "changes_off_minimum": sum(one != other for one, other in zip(made, fewest, strict=True)),
        "spread_max": float(spread_max),
        "lost_with_a_zone": lost.total(),
        "lost_not_to_standby": lost[False],
        "assign_ms_median": _assign_ms_median(rng, partitions, {}),
        "assign_with_loads_ms_median": _assign_ms_median(
            rng, partitions, {partition: rng.paretovariate(1.2) for partition in range(partitions)}
        ),
    }


def _changes(rng: random.Random, count: int) -> Iterator[Change]:
    for first in range(0, count, CHANGES_PER_HISTORY):
        partitions, weight_max = rng.choice(PARTITIONS), rng.choice((1, WEIGHT_MAX))
        members: list[Candidate] = []
        owners: tuple[str | None, ...] = (None,) * partitions
        ready: tuple[str | None, ...] = ()
        for number in range(first, min(first + CHANGES_PER_HISTORY, count)):
            gone_max = rng.choice((0, 1, 2, len(members) // 4, len(members)))
            gone = set(rng.sample(members, rng.randint(0, min(gone_max, len(members)))))
            members = [member for member in members if member not in gone]
            joins_max = rng.choice((0, 1, 2, MEMBERS_MAX))
            joins = (
                rng.randint(0, min(joins_max, MEMBERS_MAX - len(members))) if members else rng.randint(1, MEMBERS_MAX)
            )
            members += _newcomers(rng, joins, weight_max, number)
            target = assign(members, owners)
            ready = standbys(members, target, ready)
            yield Change(members, owners, target, ready)
            owners = target


def _newcomers(rng: random.Random, count: int, weight_max: int, number: int) -> list[Candidate]:
    """Members that never existed before: a returning member is a newcomer, too."""
    names = [f"{number}.{position}" for position in range(count)]
    return [Candidate(name, name, rng.randint(1, weight_max), rng.choice(ZONES)) for name in names]


def _lost(change: Change, zone: str) -> Counter[bool]:
    """For each partition that is lost with `zone`, whether it would go to its standby."""
    left = [member for member in change.members if member.zone != zone]
    alive = {member.incarnation for member in left}
    owners = [owner if owner in alive else None for owner in change.after]
    went = zip(owners, assign(left, owners, preferred=change.standbys), change.standbys, strict=True)
    return Counter(target == standby for owner, target, standby in went if owner is None)


def _fewest(weights: Mapping[str, int], owned: Mapping[str, int], partitions: int) -> int:
    """The fewest moves after which each member is less than one off its share."""
    shares = {member: Fraction(partitions * weight, sum(weights.values())) for member, weight in weights.items()}
    floors = {member: share.numerator // share.denominator for member, share in shares.items()}
    rounded_up = partitions - sum(floors.values())
    may_keep_one_more = [
        member for member, share in shares.items() if owned.get(member, 0) > floors[member] and share != floors[member]
    ]
    kept = sum(min(owned.get(member, 0), floor) for member, floor in floors.items())
    return sum(owned.values()) - kept - min(rounded_up, len(may_keep_one_more))


def _spread(weights: Mapping[str, int], counts: Mapping[str | None, int]) -> Fraction:
    """The largest distance of a count from its share."""
    partitions, whole = sum(counts.values()), sum(weights.values())
    return max(abs(counts.get(name, 0) - Fraction(partitions * weight, whole)) for name, weight in weights.items())


def _assign_ms_median(rng: random.Random, partitions: int, loads: Mapping[int, float]) -> float:
    """One call of the usual kind: one of 200 members died, or one more joined."""
    all_members = _newcomers(rng, MEMBERS_MAX, WEIGHT_MAX, 0)
    took: list[float] = []
    owners = assign(all_members, (None,) * partitions)
    for call in range(TIMED_CALLS):
        members = all_members if call % 2 else all_members[:-1]
        started = perf_counter()
        owners = assign(members, owners, loads=loads)
        took.append(perf_counter() - started)
    return 1e3 * median(took)
