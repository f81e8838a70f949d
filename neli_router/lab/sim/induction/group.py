"""The group: all hosts, their processes, and every checker, wired together.

    host m1 --clock--> process m1#1 (killed), process m1#2 --each step--> acting, coverage, referee, memory
    host m2 --clock--> process m2#1                                             |
    ledger --each record--> referee                                             '--> Violation

After a ledger lost records, its members cannot all be right, and no protocol can make them notice before the first sign
reaches them: only fencing helps. So from then on, for `DOUBT` leases, two may act for one partition and states may
differ. After that time, the first rule holds again among all processes that go on, and those that act hold one state. A
process that stopped gives one of two reasons: LedgerRewound or Diverged.

A process that is certified dead has ended, along with every client that acted for it. Otherwise a witness is at fault,
that is, this simulator.

A newer process is never replaced by one that was dead before it began. A loss of records limits that, too. If the
writer of a Join had read what was lost, and the Join lands when the ledger has grown as long again, it looks like the
Join of a newer process. Then the newer process ends with Replaced, and the dead one is expired: a gap, but no overlap.

Nothing that a member keeps may grow with the age of the ledger. So every container below a pump is found and measured,
including any that is added later. None may hold more than a group has partitions, names or remembered incarnations,
except for the few that have their own bound. A run takes hundreds of Beats: a container that keeps an item for each of
them exceeds the bound by the end.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from math import inf

import msgspec

from neli_router.errors import Diverged, GroupMismatch, LedgerRewound, LedgerUnusable, NameTaken, NeliError, Replaced
from neli_router.lab.sim.acting import Acting
from neli_router.lab.sim.induction.coverage import Coverage, ends_of_tenure
from neli_router.lab.sim.induction.ledger import Log
from neli_router.lab.sim.induction.older import OLDER, OlderMachine
from neli_router.lab.sim.induction.options import RunOptions
from neli_router.lab.sim.induction.process import Birth, Process
from neli_router.lab.sim.induction.referee import Referee
from neli_router.lab.sim.induction.witnesses import Witnesses
from neli_router.lab.sim.world import LocalClock, Violation, World, draw_clock
from neli_router.protocols.induction.admission import rest_after
from neli_router.protocols.induction.beats import IN_FLIGHT_MAX
from neli_router.protocols.induction.fold import DEPARTED_MAX, State
from neli_router.protocols.induction.machine import InductionMachine, Phase
from neli_router.protocols.induction.observer import Observer
from neli_router.protocols.induction.records import Certify, Expire, Handover, Join, Leave, decode
from neli_router.protocols.induction.trust import OWN_MAX, RING_MAX
from neli_router.protocols.protocol import Settings

__all__ = ["DOUBT", "SimulatedGroup", "containers", "require_bounded"]

DOUBT = 4.0
"""Leases after a rewind within which its signs must have reached every process that acts."""

OLDER_SHARE = 0.5

DEPTH_MAX = 6
"""How far below a pump containers are searched for."""

BOUNDS = {"_digests": RING_MAX, "_own": OWN_MAX, "_remembered": RING_MAX, "_in_flight": IN_FLIGHT_MAX}
"""Containers that may be longer than others."""

UNSEATED: Mapping[type, str] = {Certify: "certified", Expire: "expired", Join: "replaced"}
"""The name under which members are counted whose membership another's record ended."""

WALL_CLOCK = 1_700_000_000_000_000
"""Microseconds: the hosts' wall clocks when a run begins."""


class SimulatedGroup:
    """The processes and their Checkers."""

    def __init__(self, world: World, options: RunOptions) -> None:
        self.world, self.options = world, options
        self.counts: Counter[str] = Counter()
        self.referee = Referee(
            on_unseated=self._on_unseated, on_change=self._on_change, on_certified=self._on_certified
        )
        self.log = Log(world, options, self._on_append)
        self.witnesses = Witnesses(world, self.log, self.referee)
        self.acting: Acting[Process, InductionMachine] = Acting(
            world, exclusive=options.exclusive, ends_of=ends_of_tenure
        )
        self.living: list[Process] = []
        """Members' processes, in the order in which they started."""
        self.observers: list[Process] = []
        self.names: dict[str, str] = {}
        """Incarnation -> a name for people to read."""
        self.doubt_until = -inf
        self.lost_from = inf
        """The offset at which the ledger continued after losing records: a reader beyond it had read some of them."""
        self.healed_at = 0.0
        self.calm = False
        """Whether nothing may change any more."""
        self.older_share = OLDER_SHARE if options.rolling else 0.0
        """How often a process that starts is of the older release."""
        self._views: dict[int, tuple[State, str]] = {}
        self._by_incarnation: dict[str, Process] = {}
        self._writers: dict[str, Process] = {}
        """The same, including the dead."""
        self._names: dict[Process, str] = {}
        self._misfits: set[Process] = set()
        self._older: set[Process] = set()
        self._witnessed: dict[Process, tuple[str, Process | None]] = {}
        self._births: Counter[str] = Counter()
        self._clocks: dict[str, LocalClock] = {}
        fair = options.fair and not options.exclusive
        self.coverage = Coverage(world, options, self.acting, self._by_incarnation.get) if fair else None

    # Processes

    def start(self, name: str, *, misfit: bool = False, rebooted: bool = False, replace: bool = False) -> Process:
        """Start a new process called `name`. A misfit has settings that differ from the group's."""
        if rebooted or name not in self._clocks:
            self._clocks[name] = self.draw_clock()
        options, random = self.options, self.world.random
        settings = options.settings(name, weight=random.choice((1, 1, 1, 2, 5, 0)), replace=replace)
        if misfit:
            settings = Settings(name=name, layout=settings.layout, lease=2 * options.lease)
        wall, seed = WALL_CLOCK + int(1e6 * self.world.now), random.getrandbits(64)
        witness = self.witnesses.choose(self.living)
        release = OlderMachine if self._draws_older() and not misfit else InductionMachine

        def birth(state: State, now: float) -> InductionMachine:
            return release(settings, state, now, wall=wall, rng=type(random)(seed), witness=witness[0])

        process = self._process(name, birth)
        if release is OlderMachine:
            self.counts["older"] += 1
            self._older.add(process)
        self._witnessed[process] = witness
        self.living.append(process)
        self._names[process] = name
        if misfit:
            self._misfits.add(process)
        return process

    def older(self) -> list[Process]:
        """The live processes of the older release."""
        return [process for process in self.living if process in self._older]

    def observe(self) -> Process:
        """Start a new router."""
        self._clocks.setdefault("router", self.draw_clock())
        observer = self._process("router", Observer)
        self.observers.append(observer)
        return observer

    def draw_clock(self) -> LocalClock:
        options = self.options
        horizon = 2 * options.leases * options.lease
        return draw_clock(self.world.random, drift=options.drift, stepping=options.clocks == "step", horizon=horizon)

    def named(self, name: str) -> list[Process]:
        """The live processes called `name`."""
        return [process for process in self.living if self._names[process] == name]

    def name(self, process: Process) -> str:
        return self._names[process]

    def incarnation_of(self, process: Process) -> str | None:
        """The incarnation of `process` among the members, if it is a member."""
        known = (incarnation for incarnation, owner in self._by_incarnation.items() if owner is process)
        return next((incarnation for incarnation in known if incarnation in self.referee.state.seats), None)

    def rewind(self, keep: int) -> None:
        """The ledger loses all records but the first `keep`."""
        self.counts["rewound"] += 1
        self.log.rewind(keep)
        self.lost_from = self.log.next_offset
        self.referee.rewind(keep, self.log.offsets)
        self.acting.forget()
        self.acting.lenient = True
        self.doubt_until = inf

    def heal(self) -> None:
        """End all faults."""
        self.world.note("world", "healed")
        self.healed_at = self.world.now
        self.log.heal()
        for process in (*self.living, *self.observers):
            process.heal()
        if self.doubt_until == inf:
            self.doubt_until = self.world.now + DOUBT * self.options.lease
            self.world.at(self.doubt_until, self._end_doubt)

    # Whether all is well

    @property
    def converged(self) -> bool:
        """Whether every live process is a member, leads its targets, knows what it stands by for, and has heard itself
        since all was healed.

        A process whose writes failed for a lease may be silent until its next probe, and is rightly expired.
        """
        state = self.referee.state
        if not state.seats or state.owners != state.targets or len(self.living) != len(state.seats):
            return False
        led: dict[int, int] = {}
        for process in self.living:
            machine, standing, now = process.machine, process.standing, process.now
            if not isinstance(machine, InductionMachine) or machine.phase is not Phase.MEMBER:
                return False
            if machine.incarnation not in state.seats:
                return False  # It was replaced, and has not read that.
            if machine.finishing or machine.tenure.sent < process.clock.at(self.healed_at):
                return False
            # Under `available`, it goes on acting, and has yet to repeat a Handover that was lost.
            if any(machine.tenure.given.get(i) == term for i, term in process.standing.terms.items()):
                return False
            standbys = enumerate(state.standbys)
            if process.program.standby != tuple(i for i, one in standbys if one == machine.incarnation):
                return False
            led.update({i: term for i, term in standing.terms.items() if now < standing.end(i, term)})
        return led == dict(enumerate(state.terms))

    @property
    def rest_after_an_expiry(self) -> int:
        """For how many leases a live process may rest before it joins again, if it was just expired once more."""
        machines = (process.machine for process in self.living)
        return max(
            (rest_after(one.trial.expiries + 1) for one in machines if isinstance(one, InductionMachine)), default=0
        )

    def describe(self) -> str:
        """Why it has not converged, for people to read."""
        state = self.referee.state
        lines = [f"members {[self.names.get(seat, seat) for seat in state.seats]}"]
        for process in self.living:
            machine = process.machine
            phase = machine.phase.name if isinstance(machine, InductionMachine) else "BOOTING"
            known = f"leads {dict(process.standing.terms)}, stands by for {process.program.standby}"
            lines.append(f"{process.label} is {phase}, {known}")
        for partition, (owner, target) in enumerate(zip(state.owners, state.targets, strict=True)):
            who = self.names.get(owner or "", owner), self.names.get(target or "", target)
            lines.append(f"partition {partition}: owner {who[0]}, target {who[1]}, term {state.terms[partition]}")
        return "; ".join(lines)

    def finish(self) -> None:
        """The checks that run once, at the end."""
        self.referee.require_digest()
        for process in (*self.living, *self.observers):
            require_bounded(process.label, process.pump, self.options.partitions)
            machine = process.machine
            if machine is not None and not self.referee.agrees(machine.state):
                self.referee.require_same(process.label, machine.state)

    # From processes to the checkers

    def on_send(self, process: Process, payloads: Sequence[bytes]) -> None:
        for payload in payloads:
            record = decode(payload)
            self.counts[f"sent_{type(record).__name__.lower()}"] += 1
            if self.options.exclusive and isinstance(record, Handover | Leave):
                believed = process.standing.terms
                given = record.terms if isinstance(record, Handover) else believed
                if believed.items() & given.items():
                    raise Violation(
                        "told_before_sent", f"{process.label} sends {record} while its program believes in {believed}"
                    )

    def on_step(self, process: Process) -> None:
        machine = process.machine
        assert machine is not None
        self.counts["steps"] += 1
        in_doubt = self.world.now < self.doubt_until
        if isinstance(machine, InductionMachine):
            incarnation = machine.incarnation
            if incarnation not in self.names:
                self._introduce(process, incarnation)
            changed = self.acting.step(process, machine)
            if self.coverage is not None:
                if changed:
                    self.coverage.look()
                for start in self.acting.claims[process].starts[1:]:
                    self.world.at(start, self.coverage.look)
            if self.doubt_until > -inf:
                if not in_doubt and self.acting.claims[process].terms[0]:
                    self._require_one_view(process, machine.state)
                return
        if self.doubt_until == -inf:
            self.referee.require_same(process.label, machine.state)

    def on_end(self, process: Process, *, error: NeliError | None) -> None:
        killed = process.stopped is None
        require_bounded(process.label, process.pump, self.options.partitions)
        if process in self.observers:
            self.observers.remove(process)
        else:
            self.living.remove(process)
        if not killed:
            self.counts[f"stopped_{type(error).__name__.lower()}"] += 1
            self._require_cause(process, error)
        acted = self.acting.terms(process)
        incarnations = [known for known, owner in self._by_incarnation.items() if owner is process]
        for incarnation in incarnations:
            del self._by_incarnation[incarnation]
        quiet_at = self.world.now
        if killed and self.witnesses.lends():
            self.counts["lent"] += bool(acted)
            quiet_at = self.acting.lend(process)
        else:
            self.acting.end(process)
        self.witnesses.certify(*self._witnessed.pop(process, ("", None)), incarnations, quiet_at)
        if self.coverage is not None:
            if killed:
                self.coverage.on_death(process, acted, self.referee.state)
            self.coverage.look()

    def _introduce(self, process: Process, incarnation: str) -> None:
        lives = sum(name.startswith(process.label) for name in self.names.values())
        self.names[incarnation] = process.label + "'" * lives
        self._by_incarnation[incarnation] = self._writers[incarnation] = process

    def _on_append(self, offset: int, payload: bytes, who: str) -> None:
        self.world.note("ledger", f"{offset} from {who}", payload)
        self.counts["records"] += 1
        was = self.referee.state
        self.referee.read(offset, payload)
        if was.genesis is not None and self.referee.state.version > was.version:
            self.counts["upgraded"] += 1

    def _on_change(self, before: State, after: State) -> None:
        if self.calm:
            raise Violation("nothing_moves_in_peace", f"owners or members changed at offset {after.at - 1}")
        if self.coverage is not None:
            self.coverage.on_change(after)

    def _on_unseated(self, incarnation: str, record: Certify | Expire | Join) -> None:
        victim, by = self._by_incarnation.get(incarnation), self._writers.get(record.by)
        self.counts[UNSEATED[type(record)]] += 1
        if victim is None:
            return
        if isinstance(record, Expire) and (self.options.fair or self.options.slow):
            raise Violation(
                "nobody_is_expired_without_cause",
                f"{self.names[incarnation]} lives and was heard in time, and {self.names.get(record.by)} expired it",
            )
        looks_newer = isinstance(record, Join) and self.lost_from < record.at < self.referee.state.at
        if isinstance(record, Join) and by is not None and by.ended_at < victim.started_at and not looks_newer:
            raise Violation("the_newer_wins", f"{by.label} was dead before {victim.label} began, and replaced it")

    def _on_certified(self, incarnation: str) -> None:
        self.counts["certificates"] += 1
        process = self._writers.get(incarnation)
        if process is not None and (process.alive or self.acting.terms(process)):
            raise Violation("witnesses_know", f"{process.label} or a client of it acts, and was certified dead")

    def _require_cause(self, process: Process, error: NeliError | None) -> None:
        name = self._names.get(process, "")
        match error:
            case None:
                good = process.was_told_to_end
            case Replaced():
                good = self._births[name] > 1
            case NameTaken():  # The successor of a dead process must take its place in any case.
                others = (other for other, known in self._names.items() if known == name and other is not process)
                good = any(other.ended_at > process.started_at for other in others) or self.doubt_until > -inf
            case GroupMismatch():
                # A refused member would have held the upgrade back.
                refused = process in self._older and self.referee.state.version > OLDER
                good = process in self._misfits or (refused and self.incarnation_of(process) is None)
            case LedgerRewound() | Diverged() | LedgerUnusable():
                good = self.doubt_until > -inf
            case _:
                good = False
        if not good:
            raise Violation("stops_for_a_reason", f"{process.label} ended without cause: {error!r}")

    def _require_one_view(self, process: Process, state: State) -> None:
        """All processes that still act after a rewind hold one state, at each offset that several of them have read to.

        The ledger's current records are not a measure: a process that lags behind the loss cannot notice it.
        """
        view, label = self._views.setdefault(state.at, (state, process.label))
        if view != state:
            raise Violation("one_view", f"{label} and {process.label} both act, and differ at {state.at}")

    def _end_doubt(self) -> None:
        self.acting.lenient = not self.options.exclusive
        for partition in range(self.options.partitions):
            who = [process.label for process in self.acting.who(partition)]
            if self.options.exclusive and len(who) > 1:
                raise Violation("at_most_one_acts", f"{who} still act for partition {partition} after the rewind")

    def _draws_older(self) -> bool:
        """Whether the next process is of the older release, as the founders of the group are."""
        if not self.options.rolling:
            return False
        return self.referee.state.genesis is None or self.world.random.random() < self.older_share

    def _process(self, name: str, birth: Birth) -> Process:
        self._births[name] += 1
        label = f"{name}#{self._births[name]}"
        return Process(self.world, self.log, self, label=label, clock=self._clocks[name], birth=birth)


def require_bounded(label: str, root: object, partitions: int) -> None:
    """Raise Violation if something below `root` holds too much."""
    bound = max(partitions, DEPARTED_MAX)
    for path, size in containers(root):
        if size > BOUNDS.get(path.rpartition(".")[2], bound):
            raise Violation("memory_is_bounded", f"{label} keeps {size} items in {path}")


def containers(root: object, path: str = "pump", depth: int = DEPTH_MAX) -> Iterator[tuple[str, int]]:
    """The path and the size of each container in our own objects below `root`."""
    for name, value in _attributes(root):
        below = f"{path}.{name}"
        if isinstance(value, list | tuple | dict | set | frozenset | deque):
            yield below, len(value)
        elif depth and type(value).__module__.startswith("neli_router.") and ".sim." not in type(value).__module__:
            yield from containers(value, below, depth - 1)


def _attributes(owner: object) -> Iterator[tuple[str, object]]:
    if isinstance(owner, msgspec.Struct):
        yield from ((name, getattr(owner, name)) for name in owner.__struct_fields__)
    else:
        attributes: Mapping[str, object] = getattr(owner, "__dict__", {})
        yield from attributes.items()
