"""The reader: one thread that reads a ledger for a router, and never writes to it.

    open the ledger, find the newest snapshot --cannot now--> try again after RETRY_EVERY
      '--> turn the pump --> publish, once the end was reached --> turn ...
              '--the ledger lost records, is another group's, is unusable--> the feed stops, with that error

It ends when it is closed, when its ledger fails for good, or when nobody holds its feed any more: a router that a
program forgot must not read for ever.
"""

import os
import threading
from collections.abc import Callable
from weakref import ref

from neli_router.clock import Clock
from neli_router.errors import LedgerTrimmed, LedgerUnavailable, NeliError
from neli_router.induction.observer import Observer
from neli_router.ledgers.base import Ledger
from neli_router.protocol import Effect, Notice, Stopped
from neli_router.pump import Pump
from neli_router.router.feed import Feed

__all__ = ["CLOSE_MAX", "Reader"]

RETRY_EVERY = 0.1
"""The pause before opening is tried again. Nothing is served meanwhile, so it is short; and opening costs more than
reading, so it is longer than the pump's pause."""

CLOSE_MAX = 5.0
"""How long `close` waits for the thread. A driver may hang for longer; then the thread, a daemon, is left to it."""


class Reader:
    """Feeds `feed` from the ledger that `open_ledger` opens. `close` may be called from any thread."""

    def __init__(
        self, feed: Feed, open_ledger: Callable[[], Ledger], *, clock: Clock, tell: Callable[[Notice], None]
    ) -> None:
        self._feed, self._open, self._clock, self._tell = ref(feed), open_ledger, clock, tell
        self._closing = threading.Event()
        self._process = os.getpid()
        self._ledger: Ledger | None = None
        self._pump: Pump[Observer] | None = None
        try:
            self._ledger = self._opened(feed)  # Here, so that whoever asks for what there is not learns it at once.
        except LedgerUnavailable as error:
            feed.away(str(error))
        self._thread = threading.Thread(target=self._run, name="neli-router", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading, and release the ledger. Twice is fine; in a child of a fork, there is nothing to stop."""
        if os.getpid() != self._process:
            return
        self._closing.set()
        if (ledger := self._ledger) is not None:
            ledger.wake()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_MAX)

    def _run(self) -> None:
        try:
            while not self._is_over():
                if self._pump is None:
                    self._begin()
                else:
                    self._pump.turn()
        except NeliError as error:
            self._stop(error)
        except BaseException as error:
            # Not to go on: without this, look-ups would use the last table for as long as max_age lets them.
            self._stop(_defect(error))
            raise
        finally:
            if self._ledger is not None:
                self._ledger.close()

    def _is_over(self) -> bool:
        return self._closing.is_set() or self._feed() is None

    def _opened(self, feed: Feed) -> Ledger:
        ledger = self._open()
        feed.address = ledger.address
        return ledger

    def _begin(self) -> None:
        if (feed := self._feed()) is None:
            return
        try:
            self._ledger = self._ledger or self._opened(feed)
            self._pump = Pump(
                self._ledger,
                Observer,
                clock=self._clock,
                pause=self._pause,
                publish=self._publish,
                tell=self._hear,
            )
        except (LedgerUnavailable, LedgerTrimmed) as error:
            feed.away(str(error))
            del feed  # Not to be kept alive while we wait.
            self._closing.wait(RETRY_EVERY)

    def _publish(self, observer: Observer, now: float) -> None:
        # A closed reader may still be on its way out of a driver that hung, and another reader may feed by now.
        if self._pump is None or self._is_over() or not observer.caught_up:
            return
        if (feed := self._feed()) is not None:
            feed.publish(observer.state, self._pump.fresh_at, observer.heard_at)

    def _hear(self, effect: Effect) -> None:
        match effect:
            case Stopped(error) if error is not None:
                self._stop(error)
            case Notice(event, fields):
                if event == "ledger.unavailable" and (feed := self._feed()) is not None:
                    feed.away(str(fields["error"]))
                self._tell(effect)
            case _:
                pass  # Who has no seat is given nothing, and this one is never told to close.

    def _stop(self, error: NeliError) -> None:
        if not self._is_over() and (feed := self._feed()) is not None:
            feed.fail(error)
        self._closing.set()

    def _pause(self, seconds: float) -> None:
        self._closing.wait(seconds)


def _defect(error: BaseException) -> NeliError:
    return NeliError(
        "a thread that reads the ledger was wanted",
        f"it ended by a {type(error).__name__}, which is a defect",
        "report it with the traceback that this process wrote, and reopen the router",
    )
