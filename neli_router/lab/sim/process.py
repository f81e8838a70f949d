"""A simulated process: a shipped pump and its machine, on a simulated thread, with the program that it serves.

    world --> thread --turn--> pump --> port, clocks (each call is a moment: see `thread`)
                                 '----> machine --standing, news--> program --Released, later--> pump

A process runs what a member runs: it opens a pump, and turns it until its machine has stopped. Its port is simulated,
and everything above the port is shipped code.

A thread that is paused stops, but its program's other threads go on. So checkers ask the machine and the clock what the
process may act for, whatever its thread is doing. After a kill only what the process sent remains.
"""

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Protocol, TypeVar, cast

from neli_router.errors import NeliError
from neli_router.lab.sim.program import Habits, Program
from neli_router.lab.sim.thread import SimulatedThread
from neli_router.lab.sim.world import LocalClock, Violation, World
from neli_router.protocols.protocol import NO_STANDING, TICK, Close, News, Notice, Released, Standing, Stopped

__all__ = ["ProcessChecks", "SimulatedProcess", "SimulatedPump", "watched"]

HASTY_MAX = 100
"""Turns without waiting. Some are due, because what a step posts is left for the next turn."""

MachineT = TypeVar("MachineT")
CheckedT_contra = TypeVar("CheckedT_contra", contravariant=True)


class _SteppedMachine(Protocol):
    """A machine of any protocol, as far as its process is concerned."""

    @property
    def standing(self) -> Standing: ...


class ProcessChecks(Protocol[CheckedT_contra]):
    """The checkers, as a process sees them."""

    def on_step(self, process: CheckedT_contra) -> None: ...
    def on_end(self, process: CheckedT_contra, *, error: NeliError | None) -> None: ...


class SimulatedPump(Protocol):
    """A pump of any kind."""

    def post(self, event: Any) -> None: ...
    def turn(self) -> None: ...


class SimulatedProcess(ABC):
    """One process on one host. `unit` is a lease or a session, in seconds."""

    def __init__(
        self, world: World, checks: ProcessChecks[Any], *, label: str, clock: LocalClock, habits: Habits, unit: float
    ) -> None:
        self.world, self.label, self.clock = world, label, clock
        self.standing: Standing = NO_STANDING
        """The standing that was last published; its program's threads act by it."""
        self.alive, self.was_told_to_end = True, False
        self.started_at, self.ended_at = world.now, inf
        self.stopped: Stopped | None = None
        """How its machine ended, if it has."""
        self.pump: SimulatedPump | None = None
        self._checks, self._unit = checks, unit
        self._hasty = 0
        """How many turns it took since it last waited."""
        self._early: list[object] = []
        """The events that were posted before there was a pump."""
        self.program = Program(label, habits, unit, world.random, self._release_later)
        self.thread = SimulatedThread(world, self._run, on_pause=self._on_pause)
        world.note(label, "started")

    # For the world

    @property
    def now(self) -> float:
        """The time that its clock shows."""
        return self.clock.at(self.world.now)

    def post(self, event: object) -> None:
        """A request of its program or of an operator."""
        if not self.alive:
            return
        self.was_told_to_end |= isinstance(event, Close)
        if isinstance(event, Released):
            event = self.program.release(event.terms)
        if self.pump is None:
            self._early.append(event)
        else:
            self.pump.post(event)

    def kill(self) -> None:
        """kill -9. Everything that it sent may still arrive."""
        if self.alive:
            self.world.note(self.label, "killed")
            self.thread.kill()
            self._end(None)

    def pause(self, seconds: float) -> None:
        """Stop its thread for `seconds`: SIGSTOP, a garbage collection, a host that swaps."""
        self._stop_for(seconds, "stalled")

    def _stop_for(self, seconds: float, how: str) -> None:
        self.thread.pause(seconds)
        self.world.note(self.label, f"{how} for {seconds:.6g} s")

    def pause_inside(self, seconds: float) -> None:
        """Stop its thread for `seconds` in the middle of a turn."""
        self.thread.pause_inside(seconds)

    def heal(self) -> None:
        """Resume now, whatever held it back."""
        self.program.prompt = True
        if self.alive:
            self.thread.heal()

    # For the pump

    def read_clock(self) -> float:
        self.thread.moment()
        return self.now

    def explain(self, _effects: object) -> None:
        self.thread.moment()

    def publish(self, machine: _SteppedMachine, _now: float) -> None:
        self.thread.moment()
        self.standing = machine.standing
        self._checks.on_step(self)

    def tell(self, news: News) -> None:
        self.thread.moment()
        self.world.note(self.label, f"  {type(news).__name__}", news)
        self.world.include(repr(news).encode())
        if isinstance(news, Stopped):
            self.stopped = news
        if not isinstance(news, Notice):
            self.program.hear(news)

    # Its work

    @abstractmethod
    def _open(self) -> SimulatedPump | None:
        """Make the pump; None if that failed for good, as `stopped` says."""

    @abstractmethod
    def _close(self) -> None:
        """Close its port. The process is gone."""

    def _turn(self, pump: SimulatedPump) -> None:
        slept = self.thread.slept
        pump.turn()
        self._hasty = 0 if self.thread.slept > slept else self._hasty + 1
        if self._hasty == HASTY_MAX:
            raise Violation("waits", f"{self.label} took {HASTY_MAX} turns without waiting for its port")

    def _on_pause(self, until: float) -> None:
        """A pause inside its work began, and lasts until then."""
        self.world.note(self.label, f"stopped inside its work for {until - self.world.now:.6g} s")

    def _run(self) -> None:
        try:
            self.pump = self._open()
            if self.pump is not None:
                for event in self._early:
                    self.pump.post(event)
                while self.stopped is None:
                    self._turn(self.pump)
        except Violation:
            raise
        except Exception as error:
            raise Violation("never_crashes", f"{self.label}: {error!r}\n{traceback.format_exc()}") from error
        self._end(self.stopped.error if self.stopped is not None else None)

    def _end(self, error: NeliError | None) -> None:
        self.alive = False
        self.ended_at = self.world.now
        self.standing = NO_STANDING
        self._close()
        self._checks.on_end(self, error=error)

    def _release_later(self, seconds: float, event: Released) -> None:
        self.world.at(self.world.now + seconds, self.post, event)


class _Watched:
    """A machine, as its pump sees it."""

    def __init__(self, label: str, machine: Any, before: Callable[[Any], None]) -> None:
        self._label, self._machine, self._before = label, machine, before

    @property
    def deadline(self) -> float:
        deadline: float = self._machine.deadline
        return deadline

    @property
    def standing(self) -> Standing:
        standing: Standing = self._machine.standing
        return standing

    def step(self, event: object, now: float) -> Sequence[Any]:
        self._before(event)
        effects: Sequence[Any] = self._machine.step(event, now)
        if event is TICK and self.deadline <= now:
            raise Violation("rests", f"{self._label} has its next deadline at {self.deadline}, and it is {now}")
        return effects


def watched(label: str, machine: MachineT, before: Callable[[Any], None]) -> MachineT:
    """`machine` for a pump. `before` is called with each event before its step."""
    return cast("MachineT", _Watched(label, machine, before))
