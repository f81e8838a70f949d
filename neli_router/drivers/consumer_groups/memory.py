"""Consumer groups in one process, for tests: a topic of some partitions, and the coordinator of one group.

    subscription --publish--> the topic --> [ events of the holder ] --take--> its pump
                 --take: it lives--> coordinator --Given, AskedBack, Lost--> [ events ]

Like Kafka's `cooperative-sticky`, the coordinator asks back only what has to move, gives it on once it is given back,
and forgets a consumer that has not taken anything for a session. Nothing is late or lost here, so that a test takes the
same course each time. A consumer that is cut off hears nothing, and considers itself forgotten after a session. Used by
one thread.
"""

from collections.abc import Callable, Mapping, Sequence

from neli_router.core.clock import Clock
from neli_router.drivers.consumer_groups.base import BrokerNews
from neli_router.errors import Closed
from neli_router.protocols.consumer_group.events import (
    AskedBack,
    BrokerAway,
    BrokerBack,
    Confirmed,
    Given,
    Lost,
    Message,
)

__all__ = ["MemoryBroker", "MemorySubscription"]


class MemoryBroker:
    """The topic and its group. `wall` is the broker's clock, in seconds since 1970."""

    def __init__(self, partitions: int, *, clock: Clock, wall: Callable[[], float]) -> None:
        self.clock, self.wall = clock, wall
        self.ends = [0] * partitions
        """Each partition's next offset."""
        self.members: list[MemorySubscription] = []
        """In the order of joining."""

    def look(self) -> None:
        """Forget consumers that were silent for a session, and take back what was not given back in time."""
        now = self.clock()
        for member in [one for one in self.members if now >= one.alive_until]:
            self.forget(member)
        for member in self.members:
            if late := [i for i, give_up_at in member.asked.items() if now >= give_up_at]:
                member.events.append(Lost(late))
                self.free(member, late)

    def join(self, member: "MemorySubscription") -> None:
        self.members.append(member)
        self.share()

    def forget(self, member: "MemorySubscription") -> None:
        """It may not know yet."""
        self.members.remove(member)
        self.share()

    def free(self, member: "MemorySubscription", partitions: Sequence[int]) -> None:
        for i in partitions:
            member.asked.pop(i, None)
            member.holds.discard(i)
        self.share()

    def share(self) -> None:
        """Give what is free to those with the fewest, and ask those with more than their share for the rest."""
        if not self.members:
            return
        free = set(range(len(self.ends))).difference(*(one.holds for one in self.members))
        least, more = divmod(len(self.ends), len(self.members))
        for rank, member in enumerate(sorted(self.members, key=lambda one: -len(one.holds))):
            room = least + (rank < more) - len(member.holds)
            if given := sorted(free)[: max(0, room)]:
                free.difference_update(given)
                member.holds.update(given)
                member.events.append(Given(given))
            surplus = sorted(member.holds)[room:] if room < 0 else []
            if asked := [i for i in surplus if i not in member.asked]:
                member.asked.update(dict.fromkeys(asked, self.clock() + member.patience))
                member.events.append(AskedBack(asked))

    def append(self, partition: int, body: bytes | None) -> None:
        offset, self.ends[partition] = self.ends[partition], self.ends[partition] + 1
        for member in self.members:
            if partition in member.holds:
                member.events.append([Message(partition, offset, self.wall(), body)])


class MemorySubscription:
    """A `GroupSubscription`. `patience` is how long the coordinator waits for what it asked back, in seconds."""

    address = "kafka://memory/group"
    broker_times = True
    doubts: tuple[str, ...] = ()

    def __init__(
        self, broker: MemoryBroker, *, session: float, patience: float, is_cut: Callable[[], bool] = lambda: False
    ) -> None:
        self.session, self.patience, self.is_cut, self.partitions = session, patience, is_cut, len(broker.ends)
        self.holds: set[int] = set()
        self.asked: dict[int, float] = {}
        """Partition -> until when the coordinator waits for it."""
        self.events: list[BrokerNews] = []
        self.alive_until = broker.clock() + session
        self._broker = broker
        self._away = self._left = self._closed = False
        broker.join(self)

    @property
    def has_mail(self) -> bool:
        return bool(self.events) and not self.is_cut()

    def wait(self, timeout: float) -> None:
        """Return immediately: the caller that turns the clock does the waiting."""
        self._require_open()

    def take(self) -> list[BrokerNews]:
        self._require_open()
        broker, is_cut = self._broker, self.is_cut()
        broker.look()
        taken: list[BrokerNews] = []
        if is_cut != self._away:
            self._away = is_cut
            taken.append(BrokerAway() if is_cut else BrokerBack())
        if self not in broker.members and not self._left:
            if self.holds:
                taken.append(Lost(sorted(self.holds)))
            self.holds, self.asked, self.events = set(), {}, []
            if not is_cut:
                self.alive_until = broker.clock() + self.session
                broker.join(self)
        if not is_cut:
            self.alive_until = broker.clock() + self.session
            taken += self.events
            self.events = []
        return taken

    def publish(self, bodies: Mapping[int, bytes | None]) -> None:
        self._require_open()
        if not self.is_cut():
            for partition, body in bodies.items():
                self._broker.append(partition, body)

    def confirm(self, offsets: Mapping[int, int]) -> None:
        self._require_open()
        self._broker.look()
        if not self.is_cut() and self in self._broker.members:
            self.events.append(Confirmed(dict(offsets)))

    def give_back(self, partitions: Sequence[int]) -> None:
        self._require_open()
        if self in self._broker.members:
            self._broker.free(self, partitions)

    def leave(self) -> None:
        self._require_open()
        self._left = True
        if self in self._broker.members and not self.is_cut():
            self._broker.forget(self)

    def wake(self) -> None:
        """Do nothing: no other thread waits."""

    def close(self) -> None:
        if not self._closed:
            self.leave()
            self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(f"the subscription {self.address} was needed", "it was closed before", "open another one")
