"""NELI, as its paper has it: the member that receives the messages of a partition leads it.

    every member, each beat:  an empty message to all M partitions of topic C
    partition i's consumer:   V[i] := when it received one        leader of i  <=>  V[i] > now - T
    role j:                   filled by partition j mod M, for any j, at any time

                 Given          a message, confirmed             V[i] + T has passed
    (not mine) -------> mine ------------------------> leads i ------------------------------> V[i] lapsed
                       (exclusive: T + e after Given)     <-- another message, confirmed: a new tenure --'

Every member feeds every partition, so none dries up while one process lives: the consumer that the broker gave a
partition to hears something each beat, from whichever member. When the broker gives it to another, the messages stop,
V[i] is overtaken by now - T, and the leader ends by itself. No member has to tell it: that is the paper's idea.

**Available** (the paper's NELI). V[i] is the time of receipt by this host's clock, T is greater than the session
timeout. A leader that is cut off goes on until the broker has given its partitions to another and that one leads: a
leader that lives is never missed while the broker serves, and two may overlap by up to T. So nothing is drained: a
partition that is asked back is given back at once, and led until V[i] lapses. A message that waited in a buffer counts
from its receipt, as in the paper's steps 1 to 5: the overlap is then longer. The paper accepts that, and so does a
program that chooses `available`.

**Exclusive** (the paper's ELI). V[i] is the time at which the broker appended the message, on this host's clock:
V[i] = now - (wall - appended), never later than now. T + e is less than the session timeout, where e is the most that
this host's clock of the day and a broker's differ. So a leader that stopped ends before the broker counts it as dead. A
broker may give a partition away sooner than that, without a word to the leader: so the new one waits for a grace of
T + e from Given. (The paper says T. The old leader counts T on its own clock, which may be e behind the broker's.) If
the broker gives the partition away just as the old leader's T ends, nobody leads for the whole grace. That is the
paper's worst transition, 2T from the last message that counted to the first act of the new leader, and e more.

**What exclusive assumes**: clocks within e (a message from a future beyond e proves them apart, and counts for
nothing); a topic with the broker's own timestamps; and a broker that sends messages of a partition to nobody but its
consumer. Kafka does not keep the last: a zombie that fetches on receives new messages, and V[i] stays fresh until it
hears that it was expelled. Then two lead, with different terms, and only a fence keeps them apart: the paper says so,
too, of every exclusive mode. `contender` says why the zombie's term is the lower one, and why it cannot begin again.

Beside the paper there is one thing more: the term, and the question to the group that it needs.
"""

from collections.abc import Mapping
from math import inf
from random import Random

from neli_router.errors import ConfigError
from neli_router.protocols.consumer_group.contender import Contender
from neli_router.protocols.consumer_group.events import BrokerEffect, Message
from neli_router.protocols.consumer_group.settings import NeliSettings
from neli_router.protocols.protocol import Notice

__all__ = ["Neli"]


class Neli(Contender):
    """One process p of the paper's P. Not thread-safe. `partitions` is the size of M, by the broker."""

    def __init__(self, settings: NeliSettings, partitions: int, now: float, *, rng: Random) -> None:
        super().__init__(settings, partitions, now, rng=rng)
        self.settings = settings
        self.vector = [-inf] * partitions
        """The paper's V: for each partition, when it was last heard of. The paper begins it with zeros; a clock that
        counts from the host's start may be near zero itself."""
        self._apart_told_at = -inf

    def _given(self, partition: int, now: float) -> None:
        pass  # A partition proves nothing before a message of it was received.

    def _receive(self, message: Message, wall: float, now: float, effects: list[BrokerEffect]) -> None:
        i = message.partition
        heard_at = self._published_at(message, wall, now, effects) if self.settings.exclusive else now
        if self._told:
            return
        self.vector[i] = max(self.vector[i], heard_at)
        if i in self._held and now < self._ends(i):
            self._propose(i, message.offset)

    def _published_at(self, message: Message, wall: float, now: float, effects: list[BrokerEffect]) -> float:
        """When the broker appended it, on this host's clock. The paper, "Exclusivity of role assignment"."""
        if message.appended_at is None:
            self._fail(_no_broker_times(), now, effects)
            return -inf
        age, e = wall - message.appended_at, self.settings.clock_error
        if age < -e:
            # It was received before it was published: so the clocks differ by more than e, and nothing is proven.
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


def _no_broker_times() -> ConfigError:
    problem = (
        "guarantee='exclusive' needs a topic whose messages have the broker's times, and this one keeps the writers': "
        "set message.timestamp.type=LogAppendTime on the topic, or choose guarantee='available'"
    )
    return ConfigError([problem])
