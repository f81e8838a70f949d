"""The current addresses of each peer's name. Separate threads ask, so that no member ever waits for a name server.

    (host, port) --resolve, in threads--> addresses --> the link, whenever it sends
                    ^-- every SILENT_EVERY seconds for a silent peer, and every CALM_EVERY seconds for all others

A peer that moved is silent at its old address, so its name is asked for soon. A name that does not resolve keeps the
addresses that it had: an unreachable name server should not stop us from talking to reachable peers. This is reported
once, and once more when the name resolves again. Numeric hosts are asked for once, and take no thread. A question may
hang, so there are a few threads, and no two of them ask for the same name at the same time.

Name servers return several addresses in changing order. Known addresses keep their order: the link relies on which of
them a peer answers at.
"""

import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from math import inf

from neli_router.core.clock import Clock
from neli_router.protocols.protocol import Notice

__all__ = ["SILENT_EVERY", "THREADS_MAX", "PeerNames", "Resolve", "SocketAddress", "reason_of", "resolve", "spelled"]

SILENT_EVERY = 3.0
CALM_EVERY = 60.0
"""Seconds between two questions for one name. A shorter time finds a moved peer sooner, and loads the name server."""

THREADS_MAX = 8
"""Up to this many hanging names do not delay the others. In a long list, a higher number costs idle threads."""

JOIN_MAX = 1.0
"""Seconds that `close` waits for all threads. One may be inside a question that cannot be stopped; it asks no other."""

NEWS_MAX = 1000

SocketAddress = tuple[str, int] | tuple[str, int, int, int]
"""The form that a socket of IPv4 or of IPv6 uses. The host is a number."""

Resolve = Callable[[str, int], Sequence[SocketAddress]]
"""The addresses of a host, best first. Raises OSError if there are none, or if no name server answers."""


def resolve(host: str, port: int) -> list[SocketAddress]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    return list(dict.fromkeys(address for *_, address in found if isinstance(address[0], str)))


def spelled(address: SocketAddress) -> str:
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


def reason_of(error: OSError | UnicodeError) -> str:
    """Why a name does not resolve, for people."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class PeerNames:
    """The addresses of all places. One thread reads addresses and `news`; other threads do the asking."""

    def __init__(self, places: Sequence[tuple[str, int]], *, resolve: Resolve, clock: Clock) -> None:
        self._places, self._resolve, self._clock = tuple(places), resolve, clock
        self._found: dict[int, tuple[SocketAddress, ...]] = {}
        self._asking: set[int] = set()
        self._claiming = threading.Lock()
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
        self._threads = [
            threading.Thread(target=self._run, name=f"neli-peer-names-{i}", daemon=True)
            for i in range(min(THREADS_MAX, len(self._named)))
        ]
        for thread in self._threads:
            thread.start()

    def addresses(self, place: int) -> tuple[SocketAddress, ...]:
        """Where the peer is, as far as is known; nothing as long as its name was never found."""
        return self._found.get(place, ())

    def news(self) -> list[Notice]:
        """The notices since the last call."""
        return [self._news.popleft() for _ in range(len(self._news))]

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(JOIN_MAX / len(self._threads))

    def _run(self) -> None:
        while not self._ended.is_set():
            while (place := self._claimed()) is not None:
                self._ask(place)
                self._asking.discard(place)
            self._ended.wait(SILENT_EVERY / 3)

    def _claimed(self) -> int | None:
        """A place whose name is due, claimed for the calling thread alone."""
        with self._claiming:
            for i in self._named if not self._ended.is_set() else ():
                every = SILENT_EVERY if i in self.silent or i in self._lost else CALM_EVERY
                if i not in self._asking and self._clock() >= self._asked_at[i] + every:
                    self._asking.add(i)
                    return i
        return None

    def _ask(self, place: int) -> None:
        host, port = self._places[place]
        peer = spelled((host, port))
        try:
            found = self._resolve(host, port)
            if not found:
                raise OSError("it has no address")
        except (OSError, UnicodeError) as error:  # A name may be one that cannot be encoded for a name server.
            if place not in self._lost:
                self._lost.add(place)
                self._news.append(Notice("peers.unresolved", {"peer": peer, "error": reason_of(error)}))
        else:
            before = self._found.get(place, ())
            kept, fresh = [one for one in before if one in found], [one for one in found if one not in before]
            self._found[place] = (*kept, *fresh)
            fields = {"peer": peer, "addresses": ", ".join(spelled(address) for address in self._found[place])}
            if place in self._lost:
                self._lost.discard(place)
                self._news.append(Notice("peers.resolved", fields))
            elif before and set(before) != set(found):
                self._news.append(Notice("peers.moved", fields))
        self._asked_at[place] = self._clock()


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
