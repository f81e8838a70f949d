"""Insight: what checkers know of machines beyond their common interface, and how long each may take.

    options --> insight --build--> machines
                   '--- who votes, who leads under which term, who is preferred; the bounds of promptness --> group

The bounds hold in fair weather, where every datagram arrives within D and programs may take their time to finish. They
are sums of waits that the protocols name, so a slower protocol shows up as a broken promise, not as bad luck.
"""

from collections.abc import Iterable, Mapping, Sequence
from random import Random

from neli_router.lab.sim.electors.options import ElectorOptions
from neli_router.lab.sim.electors.process import Build
from neli_router.protocols.electors.machine import PeerMachine
from neli_router.protocols.electors.priority import electorate
from neli_router.protocols.electors.settings import GossipSettings, PeerSettings, TermSettings
from neli_router.protocols.gossip.machine import GossipMachine
from neli_router.protocols.term.elector import STEADY_TIME_OUTS, Role, TermElector
from neli_router.protocols.term.machine import TermMachine

__all__ = ["GossipInsight", "Insight", "TermInsight", "insight_of"]

GOSSIP_ROUNDS = 10
"""Intervals in which news reaches everyone in a small group, and silence is noticed."""


class Insight:
    """Insight into machines that expose no more than any PeerMachine does. `build` makes them."""

    def __init__(self, options: ElectorOptions, build: Build) -> None:
        self.options, self.build = options, build

    # About machines

    def turns(self, machine: PeerMachine) -> Iterable[float]:
        """The times at which its tenures may begin or end without a step."""
        return [machine._ends(i) for i in range(self.options.partitions)]  # noqa: SLF001 - no program needs to know.

    def led_by(self, machine: PeerMachine) -> Iterable[tuple[int, int]]:
        """The partitions it leads and the terms, including those it may not act for yet, or no longer."""
        return ()

    def prefers(self, machines: Mapping[int, PeerMachine], leader: int, partition: int) -> bool:
        """Whether one of those should have `partition` instead of its leader."""
        return False

    def tell(self, machine: PeerMachine) -> str:
        """Its current state, for people to read."""
        return ""

    # About the group

    def voters(self, partition: int) -> Sequence[int]:
        return range(self.options.size)

    def is_majority(self, places: Sequence[int], partition: int) -> bool:
        """Whether these elect a leader, whatever the others do."""
        return len(places) > len(self.voters(partition)) // 2

    # Bounds, in seconds

    def patience(self, machine: PeerMachine) -> float:
        """How long it may put off what it will eventually do."""
        return 0.0

    @property
    def takes_over_within(self) -> float:
        """From the last fault to the next leader."""
        return 6 * self.options.lease

    @property
    def forgets_within(self) -> float:
        """For how long a fault that is over may still cost a leader its majority."""
        return 3 * self.options.lease

    @property
    def moves_within(self) -> float:
        """From an operator's request until no leader moves because of it any more."""
        return (6 + 2 * self.options.drain_timeout) * self.options.lease

    @property
    def converges_within(self) -> float:
        """From the last fault until everything is led as it should be: messages on their way must arrive, and programs
        must finish."""
        return self.moves_within + 2 * self.takes_over_within


class TermInsight(Insight):
    """Insight into `TermMachine`, with either policy."""

    def __init__(self, options: ElectorOptions) -> None:
        super().__init__(options, _term_machine)
        settings = _term_settings(options, 0)
        self._voters = [electorate(settings, i)[0] for i in range(options.partitions)]
        self._wait, self._beat, self._time_out = settings.wait, settings.beat, settings.time_out
        # By priority, a peer waits until the target has come down to it, one step each beat.
        self._longest_wait = (
            settings.longest_wait if settings.policy == "random" else (options.replicas + 1) * 1.5 * settings.beat
        )

    def turns(self, machine: PeerMachine) -> Iterable[float]:
        electors = _electors(machine)
        return [turn for one in electors.values() if one.acts_until > 0 for turn in (one.acts_from, one.acts_until)]

    def led_by(self, machine: PeerMachine) -> Iterable[tuple[int, int]]:
        return [(i, one.term) for i, one in _electors(machine).items() if one.role is Role.LEADER]

    def prefers(self, machines: Mapping[int, PeerMachine], leader: int, partition: int) -> bool:
        if leader not in machines:
            return False
        machine = machines[leader]
        if not (self.options.protocol == "priority" and self.options.transfer) and partition not in machine.shed:
            return False
        if partition in machine._named:  # type: ignore[attr-defined]  # noqa: SLF001 - an operator named it.
            return False
        mine = _electors(machine)[partition].priority
        return any(
            _electors(machines[peer])[partition].priority > mine for peer in self._voters[partition] if peer in machines
        )

    def tell(self, machine: PeerMachine) -> str:
        return ", ".join(f"{i}: {one.role.value} {one.term} of {one.leader}" for i, one in _electors(machine).items())

    def voters(self, partition: int) -> Sequence[int]:
        return self._voters[partition]

    def patience(self, machine: PeerMachine) -> float:
        """A leader waits twice as long each time before it cedes again to a peer that did not win."""
        passed = (times for one in _electors(machine).values() for times in one._passed.values())  # noqa: SLF001
        return STEADY_TIME_OUTS * self._time_out * float(2 ** max(passed, default=0))

    @property
    def _trips(self) -> float:
        """A few round trips to a peer, with their turns."""
        return 10 * self.options.delay_max * self.options.lease

    @property
    def takes_over_within(self) -> float:
        """The promises to the last leader end, and its heartbeats are missed; then three waits, of which the last is
        the highest peer's; then votes, and once more if a candidate got too few."""
        return self._wait + 2 * self._time_out + 3 * (self._longest_wait + self._beat) + self._trips

    @property
    def forgets_within(self) -> float:
        """If a majority fell silent, its lease ends. Peers that started since then have made no promises."""
        return 2 * self._wait + self._time_out + self._trips

    @property
    def moves_within(self) -> float:
        drained = self.options.drain_timeout * self.options.lease
        return 2 * drained + self.takes_over_within + (STEADY_TIME_OUTS + 1) * self._time_out


class GossipInsight(Insight):
    """Insight into `GossipMachine`. If not all its members vote, its leaders decide which do."""

    def __init__(self, options: ElectorOptions) -> None:
        super().__init__(options, _gossip)
        settings = options.settings(0)
        self._wait, self._interval = settings.wait, settings.beat

    def turns(self, machine: PeerMachine) -> Iterable[float]:
        return [machine._ends(0)]  # noqa: SLF001 - no program needs to know.

    def is_majority(self, places: Sequence[int], partition: int) -> bool:
        return self.options.size - len(places) <= (self.options.first_class - 1) // 2

    def prefers(self, machines: Mapping[int, PeerMachine], leader: int, partition: int) -> bool:
        if leader not in machines:
            return False
        leading = machines[leader]
        assert isinstance(leading, GossipMachine)
        if not leading.drained or leading._was_named:  # noqa: SLF001 - an operator named it.
            return False
        voters = leading.electorate.places
        return any(place in voters and not machine.drained for place, machine in machines.items())

    def tell(self, machine: PeerMachine) -> str:
        assert isinstance(machine, GossipMachine)
        return f"favours {machine.favourite}, sees {machine.leader}, {machine.electorate}"

    @property
    def takes_over_within(self) -> float:
        """2 P, plus the intervals that it takes to suspect the last leader and to hear of the next one."""
        return 2 * self._wait + GOSSIP_ROUNDS * self._interval

    @property
    def forgets_within(self) -> float:
        """The leader's P ends, and a voter that was silent is considered alive again."""
        return 2 * self._wait + GOSSIP_ROUNDS * self._interval

    @property
    def moves_within(self) -> float:
        """The leader that gives way stands aside for 2 P, and another may have to be found."""
        drained = self.options.drain_timeout * self.options.lease
        return 2 * drained + 2 * self._wait + self.takes_over_within


def insight_of(options: ElectorOptions) -> Insight:
    """The insight into the shipped machines."""
    return GossipInsight(options) if options.protocol == "gossip" else TermInsight(options)


def _gossip(settings: PeerSettings, memory: bytes, now: float, rng: Random) -> PeerMachine:
    assert isinstance(settings, GossipSettings)  # The options of a run ensure it, here and below.
    return GossipMachine(settings, memory, now, rng=rng)


def _term_machine(settings: PeerSettings, memory: bytes, now: float, rng: Random) -> PeerMachine:
    assert isinstance(settings, TermSettings)
    return TermMachine(settings, memory, now, rng=rng)


def _term_settings(options: ElectorOptions, place: int) -> TermSettings:
    settings = options.settings(place)
    assert isinstance(settings, TermSettings)
    return settings


def _electors(machine: PeerMachine) -> Mapping[int, TermElector]:
    assert isinstance(machine, TermMachine)
    return machine.electors
