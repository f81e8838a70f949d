"""Lifetime: what becomes of members when their process forks, or ends without closing them.

    fork  --in the child---> void: the threads, the connection and the place in the group are the parent's
    exit  --before the end-> asked to leave in good order, for at most EXIT_MAX, then to leave at once

A script that ends without `close` would otherwise keep its partitions until the others miss its heartbeats. And a child
that went on with its parent's leases would be a second leader that nobody knows of.
"""

import atexit
import os
import time
from typing import Protocol
from weakref import WeakSet

__all__ = ["EXIT_MAX", "Mortal", "register"]

EXIT_MAX = 2.0
"""How long a process waits at its end for handlers and blocks to finish. Longer is kinder to work in daemon threads,
shorter to whoever presses Ctrl-C."""


class Mortal(Protocol):
    """What can be forked away, or be still there at the end."""

    def on_fork(self, parent: int) -> None:
        """This is a child of process `parent`. Takes no lock: whoever holds it may not exist here."""

    def ask_close(self) -> None:
        """Begin to leave. Must not wait."""

    def close(self, timeout: float | None) -> None:
        """Wait until it has left, and after `timeout` seconds break off."""


def register(mortal: Mortal) -> None:
    """Tell `mortal` of forks and of the end, for as long as somebody else keeps it."""
    _living.add(mortal)


_living: WeakSet[Mortal] = WeakSet()


def _after_fork() -> None:
    parent = os.getppid()
    for mortal in list(_living):
        mortal.on_fork(parent)
    _living.clear()


def _at_exit() -> None:
    ending = list(_living)
    for mortal in ending:
        mortal.ask_close()
    give_up_at = time.monotonic() + EXIT_MAX
    for mortal in ending:
        mortal.close(max(0.0, give_up_at - time.monotonic()))


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):  # Windows has none, and must come as far as to be refused with a clear sentence.
    os.register_at_fork(after_in_child=_after_fork)
