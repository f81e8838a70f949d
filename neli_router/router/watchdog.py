"""The watchdog: one thread that ends what became too old, so that look-ups need not look at a clock.

    asleep --the earliest deadline, or NAP_MAX--> check each feed that is watched --> asleep until the next one
       ^                                                                               '--none left--> the thread ends
       '-- `watch`, `nudge`: a deadline that may come earlier than the present nap ends

Freshness is a promise about time, and time passes without anybody doing anything: the thread that reads the ledger may
hang inside its driver for an hour. So somebody else must take the table away, and one thread can do it for all routers
of a process. It keeps none of them alive.

A fork is the other thing that happens to all of them at once: the child has their memory and none of their threads. So
the watchdog knows those who need no watching, too, and tells them.
"""

import math
import os
import threading
from typing import Protocol
from weakref import WeakSet

__all__ = ["NAP_MAX", "WATCHDOG", "Watchdog", "Watched"]

NAP_MAX = 1.0
"""The longest sleep while there is a deadline. A sleep does not count the time that the host is suspended, and the
clocks of those who are watched do: after a suspend, a table that became too old is still used for this long at most.
Lowering it costs wake-ups that find nothing."""


class Watched(Protocol):
    """What has a deadline, and must know when it is a copy in a forked child."""

    def check(self) -> float:
        """End what is over now; return the seconds until the next deadline, `inf` if there is none."""

    def fork(self) -> None:
        """This is the child."""


class Watchdog:
    """May be shared between threads."""

    _changed: threading.Condition
    _watched: WeakSet[Watched]
    _thread: threading.Thread | None
    _nudged: bool

    def __init__(self) -> None:
        self._known: WeakSet[Watched] = WeakSet()
        self._sit_down()

    def know(self, one: Watched) -> None:
        """Tell `one` of forks, for as long as somebody else keeps it."""
        self._known.add(one)

    def watch(self, one: Watched) -> None:
        """Check `one` from now on, for as long as somebody else keeps it."""
        with self._changed:
            self._watched.add(one)
            self.nudge()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="neli-watchdog", daemon=True)
                self._thread.start()

    def unwatch(self, one: Watched) -> None:
        """Check `one` no longer."""
        with self._changed:
            self._watched.discard(one)
            self.nudge()

    def nudge(self) -> None:
        """A deadline changed, and not to a later one."""
        with self._changed:
            self._nudged = True
            self._changed.notify()

    def fork(self) -> None:
        """In a child: the thread is not here, and may have held the lock when it was left behind."""
        self._sit_down()
        for one in list(self._known):
            one.fork()

    def _sit_down(self) -> None:
        self._changed = threading.Condition()  # Reentrant: a signal handler may open or close a router at any moment.
        self._watched, self._thread, self._nudged = WeakSet(), None, False

    def _run(self) -> None:
        while True:
            with self._changed:
                self._nudged = False
                watched = list(self._watched)
                if not watched:
                    self._thread = None
                    return
            # Without our lock, because each of them takes its own, and whoever holds that may be calling `nudge`.
            left = min(one.check() for one in watched)
            del watched  # Or this thread would keep them alive while it sleeps.
            with self._changed:
                if not self._nudged:
                    self._changed.wait(None if left == math.inf else max(0.0, min(left, NAP_MAX)))


WATCHDOG = Watchdog()
"""The one of this process."""

if hasattr(os, "register_at_fork"):  # Windows has none, and must come as far as to be refused with a clear sentence.
    os.register_at_fork(after_in_child=WATCHDOG.fork)
