"""The port between a member and its peers: datagrams between the places of one list, and one memory on disk.

    network --sealed datagrams--> link --wait, take--> pump --> machine
    network <--------------------- link <---send, keep---'

The link vouches for three things, and for no more:

- *Who.* A body that is taken came from the peer at the place it names, which holds the group's key, has the same list,
  and is in the same group. It was sent while this process lived, and is taken once.
- *Nothing is bigger than it may be.* No datagram, from whomever, costs more than its size.
- *What was kept is kept.* When `keep` returns, a power cut does not lose it. `memory` is what the last process of this
  place kept, and at most one process has it.

Datagrams may be lost, late, and in any order: protocols live with that.
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
        """Where this member and its peers are, for people: no secrets in it."""

    @property
    def memory(self) -> bytes:
        """What was kept last, by this process or the one before it; empty if there is nothing."""

    @property
    def doubts(self) -> Sequence[str]:
        """A sentence, for people, for each thing in the set-up that costs more than need be or endangers a promise."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Datagrams since the start: `sent`, `unsent` (nobody knew where to), `taken`, and `refused.` with a reason."""

    @property
    def heard_at(self) -> Mapping[int, float]:
        """Place -> when that peer was heard last, on the clock of this host; without those never heard.

        Something of it was taken. Of a silent one it is enough that it asked, as far as that can be told from a replay.
        """

    @property
    def silent(self) -> frozenset[int]:
        """The places of peers that give no answer although they were asked for one, for some seconds now."""

    @property
    def refusals(self) -> Mapping[int, str]:
        """Place -> the reason why that peer's newest datagram was refused, if none was taken since, or shortly before.

        So nobody who forges the address of a peer that is heard can make it one that is refused.
        """

    @property
    def words(self) -> Mapping[int, bytes]:
        """Place -> what that peer said last of itself; without those that said nothing. For people: it may be old."""

    def say(self, word: bytes) -> None:
        """Let all peers know this of me, in some seconds, in place of what I said before. At most BODY_MAX bytes."""

    def wait(self, timeout: float) -> None:
        """Until there is something to take, at most `timeout` seconds, or until `wake`."""

    def take(self) -> list[Heard | Notice]:
        """All that came since the last call, in order, and what people should know of it. Returns at once.

        Raises Replaced when a peer says that another process has this member's place.
        """

    def send(self, to: int, body: bytes) -> None:
        """Send to the peer at place `to`. Returns at once, and never raises for what a network may do."""

    def keep(self, memory: bytes) -> None:
        """Have `memory` on disk in place of what was there. Raises NeliError if that fails: then send nothing."""

    def wake(self) -> None:
        """Make a `wait` in another thread return; if none is, the next one. Callable from any thread."""

    def close(self) -> None:
        """Release everything; twice is fine."""
