"""Fast NELI, like goNELI, for any number of partitions: an owner leads for as long as it hears itself.

    given --a heartbeat of mine, sent since, came back, and the group confirmed--> LEADER --silence--> FENCED
      ^                                                                              ^                    |
      |                                        a heartbeat of mine came back, and the group confirmed ----'
      '--- from LEADER: AskedBack -> Revoked -> the program let go -> given back
           from LEADER: Lost -> Fenced;   from FENCED: the program hears nothing more

Only the consumer that the broker gave a partition to publishes heartbeats there, and it also consumes them. So a
heartbeat that comes back shows that the broker works, and still sends this consumer the partition's messages. The
leader counts the heartbeat timeout from *sending* the last heartbeat that came back, by the monotonic clock. If the
leader and the broker lose contact, the leader stops on its own after that time. The broker counts a session, three
times as long, before it gives the partition to another: heartbeat timeout + the group's heartbeat interval < session
timeout, so the old leader has stopped before that.

A broker that asks for a partition in good order waits: the program is notified with Revoked and may finish first. A
fenced leader has stopped already: it gets Fenced once, and no Revoked after it. It leads again, with a new term, when
one of its own heartbeats comes back and the group confirms.

Heartbeats have goNELI's format, `{unix nanoseconds}%{name}`, so that both may be in one group. The time in a heartbeat
only identifies it: no time is ever computed from it. A member treats a message as its own if it remembers having sent
exactly this message.

**A stranger's heartbeat** in a partition of mine says that another member believes that it is the owner: a previous
owner whose heartbeat is late, a zombie, or, if I am the zombie, the real owner. The member asks the group again, and
until the group has confirmed, no heartbeat prolongs its leadership. So a zombie that still fetches learns of its
successor from the successor's first heartbeat. This costs an owner nothing: it keeps leading while it asks.

Not promised: a zombie that is waiting for the group's answer leads alongside its successor for up to a heartbeat
timeout. Its term is lower (`machine.py` says why), and a fence refuses it. A member of goNELI has no terms.
"""

from collections.abc import Mapping
from math import inf
from random import Random

from neli_router.protocols.consumer_group.events import BrokerEffect, Message
from neli_router.protocols.consumer_group.machine import GroupMachine
from neli_router.protocols.consumer_group.settings import FastNeliSettings

__all__ = ["HEARTBEATS_MAX", "FastNeliMachine"]

HEARTBEATS_MAX = 1024
"""How many of its own heartbeats a member remembers: by default a hundred seconds of them, while only the last five
seconds prove anything. A forgotten heartbeat that comes back looks like a stranger's, and costs a question."""


class FastNeliMachine(GroupMachine):
    """One member. Not thread-safe. `wall_nanoseconds` is this host's wall clock at `now`: marks begin there."""

    settings: FastNeliSettings

    def __init__(
        self, settings: FastNeliSettings, partitions: int, now: float, *, wall_nanoseconds: int, rng: Random
    ) -> None:
        # goNELI ignores all partitions but the first, so its topics may have any number of them.
        super().__init__(settings, min(partitions, 1) if settings.goneli else partitions, rng=rng)
        self._began_at, self._wall = now, wall_nanoseconds
        self._name = settings.name.encode()
        self._mark = -1
        self._sent: dict[int, float] = {}
        """Mark -> when that heartbeat was sent, for the latest heartbeats, in the order of sending."""
        self._since: dict[int, int] = {}
        """Partition -> the last mark that was sent before the partition was given."""
        self._proven: dict[int, float] = {}
        """Partition -> when the last heartbeat was sent that came back while `doubted` was not set."""

    def _given(self, partition: int, now: float) -> None:
        self._since[partition] = self._mark
        self._proven[partition] = -inf
        self._publish_at = now  # The member leads once its first heartbeat has come back.

    def _receive(self, message: Message, wall: float, now: float, effects: list[BrokerEffect]) -> None:
        i = message.partition
        held = self._held.get(i)
        if held is None or (mark := self._read(message.body)) is None:
            return  # Not a heartbeat, so it is not evidence of anything.
        sent_at = self._sent.get(mark[0]) if mark[1] == self._name else None
        if sent_at is None:
            held.doubted = held.doubted or held.began
            return
        if mark[0] <= self._since[i]:
            return  # Sent during an earlier ownership of mine.
        if not held.doubted:
            # Counted from sending, not from now: a heartbeat that sat in a buffer proves nothing about now.
            self._proven[i] = max(self._proven[i], sent_at)
        if now < self._ends(i):
            self._propose(i, message.offset)

    def _read(self, body: bytes | None) -> tuple[int, bytes] | None:
        """The mark and the name in a heartbeat."""
        text, percent, name = (body or b"").partition(b"%")
        if not (percent and text.isdigit() and len(text) <= len(str(2**64))):
            return None
        return int(text), name

    def _disregards(self, partition: int) -> bool:
        return self.settings.goneli and partition > 0

    def _ends(self, partition: int) -> float:
        return self._proven.get(partition, -inf) + self.settings.heartbeat_timeout

    def _bodies(self, now: float) -> Mapping[int, bytes | None]:
        if not self._held:
            return {}
        # Always rising, so that no two are equal, even if the clock reads the same for both.
        self._mark = max(self._mark + 1, self._wall + round((now - self._began_at) * 1e9))
        self._sent[self._mark] = now
        if len(self._sent) > HEARTBEATS_MAX:
            del self._sent[next(iter(self._sent))]
        body = b"%d%%%s" % (self._mark, self._name)
        return dict.fromkeys(sorted(self._held), body)

    @property
    def _silence(self) -> str:
        return f"no heartbeat of this member came back that was sent within {self.settings.heartbeat_timeout:g} s"
