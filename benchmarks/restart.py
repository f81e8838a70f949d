"""Partitions that move, have no leader or lose requests while 8 members are restarted one after another.

    SIGTERM, or kill -9 --> the process has ended --> started again --> all lead equal shares again --> the next one
          |<------------------------------- one restart: restart_s ---------------------------------->|

Real processes share one ledger, and each comes back under its own name. Nothing else changes, so no partition needs to
move. Two restarts begin at least `--every` seconds apart. Everything is counted from just before the first signal until
the last member leads its share again. The names of figures end with @sigterm or @kill.

    moves                      partitions that went to a member of another name, by the fold of the ledger: 0 wanted. To
                               another and back counts twice; a time without an owner in between does not matter
    expired, left              members that ended by an Expire, and by their own Leave
    leaderless_s_median, _max  for how long a partition had no leader, all its gaps together, by the processes' notes
    gap_s_max                  the longest gap
    restart_s_median, _max     seconds of one restart
    lost, lost_percent         requests that were not served within `--patience` seconds; of all `requests`
    delay_ms_p90, _p99, _max   from a request until it was served: of all requests, and most have no delay

**The client.** This process routes by a Router, and keeps each table with the time at which it came. Each partition
gets 20 requests a second. A request goes to the member that the Router names at that moment. It is served if a process
of that name led the partition then, by its own notes, and is repeated every ten milliseconds until it is. So this is a
client on a network without delay, and its traffic does not disturb what it measures.

With `--witness`, the host's agent reports the death of a killed member, so the process that comes back need not wait
for a lease.

With `--static`, the same restarts then hit a consumer group of librdkafka with static membership (`group.instance.id`)
on one Kafka, with as many partitions (`_static_consumer.py`). These names end with @static-sigterm and @static-kill. A
request is served as soon as any consumer has the partition: it waits in Kafka, so it needs no Router, and cannot be
sent to the wrong member. `moves` are then counted from the consumers' notes.

The default takes a minute, and two with `--static`.
"""

import tempfile
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import NamedTuple
from uuid import uuid4

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import BenchmarkOptions, Figures, option, switch
from benchmarks._peers.ours import ROUNDS_PER_LEASE, witness_of
from benchmarks._places import LEDGERS, options_at, place
from benchmarks.large import leaderless
from neli_router.core.clock import host_clock
from neli_router.core.closing import Closing
from neli_router.drivers.ledgers.base import Entry
from neli_router.errors import NeliError
from neli_router.lab.processes.group import ProcessGroup
from neli_router.lab.referee import Life
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.records import Expire, Leave, decode
from neli_router.router.router import Router
from neli_router.router.table import Table
from tests.support.processes.ledger_copy import LedgerCopy
from tests.support.servers import kafka as kafka_servers
from tests.support.servers.kafka import Kafka
from tests.support.waiting import PATIENCE

__all__ = ["Claims", "Client", "Options", "moves_of", "run"]

KINDS = ("sigterm", "kill")

ROUTE_EVERY = 0.003
RETRY_EVERY = 0.01
REQUEST_EVERY = 0.05
"""Seconds between two requests for the same partition."""

ANY = ""
"""Stands for the name of any process."""

Span = tuple[float, float]

Named = Callable[[int, float], str | None]
"""The owner of a partition, as a client knew it at that time."""


class Rolled(NamedTuple):
    """A rolling restart: from when to when, and the seconds of each restart."""

    since: float
    until: float
    restarts: list[float]


class Options(BenchmarkOptions):
    ledger: str = option("sqlite", choices=LEDGERS)
    lease: float = 1.0
    members: int = 8
    partitions: int = 256
    grace: float = option(30.0, "seconds for which a member's partitions wait for its return; 0 for none")
    every: float = option(3.0, "seconds from one restart to the next, if it is over by then")
    patience: float = option(0.25, "seconds after which an unserved request is lost")
    witness: bool = switch(
        "the host's agent reports deaths, so that a killed member's return need not wait for its lease"
    )
    static: bool = switch("also Kafka's static membership, in the same run")
    quick: bool = switch("3 members, one second apart")

    def __post_init__(self) -> None:
        if self.members < 2:
            raise ValueError(f"--members {self.members}: at least 2 are needed, or nothing could move")
        if self.static and (why := kafka_servers.missing()):
            raise ValueError(f"--static: {why}")


def run(options: Options) -> Figures:
    options = replace(options, members=min(3, options.members), every=1.0) if options.quick else options
    figures: Figures = {}
    with place(options.ledger) as there:
        for kind in KINDS:
            figures |= {f"{name}@{kind}": value for name, value in _ours(there, kind, options).items()}
    if options.static:
        with Kafka.started() as kafka:
            for kind in KINDS:
                found = _static(kafka.bootstrap, kind, options)
                figures |= {f"{name}@static-{kind}": value for name, value in found.items()}
    return {
        **figures,
        "members": options.members,
        "partitions": options.partitions,
        "lease_s": options.lease,
        "patience_s": options.patience,
        "grace_s": options.grace,
        "ledger": options.ledger,
    }


def _ours(there: str, kind: str, options: Options) -> Figures:
    with tempfile.TemporaryDirectory(prefix="neli-restart-") as folder, ExitStack() as stack:
        ours = {"lease": options.lease, **options_at(there, "restart")}
        environment: dict[str, str] = {}
        if options.witness:
            environment = stack.enter_context(witness_of(Path(folder), options.partitions, ours)).environment
        ours |= {"pause": options.lease / ROUNDS_PER_LEASE, "grace": options.grace}
        ours["witness"] = "agent" if options.witness else "none"
        group = stack.enter_context(
            ProcessGroup(Path(folder), partitions=options.partitions, environment=environment, **ours)
        )
        copy = stack.enter_context(LedgerCopy(group.ledger))
        _gather(group, options.members)
        time.sleep(options.lease)  # Let records finish that were under way before, and the copy read them.
        first = copy.entries[-1].offset + 1
        with Client(stack.enter_context(Router(group.ledger))) as client:
            rolled = _roll(group, kind, options.every)
        moved = moves_of(copy.close(), first)
        return {**moved, **_figures(Claims(group.lives), rolled, options, client.named)}


def _static(bootstrap: str, kind: str, options: Options) -> Figures:
    topic = f"restart-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, options.partitions, 1)])[topic].result(PATIENCE)
    with tempfile.TemporaryDirectory(prefix="neli-restart-") as folder:
        program, ledger = ("benchmarks._static_consumer",), f"kafka://{bootstrap}/{topic}"
        with ProcessGroup(
            Path(folder), partitions=options.partitions, pause=0.0, program=program, ledger=ledger
        ) as group:
            _gather(group, options.members)
            rolled = _roll(group, kind, options.every)
            claims = Claims(group.lives)
            return {"moves": claims.moves(rolled.since), **_figures(claims, rolled, options, None)}


def _gather(group: ProcessGroup, members: int) -> None:
    for number in range(members):
        group.start(f"m{number + 1}")
    group.settle()


def _roll(group: ProcessGroup, kind: str, every: float) -> Rolled:
    """Restart all, one after another."""
    since = host_clock()
    restarts: list[float] = []
    for name, process in sorted(group.running.items()):
        if kind == "kill":
            at = process.kill()
        else:
            at = process.ask_to_leave()
            assert process.exit_code() == 0, f"{process.life.label} did not leave in good order:\n{process.log}"
        group.start(name)
        group.settle()
        restarts.append(host_clock() - at)
        time.sleep(max(0.0, at + every - host_clock()))
        group.read_notes()
    return Rolled(since, host_clock(), restarts)


def _figures(claims: "Claims", rolled: Rolled, options: Options, named: Named | None) -> Figures:
    since, until, restarts = rolled
    gaps = leaderless(claims.all, options.partitions, since, until)
    rng, delays = Random(1), list[float]()
    for partition in range(options.partitions):
        at = since + REQUEST_EVERY * rng.random()
        while at < until - options.patience:
            delays.append(claims.delay(partition, at, until, named))
            at += REQUEST_EVERY
    lost = sum(delay > options.patience for delay in delays)
    percentiles = quantiles(delays, n=100)
    return {
        "leaderless_s_median": median(whole for _, whole in gaps),
        "leaderless_s_max": max(whole for _, whole in gaps),
        "gap_s_max": max(longest for longest, _ in gaps),
        "restart_s_median": median(restarts),
        "restart_s_max": max(restarts),
        "lost": lost,
        "lost_percent": 100 * lost / len(delays),
        "delay_ms_p90": 1e3 * percentiles[89],
        "delay_ms_p99": 1e3 * percentiles[98],
        "delay_ms_max": 1e3 * max(delays),
        "requests": len(delays),
    }


class Claims:
    """When a process of which name led which partition, by the notes of all."""

    def __init__(self, lives: Iterable[Life]) -> None:
        spans = defaultdict[tuple[str, int], list[Span]](list)
        for life in lives:
            for span in life.spans:
                for name in (life.name, ANY):
                    spans[name, span.partition].append((span.since, min(span.until, life.killed_at)))
        self._spans = {key: _merged(some) for key, some in spans.items()}

    @property
    def all(self) -> Iterator[tuple[int, float, float]]:
        return ((i, *span) for (name, i), spans in self._spans.items() if name == ANY for span in spans)

    def moves(self, since: float) -> int:
        """How often, after `since`, a partition was led by a process of another name than before."""
        began = defaultdict[int, list[tuple[float, str]]](list)
        for (name, i), spans in self._spans.items():
            if name != ANY:
                began[i] += [(span[0], name) for span in spans]
        pairs = (pair for starts in began.values() for pair in pairwise(sorted(starts)))
        return sum(before != after and at >= since for (_, before), (at, after) in pairs)

    def delay(self, partition: int, at: float, until: float, named: Named | None) -> float:
        """How long a request of `at` takes; inf if it is not served by `until`. None names any process that leads."""
        began = at
        while at < until:
            name = ANY if named is None else named(partition, at)
            spans = self._spans.get((name, partition), []) if name is not None else []
            place = bisect_right(spans, (at, inf)) - 1
            if place >= 0 and at < spans[place][1]:
                return at - began
            at += RETRY_EVERY
        return inf


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for since, until in sorted(spans):
        if merged and since <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(until, merged[-1][1])
        else:
            merged.append((since, until))
    return merged


class Client(Closing):
    """Routes by `router` until closed, and knows where it would have sent a request at any moment until then."""

    def __init__(self, router: Router) -> None:
        self._times: list[float] = []
        self._names: list[tuple[str | None, ...]] = []
        self._router, self._over = router, threading.Event()
        self._thread = threading.Thread(target=self._run, name="client", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def named(self, partition: int, at: float) -> str | None:
        """The owner of `partition` by the table of that moment; None if the router had an error instead."""
        names = self._names[max(0, bisect_right(self._times, at) - 1)]
        return names[partition] if names else None

    def _run(self) -> None:
        last: Table | None = None
        while not self._over.wait(ROUTE_EVERY):
            try:
                table: Table | None = self._router.table
            except NeliError:
                table = None
            if table is not last or not self._times:
                self._times.append(host_clock())
                self._names.append(() if table is None else tuple(owner and owner.name for owner in table.partitions))
                last = table


def moves_of(entries: Iterable[Entry], first: int) -> dict[str, int]:
    """How many partitions went to another name, and how members ended, from the record at `first` on."""
    state, names, holders = State(), dict[str, str](), dict[int, str]()
    moves = expired = left = 0
    for entry in entries:
        record = decode(entry.payload)
        before, state = state, fold(state, entry.offset, record)
        counts = entry.offset >= first
        if state.seats is not before.seats:
            names |= {incarnation: seat.name for incarnation, seat in state.seats.items()}
            gone = counts * len(before.seats.keys() - state.seats.keys())
            expired, left = expired + gone * isinstance(record, Expire), left + gone * isinstance(record, Leave)
        if state.owners is not before.owners:
            for i, owner in enumerate(state.owners):
                if owner is not None:
                    moves += counts and holders.get(i, names[owner]) != names[owner]
                    holders[i] = names[owner]
    return {"moves": moves, "expired": expired, "left": left}
