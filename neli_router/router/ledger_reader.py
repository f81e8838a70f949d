"""The ledger's reader: fills a feed with the tables folded from a ledger.

    open the ledger, find the newest snapshot --cannot now, or no member has made it--> try again after RETRY_EVERY
      '--> turn the pump --> publish, once the end was reached --> turn ...
              '--the ledger lost records, is another group's, is unusable--> the feed stops, with that error

    state that was folded --LedgerReadings--> a Reading with its table, for a feed

All of this runs on the reader's thread: a driver may hang in `open` for as long as its server does not answer.

This is the only module of the router that knows a protocol. It turns the pump of an observer, and makes tables from
folded states, for its own feed and for a member's.
"""

from collections.abc import Callable
from functools import partial
from math import inf

from neli_router.core.clock import host_clock
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.ledgers.pump import Pump
from neli_router.errors import LedgerMissing, LedgerTrimmed, LedgerUnavailable
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.observer import Observer
from neli_router.protocols.protocol import News, Notice, Stopped
from neli_router.router.feed import HAS_LEFT, Feed, Reading
from neli_router.router.reader import Reader
from neli_router.router.table import Owner, Peer, Table, no_owner

__all__ = ["SILENCE_LEASES", "LedgerReader", "LedgerReadings", "table_of"]

SILENCE_LEASES = 3
"""After how many leases without hearing any member the group counts as dead. This is not for a single death: others
expire a dead member after one lease. With a lower value, a group whose only member is restarting counts as dead; with a
higher one, look-ups name dead owners for longer."""

RETRY_EVERY = 0.1
"""The pause before opening is tried again. It is short because nothing is served meanwhile, but longer than the pump's
pause because opening costs more than reading."""


class LedgerReader(Reader):
    """Fills `feed` from the ledger that `open_ledger` opens."""

    def __init__(self, feed: Feed, open_ledger: Callable[[], Ledger], *, tell: Callable[[Notice], None]) -> None:
        super().__init__(feed, "the ledger", clock=host_clock)
        self._open, self._tell = open_ledger, tell
        self._readings = LedgerReadings()
        self._ledger: Ledger | None = None
        self._pump: Pump[Observer] | None = None
        self._thread.start()

    def _turn(self) -> None:
        if self._pump is None:
            self._begin()
        else:
            self._pump.turn()

    def _wake(self) -> None:
        if (ledger := self._ledger) is not None:
            ledger.wake()

    def _release(self) -> None:
        if self._ledger is not None:
            self._ledger.close()

    def _begin(self) -> None:
        if (feed := self._feed()) is None:
            return
        try:
            if self._ledger is None:
                self._ledger = self._open()
                feed.address = self._ledger.address
            self._pump = Pump(
                self._ledger,
                Observer,
                clock=self._clock,
                pause=self._pause,
                publish=self._publish,
                tell=self._hear,
            )
            self._is_open = True
        except (LedgerUnavailable, LedgerTrimmed, LedgerMissing) as error:
            feed.away(str(error), unmade=error.found if isinstance(error, LedgerMissing) else "")
            del feed, error  # Neither must be kept alive while we wait.
            self._closing.wait(RETRY_EVERY)

    def _publish(self, observer: Observer, now: float) -> None:
        # A closed reader may still be returning from a driver that hung, while another reader already fills the feed.
        if self._pump is None or self._is_over() or not observer.caught_up:
            return
        if (feed := self._feed()) is not None:
            feed.publish(
                self._readings.of(observer.state, feed.address, read_at=self._pump.fresh_at, heard_at=observer.heard_at)
            )

    def _hear(self, news: News) -> None:
        match news:
            case Stopped(error) if error is not None:
                self._stop(error)
            case Notice(event, fields):
                if event == "ledger.unavailable":
                    self._away(str(fields["error"]))
                self._tell(news)
            case _:
                pass  # An observer leads nothing, and never gets a Close.

    def _pause(self, seconds: float) -> None:
        self._closing.wait(seconds)


class LedgerReadings:
    """Turns the states of one ledger into readings. A table reuses the rows of the one before."""

    def __init__(self) -> None:
        self._known: tuple[State, Table] | None = None

    def of(self, state: State, address: str, *, read_at: float, heard_at: float) -> Reading:
        """The reading of `state`, for a ledger at `address` that was read to its end at `read_at`. Its last sign of a
        member was read at `heard_at`."""
        genesis = state.genesis
        if genesis is None:
            return Reading(None, state.at, read_at, heard_at)
        was, table = self._known or (None, None)
        # Compared by identity: the fold keeps objects that a record does not change, and a Beat changes none of these.
        if (
            table is None
            or was is None
            or was.owners is not state.owners
            or was.terms is not state.terms
            or was.seats is not state.seats
            or was.weights is not state.weights
        ):
            if table is not None and table.layout != genesis.layout:
                was = table = None
            table = table_of(state, address, was=was, before=table)
            self._known = state, table
        silence_max = SILENCE_LEASES * genesis.lease if state.seats else inf
        return Reading(table, state.at, read_at, heard_at, silence_max, partial(_last_heard, state))


def table_of(state: State, address: str, *, was: State | None = None, before: Table | None = None) -> Table:
    """The table of `state`, which has a genesis. Reuses unchanged owners of `before`, the table of `was`."""
    assert state.genesis is not None, "without a genesis there is no layout, and so no table"
    if was is None or before is None:
        was, before = State(), None
    size = state.genesis.layout.partitions
    kept = before.partitions if before is not None else (None,) * size
    holders = was.owners or (None,) * size
    terms = was.terms or (0,) * size
    cards = {seat.incarnation: (seat.name, seat.address) for seat in state.seats.values()}
    owners = [
        owner
        if holder == held_by and term == held_under
        else (None if holder is None else Owner(*cards[holder], partition, term))
        for partition, (owner, holder, held_by, term, held_under) in enumerate(
            zip(kept, state.owners, holders, state.terms, terms, strict=True)
        )
    ]
    peers = tuple(
        Peer(seat.name, seat.address, state.weights.get(seat.name, seat.weight), seat.zone)
        for seat in state.seats.values()
    )
    return Table.of(address, state.genesis.layout, state.at, owners, peers, no_owner(any(state.terms)))


def _last_heard(state: State) -> str:
    if not state.seats:  # The members have left since.
        return HAS_LEFT
    newest = max(state.last_beats, key=lambda incarnation: state.last_beats[incarnation])
    seat = state.seats[newest]
    return f"member {seat.name} at {seat.address}" if seat.address else f"member {seat.name}"
