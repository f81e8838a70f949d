"""A simulated peer, and the link through which its pump reaches the network and the disk that outlives it.

    pump --wait, take, send, keep: a moment each--> link --> network, disk

A pause, or death, may come between any two of these.
"""

from collections import deque
from collections.abc import Callable, Mapping
from random import Random

from neli_router.drivers.peers.base import PeerPump
from neli_router.lab.sim.electors.network import Network
from neli_router.lab.sim.electors.options import ElectorOptions
from neli_router.lab.sim.process import ProcessChecks, SimulatedProcess, SimulatedPump, watched
from neli_router.lab.sim.thread import TURN
from neli_router.lab.sim.world import LocalClock, World
from neli_router.protocols.electors.events import Heard
from neli_router.protocols.electors.machine import PeerMachine
from neli_router.protocols.electors.settings import PeerSettings
from neli_router.protocols.protocol import Notice

__all__ = ["Build", "Disk", "ElectorProcess"]

MAIL_MAX = 2000
"""Datagrams that wait for a paused process. A real socket also drops what does not fit."""

Build = Callable[[PeerSettings, bytes, float, Random], PeerMachine]
"""Makes a machine from its settings, what its place kept, the time, and its dice."""


class Disk:
    """The last state that the processes of one place stored."""

    def __init__(self) -> None:
        self.memory = b""


class ElectorProcess(SimulatedProcess):
    """One process at one place of the list of peers, and its own link."""

    address = "sim://peer"
    doubts = ()
    counts: Mapping[str, int] = {}
    heard_at: Mapping[int, float] = {}
    silent: frozenset[int] = frozenset()
    refusals: Mapping[int, str] = {}
    words: Mapping[int, bytes] = {}

    def __init__(
        self,
        world: World,
        options: ElectorOptions,
        network: Network,
        checks: ProcessChecks["ElectorProcess"],
        *,
        label: str,
        place: int,
        clock: LocalClock,
        disk: Disk,
        build: Build,
    ) -> None:
        super().__init__(world, checks, label=label, clock=clock, habits=options, unit=options.lease)
        self.options, self.network = options, network
        self.place, self.disk = place, disk
        self._mail: deque[Heard] = deque()
        self.machine = build(options.settings(place), disk.memory, self.now, Random(world.random.getrandbits(64)))
        self.thread.start(world.now)

    # For the world

    def hear(self, sender: int, body: bytes) -> None:
        """A datagram arrives at its socket."""
        if self.alive and len(self._mail) < MAIL_MAX:
            self._mail.append(Heard(sender, body))
            self.thread.wake(self.world.now)

    # The link

    @property
    def memory(self) -> bytes:
        return self.disk.memory

    def wait(self, timeout: float) -> None:
        self.thread.moment()
        now = self.world.now
        until = now if self._mail else self.clock.when(self.clock.at(now) + timeout)
        self.thread.sleep(max(until, now + TURN * self.options.lease))

    def take(self) -> list[Heard | Notice]:
        self.thread.moment()
        taken: list[Heard | Notice] = list(self._mail)
        self._mail.clear()
        return taken

    def send(self, to: int, body: bytes) -> None:
        self.thread.moment()
        self.network.send(self.place, to, body)

    def keep(self, memory: bytes) -> None:
        self.thread.moment()
        self.world.include(memory)
        self.disk.memory = memory

    def wake(self) -> None:
        self.thread.wake(self.world.now)

    def say(self, word: bytes) -> None:
        """No simulated peer reads it."""

    def close(self) -> None:
        """The network has no sockets to give back."""

    # Its work

    def _open(self) -> SimulatedPump:
        return PeerPump(
            self,
            watched(self.label, self.machine, self._before_step),
            clock=self.read_clock,
            publish=self.publish,
            tell=self.tell,
            explain=self.explain,
        )

    def _close(self) -> None:
        self._mail.clear()

    def _before_step(self, event: object) -> None:
        if isinstance(event, Heard):
            self.world.note(self.label, f"hears m{event.sender + 1}", event.body)
