"""The router: which member owns this key? Answered from memory, in about the time that hashing the key takes.

    a ledger, or owners in a store --a reader, on its own thread -.
                                                                  v      a table, or why there is none
    a member's pump ------------------------------------------> feed ---------------> Router.owner(key) --> Owner
    a static table -------------------------------------------------'                         '--> or an error

A look-up hashes the key and reads one row. It reads no clock, takes no lock and checks no flag. When the table becomes
too old, when no member is alive, when the process is forked or the router closed, the feed takes the rows away (see
`router/feed.py`). The look-up then finds no row, and only then takes the slow path that finds out why.

`owner` is one Python call, two attributes and a mask, because every further step is measurable: `benchmarks/lookup.py`
shows by how much, and which steps are necessary.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import EllipsisType
from typing import Any, NoReturn, Self, cast

import mmh3

from neli_router.config.config import Config
from neli_router.core import logs
from neli_router.core.clock import host_clock, require_supported_platform
from neli_router.core.closing import Closing
from neli_router.core.keyspace import Key, Layout, Role
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.open import open_ledger, owners_at, require_driver
from neli_router.drivers.owners.base import OwnersSource
from neli_router.errors import ConfigError, NeliError
from neli_router.protocols.protocol import Notice
from neli_router.router.feed import Feed, FixedFeed
from neli_router.router.ledger_reader import LedgerReader
from neli_router.router.owners_reader import OwnersReader
from neli_router.router.reader import CLOSE_MAX, Reader
from neli_router.router.table import At, NoTable, Owner, Peer, Plight, Table, View
from neli_router.router.watch import Watch

__all__ = ["AWAIT_MAX", "MAX_AGE", "BaseRouter", "Router"]

MAX_AGE = 10.0
"""The default for a router that gets only an address. Raising it lets look-ups outlive a longer outage of the ledger,
but also name dead owners for longer; lowering it to a few leases turns every hiccup of the ledger into an error."""

AWAIT_MAX = 30.0
"""How long to wait for the first table: reading a few thousand records takes a fraction of this."""

_hash_32 = mmh3.hash


class BaseRouter:
    """The part that waits for nothing, and so is the same with and without an event loop."""

    __slots__ = ()

    @property
    def feed(self) -> Feed:
        """The feed of this router's table, for wrapping it in another kind of router or adding another reader."""
        raise NotImplementedError

    def owners(self, keys: Iterable[Key]) -> list[Owner]:
        """The owner of each of `keys`, in their order and all from one table. Raises like `owner`, for any of them.

        Faster than a call for each key: it costs hardly more than the bare hashing.
        """
        return self._table_for("the owners of several keys were wanted").owners(keys)

    def owner_of_role(self, role: Role) -> Owner:
        """The owner of `role`: a number, or a name. Raises like `owner`."""
        return self._table_for("the owner of a role was wanted").owner_of_role(role)

    @property
    def table(self) -> Table:
        """All owners, in one immutable value. Raises like `owner`."""
        return self._table_for("the table was wanted")

    @property
    def members(self) -> tuple[Peer, ...]:
        """The members, in the order in which they joined. Raises like `owner`."""
        return self._table_for("the members were wanted").members

    @property
    def at(self) -> At:
        """Up to which offset the ledger was read, and how many seconds ago. Never raises."""
        return self.feed.at

    @property
    def error(self) -> NeliError | None:
        """Why this router stopped for good; None if it has not."""
        return self.feed.error

    def _table_for(self, wanted: str) -> Table:
        view = self.feed.view
        if isinstance(view, Table):
            return view
        raise view.explain(wanted)


class Router(BaseRouter, Closing):
    """Names the owner of a key or a role. May be shared between threads, except for `close` and `reopen`.

    `source` is a configuration; the address of a ledger; a function that opens one, which `reopen` calls again; a store
    of owners; or a feed that is filled elsewhere, such as a member's. `layout` is refused if the ledger records another
    one; None takes the recorded one. `name` says which member's keys are `mine`. A table that was not confirmed for
    `max_age` seconds is an error; with None, look-ups go on with the last known table. Without these three arguments, a
    configuration's own values apply.

    Opens and reads the ledger on its own thread, and writes nothing to it. Waits until there is a table, or the
    certainty that the group has no member. After `timeout` seconds it raises StaleTable, or LedgerMissing if no member
    has made the ledger by then. With `wait=False` it does not wait, and look-ups report a ledger that cannot be used.

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
                source = owners_at(source.common_owners)
        age = MAX_AGE if isinstance(max_age, EllipsisType) else max_age
        self._start: Callable[[], Reader] | None = None
        if isinstance(source, Feed):
            feed = source
        elif isinstance(source, OwnersSource):
            feed = Feed(source.address, kind="the table of owners", layout=layout, max_age=age, tell=_log)
            self._start = partial(OwnersReader, feed, source, clock=host_clock)
        else:
            opener, address = _opener(source)
            feed = Feed(address, layout=layout, max_age=age, tell=_log)
            self._start = partial(LedgerReader, feed, opener, tell=_log)
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
        """A router over the owners that members record in Redis, without a ledger: `redis://host:6379/group` and so on.

        The members need the option `ownership` with that address. Otherwise like the constructor, but `at.offset` is
        the number of the last change in the table. Raises ConfigError, LedgerUnusable.
        """
        return cls(owners_at(url), layout=layout, name=name, max_age=max_age, wait=wait, timeout=timeout)

    @classmethod
    def from_postgresql(
        cls,
        url: str,
        *,
        layout: Layout | None = None,
        name: str | None = None,
        max_age: float | None = MAX_AGE,
        wait: bool = True,
        timeout: float = AWAIT_MAX,
    ) -> Self:
        """The same for owners in PostgreSQL: `postgresql://host/database?group=group` and so on. See `from_redis`."""
        return cls(owners_at(url), layout=layout, name=name, max_age=max_age, wait=wait, timeout=timeout)

    # Look-ups

    def owner(self, key: Key) -> Owner:
        """The owner of `key`. Raises BadKey, NoOwner, StaleTable, Forked, Closed, or the error that stopped the router.

        A saved reference `owner = router.owner` sees every change.
        """
        try:
            # Bytes may hold anything, a text only ASCII: see keyspace.py. Everything else takes the slow path.
            if key.isascii() or type(key) is bytes:
                return self._rows[_hash_32(key) & self._mask]
        except (AttributeError, IndexError, TypeError):
            pass  # Not a key, or no row. The error raised below must not carry this error as its context.
        return self._owner_the_longer_way(key)

    def mine(self, keys: Iterable[Key]) -> list[Key]:
        """Those of `keys` that the member with this router's `name` owns, in their order.

        This only says what the table says. Before acting on a key, ask the member for a lease.
        """
        if self._name is None:
            raise ConfigError(["mine() needs to know who is asking: give the router a name, as Router(..., name='a')"])
        return self._table_for("a member's keys were wanted").held_by(self._name, keys)

    @property
    def feed(self) -> Feed:
        return self._feed

    def watch(self) -> Watch:
        """The changes of owners from now on, to iterate over or to take one by one."""
        return self._feed.watch()

    def await_table(self, timeout: float = AWAIT_MAX) -> None:
        """Wait until there is a table, or the certainty that no member is alive. Raises StaleTable after `timeout`."""
        self._feed.await_table(timeout)

    # Life

    def reopen(self, *, wait: bool = True, timeout: float = AWAIT_MAX) -> None:
        """Open the ledger again, in this process: after a fork, or after an error that was fixed.

        A router that a member feeds cannot be reopened; open a member, and use its router. Raises like the constructor.
        """
        view = self._view
        if isinstance(view, NoTable) and (self._start is None or view.plight is Plight.CLOSED):
            raise view.explain(f"a router of {self._feed.address or 'a ledger'} was to be reopened")
        if self._start is None:
            return  # It is fed already, or its table never changes and is always open.
        self._stop()
        self._feed.reopen()
        self._begin(wait=wait, timeout=timeout)

    def close(self, *, timeout: float = CLOSE_MAX) -> None:
        """Stop reading and release the ledger, waiting at most `timeout` seconds for that. Look-ups then raise Closed.
        May be called twice."""
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

    # Implementation

    def _begin(self, *, wait: bool, timeout: float) -> None:
        if self._start is None:
            return
        try:
            self._reader = self._start()
            if wait:
                self._feed.await_table(timeout)
        except BaseException:
            self.close(timeout=0)  # The caller has waited long enough.
            raise

    def _stop(self, timeout: float = CLOSE_MAX) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close(timeout)

    def _show(self, view: View) -> None:
        # Another thread may be between any two steps of a look-up, and hold the previous rows. This does no harm: the
        # mask depends only on the layout, which never changes, so it fits all rows that there will ever be.
        if isinstance(view, Table):
            self._mask = view.mask
        self._view = view
        self._rows = view.rows if isinstance(view, Table) else ()

    def _owner_the_longer_way(self, key: Key) -> Owner:
        layout, view = self._feed.layout, self._view
        slot = (layout or Layout()).slot(key)  # A bad key is reported first, whatever else is wrong.
        if isinstance(view, Table):
            return view.owner_of_slot(slot)
        raise view.explain(f"the owner of {'a key' if layout is None else f'slot {slot}'} was wanted")


def _opener(source: Any) -> tuple[Callable[[], Ledger], str]:
    """The function that opens the ledger, and the ledger's address if it is known before opening."""
    if isinstance(source, Config | str):
        config = Config.given(source)
        require_driver(config.ledger)  # On the caller's thread, so that it raises there even with wait=False.
        # A router only reads, so it does not create a ledger.
        return partial(open_ledger, config.common_ledger, create=False, patience=config.lease), config.public_ledger
    if not callable(source):
        problem = (
            f"a {type(source).__name__} is not a source: give a Config, an address, or a function that opens a ledger"
        )
        raise ConfigError([problem])
    return cast("Callable[[], Ledger]", source), ""


def _log(notice: Notice) -> None:
    logs.logger().warning(notice.event, **notice.fields)
