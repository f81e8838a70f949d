"""The cost of `Router.owner(key)` compared with a bare `owners[mmh3.hash(key) % S]`, and with two hash ring libraries.

    members --SQLite ledger--> router --owner(key)--> Owner        a real group, router and Owner, while members beat
    owners, a list of S of the same Owner objects, and nothing around it: the floor
    the same members' names on uhashring's and tooz's rings, which know no members, terms or ledger

Each contender is timed repeatedly between two runs of the floor, and a figure is the median of these ratios. So a
machine that becomes busy halfway slows both down, and a machine that is busy for a moment spoils one ratio of many. For
this reason a run takes only a tenth of a millisecond: most runs end before another program gets the processor. The
garbage collector is off, because it would traverse the Owners during whichever code is being timed.

The location of the keys in memory matters most. In `..._over_floor`, every run takes the next of 100,000 keys in random
order. They have left the nearest caches since their last use, like the keys of a program that does other work between
two look-ups. `owner_over_floor_cached` is the other extreme: the same 1,000 keys for all, read once before the clock
starts, so only the interpreter takes time.

On CPython 3.11, `owner` takes 1.0 to 1.2 times as long as the floor with keys from memory, and 1.3 to 1.5 times as long
(up to 28 ns more) with the few cached keys. The call takes 17 of these 28 ns, and a necessary check takes 5: without
`isascii`, which reads a flag in the header of a text, a lone surrogate would crash mmh3 and with it the process. A
function with the rows as globals, one with the mask as a constant, or both compiled again for each table, would save at
most 3 of the 28 ns, which is not worth the complication.
"""

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import cycle
from random import Random
from statistics import median

import mmh3
import tooz.hashring
import uhashring  # type: ignore[import-untyped] # It has no types of its own, and needs none here.

from benchmarks import BenchmarkOptions, Figures
from neli_router.config.config import Config
from neli_router.core.keyspace import Layout
from neli_router.member.member import Member
from neli_router.router.router import Router
from neli_router.router.table import Owner

__all__ = ["Options", "run"]

KEYS = 100_000  # Each of 20 characters.
KEYS_A_RUN = 1_000

Keys = list[str]
Loop = Callable[[Keys], object]


class Options(BenchmarkOptions):
    rounds: int = 501
    members: int = 3
    partitions: int = Layout().partitions


def run(options: Options) -> Figures:
    names = [f"member-{n}" for n in range(max(1, options.members))]
    keys = [f"customer-{n:011d}" for n in range(KEYS)]
    Random(1).shuffle(keys)  # In the order of their creation, the processor would prefetch them.
    runs = cycle([keys[start : start + KEYS_A_RUN] for start in range(0, KEYS, KEYS_A_RUN)])
    with ExitStack() as stack:
        plain = _router(stack, names, Layout(partitions=options.partitions))
        tagged = _router(stack, names, Layout(partitions=options.partitions, tags=True))
        contenders: dict[str, Loop] = {
            "owner": _looping_over(plain),
            "owners": plain.owners,
            "tagged": _looping_over(tagged),
            "uhashring": _looping_uhashring(names),
            "tooz": _looping_tooz(names),
        }
        floor = _floor(_slots(plain))
        ratios: dict[str, list[float]] = {}
        seconds_a_key: list[float] = []
        gc.collect()
        gc.disable()
        try:
            for _ in range(max(1, options.rounds)):
                for name, loop in contenders.items():
                    before, took, after = (_seconds(timed, next(runs)) for timed in (floor, loop, floor))
                    ratios.setdefault(f"{name}_over_floor", []).append(2 * took / (before + after))
                    if name == "owner":
                        seconds_a_key.append(took / KEYS_A_RUN)
                some, owner = next(runs), contenders["owner"]
                floor(some), owner(some)
                before, took, after = (_seconds(timed, some) for timed in (floor, owner, floor))
                ratios.setdefault("owner_over_floor_cached", []).append(2 * took / (before + after))
        finally:
            gc.enable()
    figures: Figures = {name: median(found) for name, found in ratios.items()}
    return {
        **figures,
        "lookups_per_second": 1 / median(seconds_a_key),
        "rounds": len(seconds_a_key),
        "members": len(names),
        "partitions": options.partitions,
        "slots": Layout().slots,
    }


def _router(stack: ExitStack, names: Sequence[str], layout: Layout) -> Router:
    """A router whose ledger `names` keep writing to, after each of them owns something."""
    ledger = f"sqlite:{stack.enter_context(tempfile.TemporaryDirectory())}/ledger.db"
    for name in names:
        config = Config(ledger, name=name, address=f"{name}.example.org:7000", layout=layout, lease=0.5)
        stack.enter_context(Member(config))
    router = stack.enter_context(Router(ledger))
    with router.watch() as watch:
        while {owner.name for owner in router.table.partitions if owner is not None} != set(names):
            watch.take(timeout=1.0)
    return router


def _slots(router: Router) -> list[Owner]:
    """One Owner for each slot: the same objects that the router returns."""
    layout, partitions = router.table.layout, router.table.partitions
    found = [partitions[layout.partition_of_slot(slot)] for slot in range(layout.slots)]
    return [owner for owner in found if owner is not None]


def _floor(owners: list[Owner]) -> Loop:
    size = len(owners)

    def loop(keys: Keys) -> None:
        for key in keys:
            owners[mmh3.hash(key) % size]

    return loop


def _looping_over(router: Router) -> Loop:
    def loop(keys: Keys) -> None:
        for key in keys:
            router.owner(key)

    return loop


def _looping_uhashring(names: Sequence[str]) -> Loop:
    ring = uhashring.HashRing(list(names))

    def loop(keys: Keys) -> None:
        for key in keys:
            ring.get_node(key)

    return loop


def _looping_tooz(names: Sequence[str]) -> Loop:
    ring = tooz.hashring.HashRing(list(names))

    def loop(keys: Keys) -> None:
        for key in keys:
            ring.get_nodes(key.encode())  # It accepts only bytes.

    return loop


def _seconds(loop: Loop, keys: Keys) -> float:
    started = time.perf_counter()
    loop(keys)
    return time.perf_counter() - started
