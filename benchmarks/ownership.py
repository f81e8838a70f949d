"""The cost of `Router.from_redis(...).owner(key)` compared with a ledger's router, and how soon it sees a change.

    a member --SQLite ledger--> router of the ledger --owner(key)--.
       '-----publishes--> Redis --> router of the store --owner(key)--'--> the same keys, timed in turns
    a claim --SAY--> Redis --message--> router's thread --> owner(key) returns it: the clock covers all of this
    a table of --partitions --READ, one round trip--> a new router has its first table

The Redis is Debian's own, started for the run on loopback, unless --url names another one. Each ratio compares a run
with two runs of the other router around it, as in `lookup`. A change is timed from before it is published until a
thread that only looks up owners finds the new owner. The following thread shares the interpreter with it, so the figure
is what a busy program would wait for. A load is timed from before the router is created, and includes its connections.
"""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import cycle
from random import Random
from statistics import median, quantiles

from benchmarks import BenchmarkOptions, Figures, option
from neli_router.config.config import Config
from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.redis.address import parse
from neli_router.drivers.owners.base import Card, Claim
from neli_router.drivers.owners.redis import RedisOwners
from neli_router.member.member import Member
from neli_router.router.router import Router
from tests.support.waiting import PATIENCE, until

__all__ = ["Options", "run"]

KEYS = 100_000
KEYS_A_RUN = 1_000

Loop = Callable[[list[str]], object]


class Options(BenchmarkOptions):
    url: str | None = option(None, "redis://... or rediss://... of a group in a running Redis")
    rounds: int = 301
    changes: int = option(1000, "changes to time")
    loads: int = option(21, "loads to take the median of")
    partitions: int = option(4096, "M of the table that is loaded")
    members: int = option(8, "owners of that table")


def run(options: Options) -> Figures:
    with ExitStack() as stack:
        url = options.url or stack.enter_context(_redis())
        ratio = _owner_over_ledger_router(url, max(1, options.rounds))
        changes = _changes(_beside(url, "changes"), max(2, options.changes))
        loads = _loads(_beside(url, "load"), max(1, options.loads), options.partitions, max(1, options.members))
    cuts = quantiles(changes, n=100, method="inclusive")
    return {
        "owner_over_ledger_router": ratio,
        "change_ms_median": cuts[49],
        "change_ms_p99": cuts[98],
        "change_ms_max": max(changes),
        "load_ms": median(loads),
        "load_ms_max": max(loads),
        "partitions_loaded": options.partitions,
        "rounds": max(1, options.rounds),
        "changes": len(changes),
        "loads": len(loads),
    }


@contextmanager
def _redis() -> Iterator[str]:
    from tests.support.servers.redis import Redis, missing  # noqa: PLC0415 - only who has no Redis of its own needs it.

    if why := missing():
        raise SystemExit(f"this benchmark needs a Redis, but {why}; or name one with --url")
    with Redis.started() as redis:
        yield redis.url("benchmark")


def _owner_over_ledger_router(url: str, rounds: int) -> float:
    keys = [f"customer-{n:011d}" for n in range(KEYS)]
    Random(1).shuffle(keys)  # In the order of their creation, the processor would prefetch them.
    runs = cycle([keys[start : start + KEYS_A_RUN] for start in range(0, KEYS, KEYS_A_RUN)])
    with ExitStack() as stack:
        ledger = f"sqlite:{stack.enter_context(tempfile.TemporaryDirectory())}/ledger.db"
        member = stack.enter_context(Member(Config(ledger, name="member", lease=0.5, ownership=url)))
        of_ledger = stack.enter_context(Router(ledger))
        of_store = stack.enter_context(Router.from_redis(url, wait=False))
        until(lambda: len(member.led) == member.layout.partitions and of_store.at.offset > 0, "a group")
        until(lambda: of_store.table.partitions == of_ledger.table.partitions, "the same table in the store")
        base, timed = _looping_over(of_ledger), _looping_over(of_store)
        ratios = []
        gc.collect()
        gc.disable()
        try:
            for _ in range(rounds):
                before, took, after = (_seconds(loop, next(runs)) for loop in (base, timed, base))
                ratios.append(2 * took / (before + after))
        finally:
            gc.enable()
    return median(ratios)


def _changes(url: str, count: int) -> list[float]:
    """Milliseconds from before a change is published until a look-up returns it."""
    layout, took = Layout(), []
    with closing(_store(url)) as owners, ExitStack() as stack:
        owners.publish(layout, _claim("0", dict.fromkeys(range(layout.partitions), 1)))
        router = stack.enter_context(Router.from_redis(url))
        owner, rng = router.owner, Random(1)
        for change in range(1, count + 1):
            key = f"customer-{rng.randrange(KEYS)}"
            term = change + 1
            claim = _claim(str(change % 8), {layout.partition(key): term})
            started = time.perf_counter()
            owners.publish(layout, claim)
            while owner(key).term != term:
                if time.perf_counter() > started + PATIENCE:
                    raise RuntimeError(f"change {change} was not seen within {PATIENCE} s")
                time.sleep(0)  # A look-up that never releases the interpreter would measure its switch interval.
            took.append((time.perf_counter() - started) * 1000)
    return took


def _loads(url: str, count: int, partitions: int, members: int) -> list[float]:
    """Milliseconds from before a router is created until it has the whole table."""
    layout, took = Layout(slots=max(16384, partitions), partitions=partitions), []
    with closing(_store(url)) as owners:
        for number in range(members):
            owners.publish(layout, _claim(str(number), dict.fromkeys(range(number, partitions, members), 2**52)))
        for _ in range(count):
            started = time.perf_counter()
            with Router.from_redis(url) as router:
                router.owner("key")
                took.append((time.perf_counter() - started) * 1000)
    return took


def _beside(url: str, name: str) -> str:
    """Another group in the same Redis."""
    place, mark, options = url.partition("?")
    return f"{place}-{name}{mark}{options}"


def _store(url: str) -> RedisOwners:
    at, problems = parse(*url.split(":", 1))
    if at is None:
        raise SystemExit("; ".join(problems))
    return RedisOwners(at)


def _claim(name: str, led: dict[int, int]) -> Claim:
    return Claim(f"holder-{name}", Card(name, f"{name}.example.org:7000"), 60.0, led, {})


def _looping_over(router: Router) -> Loop:
    def loop(keys: list[str]) -> None:
        for key in keys:
            router.owner(key)

    return loop


def _seconds(loop: Loop, keys: list[str]) -> float:
    started = time.perf_counter()
    loop(keys)
    return time.perf_counter() - started
