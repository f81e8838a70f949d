"""A reader: one thread that fills a feed for a router, and never writes to its source.

    turn, and turn again --closed, or no program keeps the feed any longer--> release the source
                         --an error that will not heal--> the feed stops, with that error

The thread does not keep the feed alive: a router that a program forgot must not read forever.
"""

import os
import threading
from weakref import ref

from neli_router.core.clock import Clock
from neli_router.errors import NeliError
from neli_router.router.feed import Feed

__all__ = ["CLOSE_MAX", "Reader"]

CLOSE_MAX = 1.0
"""How long `close` waits for the thread. If a driver hangs for longer, the thread, a daemon, is left running."""


class Reader:
    """Fills `feed`; errors call its source `source`. `close` may be called from any thread."""

    def __init__(self, feed: Feed, source: str, *, clock: Clock) -> None:
        self._feed, self._source, self._clock = ref(feed), source, clock
        self._is_open = False
        """Whether the source was opened. Until then it may hang for long, and holds nothing worth waiting for."""
        self._closing = threading.Event()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name="neli-router", daemon=True)

    def close(self, timeout: float = CLOSE_MAX) -> None:
        """Stop reading, and release the source. Waits at most `timeout` seconds, and not at all while the source is
        still being opened. May be called twice; in a child of a fork there is nothing to stop."""
        if os.getpid() != self._process:
            return
        self._closing.set()
        self._wake()
        if self._thread is not threading.current_thread() and self._is_open:
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._turn()
        except NeliError as error:
            self._stop(error)
        except BaseException as error:
            # The feed must stop, too: otherwise look-ups would use the last table for as long as max_age allows.
            found = f"it ended by a {type(error).__name__}, which is a defect"
            remedy = "report it with the traceback that this process wrote, and reopen the router"
            self._stop(NeliError(f"a thread that reads {self._source} was wanted", found, remedy))
            raise
        finally:
            self._release()

    def _is_over(self) -> bool:
        return self._closing.is_set() or self._feed() is None

    def _away(self, trouble: str) -> None:
        if (feed := self._feed()) is not None:
            feed.away(trouble)

    def _stop(self, error: NeliError) -> None:
        if not self._is_over() and (feed := self._feed()) is not None:
            feed.fail(error)
        self._closing.set()

    def _turn(self) -> None:
        """One bounded piece of work. Raises errors that will not heal."""
        raise NotImplementedError

    def _wake(self) -> None:
        """Make a waiting turn return. May be called from any thread."""
        raise NotImplementedError

    def _release(self) -> None:
        """Release the source, at the end of the thread."""
        raise NotImplementedError
