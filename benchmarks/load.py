"""How even a Zipf load is on four members before and after they apply its profile, and what that moves.

    keys, each with its part of the load --LoadProfile--> loads --operator.load--> a real group --handovers--> even

For each of several sets of keys, a group of real members on an SQLite ledger joins, settles and applies the profile. It
applies the profile again as long as loads are uneven and something moves. A load over mean is the busiest member's load
over the mean of all members. Figures after a change count owners, not targets, so every handover has happened.

`moves_a_change_max` must be at most the number of moves that assignment allows to balance load. If a single slot
exceeds the mean load of a member, loads cannot be even: `hottest_slot_over_mean` is then above 1, and `hottest_slot`
names the slot.
"""

import tempfile
from contextlib import ExitStack
from statistics import median
from time import perf_counter

import polars as pl

from benchmarks import BenchmarkOptions, Figures, option
from neli_router.config.config import Config
from neli_router.core.keyspace import Layout
from neli_router.member.member import Member
from neli_router.protocols.induction.assignment import LOAD_MOVES_MAX
from neli_router.protocols.induction.records import Load
from neli_router.router.loads import LoadProfile
from neli_router.status.group_view import GroupView
from tests.support.waiting import PATIENCE

__all__ = ["Options", "run"]

EVEN = 1.1  # The same bound as the command's.
CHANGES_MAX = 20


class Options(BenchmarkOptions):
    keys: int = 100_000
    exponent: float = option(1.1, "of the Zipf distribution")
    members: int = 4
    partitions: int = Layout().partitions
    sets: int = option(5, "sets of keys, each with a group of its own")


def run(options: Options) -> Figures:
    layout = Layout(partitions=options.partitions)
    before: list[float] = []
    after: list[float] = []
    moves: list[list[int]] = []
    milliseconds: list[float] = []
    hottest: tuple[float, int] = (0.0, 0)
    for number in range(max(1, options.sets)):
        profile = _profile(options.keys, options.exponent, number, layout)
        slot, load = profile.hottest(1)[0]
        hottest = max(hottest, (load * options.members / profile.total, slot))
        with ExitStack() as stack:
            members = _group(stack, options.members, layout)
            started = perf_counter()
            balances, made = _evened_out(members[0], profile)
            milliseconds.append((perf_counter() - started) * 1000)
        before.append(balances[0])
        after.append(balances[-1])
        moves.append(made)
    return {
        "load_over_mean_before_median": median(before),
        "load_over_mean_before_max": max(before),
        "load_over_mean_after_median": median(after),
        "load_over_mean_after_max": max(after),
        "is_even": max(after) <= EVEN,
        "moves_median": median(sum(made) for made in moves),
        "moves_max": max(sum(made) for made in moves),
        "moves_a_change_max": max(max(made, default=0) for made in moves),
        "moves_a_change_allowed": LOAD_MOVES_MAX,
        "changes_max": max(map(len, moves)),
        "until_handed_over_ms_median": median(milliseconds),
        "hottest_slot_over_mean": hottest[0],
        "hottest_slot": hottest[1],
        "members": options.members,
        "partitions": options.partitions,
        "keys": options.keys,
        "sets": len(moves),
    }


def _profile(keys: int, exponent: float, number: int, layout: Layout) -> LoadProfile:
    ranks = range(1, max(1, keys) + 1)
    names = pl.Series([f"instrument-{number}-{rank}" for rank in ranks])
    return LoadProfile.of_columns(names, layout, weights=pl.Series([rank**-exponent for rank in ranks]))


def _group(stack: ExitStack, size: int, layout: Layout) -> list[Member]:
    """Members that have all joined, and own what they should own."""
    ledger = f"sqlite:{stack.enter_context(tempfile.TemporaryDirectory())}/ledger.db"
    members = [
        stack.enter_context(Member(Config(ledger, name=f"member-{number}", layout=layout, lease=1.0)))
        for number in range(max(1, size))
    ]
    _await_handovers(members[0], len(members))
    return members


def _await_handovers(member: Member, size: int) -> None:
    give_up_at = perf_counter() + PATIENCE
    with member.router.watch() as watch:
        while len((state := member.state).seats) < size or state.owners != state.targets:
            assert perf_counter() < give_up_at, "the group did not settle"
            watch.take(timeout=0.01)


def _evened_out(member: Member, profile: LoadProfile) -> tuple[list[float], list[int]]:
    """The busiest member's load over the mean, before and after each change, and the moves of each change."""
    balances: list[float] = []
    moves: list[int] = []
    loads = profile.loads()
    for _ in range(CHANGES_MAX):
        view = GroupView(member.state)
        wish = Load(by="benchmark", loads=loads)
        if not balances:
            balances.append(view.balance_by(wish).before)
        planned = len(view.moves_by(wish))
        if balances[-1] <= EVEN or not planned:
            break
        owners = member.state.owners
        member.operator.load(loads)
        _await_handovers(member, len(member.state.seats))
        moves.append(sum(was != now for was, now in zip(owners, member.state.owners, strict=True)))
        balances.append(GroupView(member.state).balance_by(wish).before)
        loads = {partition: 2 * load for partition, load in loads.items()}  # The same in another unit: see the agent's.
    return balances, moves
