"""Takeover times of `induction`, `neli`, `fast-neli` and a real goNELI on one Kafka; and of electors, without one.

    one broker, and a group of three processes for each row, all at the same time:

    at rest: messages are counted --> one that leads partition 0 is killed -9 --> at rest --> it is started again -.
                                                                                                                   |
     .-- at rest <-- one that leads partition 0 leaves in good order <-- at rest <---------------------------------'
     '--> it is started again --> at rest ...

Each fault hits all groups at the same random moment, so noise affects all alike. A group is at rest when all living
members have joined, all partitions are led in even shares, and nothing has changed for a second. goNELI leads only
partition 0, so it is compared with groups of one partition; groups of eight show the cost of more partitions.

All settings are defaults: `induction` has a lease of 1 s; `neli`, exclusive, has T = 3 s and a session of 6 s;
`fast-neli`, like goNELI, has a heartbeat timeout of 5 s and a session of 15 s. `fast-neli-eager` shares out partitions
like goNELI, by range or roundrobin; the others that borrow a group use cooperative-sticky. With `--shortest`, each has
the shortest times that are safe with the broker's own settings, which allow no session under 6 s: `_protocols/side.py`.
All share one broker with its default settings, except that `group.initial.rebalance.delay.ms` is 0.

Each figure's name ends with @PROTOCOL,PARTITIONS. All times are on the host's one clock; those in ms have a min, a
median and a max.

    takeover_ms_                from kill -9 until another acts for the last of the dead member's partitions
    takeover_over_induction     the median over that of `induction` with as many partitions, of the same run
    handover_ms_                the same from SIGTERM, or from the end of goNELI's input; handover_over_induction
    leaderless_ms_              during a handover, the longest time that one of the partitions had no leader
    taken_from_others           tenures of members not involved that ended in a change, beyond even shares: see
                                `_protocols/schedule.py`. At a kill, a stop, a start: taken_at_kill, _stop, _start.
                                A tenure that a busy machine ended is among them
    overlaps                    pairs that led one partition together, by the referee of `neli_router/lab/processes`
    messages_per_second         appended to the group's topic at rest, by its end offsets; messages_over_induction
    bytes_per_second            their keys and values, without Kafka's own frames around them
    commits_per_second          appended for the group, at rest, to the broker's own topic of commits

The electors, `term`, `priority` and `gossip`, need no broker and are measured first. `--electors` measures only them,
and `--sides` leaves them out. `term` has its random wait, and `priority` is `term` with the other policy. Each figure's
name ends with @PROTOCOL,SIZE. They are real processes on loopback, with heartbeats and gossip intervals of 50 ms
(`_protocols/electors.py`):

    takeover_ms_, handover_ms_, leaderless_ms_, overlaps    as above
    takeover_over_beat, _lease  the median over the heartbeat, and over the lease: the time-out of three missed
                                heartbeats, and P of `gossip`
    takeover_over_term          the median over that of `term` with as many members, of the same run
    messages_per_second         datagrams of all members of the group at rest
    expected_by_text_ms         the takeover time that the protocol's own text expects, with these settings

They also run in the simulator, in virtual time, in groups of up to 101 (`_protocols/simulated.py`).

The default takes about twenty minutes, `--electors` ten, `--quick` four and `--electors --quick` two.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import median

from benchmarks import BenchmarkOptions, Figures, option, spread, switch
from benchmarks._places import place
from benchmarks._protocols.appended import Appended, appended
from benchmarks._protocols.electors import real_figures
from benchmarks._protocols.schedule import Schedule
from benchmarks._protocols.side import GONELI, SIDES, Side, opened_sides
from benchmarks._protocols.simulated import balance_figures, simulated_figures
from tests.support.servers.goneli_build import build

__all__ = ["Options", "run"]

KINDS = ("kill", "stop", "start")

SIZES, QUICK_SIZES = (3, 5, 7), (3,)
SIMULATED, QUICK_SIMULATED = (3, 7, 21, 101), (3, 11)
SIMULATED_TRIALS_MAX = 3
RESTARTS, QUICK_RESTARTS = 100, 10


class Options(BenchmarkOptions):
    trials: int = option(10, "kills, and as many clean stops")
    members: int = 3
    sides: tuple[str, ...] = option((), "PROTOCOL,PARTITIONS: these and no others", choices=SIDES)
    shortest: bool = switch("the shortest safe times, not the default ones")
    seconds: float = option(10.0, "for which messages are counted, at rest")
    seed: int = 1
    quick: bool = switch("2 kills and 2 clean stops; fewer and smaller electors")
    electors: bool = switch("only these, which need no broker")
    sizes: tuple[int, ...] = option((), "members of each elector's group, as real processes")
    simulated: tuple[int, ...] = option((), "the same in the simulator")

    def __post_init__(self) -> None:
        if self.members < 2:
            raise ValueError(f"--members {self.members}: one must survive, so at least 2 are needed")
        if self.sizes and min(self.sizes) < 3:
            raise ValueError(f"--sizes {min(self.sizes)}: a majority must survive, so at least 3 are needed")


def run(options: Options) -> Figures:
    sizes = options.sizes or (QUICK_SIZES if options.quick else SIZES)
    simulated = options.simulated or (QUICK_SIMULATED if options.quick else SIMULATED)
    trials = 2 if options.quick else max(1, options.trials)
    figures: Figures = {}
    if not options.sides:
        figures |= _elector_figures(sizes, simulated, trials, options)
    if not options.electors:
        broker = _broker_figures(options.sides or SIDES, trials, options)
        overlaps = int(figures.get("overlaps") or 0) + int(broker["overlaps"] or 0)
        figures |= {**broker, "overlaps": overlaps}
    return {**figures, "trials": trials}


def _elector_figures(sizes: Sequence[int], simulated: Sequence[int], trials: int, options: Options) -> Figures:
    restarts = QUICK_RESTARTS if options.quick else RESTARTS
    with tempfile.TemporaryDirectory(prefix="neli-electors-") as folder:
        real = real_figures(Path(folder), sizes, trials=trials, seconds=options.seconds, rng=Random(options.seed))
    shares = balance_figures(restarts, options.seed)
    virtual = simulated_figures(simulated, trials=min(trials, SIMULATED_TRIALS_MAX), seed=options.seed)
    return {**real, **shares, "restarts": restarts, **virtual}


def _broker_figures(wanted: Sequence[str], trials: int, options: Options) -> Figures:
    why_not = build() if any(name.startswith(GONELI) for name in wanted) else ""
    names = [name for name in dict.fromkeys(wanted) if not (why_not and name.startswith(GONELI))]
    with place("kafka") as there, tempfile.TemporaryDirectory(prefix="neli-protocols-") as folder:
        brokers = there.removeprefix("kafka://")
        with opened_sides(Path(folder), there, names, shortest=options.shortest) as sides:
            schedule = Schedule(sides, brokers, options.members, Random(options.seed))
            loads = []
            with schedule.begun():
                at_rest = appended(brokers, sides, options.seconds)
                for _ in range(trials):
                    schedule.round()
                    loads.append(os.getloadavg()[0])
            figures = _figures(sides, at_rest)
    return {
        **({GONELI: f"not here: {why_not}"} if why_not else {}),
        **figures,
        "members": options.members,
        "settings": "shortest" if options.shortest else "default",
        "load_average_median": median(loads),
        "load_average_max": max(loads),
    }


def _figures(sides: Sequence[Side], at_rest: Mapping[str, Appended]) -> Figures:
    of_each = {side.name: _figures_of(side, at_rest[side.name]) for side in sides}
    for name, figures in of_each.items():
        reference = of_each.get(f"induction,{name.partition(',')[2]}")
        if reference is not None and reference is not figures:
            for figure, of in (
                ("takeover_over_induction", "takeover_ms_median"),
                ("handover_over_induction", "handover_ms_median"),
                ("messages_over_induction", "messages_per_second"),
            ):
                figures[figure] = figures[of] / reference[of]
    order = dict.fromkeys(figure for figures in of_each.values() for figure in figures)
    by_figure: Figures = {
        f"{figure}@{name}": figures[figure]
        for figure in order
        for name, figures in of_each.items()
        if figure in figures
    }
    return {"overlaps": int(sum(figures["overlaps"] for figures in of_each.values())), **by_figure}


def _figures_of(side: Side, at_rest: Appended) -> dict[str, float]:
    found = side.found
    times = {"takeover": found.takeovers, "handover": found.handovers, "leaderless": found.leaderless}
    return {
        **{f"{name}_ms_{each}": ms for name, seconds in times.items() for each, ms in spread(seconds).items()},
        "taken_from_others": found.taken.total(),
        **{f"taken_at_{kind}": found.taken[kind] for kind in KINDS},
        "overlaps": len(side.group.verdict().overlaps),
        "messages_per_second": at_rest.messages,
        "bytes_per_second": at_rest.size,
        "commits_per_second": at_rest.commits,
    }
