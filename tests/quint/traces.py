"""Traces: what was appended, what each process read and sent, and for what it acted, as events for `replay.qnt`.

    simulator --each record, each step, each turn of what may be acted for--> events --ITF--> replay.cjs
    a copy of a real ledger (`neli ledger export`) --each record-----------------^

The events follow each other in the order of the simulated world. Local times are whole nanoseconds of the process's
own clock. A record that changed neither members, owners, terms nor targets is `Quiet`; after any other, the event has
all of them, as our fold computed them. The model gets the targets from the event: it does not compute an assignment.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

from msgspec import UNSET

from neli_router.errors import NeliError
from neli_router.lab.sim.acting import NOTHING, ProcessClaims
from neli_router.lab.sim.induction import group as groups
from neli_router.lab.sim.induction.faults import Faults
from neli_router.lab.sim.induction.options import RunOptions, Weather
from neli_router.lab.sim.induction.process import Process
from neli_router.lab.sim.seed import assemble
from neli_router.lab.sim.world import Violation, World
from neli_router.protocols.induction import records as kinds
from neli_router.protocols.induction.events import Append, Effect, Input
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.machine import InductionMachine, Phase
from neli_router.protocols.induction.records import Genesis, Handover, Leave, Record, decode, is_known
from neli_router.protocols.induction.tenure import Linger
from neli_router.protocols.protocol import wait_for

__all__ = ["Trace", "of_ledger", "simulated"]

Trace = list[Any]
"""Events in the Informal Trace Format."""

RECORDS_MAX = 120
"""Enough for each member to join, lead, be lost and be replaced. The model takes about a millisecond for each event."""

ROUNDING = 5
"""Nanoseconds by which a time may be off, after a few operations on doubles."""

WEATHERS: tuple[Weather, ...] = ("foul", "foul", "foul", "fair", "slow")


def simulated(seed: int) -> Trace:
    """The events of a simulated group until it has RECORDS_MAX records, or breaks a promise."""
    with patch.object(groups, "InductionMachine", _RecordedMachine):
        world = World(seed)
        weather = WEATHERS[seed % len(WEATHERS)]
        options = RunOptions.draw(seed, world.random, guarantee="exclusive", weather=weather)
        group = _RecordedGroup(world, options)
        assemble(world, group, options.members, options.lease)
        faults = Faults(world, group, options)
        world.at(3 * options.lease, faults.begin)
        try:
            while len(group.log.offsets) < RECORDS_MAX and world.now < options.leases * options.lease:
                world.run(world.now + options.lease)
        except Violation:  # The model must object, too.
            group.look_at_all()
    return group.events


def of_ledger(lines: Iterable[str]) -> Trace:
    """The events of a copy that `neli ledger export` wrote."""
    events: Trace = []
    state = State()
    for line in map(json.loads, lines):
        if "offset" in line:
            payload = json.dumps(line["record"]).encode() if "record" in line else b""
            record, before = decode(payload), state
            state = fold(before, line["offset"], record)
            if before.genesis is None and state.genesis is not None:
                events.append(_opened(state.genesis.lease, wait_for(state.genesis.lease)))
            events.append(_appended(line["offset"], record, before, state, forged=False))
    return events


class _RecordedMachine(InductionMachine):
    """Remembers how each incarnation begins, and what each step read and sent."""

    def _begin(self, phase: Phase, now: float, lingering: dict[int, Linger]) -> None:
        super()._begin(phase, now, lingering)
        self._notes().append(("Started", self.incarnation, self.state.at, now, {}, False))

    def step(self, event: Input, now: float) -> list[Effect]:
        effects = super().step(event, now)
        sent = [record for effect in effects if isinstance(effect, Append) for record in effect.records]
        given = {i: term for one in sent if isinstance(one, Handover) for i, term in one.terms.items()}
        leaves = any(isinstance(one, Leave) for one in sent)
        self._notes().append(("Stepped", self.incarnation, self.state.at, now, given, leaves))
        return effects

    def take_notes(self) -> list[tuple[str, str, int, float, dict[int, int], bool]]:
        notes, self.__dict__["notes"] = self._notes(), []
        return notes

    def _notes(self) -> list[tuple[str, str, int, float, dict[int, int], bool]]:
        notes: list[tuple[str, str, int, float, dict[int, int], bool]] = self.__dict__.setdefault("notes", [])
        return notes


class _RecordedGroup(groups.SimulatedGroup):
    """Writes down what the checkers see."""

    def __init__(self, world: World, options: RunOptions) -> None:
        super().__init__(world, options)
        self.events: Trace = [_opened(options.lease, options.settings("any").wait)]
        self._sent: set[bytes] = set()
        self._read: dict[str, int] = {}
        self._acts: dict[Process, tuple[str, dict[int, int]]] = {}
        """Which incarnation of a process acts, and for what."""

    def look_at_all(self) -> None:
        """Write down what all act for now, first of those that stop."""
        for ends in (True, False):
            for process, claims in self.acting.claims.items():
                self._look(process, claims, only_ends=ends)

    def on_send(self, process: Process, payloads: Sequence[bytes]) -> None:
        self._sent.update(payloads)
        super().on_send(process, payloads)

    def on_step(self, process: Process) -> None:
        try:
            super().on_step(process)
        finally:
            if isinstance(process.machine, _RecordedMachine):
                self._write_steps(process.machine)
                self._follow(process, process.machine.incarnation)

    def on_end(self, process: Process, *, error: NeliError | None) -> None:
        super().on_end(process, error=error)
        if process in self._acts:
            self._follow(process, self._acts[process][0])

    def _on_append(self, offset: int, payload: bytes, who: str) -> None:
        # A lease may end at the very moment at which a witness writes its certificate.
        for process in list(self._acts):
            self._look(process, self.acting.claims.get(process, NOTHING), only_ends=True)
        before, record = self.referee.state, decode(payload)
        try:
            super()._on_append(offset, payload, who)
        finally:
            forged = payload not in self._sent
            self.events.append(_appended(offset, record, before, self.referee.state, forged=forged))

    def _write_steps(self, machine: _RecordedMachine) -> None:
        for what, who, at, now, given, leaves in machine.take_notes():
            upto = bisect_left(self.log.offsets, at)
            fields = {"who": who, "upto": _int(upto), "clock": _time(now)}
            if what == "Started":
                self.events.append(_variant("Started", fields))
            elif upto > self._read[who] or given or leaves:
                fields |= {"given": _ints(given), "leaves": leaves}
                self.events.append(_variant("Stepped", fields))
            self._read[who] = upto

    def _follow(self, process: Process, incarnation: str) -> None:
        """Write down what it acts for, now and whenever that changes by time alone."""
        claims = self.acting.claims.get(process, NOTHING)
        was, terms = self._acts.get(process, (incarnation, {}))
        if was != incarnation and terms:
            self._write_acts(process, was, {}, process.now)
        self._acts[process] = incarnation, self._acts.get(process, (incarnation, {}))[1] if was == incarnation else {}
        self._look(process, claims)
        for start in claims.starts[1:]:
            self.world.at(start, self._look_again, process, claims)

    def _look_again(self, process: Process, claims: ProcessClaims) -> None:
        present = self.acting.claims.get(process, NOTHING)
        if present is claims or present is NOTHING:  # A client of a process that was killed has ended, too.
            self._look(process, present)

    def _look(self, process: Process, claims: ProcessClaims, *, only_ends: bool = False) -> None:
        incarnation, before = self._acts.get(process, ("", {}))
        now = claims.at(self.world.now)
        terms = {i: term for i, term in now.items() if not only_ends or before.get(i) == term}
        if terms != before:
            self._write_acts(process, incarnation, terms, process.now)

    def _write_acts(self, process: Process, incarnation: str, terms: dict[int, int], now: float) -> None:
        self._acts[process] = incarnation, terms
        self.events.append(_variant("Acted", {"who": incarnation, "clock": _time(now), "terms": _ints(terms)}))


def _opened(lease: float, wait: float) -> Any:
    return _variant("Opened", {"lease": _time(lease), "wait": _time(wait), "slack": _int(ROUNDING)})


def _appended(offset: int, record: Record | None, before: State, after: State, *, forged: bool) -> Any:
    fields: dict[str, Any] = {"offset": _int(offset), "record": _record(record, before, forged=forged)}
    now, was = _observed(after), _observed(before)
    return _variant("Quiet", fields) if now == was else _variant("Moved", {**fields, "now": now})


def _observed(state: State) -> Any:
    return {
        "seats": _set(sorted(state.seats)),
        "away": _set(sorted(state.away)),
        "owners": _map((_int(i), owner or "") for i, owner in enumerate(state.owners)),
        "terms": _map((_int(i), _int(term)) for i, term in enumerate(state.terms)),
        "targets": _map((_int(i), target or "") for i, target in enumerate(state.targets)),
    }


def _record(record: Record | None, state: State, *, forged: bool) -> Any:
    """`record` in the words of the model, or Void if it knows no such record."""
    version = record.version if state.genesis is None and isinstance(record, Genesis) else state.version
    void = _variant("Void", _tuple())
    if record is None or not is_known(record, version):
        return void
    match record:
        case Genesis():
            return _variant("Genesis", {"base": _int(record.base), "partitions": _int(record.layout.partitions)})
        case kinds.Join(by) if record.versions[0] <= version <= record.versions[1]:
            numbers = {"at": _int(record.at), "floor": _int(record.floor)}
            grace = record.grace is not UNSET and record.grace > 0
            return _variant("Join", {"by": by, "name": record.name, **numbers, "grace": grace})
        case kinds.Beat(by):
            clear = _int(0 if record.clear is UNSET else record.clear)
            return _variant("Beat", {"by": by, "sentAt": _time(record.sent_at), "clear": clear, "forged": forged})
        case kinds.Expire(by):
            last_beats = [_tuple(q, _int(offset)) for q, offset in record.last_beats.items()]
            return _variant("Expire", {"by": by, "lastBeats": _set(last_beats)})
        case kinds.Certify():
            return _variant("Certify", record.incarnation)
        case Handover(by):
            return _variant("Handover", {"by": by, "terms": _ints(record.terms)})
        case Leave(by):
            return _variant("Leave", {"by": by, "grace": record.grace > 0})
        case kinds.Drain():
            return _variant("Drain", record.name)
        case kinds.Undrain():
            return _variant("Undrain", record.name)
        case kinds.Pin():
            return _variant("Pin", _tuple(_int(record.partition), record.name))
        case kinds.Unpin():
            return _variant("Unpin", _int(record.partition))
        case kinds.Weigh() | kinds.Load():
            return _variant("Weigh", record.by)
        case _:
            return void


def _variant(tag: str, value: Any) -> Any:
    return {"tag": tag, "value": value}


def _int(value: int) -> Any:
    return {"#bigint": str(value)}


def _time(seconds: float) -> Any:
    return _int(round(seconds * 1e9))


def _ints(values: Mapping[int, int]) -> Any:
    return _map((_int(key), _int(value)) for key, value in values.items())


def _map(pairs: Iterable[tuple[Any, Any]]) -> Any:
    return {"#map": [list(pair) for pair in pairs]}


def _set(values: Iterable[Any]) -> Any:
    return {"#set": list(values)}


def _tuple(*values: Any) -> Any:
    return {"#tup": list(values)}
