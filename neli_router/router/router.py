"""The router: who owns this key? Answered from memory, in about the time that hashing the key takes.

    a ledger, or owners in Redis --a reader, a thread of its own--.
                                                                  v      a table, or why there is none
    a member's pump ------------------------------------------> feed ---------------> Router.owner(key) --> Owner
    a static table -------------------------------------------------'                         '--> or an error

A look-up hashes the key and reads one row. It asks no clock, takes no lock and checks no flag. When the table becomes
too old, when no member is alive, when the process is forked or the router closed, the feed takes the row away (see
`router/feed.py`); the look-up then finds nothing, and only then goes the longer way that finds out why.

`owner` is one Python call, two attributes and a mask, because every further step shows: `benchmarks/lookup.py` says by
how much, and which steps cannot be spared.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import EllipsisType
from typing import Any, NoReturn, Self, cast

import mmh3

from neli_router.config import config as configuration
from neli_router.config.config import Config
from neli_router.core import logs
from neli_router.core.clock import host_clock, require_supported_platform
from neli_router.core.closing import Closing
from neli_router.core.keyspace import Key, Layout, Role
from neli_router.drivers.ledgers.addresses import require_driver
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.owners.base import OwnersSource
from neli_router.errors import ConfigError, NeliError
from neli_router.protocols.protocol import Notice
from neli_router.router.feed import Feed, FixedFeed
from neli_router.router.ledger_reader import LedgerReader
from neli_router.router.reader import CLOSE_MAX, Reader
from neli_router.router.refusal import At, NoTable, Plight, View
from neli_router.router.table import Owner, Peer, Table
from neli_router.router.watch import Watch

__all__ = ["AWAIT_MAX", "MAX_AGE", "Router"]

MAX_AGE = 10.0
"""For a router that is given an address alone. Raising it lets look-ups outlive a longer outage of the ledger, and name
owners for longer that are no more; lowering it to a few leases makes every hiccup of the ledger an error."""

AWAIT_MAX = 30.0
"""How long to wait for the first table: reading a few thousand records takes a fraction of it."""

_hash_32 = mmh3.hash


class Router(Closing):
    """Names the owner of a key or a role. May be shared between threads, all but `close` and `reopen`.

    `source` is a configuration; the address of a ledger; a function that opens one, which `reopen` calls again; a
    store of owners; or a feed that is filled elsewhere, as that of a member is. `layout` is refused if the ledger
    records another, None takes what it records. `name` says which member's keys are `mine`. A table that was not
    confirmed for `max_age` seconds is an error; None has look-ups go on with the last one known. A configuration's own
    three values hold where none are given.

    Opens and reads the ledger on a thread of its own, and writes nothing to it. Waits until there is a table, or the
    certainty that the group has no member, at most for `timeout` seconds, and then raises StaleTable, or LedgerMissing
    if no member has made the ledger by then. With `wait=False` it does not wait, and a ledger that cannot be used is
    told by look-ups.

    After a fork, look-ups in the child raise Forked until `reopen`. Cannot be pickled: send the address.
    """

    __slots__ = ("__weakref__", "_feed", "_mask", "_name", "_reader", "_rows", "_start", "_view")

    _view: View
    _rows: tuple[Owner, ...]
    _mask: int

    def __init__(
        self,
        source: Config | str | Callable[[], Ledger] | Feed | OwnersSource,
        *,
        layout: Layout | None = None,
        name: str | None = None,
        max_age: float | EllipsisType | None = ...,
        wait: bool = True,
        timeout: float = AWAIT_MAX,
    ) -> None:
        require_supported_platform()
        if isinstance(source, Config):
            layout, name = layout or source.layout, name or source.name
            max_age = source.max_age if isinstance(max_age, EllipsisType) else max_age
            if not source.has_ledger:
                source = configuration.owners_of(source)
        age = MAX_AGE if isinstance(max_age, EllipsisType) else max_age
        self._start: Callable[[], Reader] | None = None
        if isinstance(source, Feed):
            feed = source
        elif isinstance(source, OwnersSource):
            feed = Feed(source.address, kind="the table of owners", layout=layout, max_age=age, tell=_log)
            self._start = partial(_read_owners, feed, source)
        else:
            opener, address = _opener(source)
            feed = Feed(address, layout=layout, max_age=age, tell=_log)
            self._start = partial(LedgerReader, feed, opener, clock=host_clock, tell=_log)
        self._name, self._feed = name, feed
        self._reader: Reader | None = None
        self._rows, self._mask = (), 0
        feed.show_to(self._show)
        self._begin(wait=wait, timeout=timeout)

    @classmethod
    def static(
        cls,
        owners: Sequence[Owner | None] | Mapping[int, Owner],
        layout: Layout | None = None,
        *,
        name: str | None = None,
    ) -> Self:
        """A router over a table that never changes: an owner for each partition of `layout`. Raises ConfigError."""
        return cls(FixedFeed(Table.static(owners, layout or Layout())), name=name)

    @classmethod
    def from_redis(
        cls,
        url: str,
        *,
        layout: Layout | None = None,
        name: str | None = None,
        max_age: float | None = MAX_AGE,
        wait: bool = True,
        timeout: float = AWAIT_MAX,
    ) -> Self:
        """A router over what owners tell in Redis, without a ledger: `redis://host:6379/group` and its like.

        The members need the option `ownership` with that address. Otherwise as the constructor; `at.offset` is then
        the number of the change that the table is as of. Raises ConfigError, LedgerUnusable.
        """
        return cls(configuration.owners_at(url), layout=layout, name=name, max_age=max_age, wait=wait, timeout=timeout)

    # Look-ups

    def owner(self, key: Key) -> Owner:
        """Who owns `key`. Raises BadKey, NoOwner, StaleTable, Forked, Closed, or what stopped the router.

        A kept `owner = router.owner` sees every change.
        """
        try:
            # Bytes may hold anything, a text only ASCII: see keyspace.py. Everything else takes the longer way.
            if key.isascii() or type(key) is bytes:
                return self._rows[_hash_32(key) & self._mask]
        except (AttributeError, IndexError, TypeError):
            pass  # No key, or no row. The error that is raised below must not carry this one as its context.
        return self._owner_the_longer_way(key)

    def owners(self, keys: Iterable[Key]) -> list[Owner]:
        """The owner of each of `keys`, in their order and all from one table. Raises as `owner` does, for any of them.

        Quicker than asking for each: it costs hardly more than the bare hashing.
        """
        return self._table_for("the owners of several keys were wanted").owners(keys)

    def owner_of_role(self, role: Role) -> Owner:
        """Who fills `role`: a number, or a name. Raises as `owner` does."""
        return self._table_for("the owner of a role was wanted").owner_of_role(role)

    def mine(self, keys: Iterable[Key]) -> list[Key]:
        """Those of `keys` that the member whose name this router was given owns, in their order.

        It tells what the table says. Before acting on a key, ask the member for a lease.
        """
        if self._name is None:
            raise ConfigError(["mine() needs to know who is asking: give the router a name, as Router(..., name='a')"])
        return self._table_for("a member's keys were wanted").held_by(self._name, keys)

    # What is known

    @property
    def table(self) -> Table:
        """All owners, in one value that never changes. Raises as `owner` does."""
        return self._table_for("the table was wanted")

    @property
    def members(self) -> tuple[Peer, ...]:
        """The members, in the order in which they joined. Raises as `owner` does."""
        return self._table_for("the members were wanted").members

    @property
    def at(self) -> At:
        """Up to which offset the ledger was read, and how many seconds ago. Never raises."""
        return self._feed.at

    @property
    def error(self) -> NeliError | None:
        """Why this router stopped for good; None as long as it has not."""
        return self._feed.error

    @property
    def feed(self) -> Feed:
        """The source of this router's table; for another form of it, or another reader beside it."""
        return self._feed

    def watch(self) -> Watch:
        """The changes of owners from now on, to iterate over or to take one by one."""
        return self._feed.watch()

    def await_table(self, timeout: float = AWAIT_MAX) -> None:
        """Wait until there is a table, or the certainty that no member is alive. Raises StaleTable after `timeout`."""
        self._feed.await_table(timeout)

    # Life

    def reopen(self, *, wait: bool = True, timeout: float = AWAIT_MAX) -> None:
        """Open the ledger anew, in this process: after a fork, or after an error that was mended.

        A router that a member feeds cannot do that; open a member, and use its router. Raises as the constructor does.
        """
        view = self._view
        if isinstance(view, NoTable) and (self._start is None or view.plight is Plight.CLOSED):
            raise view.explain(f"a router of {self._feed.address or 'a ledger'} was to be reopened")
        if self._start is None:
            return  # It is fed already, and a table that never changes is open for ever.
        self._stop()
        self._feed.reopen()
        self._begin(wait=wait, timeout=timeout)

    def close(self, *, timeout: float = CLOSE_MAX) -> None:
        """Stop reading and release the ledger, which is waited for at most `timeout` seconds. Look-ups then raise
        Closed. Twice is fine."""
        self._feed.close()
        self._stop(timeout)

    def __repr__(self) -> str:
        view, at = self._view, self.at
        plight = f"{view.plight.name.lower()}, " if isinstance(view, NoTable) else ""
        return f"<Router of {self._feed.address or 'a ledger'}: {plight}at offset {at.offset}, {at.age:.1f} s old>"

    def __reduce__(self) -> NoReturn:
        address = self._feed.address or "the ledger's address"
        raise TypeError(
            f"a Router cannot be pickled: it has a thread and an open ledger here. Send {address} "
            "and open a router where that arrives, or send `router.table`, which is a plain value"
        )

    # How

    def _begin(self, *, wait: bool, timeout: float) -> None:
        if self._start is None:
            return
        try:
            self._reader = self._start()
            if wait:
                self._feed.await_table(timeout)
        except BaseException:
            self.close(timeout=0)  # The caller has waited for long enough.
            raise

    def _stop(self, timeout: float = CLOSE_MAX) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close(timeout)

    def _show(self, view: View) -> None:
        # Another thread may be between any two steps of a look-up, and hold the rows of before. That is no harm,
        # because the mask belongs to the layout, which stays: it fits to all rows there will ever be.
        if isinstance(view, Table):
            self._mask = view.mask
        self._view = view
        self._rows = view.rows if isinstance(view, Table) else ()

    def _owner_the_longer_way(self, key: Key) -> Owner:
        layout, view = self._feed.layout, self._view
        slot = (layout or Layout()).slot(key)  # First of all, a key must be a key, whatever else is wrong.
        if isinstance(view, Table):
            return view.owner_of_slot(slot)
        raise view.explain(f"the owner of {'a key' if layout is None else f'slot {slot}'} was wanted")

    def _table_for(self, wanted: str) -> Table:
        view = self._view
        if isinstance(view, Table):
            return view
        raise view.explain(wanted)


def _read_owners(feed: Feed, source: OwnersSource) -> Reader:
    from neli_router.router.owners_reader import OwnersReader  # noqa: PLC0415 - only its users pay for it.

    return OwnersReader(feed, source, clock=host_clock)


def _opener(source: Any) -> tuple[Callable[[], Ledger], str]:
    """The function that opens the ledger, and the ledger's address as far as it is known before."""
    if isinstance(source, Config | str):
        config = Config.given(source)
        require_driver(config.ledger)  # On the caller's thread, to which it is raised even if it does not wait.
        # A router only reads, so it makes no ledger.
        return partial(configuration.open, config, create=False), config.public_ledger
    if not callable(source):
        problem = (
            f"a {type(source).__name__} is no source: give a Config, an address, or a function that opens a ledger"
        )
        raise ConfigError([problem])
    return cast("Callable[[], Ledger]", source), ""


def _log(notice: Notice) -> None:
    logs.logger().warning(notice.event, **notice.fields)
