"""The port between a member and its peers: datagrams between the places of one list, and one memory on disk.

    network --sealed datagrams--> link --wait, take--> pump --> machine
    network <--------------------- link <---send, keep---'

The link guarantees exactly three things:

- *Who.* A body that is taken came from the peer at the place it names, which holds the group's key, has the same list,
  and is in the same group. It was sent while this process lived, and is taken once.
- *Nothing is bigger than it may be.* No datagram, from any sender, costs more than its size.
- *What was kept is kept.* When `keep` returns, a power cut does not lose the memory. `memory` is what the last process
  of this place kept, and at most one process has it.

Datagrams may be lost, arrive late, and arrive in any order: protocols allow for that.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from neli_router.protocols.electors.events import Heard
from neli_router.protocols.protocol import Notice

__all__ = ["PeerLink"]


class PeerLink(Protocol):
    """Used by one thread at a time, except for `wake`. After `close`, a call of any other method raises Closed."""

    @property
    def address(self) -> str:
        """Where this member and its peers are, for people: contains no secrets."""

    @property
    def memory(self) -> bytes:
        """The bytes that this process or the one before it kept last; empty if there are none."""

    @property
    def doubts(self) -> Sequence[str]:
        """A sentence, for people, for each part of the set-up that wastes something or endangers a promise."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Datagrams since the start: `sent`, `unsent` (no known address), `taken`, and `refused.` with a reason."""

    @property
    def heard_at(self) -> Mapping[int, float]:
        """Place -> when that peer was heard last, on the clock of this host; without peers that were never heard.

        A peer is heard when something from it is taken. For a silent peer an Ask is enough, as far as an Ask can be
        distinguished from a replay.
        """

    @property
    def silent(self) -> frozenset[int]:
        """The places of peers that have given no answer for some seconds, although they were asked for one."""

    @property
    def refusals(self) -> Mapping[int, str]:
        """Place -> why that peer's newest datagram was refused, if none was taken since, or shortly before.

        So forging the address of a peer that is heard cannot make that peer count as refused.
        """

    @property
    def words(self) -> Mapping[int, bytes]:
        """Place -> the last word of that peer about itself; without peers that said nothing. For people: may be old."""

    def say(self, word: bytes) -> None:
        """Send all peers this word about me, within some seconds, in place of the last one. At most BODY_MAX bytes."""

    def wait(self, timeout: float) -> None:
        """Wait until there is something to take, for at most `timeout` seconds, or until `wake`."""

    def take(self) -> list[Heard | Notice]:
        """Everything that arrived since the last call, in order, and notices for people about it. Returns immediately.

        Raises Replaced when a peer says that another process has this member's place.
        """

    def send(self, to: int, body: bytes) -> None:
        """Send to the peer at place `to`. Returns immediately, and never raises for anything a network may do."""

    def keep(self, memory: bytes) -> None:
        """Replace the memory on disk with `memory`. Raises NeliError if that fails: then send nothing."""

    def wake(self) -> None:
        """Make a `wait` in another thread return; if none is running, the next one does. Callable from any thread."""

    def close(self) -> None:
        """Release everything; may be called twice."""
