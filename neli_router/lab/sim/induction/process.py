"""A simulated process: a shipped pump and machine, turned as a thread of a real host would turn them.

    BOOTING --> BETWEEN --the code before the read--> WAITING --the read returns, the code after it--> BETWEEN ...
                   |                                     |
                   '------------- paused ----------------+--> FROZEN: it has its answer, or even the time, and stops

One turn of a pump has three moments that a pause can tear apart: when the code before the read runs, when the read
returns, and when the code after it runs. The clock that the pump is given shows the first moment until the ledger has
been read, the second once, and then the third. So a pump that asks for the time too early gets the time that a real
pump would have got.

After a kill, only the records that the process sent remain. While it is only paused, its program's other threads go on,
so checkers ask its machine and its clock what it may act for, whatever its pump is doing.
"""

import traceback
from collections.abc import Sequence
from enum import Enum
from math import inf
from typing import Protocol

from neli_router.drivers.ledgers.base import READ_MAX, Entry
from neli_router.drivers.ledgers.pump import Pump
from neli_router.errors import LedgerError, LedgerUnavailable, LedgerUnusable, NeliError
from neli_router.lab.sim.induction.ledger import Blocked, Log, SimulatedLedger
from neli_router.lab.sim.program import Program
from neli_router.lab.sim.world import LocalClock, Violation, World
from neli_router.protocols.induction.events import Input
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.machine import InductionMachine
from neli_router.protocols.induction.observer import Observer
from neli_router.protocols.protocol import NO_STANDING, Close, News, Notice, Released, Standing, Stopped

__all__ = ["Birth", "Checkers", "Process"]

TURN = 1e-4
"""In leases: the shortest time a turn takes, so that no process takes infinitely many turns in no time."""

HONEST, RAISING = 0.35, 0.2
"""How often a read that times out while records are on their way to it returns nothing, and how often it raises.
Otherwise it takes longer than its timeout."""

WAKE = 1e-3
"""In leases: the longest that a waiting thread takes to notice a wake-up."""

READ_FAILS = 0.2
"""In leases: the longest that a read of an unreachable ledger takes to fail."""

STOPS_IN_READ = 0.4
"""How often a pause that meets a read stops it before it has its answer."""

TurnPhase = Enum("TurnPhase", "BOOTING BETWEEN WAITING FROZEN ENDED")
Answer = list[Entry] | LedgerError


class Birth(Protocol):
    """Makes a machine from the ledger's initial state and the time just after that was read."""

    def __call__(self, state: State, now: float) -> InductionMachine | Observer: ...


class Checkers(Protocol):
    """The checkers, as a process sees them."""

    def on_send(self, process: "Process", payloads: Sequence[bytes]) -> None: ...
    def on_step(self, process: "Process") -> None: ...
    def on_end(self, process: "Process", *, killed: bool, error: NeliError | None) -> None: ...


class Process:
    """One process on one host. It boots when it is made, and ends when its machine has Stopped or when it is killed."""

    def __init__(self, world: World, log: Log, watch: Checkers, *, label: str, clock: LocalClock, birth: Birth) -> None:
        self.world, self.log, self.label, self.clock = world, log, label, clock
        self.standing: Standing = NO_STANDING
        """The standing that was last published; its program's threads act by it."""
        self.started_at, self.ended_at = world.now, inf
        self.was_told_to_end = False
        self.paused_until = 0.0
        self.pump: Pump[InductionMachine | Observer] | None = None
        self._watch, self._birth = watch, birth
        self._lease = log.options.lease
        self.program = Program(label, log.options, log.options.lease, world.random, self._release_later)
        self.ledger = SimulatedLedger(
            log,
            label,
            on_send=lambda payloads: watch.on_send(self, payloads),
            on_return=self._returned,
            on_visible=self._on_visible,
        )
        self._phase = TurnPhase.BOOTING
        self._began = world.now
        self._shows = 0.0
        self._shows_next: list[float] = []
        self._mail: list[Input] = []
        self._frozen: tuple[Answer, float | None] | None = None
        self._give_up_at = self._goes_at = self._rests_until = 0.0
        self._stalls_for = 0.0
        self._ticket = 0
        self._stopped: Stopped | None = None
        world.note(label, "started")
        self._go_at(world.now + world.random.choice((0.0, 0.001, 0.2)) * self._lease)

    # For the world

    @property
    def alive(self) -> bool:
        return self._phase is not TurnPhase.ENDED

    @property
    def machine(self) -> InductionMachine | Observer | None:
        return self.pump.machine if self.pump is not None and self.alive else None

    @property
    def now(self) -> float:
        """The time that its clock shows."""
        return self.clock.at(self.world.now)

    def post(self, event: Input) -> None:
        """A request of its program or of an operator."""
        if self.alive:
            self.was_told_to_end |= isinstance(event, Close)
            self._mail.append(self.program.release(event.terms) if isinstance(event, Released) else event)
            if self._phase is TurnPhase.WAITING:
                self._go_at(self.world.now + self.world.random.uniform(0.0, WAKE) * self._lease)

    def kill(self) -> None:
        """kill -9. Its records in flight may still land."""
        if self.alive:
            self.world.note(self.label, "killed")
            self._end(killed=True, error=None)

    def pause(self, seconds: float) -> None:
        """From now on, its pump does nothing for `seconds`: SIGSTOP, a garbage collection, a host that swaps."""
        self.paused_until = max(self.paused_until, self.world.now + seconds)
        self.world.note(self.label, f"paused for {seconds:.6g} s")

    def stall(self, seconds: float) -> None:
        """Pause like that at its next step, after the machine has decided and before the ledger is given anything."""
        self._stalls_for = seconds

    def heal(self) -> None:
        """Resume now, whatever held it back."""
        self.program.prompt = True
        self.paused_until = self._rests_until = self.world.now
        if self.alive:
            self._go_at(self.world.now)

    # Its life, one event after another

    def _go_at(self, time: float) -> None:
        self._ticket += 1
        self._goes_at = time
        self.world.at(time, self._go, self._ticket)

    def _go(self, ticket: int) -> None:
        if ticket != self._ticket or not self.alive:
            return
        world = self.world
        paused = world.now < self.paused_until
        match self._phase:
            case TurnPhase.WAITING if paused and world.random.random() >= STOPS_IN_READ:
                answer = self._answer()
                if answer is not None:
                    # Either the pump has not read the clock since the read returned, or it just has.
                    self._frozen = (answer, world.now if world.random.random() < 0.5 else None)
                    self._phase = TurnPhase.FROZEN
                    self._go_at(self.paused_until)
            case _ if paused:
                self._go_at(self.paused_until)
            case TurnPhase.BOOTING:
                self._boot()
            case TurnPhase.BETWEEN:
                self._begin()
            case TurnPhase.WAITING:
                answer = self._answer()
                if answer is not None:
                    self._finish(answer, None)
            case TurnPhase.FROZEN:
                assert self._frozen is not None
                self._finish(*self._frozen)

    def _boot(self) -> None:
        self._set_clock(self._began, self.world.now)
        try:
            self.pump = Pump(
                self.ledger,
                self._birth,
                clock=lambda: self._shows,
                pause=self._rest,
                publish=self._publish,
                tell=self._tell,
            )
        except LedgerUnavailable:
            self._began = self.world.now
            self._go_at(self.world.now + self.world.random.uniform(0.02, READ_FAILS) * self._lease)
        except LedgerUnusable as error:
            self._end(killed=False, error=error)
        else:
            self.world.note(self.label, f"begins at {self.pump.machine.state.at}")
            self._watch.on_step(self)
            self._phase = TurnPhase.BETWEEN
            self._begin()

    def _begin(self) -> None:
        """The code before the read."""
        assert self.pump is not None
        self._stall()
        for event in self._mail:
            self.pump.post(event)
        self._mail.clear()
        self._began = self.world.now
        self._set_clock(self._began)
        self.ledger.direct, self.ledger.answer = False, None
        try:
            self._turn()
        except Blocked as blocked:
            self._phase = TurnPhase.WAITING
            self._give_up_at = self.clock.when(self.now + blocked.timeout)
            self._wait()
        else:
            raise Violation("reads_every_turn", f"{self.label} took a turn without reading the ledger")

    def _wait(self) -> None:
        now = self.world.now
        if now < self.ledger.unreachable_until:
            self._go_at(now + self.world.random.uniform(0.02, READ_FAILS) * self._lease)
            return
        visible = self.ledger.next_visible()
        wake = self._give_up_at if visible is None else min(visible, self._give_up_at)
        self._go_at(max(wake, now + TURN * self._lease))

    def _answer(self) -> Answer | None:
        """The answer to the waiting read, if it returns now; otherwise None, and the next try is scheduled."""
        random, now, log = self.world.random, self.world.now, self.log
        if now < self.ledger.unreachable_until or (not log.healed and random.random() < log.options.read_failed):
            return self.ledger.unavailable()
        batch_max = log.options.batch_max
        answer = self.ledger.entries(READ_MAX if batch_max == READ_MAX else random.randint(1, batch_max))
        visible = self.ledger.next_visible()
        if answer or visible is None:
            return answer
        if now >= self._give_up_at:
            if log.options.slow or (luck := random.random()) < HONEST:
                return answer  # All that it was given; the handle knows how old that is.
            if luck < HONEST + RAISING:
                return self.ledger.unavailable()
        self._go_at(visible)
        return None

    def _finish(self, answer: Answer, looked_at: float | None) -> None:
        """Run the code after the read; its clock was read at `looked_at`, or is read now."""
        self._set_clock(self._began, self.world.now if looked_at is None else looked_at, self.world.now)
        self.ledger.answer = answer
        if isinstance(answer, list):
            self.world.note(self.label, f"read {answer[0].offset} to {answer[-1].offset}" if answer else "read nothing")
        else:
            self.world.note(self.label, f"read: {type(answer).__name__}")
        self._frozen, self._phase = None, TurnPhase.BETWEEN
        self._stall()
        self._turn()
        if self._stopped is not None:
            self._end(killed=False, error=self._stopped.error)
        elif self._rests_until > self.world.now:
            self._go_at(self._rests_until)
        elif self.world.now < self.paused_until:
            self._go_at(self.paused_until)
        else:
            self._begin()

    def _stall(self) -> None:
        if self._stalls_for and not self.log.healed:
            self.pause(self._stalls_for)
            self.ledger.hold_until = self.paused_until
        self._stalls_for = 0.0

    def _turn(self) -> None:
        assert self.pump is not None
        try:
            self.pump.turn()
        except (Violation, Blocked):
            raise
        except Exception as error:
            raise Violation("never_crashes", f"{self.label}: {error!r}\n{traceback.format_exc()}") from error

    def _end(self, *, killed: bool, error: NeliError | None) -> None:
        self._phase = TurnPhase.ENDED
        self.ended_at = self.world.now
        self.standing = NO_STANDING
        self.ledger.close()
        self._watch.on_end(self, killed=killed, error=error)

    # For the pump and the ledger

    def _set_clock(self, begins: float, returns: float | None = None, steps: float | None = None) -> None:
        """The clock of the next turn: its time until the ledger is read, until the machine steps, and from then on."""
        returns = begins if returns is None else returns
        self._shows = self.clock.at(begins)
        self._shows_next = [self.clock.at(returns), self.clock.at(returns if steps is None else steps)]

    def _returned(self) -> None:
        if len(self._shows_next) == 2:
            self._shows = self._shows_next.pop(0)

    def _rest(self, seconds: float) -> None:
        self._rests_until = self.world.now + seconds

    def _publish(self, machine: InductionMachine | Observer, now: float) -> None:
        self.standing = machine.standing
        if len(self._shows_next) == 1:
            self._shows = self._shows_next.pop()
        self._watch.on_step(self)

    def _tell(self, news: News) -> None:
        self.world.note(self.label, f"  {type(news).__name__}", news)
        self.world.include(repr(news).encode())
        if isinstance(news, Stopped):
            self._stopped = news
        if not isinstance(news, Notice):
            self.program.hear(news)

    def _on_visible(self, time: float) -> None:
        if (
            self._phase is TurnPhase.WAITING
            and time < self._goes_at
            and self.world.now >= self.ledger.unreachable_until
        ):
            self._go_at(max(time, self.world.now + TURN * self._lease))

    def _release_later(self, seconds: float, event: Released) -> None:
        self.world.at(self.world.now + seconds, self.post, event)
