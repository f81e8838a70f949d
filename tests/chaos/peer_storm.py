"""A storm among peers: five hosts without a ledger, so only their members can be struck.

    to a process     kill        kill -9; a while later a new process starts in its place
                     reboot      kill -9, and immediately a new process: its predecessor's promises still run
                     stop        stands still past its lease, then goes on and believes what it did
                     leave       leaves in good order, and comes back
                     outage      kill -9 of all, which come back one after another
                     clock       its wall clock jumps, and stays there
    to the network   cut off     a peer hears no other peer, and none hears it
                     unpair      two peers do not hear each other, and hear all others
                     mute, deaf  everything that a peer sends is lost; everything that is sent to it
                     one way     what one peer sends to one other is lost
                     split       a line through the group
                     slow        everything takes longer on one peer's link
                     held        what one peer sends waits in the switch, for some leases, and then arrives all together
                     bad         the switch loses, doubles and reorders all datagrams

Kinds are dealt from a deck that a seed shuffled, as in `storm`. Most are aimed at a peer that leads, because striking
others shows nothing. Faults of the network may overlap. When a deck is empty, and at the end, all faults are undone
together, and all partitions must be led again: how long that takes shows whether a group elects leaders when its
members are up and hear each other.

All the while, the hosts' clocks run at different rates: the storm gives each process its host's clock, and reads its
notes in true time.
"""

from collections.abc import Callable, Sequence
from functools import partial

from neli_router.core.clock import host_clock
from neli_router.lab.processes.group import ProcessGroup
from neli_router.lab.referee import LifePhase
from tests.chaos.bad_switch import BadSwitch
from tests.chaos.clocks import BentClocks, WallClock
from tests.chaos.faults import STEPS
from tests.chaos.storm import led_from
from tests.support.processes.storm import BaseStorm, Fault
from tests.support.servers.network import Network

__all__ = ["PEER_FAULTS", "PeerStorm"]

PROCESS_FAULTS = ("kill", "reboot", "stop", "leave", "outage")
NETWORK_FAULTS = ("cut off", "unpair", "mute", "deaf", "one way", "split", "slow", "held", "bad")
PEER_FAULTS = (*PROCESS_FAULTS, "stop", "clock", *NETWORK_FAULTS)

AIMED = 0.7
"""How often a fault is aimed at a peer that leads."""

LOSS, DOUBLED, LATE = 0.2, 0.3, 0.3
"""Maxima of the bad switch; the last is in leases, about a beat. With more than this, no peer is elected for long."""


class PeerStorm(BaseStorm):
    """Turns a group upside down for some seconds, and then lets it be led again."""

    PAUSES = (0.3, 2.0)

    def __init__(
        self,
        network: Network,
        group: ProcessGroup,
        switch: BadSwitch,
        *,
        lease: float,
        seed: int,
        clock: WallClock,
        bent: BentClocks,
    ) -> None:
        super().__init__(group, network.hosts, PEER_FAULTS, lease=lease, seed=seed)
        self.led_after: list[float] = []
        """Seconds until every partition was led, for each calm: all have started, and hear each other."""
        self.clock, self._deck = clock, list[str]()
        self._network, self._switch, self._bent = network, switch, bent

    def run(self, seconds: float, seen: Callable[[], object]) -> None:
        """Let things happen for `seconds`, and longer until all kinds of faults occurred and something was `seen`."""
        for name in self._names:
            self.start(name)
        led_from(self._group, host_clock())
        self._rage(seconds, seen)
        self._calm()
        self._group.leave()

    def _undo_all(self) -> None:
        super()._undo_all()
        self._network.heal()
        self._switch.heal()

    def _calm(self) -> None:
        self._undo_all()
        self._look()
        self._group.wait_until(lambda: all(map(self._is_member, self._names)), "all were to be members again")
        calm_at = host_clock()
        led_at = led_from(self._group, calm_at, claimed=1.1 * self.lease)  # By the slowest clock of a leader.
        self.led_after.append(max(led_at.values()) - calm_at)

    def start(self, name: str) -> None:
        environment = dict(self._bent.environment(name))
        if name == self._names[0]:
            libraries = [one["LD_PRELOAD"] for one in (self.clock.environment, environment)]
            environment |= {**self.clock.environment, "LD_PRELOAD": ":".join(libraries)}
        process = self._group.start(name, prefix=self._network.prefix(name), environment=environment)
        process.clock_rate = self._bent.rates[name]
        self._present[name] = process

    def _is_member(self, name: str) -> bool:
        return self._present[name].life.phase is LifePhase.MEMBER

    def _victim(self, names: Sequence[str]) -> str:
        leaders = [name for name in names if self._present[name].life.held]
        return self._rng.choice(leaders if leaders and self._rng.random() < AIMED else names)

    def _strike(self) -> None:
        if not self._deck:
            if self.injected:
                self._calm()
            self._deck = self._rng.sample(PEER_FAULTS, len(PEER_FAULTS))
        if self._play(self._deck[-1]):
            self._unmet.discard(self._deck.pop())

    def _play(self, kind: str) -> bool:
        """Begin this fault, and schedule its end. Returns whether that was possible."""
        seconds = self.lease * self._rng.uniform(0.3, 3.0)
        if kind in PROCESS_FAULTS:
            free = [name for name in self._names if name not in self._out]
            if len(free) <= len(self._names) // 2 + 1 or (kind == "outage" and self._out):
                return False  # Others must be there, or nothing would ever be taken over.
            if kind in ("stop", "leave"):  # A process that has only just started would die from a signal.
                free = [name for name in free if self._is_member(name)]
                if not free:
                    return False
            out = free if kind == "outage" else [self._victim(free)]
            undo = self._befall(kind, out)
            self._end_later(Fault(kind, " ".join(out), seconds + (kind == "stop") * self.lease, undo), out)
        else:
            self._end_later(self._disturb(kind, seconds), ())
        return True

    def _befall(self, kind: str, names: Sequence[str]) -> list[Callable[[], object]]:
        processes = [self._present[name] for name in names]
        match kind:
            case "stop":
                for process in processes:
                    process.stop()
                return [process.resume for process in processes]
            case "leave":
                for process in processes:
                    process.ask_to_leave()
                return [partial(self._come_back, name) for name in names]
            case _:
                for process in processes:
                    process.kill()
                if kind != "reboot":
                    return [partial(self.start, name) for name in names]
                for name in names:
                    self.start(name)
                return []

    def _come_back(self, name: str) -> None:
        left = self._present[name]
        if (code := left.exit_code()) != 0:
            self.ended.append(f"{left.life.label} was to leave, and ended with {code}:\n{left.log}")
        self.start(name)

    def _disturb(self, kind: str, seconds: float) -> Fault:
        network, names = self._network, self._names
        one = self._victim(names)
        others = [name for name in names if name != one]
        other = self._rng.choice(others)
        match kind:
            case "clock":
                ahead = self._rng.choice(STEPS)
                self.clock.step(ahead)
                return Fault(kind, f"{names[0]} to {ahead:+d} s", 0.0, [])
            case "held":
                self._switch.held |= {one}
                return Fault(kind, one, seconds, [partial(self._release, one)])
            case "slow":
                how, _, _ = network.slow(one).partition(" ")
                return Fault(kind, f"{one} by {how}", seconds, [partial(network.hurry, one)])
            case "bad":
                self._switch.loss = LOSS * self._rng.random()
                self._switch.doubled = DOUBLED * self._rng.random()
                self._switch.late = LATE * self.lease * self._rng.random()
                return Fault(kind, "all", 2 * seconds, [self._switch.heal])
            case "cut off":
                ways = [way for name in others for way in ((one, name), (name, one))]
            case "unpair":
                ways = [(one, other), (other, one)]
            case "mute":
                ways = [(one, name) for name in others]
            case "deaf":
                ways = [(name, one) for name in others]
            case "one way":
                ways = [(one, other)]
            case _:
                assert kind == "split", f"there is no fault {kind!r}"
                side = {one, *self._rng.sample(others, self._rng.randrange(1, len(others)))}
                ways = [(a, b) for a in names for b in names if (a in side) != (b in side)]
        for way in ways:
            network.lose(*way)
        whom = f"{one}, {other}" if kind in ("unpair", "one way") else one
        return Fault(kind, whom, seconds, [partial(network.carry, *way) for way in ways])

    def _release(self, name: str) -> None:
        self._switch.held -= {name}
