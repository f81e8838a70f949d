"""Electors in the simulator: the shipped machines in virtual time, in groups of up to a hundred members.

Heartbeats and gossip intervals are 1 s, as in the text about gossip, and `gossip` has the text's P of 15 intervals.
Datagrams take some milliseconds, and none is lost. Each figure's name ends with @ROW,SIZE. `gossip-classes` has seven
first-class citizens, the only voters, and the shortest P, of 5 intervals.

    simulated_takeover_s_median, _max       from kill -9 until another acts
    simulated_leaderless_s_median, _max     from the last act of a leader that is cut off to the next leader's first act
    simulated_messages_per_second           datagrams of all members, at rest; simulated_bytes_per_second
    expected_by_text_s                      the time that the protocol's own text expects of either, in these settings:
                                            for a gossip group of a hundred, 30 s without a leader
    x_real_time, x_real_time_median         virtual seconds at rest in one second of a processor: in the fastest of
                                            twelve parts, because other programs slow the others down

Balance, by nodes x partitions: a random node restarts repeatedly. Each time, after some time to settle, the benchmark
checks whether a node leads more than its share.

    balanced@priority,3x6   successCount / totalCount, as Zeebe's text counts: with three replicas each, and leaders
                            that give way to a preferred peer; compared with @term, with all nodes and the random wait
"""

import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from benchmarks import Figures
from neli_router.lab.sim.electors.measures import balance, fleet
from neli_router.lab.sim.electors.options import ElectorProtocol
from neli_router.protocols.electors.settings import MISSES

__all__ = ["BALANCES", "ROWS", "SimulatedRow", "balance_figures", "simulated_figures"]

BEAT = 1.0


class SimulatedRow(NamedTuple):
    name: str
    protocol: ElectorProtocol
    beats: int
    """How many of them make a lease, or P."""
    first_class: int | None = None
    """None means all."""

    def expected(self, size: int) -> float:
        """The takeover time in seconds that the protocol's text expects, at most or roughly."""
        match self.protocol:
            case "term":
                return 2 * MISSES * BEAT
            case "priority":
                return (size // 2 + 2) * MISSES * BEAT
            case _:
                return 2 * self.beats * BEAT


ROWS = (
    SimulatedRow("term", "term", MISSES),
    SimulatedRow("priority", "priority", MISSES),
    SimulatedRow("gossip", "gossip", 15),
    SimulatedRow("gossip-classes", "gossip", 5, first_class=7),
)

BALANCES = ((3, 6), (4, 12))
REPLICAS = 3


def simulated_figures(sizes: Sequence[int], *, trials: int, seed: int) -> Figures:
    """The figures of each row at each size; rows with first-class citizens only where there are others."""
    figures: Figures = {}
    for size in sizes:
        for row in ROWS:
            if row.first_class is None or row.first_class < size:
                figures |= {f"{name}@{row.name},{size}": it for name, it in _measured(row, size, trials, seed).items()}
    return figures


def balance_figures(restarts: int, seed: int) -> Figures:
    """The share of `restarts` of a random node after which the group was balanced."""
    figures: Figures = {}
    for nodes, partitions in BALANCES:
        shape = f"{nodes}x{partitions}"
        by_priority = balance("priority", nodes, partitions, restarts, seed, replicas=REPLICAS)
        figures[f"balanced@priority,{shape}"] = by_priority.share
        figures[f"balanced@term,{shape}"] = balance("random", nodes, partitions, restarts, seed).share
    return figures


def _measured(row: SimulatedRow, size: int, trials: int, seed: int) -> dict[str, float]:
    found = fleet(
        row.protocol,
        size,
        clock=time.process_time,
        beat=BEAT,
        beats=float(row.beats),
        first_class=row.first_class,
        faults=trials,
        seed=seed,
    )
    times = {"takeover": found.takeovers, "leaderless": found.leaderless}
    return {
        **{
            f"simulated_{name}_s_{statistic.__name__}": statistic(seconds)
            for name, seconds in times.items()
            for statistic in (median, max)
        },
        "expected_by_text_s": row.expected(size),
        "simulated_messages_per_second": found.datagrams_per_second,
        "simulated_bytes_per_second": found.bytes_per_second,
        "x_real_time": max(found.x_real_time),
        "x_real_time_median": median(found.x_real_time),
    }
