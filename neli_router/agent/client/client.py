"""The client: asks the agent of this host, which is a member, so that a short-lived program need not be one.

    with Client() as client:                              finds the agent by NELI_AGENT, or at its default socket
        client.owner("customer-7").address                one request: under a millisecond on a Unix socket
        with client.leading("nightly") as lease:          waits until this host leads, and holds the role
            while work():
                lease.check()                             raises as soon as somebody else may lead
                database.write(..., term=lease.term)      what cannot be checked again carries the term

    caller --call--> one pool of connections --HTTP--> agent
    caller --leading--> Following, a thread --stream--> agent      tells the hold; the caller waits for it
                            '--- lease? ---> pool

A fork leaves the child with the parent's connections, on which both would speak at once. So there a client forgets
them and opens a pool of its own; blocks of `leading` belong to the parent.
"""

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakSet

import httpx

from neli_router.agent.address import Address
from neli_router.agent.client import calls
from neli_router.agent.client.calls import TIMEOUT, Call, answered, named, no_agent
from neli_router.agent.client.endpoint import Door, Stream, close_forgotten
from neli_router.agent.client.following import Following, idle
from neli_router.agent.client.leases import AgentLease, Hold
from neli_router.agent.wire import (
    MembersView,
    MovesView,
    OwnerView,
    StatusView,
    TableView,
    WishAsked,
    WishView,
)
from neli_router.closing import Closing
from neli_router.errors import Closed
from neli_router.keyspace import Key, Role

__all__ = ["Client"]

Answer = TypeVar("Answer")

_clients: "WeakSet[Client]" = WeakSet()


class Client(Closing):
    """Asks one agent. May be shared between threads, and used after a fork, where it connects anew.

    `address` and `token` come from NELI_AGENT and NELI_TOKEN unless given; `timeout` is in seconds, for each request.
    Nothing is opened before the first. Raises NoAgent if none answers, and otherwise what the agent raised.
    """

    def __init__(self, address: str | None = None, *, token: str | None = None, timeout: float = TIMEOUT) -> None:
        self._door, self._timeout = Door(address, token), timeout
        self._closed = False
        self._lock = threading.Lock()
        self._pool: httpx.HTTPTransport | None = None
        self._streams: WeakSet[Stream[Any]] = WeakSet()
        self._forgotten: list[object] = []
        _clients.add(self)

    @property
    def address(self) -> Address:
        return self._door.address

    # Questions

    def owner(self, key: Key) -> OwnerView:
        """Who owns `key`. Raises NoOwner, StaleTable, BadKey."""
        return named(self.call(calls.owner(key)))

    def owner_of_role(self, role: Role) -> OwnerView:
        """Who leads `role`: a number, or a name, which is a key."""
        return named(self.call(calls.owner_of_role(role)))

    def owners(self, keys: Iterable[Key]) -> list[OwnerView]:
        """Who owns each of `keys`, in their order. One that nobody owns has no `name`, and says why."""
        return [view for batch in calls.batches(keys) for view in self.call(calls.owners(batch)).owners]

    def table(self) -> TableView:
        return self.call(calls.table())

    def members(self) -> MembersView:
        return self.call(calls.members())

    def moves(self, *, limit: int = 100) -> MovesView:
        """The last moves of partitions, the newest last."""
        return self.call(calls.moves(limit))

    def status(self) -> StatusView:
        """All of it at one moment: table, members, moves."""
        return self.call(calls.status())

    def watch(self, key: Key | None = None, *, role: Role | None = None) -> Stream[OwnerView]:
        """The owner of `key` or `role`, or of every partition, now and after each change. Iterate and close it."""
        return self.stream(calls.watch(key, role))

    # Leading

    def lease(self, role: Role) -> AgentLease | None:
        """The lease of `role`, if this host leads it now. It is not renewed, and nobody waits for it: see `leading`."""
        hold = Hold(role)
        asked_at = hold.clock()
        view = self.call(calls.lease(role))
        hold.told("acquired", view)
        hold.confirmed(view, asked_at)
        return AgentLease(hold, idle) if view.leads and hold.is_held else None

    @contextmanager
    def leading(self, role: Role, *, timeout: float | None = None) -> Iterator[AgentLease]:
        """A block of work for `role`: waits until this host leads it, and holds up its handover until the end.

        Raises NotLeading if that takes longer than `timeout` seconds, and LeaseLost at the end of a block whose lease
        no longer holds there, unless the block raised something itself. The agent's end meanwhile raises NoAgent.
        """
        following = Following(self, role)
        try:
            lease = following.await_lease(timeout)
            yield lease
            lease.check()
        finally:
            following.close()

    # Wishes, of operators. Each returns when the ledger shows it; with `preview` it only says what it would move.

    def drain(self, name: str, *, preview: bool = False) -> WishView:
        """Whoever is called `name` shall own nothing but what is pinned to it."""
        return self.call(calls.wish("drain", WishAsked(name=name, preview=preview)))

    def undrain(self, name: str, *, preview: bool = False) -> WishView:
        """Take a drain back."""
        return self.call(calls.wish("undrain", WishAsked(name=name, preview=preview)))

    def pin(self, partition: int, name: str, *, preview: bool = False) -> WishView:
        """`partition` shall belong to whoever is called `name`."""
        return self.call(calls.wish("pin", WishAsked(name=name, partition=partition, preview=preview)))

    def unpin(self, partition: int, *, preview: bool = False) -> WishView:
        """Take a pin back."""
        return self.call(calls.wish("unpin", WishAsked(partition=partition, preview=preview)))

    def weigh(self, name: str, weight: int | None, *, preview: bool = False) -> WishView:
        """`name` counts with `weight` from now on; None lets it count with its own."""
        return self.call(calls.wish("weigh", WishAsked(name=name, weight=weight, preview=preview)))

    # How

    def call(self, call: Call[Answer], *, timeout: float | None = None) -> Answer:
        """Ask, and decode the answer. Not for programs."""
        patience = timeout or call.timeout or self._timeout
        return self._read(call, self._send(self._door.request(call, patience, read=patience)))

    def stream(self, call: Call[Answer]) -> Stream[Answer]:
        """Ask for a stream; returns once it was accepted. Not for programs."""
        # An agent may have nothing to say for days.
        response = self._send(self._door.request(call, self._timeout, read=None))
        if response.status_code != 200:
            self._read(call, response)
            raise AssertionError("what is not 200 is a refusal, and that was raised")
        stream = Stream(call, response, self.address)
        self._streams.add(stream)
        return stream

    def _read(self, call: Call[Answer], response: httpx.Response) -> Answer:
        try:
            content = response.read()
        except httpx.TransportError as error:
            trouble = no_agent(self.address, error)
        else:
            return answered(call, self.address, response.status_code, content, has_token=self._door.has_token)
        finally:
            response.close()
        raise trouble  # Outside of the handler: the error of httpx knows the request, and so a key.

    def _send(self, request: httpx.Request) -> httpx.Response:
        pool = self._opened()
        try:
            try:
                return pool.handle_request(request)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                # A connection that idled may end just as it is used again. Everything here may be asked twice.
                return pool.handle_request(request)
        except httpx.TransportError as error:
            close_forgotten(error)
            trouble = no_agent(self.address, error)
        if self._closed:
            self._opened()
        raise trouble

    def _opened(self) -> httpx.HTTPTransport:
        with self._lock:
            if self._closed:
                raise Closed("an open client was needed", "this one was closed before", "make another")
            if self._pool is None:
                self._pool = httpx.HTTPTransport(**self._door.options)
            return self._pool

    def renew(self) -> None:
        """After a fork: begin without connections. Whoever held the locks may not exist here."""
        self._lock = threading.Lock()
        # Never collected: that would close sockets, and say so, in the middle of something else.
        self._forgotten.append(self._pool)
        self._pool = None
        self._streams = WeakSet()

    # The end

    def close(self) -> None:
        """Close all connections; blocks of `leading` lose their lease. Twice is fine."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        for stream in list(self._streams):
            stream.close()
        if pool is not None:
            pool.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of the agent at {self.address}{', closed' if self._closed else ''}>"


def _renew_all() -> None:
    for client in list(_clients):
        client.renew()


os.register_at_fork(after_in_child=_renew_all)
