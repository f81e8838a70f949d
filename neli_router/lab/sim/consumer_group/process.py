"""A simulated process in a borrowed consumer group: a shipped machine, driven the way a driver drives it.

    library --take--> own clock --> clock of the day --> the machine steps --> its effects are carried out
                  '------------- a pause may come between any two of these -------------'

The order of the clocks matters. A message's age is taken by the clock of the day, and counted back from the time of the
step. If our own clock was read first, a pause between the two makes the message seem older, and a leader ends too soon.
In the other order, the message would seem younger by the length of the pause, and two could act.

A paused program's other threads go on, so checkers ask its machine and its clock what it may act for, whatever its own
thread is doing. A pause stops either the whole process (frozen: its library sends no beats) or only its thread
(stalled: its library keeps the group believing in it).
"""

import traceback
from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

from neli_router.errors import NeliError
from neli_router.lab.sim.consumer_group.broker import Broker, DayClock
from neli_router.lab.sim.consumer_group.consumer import Consumer
from neli_router.lab.sim.program import Program
from neli_router.lab.sim.world import LocalClock, Violation, World
from neli_router.protocols.consumer_group.events import (
    BrokerEffect,
    BrokerInput,
    Confirm,
    GiveBack,
    LeaveGroup,
    Message,
    Publish,
    Received,
)
from neli_router.protocols.consumer_group.fast_neli import FastNeliMachine
from neli_router.protocols.consumer_group.neli import NeliMachine
from neli_router.protocols.consumer_group.settings import FastNeliSettings
from neli_router.protocols.protocol import NO_STANDING, TICK, Close, News, Notice, Released, Standing, Stopped

__all__ = ["BorrowedMachine", "ConsumerChecks", "ConsumerProcess"]

TURN = 1e-4
"""In sessions: the shortest time a turn takes, so that no process takes infinitely many turns in no time."""

STOPS_HERE = 0.4
"""How often a pause aimed at a turn comes before the next of its moments rather than later."""

BorrowedMachine = NeliMachine | FastNeliMachine


class ConsumerChecks(Protocol):
    """The checkers, as a process sees them."""

    def on_step(self, process: "ConsumerProcess") -> None: ...
    def on_end(self, process: "ConsumerProcess", *, error: NeliError | None) -> None: ...
    def on_trouble(self, until: float) -> None: ...


class ConsumerProcess:
    """One process on one host, of the member called `name`."""

    def __init__(
        self,
        world: World,
        broker: Broker,
        checks: ConsumerChecks,
        *,
        label: str,
        clock: LocalClock,
        day: DayClock,
        name: str,
    ) -> None:
        self.world, self.broker, self.label, self.clock, self.day = world, broker, label, clock, day
        self.options = broker.options
        self.standing: Standing = NO_STANDING
        self.alive, self.was_told_to_end = True, False
        self.paused_until = 0.0
        self.cut_until = 0.0
        self.started_at = world.now
        self.givings: dict[int, int] = {}
        """Partition -> the last giving its machine was notified of, even when it is over."""
        self.tenures: dict[tuple[int, int], int] = {}
        """Partition and term -> the giving under which it was first acted on."""
        self.reads_day_first = False
        """Whether its driver reads the clock of the day before its own, which no driver may do."""
        self._checks = checks
        self._stall = 0.0
        self._ticket = 0
        self._goes_at = inf
        self._turning = False
        self._holds = 0
        self._held: tuple[Callable[..., None], tuple[object, ...]] | None = None
        """The action to continue with when a pause in the middle of a turn is over."""
        self._mail: list[Released | Close] = []
        self.stopped: Stopped | None = None
        """How its machine ended, if it has."""
        self.program = Program(label, self.options, self.options.session, world.random, self._release_later)
        settings, dice = self.options.settings(name), type(world.random)(world.random.getrandbits(64))
        self.machine = (
            FastNeliMachine(
                settings,
                self.options.partitions,
                self.now,
                wall_nanoseconds=round(1e9 * day.at(world.now)),
                rng=dice,
            )
            if isinstance(settings, FastNeliSettings)
            else NeliMachine(settings, self.options.partitions, self.now, rng=dice)
        )
        self.consumer = Consumer(broker, label, clock=clock, on_news=self._wake)
        world.note(label, "started")
        self._wake(world.now)

    # For the world

    @property
    def now(self) -> float:
        """The time that its clock shows."""
        return self.clock.at(self.world.now)

    def post(self, event: Released | Close) -> None:
        if self.alive:
            self.was_told_to_end |= isinstance(event, Close)
            self._mail.append(self.program.release(event.terms) if isinstance(event, Released) else event)
            self._wake(self.world.now)

    def kill(self) -> None:
        """kill -9. Its messages in flight may still land."""
        if self.alive:
            self.world.note(self.label, "killed")
            self._checks.on_trouble(self.world.now)
            self._end(None)

    def pause(self, seconds: float, *, whole: bool) -> None:
        """Stop its thread for `seconds`; if the `whole` process is paused, its library stops, too."""
        until = self.world.now + seconds
        self.paused_until = max(self.paused_until, until)
        if whole:
            self.consumer.frozen_until = max(self.consumer.frozen_until, until)
        self.world.note(self.label, f"{'frozen' if whole else 'stalled'} for {seconds:.6g} s")

    def pause_inside(self, seconds: float) -> None:
        """Freeze the whole process in the middle of its next turn."""
        self._stall = seconds

    def cut_off(self, seconds: float) -> None:
        """Cut it off from everything of the broker."""
        consumer, until = self.consumer, self.world.now + seconds
        self.cut_until = max(self.cut_until, until)
        self._checks.on_trouble(until)
        for cut in ("group_cut_until", "fetch_cut_until", "mute_until"):
            setattr(consumer, cut, max(getattr(consumer, cut), until))

    def heal(self) -> None:
        """Resume now, whatever held it back."""
        self.program.prompt = True
        self.paused_until = self.cut_until = self.world.now
        self._stall = 0.0
        self.day.set_right(self.world.now)
        self.consumer.heal()
        self._go_on(self._holds)
        self._wake(self.world.now)

    # Its turns

    def _wake(self, time: float) -> None:
        """Take a turn at `time`, or before."""
        if self.alive and not self._turning and (time < self._goes_at or self._goes_at < self.world.now):
            self._go_at(time)

    def _go_at(self, time: float) -> None:
        self._ticket += 1
        self._goes_at = time
        if time < inf:
            self.world.at(time, self._go, self._ticket)

    def _go(self, ticket: int) -> None:
        if ticket != self._ticket or not self.alive:
            return
        self._goes_at = inf
        if self.world.now < self.paused_until:
            self._go_at(self.paused_until)
            return
        taken: BrokerInput | Sequence[Message] | None = self._mail.pop(0) if self._mail else self.consumer.take()
        if taken is None and self.now >= self.machine.deadline:
            taken = TICK
        if taken is None:
            self._rest()
            return
        self._turning = True
        self._pass_through(taken, ())

    def _pass_through(self, taken: BrokerInput | Sequence[Message], read: tuple[float, ...]) -> None:
        """Read the clocks in turn, our own first, then the clock of the day; a pause may come before each reading."""
        if not self.alive:
            return
        if self._stall and self.world.random.random() < STOPS_HERE:
            seconds, self._stall = self._stall, 0.0
            self.pause(seconds, whole=True)
            self._hold(self._pass_through, taken, read)
        elif len(read) < 2:
            shown = self.now if bool(read) == self.reads_day_first else self.day.at(self.world.now)
            self._pass_through(taken, (*read, shown))
        else:
            wall, now = read if self.reads_day_first else reversed(read)
            self._step(taken if not isinstance(taken, Sequence) else Received(taken, wall), now)

    def _hold(self, action: Callable[..., None], *arguments: object) -> None:
        """Continue with `action` when the pause is over."""
        self._holds += 1
        self._held = action, arguments
        self.world.at(self.paused_until, self._go_on, self._holds)

    def _go_on(self, ticket: int) -> None:
        if ticket == self._holds and self._held is not None:
            action, arguments = self._held
            self._held = None
            action(*arguments)

    def _step(self, event: BrokerInput, now: float) -> None:
        self.givings.update(self.consumer.givings)
        try:
            effects = self.machine.step(event, now)
        except Exception as error:
            raise Violation("never_crashes", f"{self.label}: {error!r}\n{traceback.format_exc()}") from error
        if event is TICK and self.machine.deadline <= now:
            raise Violation("rests", f"{self.label} has its next deadline at {self.machine.deadline}, and it is {now}")
        self.standing = self.machine.standing
        self._checks.on_step(self)
        if self._stall and effects:
            seconds, self._stall = self._stall, 0.0
            self.pause(seconds, whole=True)
            self._hold(self._finish, effects)
        else:
            self._finish(effects)

    def _finish(self, effects: Sequence[BrokerEffect]) -> None:
        if not self.alive:
            return
        for effect in effects:
            self._carry_out(effect)
        self._turning = False
        if self.stopped is not None:
            self._end(self.stopped.error)
        else:
            self._rest()

    def _carry_out(self, effect: BrokerEffect) -> None:
        match effect:
            case Publish(bodies):
                self.consumer.publish(bodies)
            case Confirm(offsets):
                self.consumer.confirm(offsets)
            case LeaveGroup():
                self.world.note(self.label, "  leaves")
                self.consumer.leave()
            case GiveBack(partitions):
                self.world.note(self.label, f"  gives back {sorted(partitions)}")
                self.consumer.give_back(partitions)
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
        now = self.world.now
        wakes = [self.consumer.next_at(), self.clock.when(self.machine.deadline), now if self._mail else inf]
        self._go_at(max(min(wakes), now + TURN * self.options.session))

    def _end(self, error: NeliError | None) -> None:
        self.alive = False
        self.standing = NO_STANDING
        if self.stopped is not None:
            self.consumer.leave()
        else:
            self.consumer.close()
        self._checks.on_end(self, error=error)

    def _release_later(self, seconds: float, event: Released) -> None:
        self.world.at(self.world.now + seconds, self.post, event)
