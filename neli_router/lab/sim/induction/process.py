"""A simulated process of a group that shares a ledger: it boots from the ledger, and turns its pump until it has ended.

    thread --start, tip, read, append, acknowledged, clock: a moment each--> ledger, clock

An opening that fails because the ledger is away is repeated, as a member repeats it.
"""

from collections.abc import Sequence
from typing import Protocol

from neli_router.drivers.ledgers.pump import Pump
from neli_router.errors import LedgerUnavailable, LedgerUnusable
from neli_router.lab.sim.induction.ledger import READ_FAILS, Log, SimulatedLedger
from neli_router.lab.sim.process import ProcessChecks, SimulatedProcess, SimulatedPump
from neli_router.lab.sim.world import LocalClock, World
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.machine import InductionMachine
from neli_router.protocols.induction.observer import Observer
from neli_router.protocols.protocol import Stopped

__all__ = ["Birth", "Checkers", "Process"]


class Birth(Protocol):
    """Makes a machine from the ledger's initial state and the time just after that was read."""

    def __call__(self, state: State, now: float) -> InductionMachine | Observer: ...


class Checkers(ProcessChecks["Process"], Protocol):
    """The checkers, as a process sees them."""

    def on_send(self, process: "Process", payloads: Sequence[bytes]) -> None: ...


class Process(SimulatedProcess):
    """One process on one host. It boots when it is made, and ends when its machine has Stopped or when it is killed."""

    pump: Pump[InductionMachine | Observer] | None

    def __init__(self, world: World, log: Log, watch: Checkers, *, label: str, clock: LocalClock, birth: Birth) -> None:
        super().__init__(world, watch, label=label, clock=clock, habits=log.options, unit=log.options.lease)
        self._birth = birth
        self.ledger = SimulatedLedger(
            log, label, self.thread, clock, on_send=lambda payloads: watch.on_send(self, payloads)
        )
        self.thread.start(world.now + world.random.choice((0.0, 0.001, 0.2)) * self._unit)

    @property
    def machine(self) -> InductionMachine | Observer | None:
        return self.pump.machine if self.pump is not None and self.alive else None

    def _open(self) -> SimulatedPump | None:
        while True:
            try:
                pump = Pump(
                    self.ledger,
                    self._birth,
                    clock=self.read_clock,
                    pause=self._rest,
                    publish=self.publish,
                    tell=self.tell,
                    explain=self.explain,
                )
            except LedgerUnavailable:
                self._rest(self.world.random.uniform(0.02, READ_FAILS) * self._unit)
            except LedgerUnusable as error:
                self.stopped = Stopped(error)
                return None
            else:
                self.pump = pump
                self.world.note(self.label, f"begins at {pump.machine.state.at}")
                self._checks.on_step(self)
                return pump

    def _turn(self, pump: SimulatedPump) -> None:
        self.ledger.direct = False
        super()._turn(pump)

    def _close(self) -> None:
        self.ledger.close()

    def _rest(self, seconds: float) -> None:
        self.thread.sleep(self.clock.when(self.now + seconds))
