"""The runtime: a member's clock, and the threads that run its loops.

    THREADS    the host's clock; each loop has a thread of its own, and waiting blocks the caller
    (testing)  a clock that the test turns; it also turns the loops, and waiting turns the clock

A loop is written once and works with both: `run`, for a thread, works and waits until it is over; `turn`, for a test,
does what can be done now. So users test the same code that they ship.

    Lane: put --> [ item | item | ... ] --one after another, outside of every lock--> handle
"""

import os
import threading
import time
from collections.abc import Callable
from math import inf
from queue import Empty, SimpleQueue
from random import Random
from typing import Generic, Protocol, TypeVar

from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.drivers.consumer_groups.base import GroupSubscription
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.ledgers.memory import MemoryLedger
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.drivers.open import open_ledger, subscribe
from neli_router.drivers.peers.base import PeerLink
from neli_router.drivers.peers.udp import open_link
from neli_router.errors import Unsupported
from neli_router.member.witness.base import NO_WITNESS, OwnLife, Witness
from neli_router.member.witness.child import ChildWitness
from neli_router.member.witness.locks import PEERS, OpenToStrangers, PeerWitness
from neli_router.member.witness.registration import Registration
from neli_router.protocols.consumer_group.settings import GroupSettings
from neli_router.protocols.protocol import Notice

__all__ = ["THREADS", "WAIT_MAX", "Changed", "Lane", "Loop", "Runtime"]

WAIT_MAX = 0.25
"""The longest sleep between two checks of what is waited for. Notifications make waiting quick; this makes it reliable,
because time passes, and leases end, without a notification."""


class Changed(threading.Condition):
    """A condition that also notifies listeners that must not block on it, such as an event loop."""

    def __init__(self) -> None:
        # The lock is reentrant, because a signal handler may close a member while its thread waits here.
        super().__init__(threading.RLock())
        self.listeners: tuple[Callable[[], None], ...] = ()
        """Called with the lock held; they may neither wait nor raise."""

    def tell(self, listener: Callable[[], None]) -> None:
        """Call `listener` at each change from now on."""
        with self:
            self.listeners = (*self.listeners, listener)

    def forget(self, listener: Callable[[], None]) -> None:
        """No longer call `listener`."""
        with self:
            self.listeners = tuple(other for other in self.listeners if other != listener)

    def notify_all(self) -> None:
        super().notify_all()
        for listener in self.listeners:
            listener()


class Loop(Protocol):
    """Something that a member keeps doing while it lives."""

    @property
    def name(self) -> str:
        """A name for people who look at a list of threads."""

    @property
    def deadline(self) -> float:
        """When there will be something to do, if nothing else happens first; `inf` means never."""

    def run(self) -> None:
        """Work, and wait when there is nothing to do, until the loop is over."""

    def turn(self) -> bool:
        """Do at most one piece of work, without waiting; return False if there was none."""


class Runtime:
    """All that a member needs from the outside world. May be shared between threads and members."""

    is_turned = False
    """Whether a test turns the clock by hand, so that nothing may wait for real time."""

    clock: Callable[[], float] = staticmethod(host_clock)
    """Seconds on a time line that never goes back."""

    def wall(self) -> int:
        """The wall clock in microseconds, for the terms of a newly founded group."""
        return time.time_ns() // 1000

    def rng(self) -> Random:
        """Randomness for incarnations: different for every member ever created."""
        # Not the process's global generator: after a fork, two children would draw the same incarnations from it.
        return Random(os.urandom(32))

    def ledger(self, config: Config) -> Ledger:
        """A handle to the group's ledger."""
        return open_ledger(config.common_ledger, create=True, patience=config.lease)

    def witness(
        self, config: Config, name: str, life: OwnLife, ledger: Ledger, tell: Callable[[Notice], None]
    ) -> Witness:
        """The witness that will report the death of the member called `name`, and that knows about others' deaths."""
        match config.induction.witness:
            case "agent":
                return Registration(config, name, life, tell, wanted=True)
            case "auto":  # Logs nothing if it finds no witness, because none was requested by name.
                agent = Registration(config, name, life, tell, wanted=False)
                if not agent.name and isinstance(ledger, SqliteLedger):
                    try:
                        peers = PeerWitness(ledger, life.name)
                    except OpenToStrangers as error:  # Logged all the same, because another user may mean harm.
                        tell(_missing(PEERS, error))
                    except (Unsupported, OSError):
                        pass
                    else:
                        agent.close()
                        return peers
                return agent
            case "child" if not isinstance(ledger, MemoryLedger):  # A ledger in memory ends with its process.
                try:
                    return ChildWitness(config, name, tell)
                except (Unsupported, OSError) as error:
                    tell(_missing("child", error))
        return NO_WITNESS

    def subscription(self, config: Config, settings: GroupSettings) -> GroupSubscription:
        """A consumer in the broker's group."""
        return subscribe(config.group, session=settings.session_timeout, drain_timeout=config.drain_timeout)

    def link(self, config: Config) -> PeerLink:
        """The link to the other peers of the group."""
        return open_link(config.peers, mark=config.peers_mark, clock=host_clock)

    def start(self, loop: Loop) -> None:
        """Run `loop` from now on."""
        # Daemon threads, or a program that forgot to close would never end. At exit, the engine lets its members leave.
        threading.Thread(target=loop.run, name=loop.name, daemon=True).start()

    def pause(self, seconds: float) -> None:
        """Wait a moment before trying again."""
        time.sleep(seconds)

    def wait(self, changed: threading.Condition, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until `ready()`, called with `changed` held, at most `timeout` seconds; return whether it was ready."""
        give_up_at = inf if timeout is None else host_clock() + timeout
        with changed:
            while not ready():
                patience = min(WAIT_MAX, give_up_at - host_clock())
                if patience <= 0:
                    return False
                changed.wait(patience)
        return True


def _missing(witness: str, error: Exception) -> Notice:
    return Notice("witness.missing", {"witness": witness, "why": str(error), "until_then": "the lease"})


THREADS = Runtime()

Item = TypeVar("Item")


class Lane(Generic[Item]):
    """One queue with one worker. `put` and `end` may be called from any thread, and from signal handlers."""

    deadline = inf

    def __init__(self, name: str, handle: Callable[[Item], object], on_end: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.is_over = False
        """Whether `end` was called and the last item has been handled; then `on_end` is called."""
        self._handle, self._on_end = handle, on_end
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._worker: int | None = None

    def put(self, item: Item) -> None:
        self._queue.put(item)

    def end(self) -> None:
        """Mark the end of the queue: `run` returns once all items before it are handled."""
        self._queue.put(None)

    @property
    def length(self) -> int:
        """Roughly how many items are waiting."""
        return self._queue.qsize()

    @property
    def is_here(self) -> bool:
        """Whether the caller runs within a call from this lane."""
        return self._worker == threading.get_ident()

    def run(self) -> None:
        while (item := self._queue.get()) is not None:
            self._work(item)
        self._finish()

    def turn(self) -> bool:
        if self._worker is not None:
            return False  # The lane's own handler turned the clock; items must still be handled one after another.
        try:
            item = self._queue.get_nowait()
        except Empty:
            return False
        if item is None:
            self._finish()
        else:
            self._work(item)
        return True

    def _finish(self) -> None:
        self.is_over = True
        self._on_end()

    def _work(self, item: Item) -> None:
        self._worker = threading.get_ident()
        try:
            self._handle(item)
        finally:
            self._worker = None
