"""The names of the peers: which addresses each has now. A thread asks, so that no member ever waits for a name server.

    (host, port) --resolve, in a thread--> addresses --> the link, whenever it sends
                    ^-- every SILENT_EVERY seconds for a peer that is silent, and every CALM_EVERY for all others

A peer that moved is silent at its old address, so its name is asked soon. One that does not resolve keeps the addresses
that it had: a name server that is away is no reason to stop speaking to peers that are there. It is told once, and once
more when it resolves again. Hosts that are written as numbers are asked for once, and take no thread.
"""

import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from math import inf

from neli_router.clock import Clock
from neli_router.protocol import Notice

__all__ = ["SILENT_EVERY", "PeerNames", "Resolve", "SocketAddress", "resolve", "spelled"]

SILENT_EVERY = 3.0
CALM_EVERY = 60.0
"""Seconds between two questions for one name. More often finds a peer sooner that moved, and asks the name server
more: it is asked for each silent peer, on each member."""

JOIN_MAX = 1.0
"""Seconds that `close` waits for the thread. It may be inside a question that nobody can end; it asks no other."""

NEWS_MAX = 1000

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
"""As a socket of IPv4 or of IPv6 has it. The host is a number."""

Resolve = Callable[[str, int], Sequence[SocketAddress]]
"""The addresses of a host, best first. Raises OSError if there are none, or nobody tells."""


def resolve(host: str, port: int) -> list[SocketAddress]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    return list(dict.fromkeys(address for *_, address in found if isinstance(address[0], str)))


def spelled(address: SocketAddress) -> str:
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


class PeerNames:
    """The addresses of all places. Questions and `news` are for one thread; the asking is done by another."""

    def __init__(self, places: Sequence[tuple[str, int]], *, resolve: Resolve, clock: Clock) -> None:
        self._places, self._resolve, self._clock = tuple(places), resolve, clock
        self._found: dict[int, tuple[SocketAddress, ...]] = {}
        self._asked_at = dict.fromkeys(range(len(places)), -inf)
        self._lost: set[int] = set()
        self._news: deque[Notice] = deque(maxlen=NEWS_MAX)
        self.silent: frozenset[int] = frozenset()
        """The places that were not heard for a while. Set by the thread that knows."""
        for i, (host, _) in enumerate(places):
            if _is_number(host):
                self._ask(i)
        self._named = [i for i, (host, _) in enumerate(places) if not _is_number(host)]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="neli-peer-names", daemon=True)
        if self._named:
            self._thread.start()

    def addresses(self, place: int) -> tuple[SocketAddress, ...]:
        """Where the peer is, as far as is known; nothing as long as its name was never found."""
        return self._found.get(place, ())

    def news(self) -> list[Notice]:
        """What came to light since the last call."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_MAX)

    def _run(self) -> None:
        while not self._ended.is_set():
            for i in self._named:
                every = SILENT_EVERY if i in self.silent or i in self._lost else CALM_EVERY
                if self._clock() >= self._asked_at[i] + every and not self._ended.is_set():
                    self._ask(i)
            self._ended.wait(SILENT_EVERY / 3)

    def _ask(self, place: int) -> None:
        host, port = self._places[place]
        peer = spelled((host, port))
        try:
            found = tuple(self._resolve(host, port))
            if not found:
                raise OSError("it has no address")
        except (OSError, UnicodeError) as error:  # A name may be one that cannot be written for a name server.
            if place not in self._lost:
                self._lost.add(place)
                self._news.append(Notice("peers.unresolved", {"peer": peer, "error": _words(error)}))
        else:
            before, self._found[place] = self._found.get(place), found
            fields = {"peer": peer, "addresses": ", ".join(spelled(address) for address in found)}
            if place in self._lost:
                self._lost.discard(place)
                self._news.append(Notice("peers.resolved", fields))
            elif before is not None and set(before) != set(found):
                self._news.append(Notice("peers.moved", fields))
        self._asked_at[place] = self._clock()


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _words(error: OSError | UnicodeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
