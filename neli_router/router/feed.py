"""The feed: a source publishes the table to it, and it decides whether look-ups may believe that table.

                        .--- older than max_age -------------> STALE ---- read again ----.
    AWAITING --read--> a table <----------------------------------------------------------'
                        '--- no member heard for too long ---> SILENT --- one was heard --> a table
    from anywhere:   --fail--> STOPPED      --fork, in the child--> FORKED      --close--> CLOSED

AWAITING has a variant, UNMADE, while there is no ledger yet because no member has made one.

A source publishes a Reading: a table, and how current it is. Readers see either a table or the reason why there is
none. Any event that ends a table also replaces it: the watchdog when time has passed, the source when it fails, the
fork hook. So a look-up needs no clock and no lock, and may believe any table that it sees.

The watchdog is one thread for all feeds of the process. Freshness is a promise about time, and time also passes while
the thread that reads a ledger hangs inside its driver for an hour. So a different thread must take the table away.

    asleep --the earliest deadline, or NAP_MAX--> check each watched feed --> asleep until the next one
       ^                                                                        '--none left--> the thread ends
       '-- `watch`, `nudge`: a deadline that may come earlier than the present nap ends

A source is a thread that reads a ledger or a store of owners (`ledger_reader.py`, `owners_reader.py`), a member's own
pump, or a program that wrote its table down (`FixedFeed`). A feed knows tables, but not how they are made.
"""

import math
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from weakref import WeakSet

from neli_router.core.clock import Clock, host_clock
from neli_router.core.closing import anew
from neli_router.core.keyspace import Layout
from neli_router.errors import (
    Closed,
    ConfigError,
    Forked,
    GroupMismatch,
    LedgerMissing,
    NeliError,
    NoOwner,
    StaleTable,
)
from neli_router.protocols.protocol import Notice
from neli_router.router.table import ALARMING, NO_MEMBER, OVER, WAITING, At, NoTable, Plight, Table, View
from neli_router.router.watch import Watch, changes

__all__ = ["HAS_LEFT", "WATCHDOG", "Feed", "FixedFeed", "Reading", "Watchdog"]

NAP_MAX = 1.0
"""The watchdog's longest sleep while there is a deadline. A sleep does not count the time that the host is suspended,
but the clocks of feeds do: after a suspend, a table that became too old is still used for at most this long. Lowering
it costs wake-ups that find nothing to do."""

TOLD_AFTER = 1.0
"""Seconds that a feed waits for its first table before the log says what it waits for. A group that starts at the same
time as its routers is there by then; a person who mistyped an address should not stare at an empty log for longer."""

HAS_LEFT = "a member that has left"

MAKE = "start a member, which makes it, or correct the address"


class Reading(NamedTuple):
    """The news that a source publishes when it has read to the end."""

    table: Table | None
    """None while no group was founded. The same object as in the last reading if nothing in it has changed."""
    offset: int
    """Everything below this offset was read."""
    read_at: float
    heard_at: float = -math.inf
    """When a sign of a member was last read."""
    silence_max: float = math.inf
    """After how long without a sign of any member all of them count as dead."""
    last_heard: Callable[[], str] = lambda: HAS_LEFT
    """The member that gave the last sign, in words for an error."""


NOTHING_READ = Reading(None, 0, -math.inf)


class Feed:
    """One source's table. May be shared between threads; `publish` may be called by one thread at a time.

    Errors use `kind` to say what the address stands for; the address is empty while it is not known. `tell` gets a
    Notice whenever readers lose the table or get one again. With `watched=False`, a caller that turns the clock must
    call `check` afterwards.
    """

    def __init__(
        self,
        address: str,
        *,
        kind: str = "the ledger",
        layout: Layout | None = None,
        max_age: float | None = None,
        clock: Clock = host_clock,
        watched: bool = True,
        tell: Callable[[Notice], None],
    ) -> None:
        if max_age is not None and not (type(max_age) in (int, float) and max_age > 0):
            raise ConfigError([f"max_age={max_age!r} must be a number of seconds above 0, or None for no limit"])
        self.address, self.layout, self._kind = address, layout, kind
        self._max_age = math.inf if max_age is None else max_age
        self._clock, self._tell = clock, tell
        self._renew_lock()
        self._reading = NOTHING_READ
        self._table: Table | None = None
        """The newest table that was ever read; `view` says whether look-ups may use it."""
        self._read_at = self._listening_since = -math.inf
        self._trouble = self._unmade = ""
        self._over: Plight | None = None
        self.error: NeliError | None = None
        """Why the source stopped for good; None if it has not."""
        self.view: View = self._no_table(Plight.AWAITING)
        """The table that look-ups may believe, or why there is none."""
        self._shows: list[Callable[[View], None]] = []
        self._watches: WeakSet[Watch] = WeakSet()
        self._watched = watched
        self._tell_at = clock() + TOLD_AFTER
        """When the log says what this feed waits for; `inf` once it did."""
        WATCHDOG.know(self)
        if self._watched:
            WATCHDOG.watch(self)

    # For readers.

    @property
    def at(self) -> At:
        """How current the table is."""
        return At(self._reading.offset, max(0.0, self._clock() - self._read_at))

    def show_to(self, show: Callable[[View], None]) -> None:
        """Call `show` with the view, now and whenever it changes."""
        with self._lock:
            self._shows.append(show)
            show(self.view)

    def hide_from(self, show: Callable[[View], None]) -> None:
        """Undo a `show_to`."""
        with self._lock:
            self._shows.remove(show)

    def watch(self, tell: Callable[[], None] | None = None) -> Watch:
        """A queue of the changes from now on; `tell` is called whenever there is something to take."""
        with self._lock:
            watch = Watch(self._table, tell=tell)
            self._watches.add(watch)
            self._end_watches()
        return watch

    def is_settled(self) -> bool:
        """Whether there is an answer: a table, or that no member is alive. Raises the error that ended the feed."""
        view = self.view
        if isinstance(view, Table):
            return True
        if view.plight in OVER:
            raise view.explain(f"a table of {self.address or self._kind} was wanted")
        return view.plight in NO_MEMBER

    def await_table(self, timeout: float) -> None:
        """Wait until it is settled. Raises StaleTable if that takes longer than `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(self.is_settled, timeout):
                raise self.late(timeout)

    def late(self, timeout: float) -> NeliError:
        """The error for a caller whose wait timed out."""
        wanted = f"a table of {self.address or self._kind} was wanted within {timeout:g} s"
        if self._unmade:  # Not a look-up's NoOwner: the caller may have got the address wrong.
            return LedgerMissing(wanted, self._unmade_yet, MAKE)
        return self._no_table(Plight.AWAITING).explain(wanted)

    # For the source.

    def publish(self, reading: Reading) -> None:
        """Take `reading`: the source was read to its end, and this is the result.

        Must not be called before the end was reached once: a table from the group's past would look current.
        """
        with self._lock:
            if self._over is not None:
                return
            if reading.read_at > self._read_at:
                if self._trouble:  # A reader that was cut off heard no member; that says nothing about the members.
                    self._listening_since = reading.read_at
                self._read_at, self._trouble, self._unmade = reading.read_at, "", ""
            self._reading, before = reading, self._table
            if reading.table is not None and reading.table is not before:
                self._take(reading.table)
            notice = self._settle()
            if self._table is not None and self._table is not before and (watches := list(self._watches)):
                # Only now: a program that is notified of a change and looks it up must find it.
                changed = changes(before, self._table)
                for watch in watches:
                    watch.put(changed)
        if notice is not None:
            self._tell(notice)

    def away(self, trouble: str, *, unmade: str = "") -> None:
        """The source cannot be read at the moment. Errors quote `trouble`, its driver's words, which must not be empty.

        `unmade` is what was found in the place of a source that no member has made yet.
        """
        self._trouble = trouble
        if unmade != self._unmade:
            with self._lock:
                self._unmade = unmade
                self._settle()

    def fail(self, error: NeliError) -> None:
        """The source stopped for good."""
        with self._lock:
            if self._over is not None:
                return
            self._finish(Plight.STOPPED, error)
            notice = self._settle()
        if notice is not None:
            self._tell(notice)

    def reopen(self) -> None:
        """Another source begins to publish, in this process."""
        with self._lock:
            self._over = self.error = None
            self._read_at, self._trouble, self._unmade = -math.inf, "", ""
            self._tell_at = self._clock() + TOLD_AFTER
            # A look-up may still be explaining a silence from before.
            self._reading = NOTHING_READ._replace(heard_at=self._reading.heard_at)
            self._settle()
        if self._watched:
            WATCHDOG.watch(self)

    def close(self) -> None:
        """The table is no longer needed. May be called twice."""
        with self._lock:
            self._finish(Plight.CLOSED, self.error)
            self._settle()
        WATCHDOG.unwatch(self)

    # Time and forks.

    def check(self) -> float:
        """End a table that became too old, or log what the first one waits for; return after how many seconds to check
        again."""
        with self._lock:
            notice, view, now = self._settle(), self.view, self._clock()
            due_at = self._read_at + self._max_age if isinstance(view, Table) else math.inf
            if isinstance(view, NoTable) and view.plight in WAITING:
                if now >= self._tell_at:
                    self._tell_at = math.inf
                    notice = Notice("router.waits", {"ledger": self.address, "why": self.late(0).found})
                due_at = self._tell_at
        if notice is not None:
            self._tell(notice)
        return due_at - now

    def fork(self) -> None:
        """Called in a child of a fork: the publishing thread does not exist here, and may have held the lock."""
        self._renew_lock()
        if self._over is Plight.CLOSED:
            return
        for watch in list(self._watches):
            watch.fork()
        with self._lock:
            self._finish(Plight.FORKED, None)
            self._settle()

    # Implementation.

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()  # Reentrant: a signal handler may close a router at any moment.
        self._changed = threading.Condition(self._lock)

    def _take(self, table: Table) -> None:
        """Use `table` from now on, unless its layout differs from the one that look-ups use."""
        if self.layout is None:
            self.layout = table.layout
        if self.layout == table.layout:
            self._table = table
            return
        error = GroupMismatch(
            f"a group with the layout of this router was wanted on {self.address}",
            f"the ledger records another since its genesis: {self.layout.difference(table.layout)}",
            "leave the layout to the ledger, or give the one that it records",
        )
        self._finish(Plight.STOPPED, error)

    def _settle(self) -> Notice | None:
        """Show the current view; returns a notice if an operator would want to know. The caller holds the lock.

        The caller reports the notice without the lock: a log may be slow, and its program may look something up.
        """
        was, now = self.view, self._judge()
        if was is now or (isinstance(was, NoTable) and isinstance(now, NoTable) and was.plight is now.plight):
            return None
        self.view = now
        for show in list(self._shows):
            show(now)
        self._changed.notify_all()
        if isinstance(now, NoTable) and now.plight in ALARMING:
            why = str(now.explain("a table was wanted"))
            return Notice(ALARMING[now.plight], {"ledger": self.address, "why": why})
        if isinstance(now, Table) and isinstance(was, NoTable):
            WATCHDOG.nudge()  # The feed had no deadline before, and now has one.
            if was.plight in ALARMING:
                return Notice("router.recovered", {"ledger": self.address, "at": self._reading.offset})
        return None

    def _judge(self) -> View:
        if self._over is not None:
            return self._no_table(self._over)
        if self._read_at == -math.inf:
            return self._no_table(Plight.UNMADE if self._unmade else Plight.AWAITING)
        if self._clock() - self._read_at > self._max_age:
            return self._no_table(Plight.STALE)
        reading, table = self._reading, self._table
        if table is None or reading.table is None:
            return self._no_table(Plight.UNFOUNDED)
        # Counted up to the last read, not to now: the sign that we wait for may be there, not read yet.
        if self._read_at - max(reading.heard_at, self._listening_since) > reading.silence_max:
            return self._no_table(Plight.SILENT)
        return table

    def _finish(self, plight: Plight, error: NeliError | None) -> None:
        self._over, self.error = plight, error
        self._end_watches()

    def _end_watches(self) -> None:
        if self._over is None:
            return
        wanted = f"a change in the table of {self.address} was wanted"
        why = None if self._over is Plight.CLOSED else partial(self._no_table(self._over).explain, wanted)
        for watch in list(self._watches):
            watch.end(why)

    def _no_table(self, plight: Plight) -> NoTable:
        # The error is bound now, because it may be explained after another source has begun.
        return NoTable(plight, partial(self._explain, plight, self.error))

    def _explain(self, plight: Plight, error: NeliError | None, wanted: str) -> NeliError:
        place, because = self._place, f" (the last try: {self._trouble})" if self._trouble else ""
        match plight:
            case Plight.AWAITING:
                found = f"{place} was not yet read up to its end{because}"
                return StaleTable(wanted, found, "wait for it with `await_table`, or see why it cannot be read")
            case Plight.UNMADE:
                return NoOwner(wanted, self._unmade_yet, MAKE)
            case Plight.STALE:
                at, remedy = self.at, "see why it cannot be read; look-ups resume automatically once it is read again"
                read = f"{place} was last read {at.age:.1f} s ago, up to offset {at.offset}"
                return StaleTable(wanted, f"{read}, and max_age is {self._max_age:g} s{because}", remedy)
            case Plight.UNFOUNDED:
                found = f"no member ever joined, no group has begun on {self.address}"
                return NoOwner(wanted, found, "start a member")
            case Plight.SILENT:
                silent_for, who = self._clock() - self._reading.heard_at, self._reading.last_heard()
                found = f"no member is alive on {self.address} (last heard {silent_for:.1f} s ago: {who})"
                return NoOwner(wanted, found, "start a member, or see why the members cannot reach the ledger")
            case Plight.FORKED:
                found = f"this process is a fork, and what reads {self._kind} stayed in its parent"
                return Forked(wanted, found, "reopen the router here; if a member feeds it, open a member here")
            case Plight.CLOSED:
                remedy = "look up before closing, or open another router"
                return Closed(wanted, "this router was closed before", remedy)
            case Plight.STOPPED:
                assert error is not None, "only an error stops a source"
                return anew(error)

    @property
    def _place(self) -> str:
        return f"{self._kind} {self.address}".rstrip()

    @property
    def _unmade_yet(self) -> str:
        return f"no member has made {self._place} yet ({self._unmade})"


class FixedFeed(Feed):
    """Shows one table forever: for tests, for tools, and for groups whose owners never change.

    It has no thread and no file, so a fork cannot break anything.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table.address, layout=table.layout, watched=False, tell=lambda _: None)
        self.publish(Reading(table, table.offset, read_at=math.inf))

    def fork(self) -> None:
        self._renew_lock()


class Watchdog:
    """Ends tables that became too old, and notifies feeds of a fork. Holds only weak references to feeds. May be shared
    between threads."""

    _changed: threading.Condition
    _watched: WeakSet[Feed]
    _thread: threading.Thread | None
    _nudged: bool

    def __init__(self) -> None:
        self._known: WeakSet[Feed] = WeakSet()
        self._sit_down()

    def know(self, feed: Feed) -> None:
        """Notify `feed` of forks, for as long as the program keeps it."""
        self._known.add(feed)

    def watch(self, feed: Feed) -> None:
        """Check `feed` from now on, for as long as the program keeps it."""
        with self._changed:
            self._watched.add(feed)
            self.nudge()
            if self._thread is not None:
                return
            self._thread = thread = threading.Thread(target=self._run, name="neli-watchdog", daemon=True)
        # Without our lock, because it takes a while on a busy machine. A signal handler may close a member meanwhile,
        # and so wait for a thread that calls `nudge`.
        thread.start()

    def unwatch(self, feed: Feed) -> None:
        """Stop checking `feed`."""
        with self._changed:
            self._watched.discard(feed)
            self.nudge()

    def nudge(self) -> None:
        """A deadline changed, and may now be earlier."""
        with self._changed:
            self._nudged = True
            self._changed.notify()

    def fork(self) -> None:
        """Called in a child of a fork: the thread does not exist here, and may have held the lock."""
        self._sit_down()
        for feed in list(self._known):
            feed.fork()

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
            # Without our lock: each feed takes its own, and the thread that holds a feed's lock may be calling `nudge`.
            left = min(feed.check() for feed in watched)
            del watched  # Otherwise this thread would keep them alive while it sleeps.
            with self._changed:
                if not self._nudged:
                    self._changed.wait(None if left == math.inf else max(0.0, min(left, NAP_MAX)))


WATCHDOG = Watchdog()
"""The watchdog of this process."""

if hasattr(os, "register_at_fork"):  # Windows lacks it; the import must still succeed, to refuse with a clear message.
    os.register_at_fork(after_in_child=WATCHDOG.fork)
