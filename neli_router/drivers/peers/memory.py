"""Links in one process, for tests: a datagram arrives immediately, and disks outlive processes.

    place 0 --send--> [ mail of place 1 ] --take--> place 1          lost if either is cut off, or place 1 has no link
       '---keep---> disk of place 0 --memory--> the next link of place 0

Nothing is late, doubled or out of order here, so that a test takes the same course each time. Used by one thread.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from neli_router.core.clock import Clock
from neli_router.errors import Closed
from neli_router.protocols.electors.events import Heard
from neli_router.protocols.protocol import Notice

__all__ = ["MAIL_MAX", "MemoryLink", "MemoryNetwork"]

MAIL_MAX = 2000
"""Datagrams that wait for a place which takes none. A real socket drops the excess, too."""


class MemoryNetwork:
    """A number of places, each with a disk, and at most one link each."""

    def __init__(self, size: int) -> None:
        self.disks = [b""] * size
        self.links: list[MemoryLink | None] = [None] * size

    def open(self, place: int, clock: Clock, is_cut: Callable[[], bool] = lambda: False) -> "MemoryLink":
        """The link of `place`. Closes the link that it had before."""
        if (before := self.links[place]) is not None:
            before.close()
        link = self.links[place] = MemoryLink(self, place, clock, is_cut)
        return link


class MemoryLink:
    """A `PeerLink`. Use `MemoryNetwork.open`."""

    doubts: Sequence[str] = ()
    silent: frozenset[int] = frozenset()
    refusals: Mapping[int, str] = {}
    word = b""

    def __init__(self, network: MemoryNetwork, place: int, clock: Clock, is_cut: Callable[[], bool]) -> None:
        self.address = f"peers://memory/{place}"
        self.is_cut = is_cut
        self.place = place
        self._network, self._clock = network, clock
        self.heard_at: dict[int, float] = {}
        self._mail: deque[Heard] = deque(maxlen=MAIL_MAX)
        self.counts = Counter({"sent": 0, "unsent": 0, "taken": 0})
        self._closed = False

    @property
    def memory(self) -> bytes:
        return self._network.disks[self.place]

    @property
    def words(self) -> Mapping[int, bytes]:
        others = {link.place: link for link in self._network.links if link is not None and link is not self}
        return {i: link.word for i, link in others.items() if link.word and not (self.is_cut() or link.is_cut())}

    def say(self, word: bytes) -> None:
        self._require_open()
        self.word = word

    @property
    def has_mail(self) -> bool:
        return bool(self._mail)

    def wait(self, timeout: float) -> None:
        """Return immediately: the caller that turns the clock does the waiting."""
        self._require_open()

    def take(self) -> list[Heard | Notice]:
        self._require_open()
        self.heard_at.update(dict.fromkeys((heard.sender for heard in self._mail), self._clock()))
        taken: list[Heard | Notice] = [*self._mail]
        self._mail.clear()
        self.counts["taken"] += len(taken)
        return taken

    def send(self, to: int, body: bytes) -> None:
        self._require_open()
        target = self._network.links[to]
        self.counts["unsent" if target is None else "sent"] += 1
        if target is not None and not (self.is_cut() or target.is_cut()):
            target._mail.append(Heard(self.place, body))  # noqa: SLF001 - an object of the same class.

    def keep(self, memory: bytes) -> None:
        self._require_open()
        self._network.disks[self.place] = memory

    def wake(self) -> None:
        """Do nothing: no other thread waits."""

    def close(self) -> None:
        self._closed = True
        if self._network.links[self.place] is self:
            self._network.links[self.place] = None

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(f"the link {self.address} was needed", "it was closed before", "open another one")
