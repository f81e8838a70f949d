"""NELI, as described in its paper: the member that receives the messages of a partition leads it.

    every member, each beat:  an empty message to all M partitions of topic C
    partition i's consumer:   V[i] := when it received one        leader of i  <=>  V[i] > now - T
    role j:                   filled by partition j mod M, for any j, at any time

                 Given          a message, confirmed             V[i] + T has passed
    (not mine) -------> mine ------------------------> leads i ------------------------------> V[i] lapsed
                       (exclusive: T + e after Given)     <-- another message, confirmed: a new tenure --'

Every member feeds every partition, so no partition dries up while one process lives: the consumer that the broker gave
a partition to receives something each beat, from any member. When the broker gives the partition to another consumer,
the messages stop, now - T overtakes V[i], and the old leader ends on its own. No member has to notify it: that is the
paper's idea.

**Available** (the paper's NELI). V[i] is the time of receipt by this host's clock, and T is greater than the session
timeout. A leader that is cut off goes on until the broker has given its partitions to another member and that member
leads. So while the broker works, there is always a live leader, and two leaders may overlap by up to T. So nothing is
drained: a partition that is asked back is given back immediately, and led until V[i] lapses. A message that waited in a
buffer counts from its receipt, as in the paper's steps 1 to 5: the overlap is then longer. The paper accepts that, and
so does a program that chooses `available`.

**Exclusive** (the paper's ELI). V[i] is the time at which the broker appended the message, on this host's clock: V[i] =
now - (wall - appended), never later than now. T + e is less than the session timeout, where e is the most that this
host's wall clock and a broker's differ. So a leader that stopped ends before the broker counts it as dead. A broker may
give a partition away sooner than that, without notifying the leader. So the new leader waits for a grace of T + e from
Given. (The paper says T. The old leader counts T on its own clock, which may be e behind the broker's.) If the broker
gives the partition away just as the old leader's T ends, no member leads for the whole grace. This is the paper's worst
transition: 2T from the last message that counted to the first act of the new leader, plus e.

**Assumptions of exclusive**: clocks within e (a message from a future beyond e proves that they are further apart, and
counts for nothing); a topic with the broker's own timestamps; and a broker that sends messages of a partition only to
its consumer. Kafka does not guarantee the last: a zombie that keeps fetching receives new messages, and its V[i] stays
fresh until it learns that it was expelled. Then two members lead, with different terms, and only a fence keeps them
apart. The paper says this, too, about every exclusive mode. `machine.py` explains why the zombie's term is the lower
one, and why it cannot begin again.

This implementation adds one thing to the paper: the term, and the question to the group that the term needs.
"""

from collections.abc import Mapping
from math import inf
from random import Random

from neli_router.errors import ConfigError
from neli_router.protocols.consumer_group.events import BrokerEffect, Message
from neli_router.protocols.consumer_group.machine import GroupMachine
from neli_router.protocols.consumer_group.settings import NeliSettings
from neli_router.protocols.protocol import Notice

__all__ = ["NeliMachine"]

NO_BROKER_TIMES = (
    "guarantee='exclusive' needs a topic whose messages have the broker's times, and this one keeps the writers': "
    "set message.timestamp.type=LogAppendTime on the topic, or choose guarantee='available'"
)


class NeliMachine(GroupMachine):
    """One process p of the paper's P. Not thread-safe. `partitions` is the size of M, as the broker reports it."""

    settings: NeliSettings

    def __init__(self, settings: NeliSettings, partitions: int, *, rng: Random) -> None:
        super().__init__(settings, partitions, rng=rng)
        self.vector = [-inf] * partitions
        """The paper's V: when each partition was last heard from. The paper starts with zeros, but a clock that counts
        from the host's start may itself be near zero."""
        self._apart_told_at = -inf

    def _receive(self, message: Message, wall: float, now: float, effects: list[BrokerEffect]) -> None:
        i = message.partition
        heard_at = self._published_at(message, wall, now, effects) if self.settings.exclusive else now
        if self._told:
            return
        self.vector[i] = max(self.vector[i], heard_at)
        if i in self._held and now < self._ends(i):
            self._propose(i, message.offset)

    def _published_at(self, message: Message, wall: float, now: float, effects: list[BrokerEffect]) -> float:
        """When the broker appended `message`, on this host's clock. The paper, "Exclusivity of role assignment"."""
        if message.appended_at is None:
            self._fail(ConfigError([NO_BROKER_TIMES]), now, effects)
            return -inf
        age, e = wall - message.appended_at, self.settings.clock_error
        if age < -e:
            # The message was received before it was published: the clocks differ by more than e, and nothing is proven.
            if now >= self._apart_told_at + self.settings.session_timeout:
                self._apart_told_at = now
                fields = {"apart": round(-age, 3), "clock_error": e, "remedy": "keep the clocks of all hosts in step"}
                effects.append(Notice("neli.clocks_apart", fields))
            return -inf
        return now - max(0.0, age)

    def _ends(self, partition: int) -> float:
        return self.vector[partition] + self.settings.t

    def _begins(self, partition: int) -> float:
        if not self.settings.exclusive:
            return -inf
        return self._held[partition].given_at + self.settings.grace

    def _bodies(self, now: float) -> Mapping[int, bytes | None]:
        return dict.fromkeys(range(self.settings.layout.partitions))

    @property
    def _silence(self) -> str:
        return f"no message of the partition counts that is younger than T={self.settings.t:g} s"
