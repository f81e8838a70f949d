"""The feed: what a source tells about the table, and what look-ups may believe of it.

                        .--- older than max_age -------------> STALE ---- read again ----.
    AWAITING --read--> a table <----------------------------------------------------------'
                        '--- no member heard for so long ----> SILENT --- one was heard --> a table
    from anywhere:   --fail--> STOPPED      --fork, in the child--> FORKED      --close--> CLOSED

A source publishes what it read; readers are shown either a table or the reason why there is none. Whatever ends a
table replaces it: the watchdog when time has passed, the source when it fails, the hook of a fork. So those who look
things up need no clock and no lock, and a table that is shown may be believed.

Sources are a thread that reads a ledger (`reader.py`), and a member's own pump, which reads it anyway.
"""

import math
import threading
from collections.abc import Callable
from functools import partial
from weakref import WeakSet

from neli_router.clock import Clock, host_clock
from neli_router.errors import ConfigError, GroupMismatch, NeliError
from neli_router.induction.fold import State
from neli_router.keyspace import Layout
from neli_router.protocol import Notice
from neli_router.router.refusal import ALARMING, NOBODY, OVER, At, Facts, Plight, Refused, View, explain
from neli_router.router.table import Table
from neli_router.router.watch import Watch, changes
from neli_router.router.watchdog import WATCHDOG

__all__ = ["SILENCE_LEASES", "Feed"]

SILENCE_LEASES = 3
"""For how many leases nobody may be heard before the group counts as dead. One member's death is no such thing: the
others expire it after one. Lowering this calls a group dead whose only member is restarting; raising it has look-ups
name dead owners for longer."""


class Feed:
    """One source's table. May be shared between threads; `publish` is for one at a time.

    `tell` gets a Notice whenever readers lose the table or have one again. With `watched=False`, whoever turns the
    clock must call `check` afterwards.
    """

    def __init__(
        self,
        address: str,
        *,
        layout: Layout | None = None,
        max_age: float | None = None,
        clock: Clock = host_clock,
        watched: bool = True,
        tell: Callable[[Notice], None],
    ) -> None:
        if max_age is not None and not (type(max_age) in (int, float) and max_age > 0):
            raise ConfigError([f"max_age={max_age!r} must be a number of seconds above 0, or None for no limit"])
        self.address, self.layout, self.kind = address, layout, "the ledger"
        self._max_age = math.inf if max_age is None else max_age
        self._clock, self._tell = clock, tell
        self._changed = threading.Condition()  # Reentrant: a signal handler may close a router at any moment.
        self._known: tuple[State, Table] | None = None
        self._state = State()
        self._read_at = self._heard_at = self._listening_since = -math.inf
        self._trouble = ""
        self._over: Plight | None = None
        self._error: NeliError | None = None
        self._view: View = self._refused(Plight.AWAITING)
        self._shows: list[Callable[[View], None]] = []
        self._watches: WeakSet[Watch] = WeakSet()
        self._watched = watched and max_age is not None
        WATCHDOG.know(self)
        if self._watched:
            WATCHDOG.watch(self)

    # What readers ask.

    @property
    def at(self) -> At:
        """How current the table is."""
        return At(self._state.at, max(0.0, self._clock() - self._read_at))

    @property
    def view(self) -> View:
        """The table that look-ups may believe, or why there is none."""
        return self._view

    @property
    def error(self) -> NeliError | None:
        """Why the source stopped for good; None if it did not."""
        return self._error

    def show_to(self, show: Callable[[View], None]) -> None:
        """Call `show` with the view, now and whenever it changes."""
        with self._changed:
            self._shows.append(show)
            show(self._view)

    def hide_from(self, show: Callable[[View], None]) -> None:
        """Take a `show_to` back."""
        with self._changed:
            self._shows.remove(show)

    def watch(self, tell: Callable[[], None] | None = None) -> Watch:
        """A queue of the changes from now on; `tell` is called whenever there is something to take."""
        with self._changed:
            watch = Watch(self._known[1] if self._known else None, tell=tell)
            self._watches.add(watch)
            self._end_watches()
        return watch

    def is_settled(self) -> bool:
        """Whether there is something to go by: a table, or that nobody is alive. Raises what ended the feed."""
        view = self._view
        if isinstance(view, Table):
            return True
        if view.plight in OVER:
            raise view.explain(f"a table of {self.address} was wanted")
        return view.plight in NOBODY

    def await_table(self, timeout: float) -> None:
        """Wait until it is settled. Raises StaleTable if that takes longer than `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(self.is_settled, timeout):
                raise self.late(timeout)

    def late(self, timeout: float) -> NeliError:
        """The error of who waited in vain."""
        return self._refused(Plight.AWAITING).explain(f"a table of {self.address} was wanted within {timeout:g} s")

    # What the source tells.

    def publish(self, state: State, read_at: float, heard_at: float) -> None:
        """The ledger, last read to its end at `read_at`, says `state`; a member gave its last sign at `heard_at`.

        Not to be called before the end was reached once: a table from the group's past would pass for today's.
        """
        with self._changed:
            if self._over is not None:
                return
            if read_at > self._read_at:
                if self._trouble:  # Who could not read heard nobody, and that is no sign of anybody's death.
                    self._listening_since = read_at
                self._read_at, self._trouble = read_at, ""
            self._heard_at = heard_at
            before = self._known
            if error := self._take(state):
                self._finish(Plight.STOPPED, error)
            notice = self._settle()
            self._announce(before)  # Only now: who is told of a change and looks it up must find it.
        self._report(notice)

    def away(self, trouble: str) -> None:
        """The source cannot read at the moment. Errors repeat what its driver said, which must not be empty."""
        self._trouble = trouble

    def fail(self, error: NeliError) -> None:
        """The source stopped for good."""
        with self._changed:
            if self._over is not None:
                return
            self._finish(Plight.STOPPED, error)
            notice = self._settle()
        self._report(notice)

    def reopen(self) -> None:
        """Another source begins to tell, in this process."""
        with self._changed:
            self._over = self._error = None
            self._read_at, self._trouble, self._state = -math.inf, "", State()
            self._settle()
        if self._watched:
            WATCHDOG.watch(self)

    def close(self) -> None:
        """Nobody needs it any more. Twice is fine."""
        with self._changed:
            self._finish(Plight.CLOSED, self._error)
            self._settle()
        WATCHDOG.unwatch(self)

    # What time and forks do.

    def check(self) -> float:
        """End a table that became too old; return the seconds for which the present one is good."""
        with self._changed:
            notice = self._settle()
            left = self._read_at + self._max_age - self._clock() if isinstance(self._view, Table) else math.inf
        self._report(notice)
        return left

    def fork(self) -> None:
        """In a child: the thread that tells is not here, and may have held the lock when it was left behind."""
        self._changed = threading.Condition()
        if self._over is Plight.CLOSED:
            return
        for watch in list(self._watches):
            watch.fork()
        with self._changed:
            self._finish(Plight.FORKED, None)
            self._settle()

    # How.

    def _take(self, state: State) -> GroupMismatch | None:
        """Make the table of `state`, unless nothing that it shows has changed."""
        self._state = state
        if state.genesis is None:
            return None
        if self.layout is None:
            self.layout = state.genesis.layout
        if self.layout != state.genesis.layout:
            return GroupMismatch(
                f"a group with the layout of this router was wanted on {self.address}",
                f"the ledger records another since its genesis: {self.layout.difference(state.genesis.layout)}",
                "leave the layout to the ledger, or give the one that it records",
            )
        was, before = self._known or (None, None)
        shown = ("owners", "terms", "seats", "weights")
        if was is None or any(getattr(was, part) is not getattr(state, part) for part in shown):
            after = Table.of(state, self.address, was=was, before=before)
            # State and table change as one, in one assignment: a fork in between would leave a pair that is none.
            self._known = state, after
        return None

    def _announce(self, before: tuple[State, Table] | None) -> None:
        if self._known is None or self._known is before or not (watches := list(self._watches)):
            return
        changed = changes(before[1] if before else None, self._known[1])
        for watch in watches:
            watch.put(changed)

    def _settle(self) -> Notice | None:
        """Show what is true now; returns what an operator would want to know of it. The caller holds the lock."""
        was, now = self._view, self._judge()
        if was is now or (isinstance(was, Refused) and isinstance(now, Refused) and was.plight is now.plight):
            return None
        self._view = now
        for show in list(self._shows):
            show(now)
        self._changed.notify_all()
        if isinstance(now, Refused) and now.plight in ALARMING:
            why = str(now.explain("a table was wanted"))
            return Notice(f"router.{now.plight.name.lower()}", {"ledger": self.address, "why": why})
        if isinstance(now, Table):
            if isinstance(was, Refused):
                WATCHDOG.nudge()  # There was no deadline, and now there is.
            if isinstance(was, Refused) and was.plight in ALARMING:
                return Notice("router.recovered", {"ledger": self.address, "at": self._state.at})
        return None

    def _judge(self) -> View:
        if self._over is not None:
            return self._refused(self._over)
        if self._read_at == -math.inf:
            return self._refused(Plight.AWAITING)
        if self._clock() - self._read_at > self._max_age:
            return self._refused(Plight.STALE)
        genesis = self._state.genesis
        if self._known is None or genesis is None:
            return self._refused(Plight.UNFOUNDED)
        # Counted up to the last read, not to now: what nobody has read yet may be the sign that we wait for.
        silent_for = self._read_at - max(self._heard_at, self._listening_since)
        if self._state.seats and silent_for > SILENCE_LEASES * genesis.lease:
            return self._refused(Plight.SILENT)
        return self._known[1]

    def _finish(self, plight: Plight, error: NeliError | None) -> None:
        self._over, self._error = plight, error
        self._end_watches()

    def _end_watches(self) -> None:
        if self._over is None:
            return
        wanted = f"a change in the table of {self.address} was wanted"
        why = None if self._over is Plight.CLOSED else partial(self._refused(self._over).explain, wanted)
        for watch in list(self._watches):
            watch.end(why)

    def _refused(self, plight: Plight) -> Refused:
        # The error is bound now, because whoever holds this refusal may ask when another source has begun.
        return Refused(plight, partial(self._explain, plight, self._error))

    def _explain(self, plight: Plight, error: NeliError | None, wanted: str) -> NeliError:
        silent_for = self._clock() - self._heard_at
        facts = Facts(self.address, self.at, self._max_age, silent_for, self._trouble, self._state, error, self.kind)
        return explain(plight, wanted, facts)

    def _report(self, notice: Notice | None) -> None:
        # Without the lock: a log may be slow, and what it writes to may look something up.
        if notice is not None:
            self._tell(notice)
