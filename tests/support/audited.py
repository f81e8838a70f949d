"""Test material for audits: small ledgers written by hand, and groups in the simulator.

    written(...)     records one after the other, Beats with their times and the digests that belong to them
    audited(entries) the audit of such a ledger
    simulated(seed)  a whole group under faults on a virtual clock, which knows the true time of every record

Incarnations in written ledgers are single letters. A lease there lasts a second, and a beat a fifth of that.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from neli_router.drivers.ledgers.base import Entry
from neli_router.errors import NeliError
from neli_router.lab.sim.induction.group import SimulatedGroup
from neli_router.lab.sim.induction.options import RunOptions, Weather
from neli_router.lab.sim.induction.process import Process
from neli_router.lab.sim.induction.simulate import _run
from neli_router.lab.sim.world import LocalClock, World
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.records import Record, decode, encode
from neli_router.protocols.protocol import DRIFT_MAX
from neli_router.status.annals import Annals
from neli_router.status.audit import Audit
from neli_router.status.notes import Span
from tests.support.records import beat, expire, genesis, join

__all__ = ["START", "Simulated", "audited", "entries", "simulated", "taken_over", "written"]


def written(*records: Record | tuple[str, float], first: int = 0) -> list[Record]:
    """The records; a pair of an incarnation and a time becomes a Beat, sent after reading all previous records."""
    state, found = State(), list[Record]()
    for place, given in enumerate(records, start=first):
        record = beat(given[0], state, sent_at=given[1]) if isinstance(given, tuple) else given
        state = fold(state, place, record)
        found.append(record)
    return found


def taken_over(alice: str = "alice", *, first: int = 0) -> list[Record]:
    """Alice founds the group and dies; bob takes over. A lease is 6 s."""
    hers = [("a", float(second)) for second in range(8)]
    his = [("b", 7.5 + second) for second in range(8)]
    joins = join("a", alice, at=first + 1), join("b", "bob", at=first + 10)
    last = ("b", 15.5), ("b", 16.5)
    return written(genesis(), joins[0], *hers, joins[1], *his, expire("b", "a", first + 9), *last, first=first)


def entries(records: Sequence[Record], *, first: int = 0) -> list[Entry]:
    return [Entry(offset, encode(record)) for offset, record in enumerate(records, start=first)]


def audited(
    given: Iterable[Entry], acts: Iterable[Span] = (), *, drift: float = DRIFT_MAX, one_clock: bool = False
) -> Audit:
    """The audit of a whole history. Raises LedgerUnusable if `given` is not a history, or its start is missing."""
    annals = Annals(drift=drift, one_clock=one_clock)
    annals.read(given)
    return Audit(annals, acts)


START = 1000.0
"""The reading of the one clock at the beginning."""


class Simulated(NamedTuple):
    """The ledger of a simulated group."""

    options: RunOptions
    entries: list[Entry]
    times: dict[int, float]
    """Offset -> when the record was appended."""
    states: dict[int, State]
    """Offset -> the referee's state just before the record there."""
    deaths: dict[str, float]
    """Incarnation -> when its process was killed."""


def simulated(seed: int, *, weather: Weather = "foul", one_clock: bool = False) -> Simulated:
    """Run `seed`. With `one_clock`, all members are on one host."""
    world = World(seed)
    options = RunOptions.draw(seed, world.random, guarantee=None, weather=weather)
    # An audit aligns clocks by what Beats report, so there must be no Beat that no member sent.
    options = replace(options, faults=tuple(it for it in options.faults if it not in {"forgery", "stranger"}))
    group = SimulatedGroup(world, options)
    if one_clock:
        clock = LocalClock(START, [(0.0, 1.0)])
        group.draw_clock = lambda: clock  # type: ignore[method-assign]
    found: list[Entry] = []
    times: dict[int, float] = {}
    deaths: dict[str, float] = {}
    tell, end = group.log.on_append, group.on_end

    def append(offset: int, payload: bytes, who: str) -> None:
        tell(offset, payload, who)
        found.append(Entry(offset, payload))
        times[offset] = world.now

    def on_end(process: Process, *, error: NeliError | None) -> None:
        if process.stopped is None and (incarnation := group.incarnation_of(process)) is not None:
            deaths[incarnation] = world.now
        end(process, error=error)

    group.log.on_append, group.on_end = append, on_end  # type: ignore[method-assign]
    _run(world, group, options)
    # The referee keeps the state below each offset at which a reader can stand; records may leave offsets out.
    states, state = {}, State()
    for entry in found:
        states[entry.offset] = state
        state = fold(state, entry.offset, decode(entry.payload))
        assert group.referee.states[state.at] == state
    states[state.at] = state
    return Simulated(options, found, times, states, deaths)
