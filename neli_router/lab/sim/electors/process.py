"""A simulated peer: a shipped machine, driven the way a driver drives it, with a disk that outlives it.

    mail --take--> own clock --> the machine steps --> its effects, one by one: Keep to disk, Send, news
             '---------------- a pause, or death, may come between any two of these -----------'

The order of the first two matters. A supporter's promise starts at the time that its clock shows when it takes a
message. If the clock were read before the message was taken, a pause between the two would let the promise end before
the lease, which the leader counts from sending the message, and two could act.

A paused program's other threads go on, so checkers ask its machine and its clock what it may act for, whatever its own
thread is doing.
"""

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from random import Random
from typing import Protocol

from neli_router.errors import NeliError
from neli_router.lab.sim.electors.network import Network
from neli_router.lab.sim.electors.options import ElectorOptions
from neli_router.lab.sim.program import Program
from neli_router.lab.sim.world import LocalClock, Violation, World
from neli_router.protocols.electors.events import Heard, Keep, PeerEffect, PeerInput, Send
from neli_router.protocols.electors.machine import PeerMachine
from neli_router.protocols.electors.settings import PeerSettings
from neli_router.protocols.protocol import NO_STANDING, TICK, Close, News, Notice, Released, Standing, Stopped

__all__ = ["Build", "Disk", "ElectorChecks", "ElectorProcess"]

TURN = 1e-4
"""In leases: the shortest time a turn takes, so that no process takes infinitely many turns in no time."""

STOPS_HERE = 0.4
"""How often a pause aimed at a turn comes before the next of its moments rather than later."""

MAIL_MAX = 2000
"""Datagrams that wait for a paused process. A real socket also drops what does not fit."""

Build = Callable[[PeerSettings, bytes, float, Random], PeerMachine]
"""Makes a machine from its settings, what its place kept, the time, and its dice."""


class Disk:
    """The last state that the processes of one place stored."""

    def __init__(self) -> None:
        self.memory = b""


class ElectorChecks(Protocol):
    """The checkers, as a process sees them."""

    def on_step(self, process: "ElectorProcess") -> None: ...
    def on_end(self, process: "ElectorProcess", *, error: NeliError | None) -> None: ...


class ElectorProcess:
    """One process at one place of the list of peers."""

    def __init__(
        self,
        world: World,
        options: ElectorOptions,
        network: Network,
        checks: ElectorChecks,
        *,
        label: str,
        place: int,
        clock: LocalClock,
        disk: Disk,
        build: Build,
    ) -> None:
        self.world, self.options, self.network = world, options, network
        self.label, self.place, self.clock, self.disk = label, place, clock, disk
        self.standing: Standing = NO_STANDING
        self.alive, self.was_told_to_end = True, False
        self.paused_until = 0.0
        self.started_at = world.now
        self.stopped: Stopped | None = None
        """How its machine ended, if it has."""
        self._checks = checks
        self._stall = 0.0
        self._goes_at = inf
        """When it takes its next turn, if nothing comes first."""
        self._deadline, self._due_at = inf, inf
        """Its machine's deadline, on its own clock and in the world."""
        self._alarm_at = inf
        """When the world next calls it: at that time, or sooner. Most turns leave the next alarm where it was."""
        self._turning = False
        self._holds = 0
        self._held: tuple[Callable[..., None], tuple[object, ...]] | None = None
        """The action to continue with when a pause in the middle of a turn is over."""
        self._mail: deque[PeerInput] = deque()
        self.program = Program(label, options, options.lease, world.random, self._release_later)
        self.machine = build(options.settings(place), disk.memory, self.now, Random(world.random.getrandbits(64)))
        world.note(label, "started")
        self._wake()

    # For the world

    @property
    def now(self) -> float:
        """The time that its clock shows."""
        return self.clock.at(self.world.now)

    def post(self, event: PeerInput) -> None:
        if self.alive:
            self.was_told_to_end |= isinstance(event, Close)
            self._mail.append(self.program.release(event.terms) if isinstance(event, Released) else event)
            self._wake()

    def hear(self, sender: int, body: bytes) -> None:
        """A datagram arrives at its socket."""
        if self.alive and len(self._mail) < MAIL_MAX:
            self._mail.append(Heard(sender, body))
            if not self._turning:
                self._go()

    def kill(self) -> None:
        """kill -9. Its datagrams on their way arrive all the same."""
        if self.alive:
            self.world.note(self.label, "killed")
            self._end(None)

    def pause(self, seconds: float) -> None:
        """Stop its thread for `seconds`."""
        self.paused_until = max(self.paused_until, self.world.now + seconds)
        self.world.note(self.label, f"frozen for {seconds:.6g} s")

    def pause_inside(self, seconds: float) -> None:
        """Freeze its thread in the middle of its next turn."""
        self._stall = seconds

    def heal(self) -> None:
        """Resume now, whatever held it back."""
        self.program.prompt = True
        self.paused_until = self.world.now
        self._stall = 0.0
        self._go_on(self._holds)
        self._wake()

    # Its turns

    def _wake(self) -> None:
        """Take a turn at this time, after everything else that is due now."""
        if not self._turning:
            self._go_at(self.world.now)

    def _go_at(self, time: float) -> None:
        self._goes_at = time
        if time < self._alarm_at:
            self._alarm_at = time
            self.world.at(time, self._ring, time)

    def _ring(self, alarm: float) -> None:
        if alarm == self._alarm_at and self.alive:
            self._alarm_at = inf
            if self._goes_at <= alarm:
                self._go()
            else:
                self._go_at(self._goes_at)

    def _go(self) -> None:
        self._goes_at = inf
        if self.world.now < self.paused_until:
            self._go_at(self.paused_until)
            return
        if not self._mail and self.now < self.machine.deadline:
            self._rest()
            return
        self._turning = True
        taken = self._mail.popleft() if self._mail else TICK
        if self._stall:
            self._stop_or(self._read, taken)
        else:
            self._step(taken, self.now)

    def _read(self, taken: PeerInput) -> None:
        self._stop_or(self._step, taken, self.now)

    def _stop_or(self, action: Callable[..., None], *arguments: object) -> None:
        """Do it now, or after a pause that comes first."""
        if not self.alive:
            return
        if self._stall and self.world.random.random() < STOPS_HERE:
            seconds, self._stall = self._stall, 0.0
            self.pause(seconds)
            self._holds += 1
            self._held = action, arguments
            self.world.at(self.paused_until, self._go_on, self._holds)
        else:
            action(*arguments)

    def _go_on(self, ticket: int) -> None:
        if ticket == self._holds and self._held is not None and self.alive:
            action, arguments = self._held
            self._held = None
            action(*arguments)

    def _step(self, event: PeerInput, now: float) -> None:
        if isinstance(event, Heard):
            self.world.note(self.label, f"hears m{event.sender + 1}", event.body)
        try:
            effects = self.machine.step(event, now)
        except Exception as error:
            raise Violation("never_crashes", f"{self.label}: {error!r}\n{traceback.format_exc()}") from error
        if event is TICK and self.machine.deadline <= now:
            raise Violation("rests", f"{self.label} has its next deadline at {self.machine.deadline}, and it is {now}")
        # A term that is not on disk yet was not sent to anyone: until then, the last step's standing counts.
        kept = 0
        for count, effect in enumerate(effects, 1):
            if isinstance(effect, Keep):
                kept = count
        self._finish(effects, 0, kept)

    def _finish(self, effects: Sequence[PeerEffect], done: int, kept: int) -> None:
        while True:
            if done == kept:
                self.standing = self.machine.standing
                self._checks.on_step(self)
            if done == len(effects):
                break
            if self._stall:
                self._stop_or(self._finish_from, effects, done, kept)
                return
            self._carry_out(effects[done])
            done += 1
        self._turning = False
        if self.stopped is not None:
            self._end(self.stopped.error)
        else:
            self._rest()

    def _finish_from(self, effects: Sequence[PeerEffect], done: int, kept: int) -> None:
        """Carry out one effect, and then check again whether a pause comes."""
        self._carry_out(effects[done])
        self._finish(effects, done + 1, kept)

    def _carry_out(self, effect: PeerEffect) -> None:
        match effect:
            case Send(to, body):
                self.network.send(self.place, to, body)
            case Keep(memory):
                self.world.include(memory)
                self.disk.memory = memory
            case _:
                self._tell(effect)

    def _tell(self, news: News) -> None:
        self.world.note(self.label, f"  {type(news).__name__}", news)
        self.world.include(repr(news).encode())
        if isinstance(news, Stopped):
            self.stopped = news
        if not isinstance(news, Notice):
            self.program.hear(news)

    def _rest(self) -> None:
        now, deadline = self.world.now, self.machine.deadline
        if deadline != self._deadline:
            self._deadline, self._due_at = deadline, self.clock.when(deadline)
        self._go_at(max(now if self._mail else self._due_at, now + TURN * self.options.lease))

    def _end(self, error: NeliError | None) -> None:
        self.alive = False
        self.standing = NO_STANDING
        self._checks.on_end(self, error=error)

    def _release_later(self, seconds: float, event: Released) -> None:
        self.world.at(self.world.now + seconds, self.post, event)
