"""A simulated thread: shipped code that stops in the middle of a call while the rest of the world goes on.

    asleep --its time, or woken--> running --a moment, in a pause--> stopped --the pause is over--> running
       ^                              |
       '----------- sleep ------------'--killed, or its work is done--> over

A pump calls its driver, its clocks and its member, one after another. In a real process any time may pass between two
of these calls: a signal, a garbage collection or a busy host stops the thread. So each of them is a *moment* here. A
pause that meets a thread at rest stops it at one of the next moments, and only a seed knows at which.

Each thread is a greenlet, so the shipped code runs unchanged: it is called, and calls, like on a real thread. Only one
runs at a time, until it sleeps, and the world decides which one is next.
"""

from collections.abc import Callable
from math import inf

from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]

from neli_router.lab.sim.world import World

__all__ = ["TURN", "WAKE", "SimulatedThread"]

TURN = 1e-4
"""In leases, or sessions: the shortest sleep, so that no process takes infinitely many turns in no time."""

WAKE = 1e-3
"""In the same unit: the longest that a sleeping thread takes to notice that something was posted."""

STOPS_HERE = 0.4
"""How often a pause stops a thread at the next moment rather than at a later one."""


class SimulatedThread:
    """Runs `work` once. `on_pause` is called with the end of each pause that begins inside the work."""

    def __init__(self, world: World, work: Callable[[], None], *, on_pause: Callable[[float], None]) -> None:
        self.paused_until = 0.0
        self.slept = 0
        """How often its work has slept."""
        self._world, self._on_pause = world, on_pause
        self._greenlet = greenlet(work)
        self._goes_at = inf
        self._ticket = 0
        self._stall = 0.0
        self._is_stopped = self._is_woken = False

    # For the world

    def start(self, time: float) -> None:
        """Begin the work at `time`."""
        self._go_at(time)

    def wake(self, time: float) -> None:
        """End its sleep at `time`, if it does not end before; if it does not sleep, its next sleep ends immediately."""
        if self._is_stopped or self._goes_at == inf:
            self._is_woken = True
        elif time < self._goes_at:
            self._go_at(time)

    def pause(self, seconds: float) -> None:
        """Stop it for `seconds`, at one of its next moments."""
        self.paused_until = max(self.paused_until, self._world.now + seconds)

    def pause_inside(self, seconds: float) -> None:
        """Stop it for `seconds` in the middle of its work: the pause begins at one of its next moments."""
        self._stall = seconds

    def heal(self) -> None:
        """End all pauses."""
        self.paused_until, self._stall = self._world.now, 0.0
        if self._is_stopped:
            self._go_at(self._world.now)
        else:
            self.wake(self._world.now)

    def kill(self) -> None:
        """It does nothing more."""
        self._ticket += 1
        self._greenlet.throw(GreenletExit)

    # For its work

    def moment(self) -> None:
        """Between two calls of its work: a pause may stop it here."""
        world = self._world
        if self._stall and world.random.random() < STOPS_HERE:
            self.pause(self._stall)
            self._stall = 0.0
            self._on_pause(self.paused_until)
            self._stop()
        elif world.now < self.paused_until and world.random.random() < STOPS_HERE:
            self._stop()

    def sleep(self, until: float) -> None:
        """Sleep until then, or until it is woken. A pause that comes meanwhile stops it later."""
        if self._world.now < self.paused_until:
            self._stop()
        if self._is_woken:
            self._is_woken, until = False, min(until, self._world.now)
        self.slept += 1
        self._rest(until)

    def _stop(self) -> None:
        self._is_stopped = True
        while self._world.now < self.paused_until:
            self._rest(self.paused_until)
        self._is_stopped = False

    def _rest(self, until: float) -> None:
        self._go_at(until)
        parent = self._greenlet.parent
        assert parent is not None
        parent.switch()

    def _go_at(self, time: float) -> None:
        self._ticket += 1
        self._goes_at = time
        if time < inf:
            self._world.at(time, self._go, self._ticket)

    def _go(self, ticket: int) -> None:
        if ticket == self._ticket:
            self._goes_at = inf
            self._greenlet.parent = getcurrent()
            self._greenlet.switch()
