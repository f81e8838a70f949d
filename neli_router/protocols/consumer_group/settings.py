"""Settings of a member of a consumer group, and the inequalities that they must satisfy, each spelled out.

The times of NELI (the paper, "Protocol definition" and "Exclusivity of role assignment"):

    |<--- session --->|                                 how long the broker waits for a consumer that is silent
    |<----------- T ----------->|                       available: the old leader goes on until the new one leads
    |<---- T ---->|<-e->|                               exclusive: the old leader ends before another gets the partition
    |<-beat->|<-beat->|                                 at most a third of T: one message may be lost

The times of Fast NELI:

    |<---------------- session ---------------->|       three times the heartbeat timeout, or more
    |<- heartbeat ->|                                   from the sending of the last heartbeat that came back
       timeout      |<- group's heartbeat ->|           the session may have begun this long before that heartbeat

Advice is not an error: `advice` returns the paper's guidelines as notices for the log.
"""

from collections.abc import Iterator
from math import inf
from typing import ClassVar

from msgspec import Struct

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from neli_router.protocols.protocol import NAME_MAX, Guarantee, Notice

__all__ = ["FastNeliSettings", "GroupSettings", "NeliSettings"]

SESSION = 6.0
"""Kafka's brokers accept a shorter session only if configured to (`group.min.session.timeout.ms`)."""

SHORT_SESSION = 1.0
"""With a shorter session, members with librdkafka were seen to expel each other: librdkafka stays silent for about this
long before it joins again."""

PATIENCE_MAX = 86_400.0
"""A day, the longest `max.poll.interval.ms` of librdkafka: how long a broker waits for what it asked back."""

EACH_MAX = 8
"""How many partitions each member may have, on average, before the paper's advice counts as not followed."""

TERM_MAX = 2**53
"""A term must stay a whole number in every language and table."""


class GroupSettings(Struct, frozen=True, kw_only=True):
    """The settings of both protocols. Times are in seconds. One `ConfigError` names everything that is wrong.

    Values of another kind than declared are refused before, by the program's configuration.
    """

    name: str
    layout: Layout
    """The topic must have M = `layout.partitions` partitions. Role j is filled by partition j mod M."""
    drain_timeout: float = 30.0
    """How long the broker is kept waiting while the program finishes work on partitions that were asked back. The
    broker must be more patient by a session: `max.poll.interval.ms` in Kafka."""
    term_base: int = 0
    """Terms are above this. When a group moves from another ledger, or to a recreated topic, set this to the highest
    term that it ever had, so that fences accept the new terms and refuse the old ones."""
    session: float | None = None
    """How long the broker waits for a silent consumer: `session.timeout.ms` in Kafka."""
    group_heartbeat: float | None = None
    """How often the client library sends a heartbeat to the broker: `heartbeat.interval.ms` in Kafka. None means a
    tenth of the session, as the paper advises."""

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise ConfigError(problems)

    # Each protocol defines these

    times: ClassVar[tuple[str, ...]] = ("drain_timeout", "session_timeout", "group_heartbeat_every")

    @property
    def exclusive(self) -> bool:
        return True

    @property
    def session_timeout(self) -> float:
        return SESSION if self.session is None else self.session

    @property
    def group_heartbeat_every(self) -> float:
        return self.session_timeout / 10 if self.group_heartbeat is None else self.group_heartbeat

    @property
    def beat_every(self) -> float:
        raise NotImplementedError

    def _inequalities(self) -> Iterator[str]:
        return iter(())

    # Derived from the settings

    def advice(self) -> Iterator[Notice]:
        """Where the times do not follow the paper's advice (the guidelines at the end of "Protocol definition")."""
        if self.session_timeout < SHORT_SESSION:
            remedy = "have 1.5 s or more, or Kafka's newer protocol, and measure that the group settles"
            yield _advice("sessions this short were seen to flap", remedy, session=self.session_timeout)

    def sizing(self, each: float) -> Iterator[Notice]:
        """The same for the number of partitions, if members have `each` partitions. One partition is meant to have one
        leader, and members that stand by."""
        m, rate = self.layout.partitions, round(self.messages_per_second, 1)
        if each < 1 and m > 1:
            yield _advice("members stay idle", "have as many partitions as members", partitions=m)
        if each > EACH_MAX:
            remedy = "have about as many partitions as members; each costs messages at every beat"
            yield _advice("far more partitions than members", remedy, partitions=m, messages_per_second=rate)

    @property
    def messages_per_second(self) -> float:
        """How many messages this member publishes if it leads everything: one a partition, each beat."""
        return self.layout.partitions / self.beat_every

    def _problems(self) -> Iterator[str]:
        if not (self.name.isprintable() and 1 <= len(self.name) <= NAME_MAX):
            yield f"name={self.name!r:.60} must be printable text of 1 to {NAME_MAX} characters: choose another"
        if not 0 <= self.term_base < TERM_MAX:
            yield f"term_base={self.term_base!r} must be a whole number from 0 to below {TERM_MAX}: correct it"
        unfit = [field for field in self.times if not 0 <= getattr(self, field) < inf]
        for field in unfit:
            yield f"{field}={getattr(self, field)!r} must be a number of seconds: correct it"
        if not unfit:  # The inequalities compare these times.
            if self.drain_timeout + self.session_timeout > PATIENCE_MAX:
                most = max(0.0, PATIENCE_MAX - self.session_timeout)
                yield (
                    f"drain_timeout={self.drain_timeout:g} plus session={self.session_timeout:g} must be at most a day "
                    f"({PATIENCE_MAX:g}), the longest that a broker waits: lower drain_timeout to {most:g}"
                )
            yield from self._inequalities()


class NeliSettings(GroupSettings, frozen=True, kw_only=True):
    """Settings of `neli`, with the paper's names where it has them."""

    guarantee: Guarantee = "available"
    threshold: float | None = None
    """T: how long a message proves anything. None means two sessions under `available`, half a session under
    `exclusive`. A longer T lengthens overlaps or gaps; with a shorter T, a late message looks like a lost partition."""
    clock_error: float = 0.5
    """e: the most that the clocks of this host and of any broker differ. Used only under `exclusive`."""
    beat: float | None = None
    """Seconds between broadcasts of a group with a topic of its own; None means a sixth of T. Longer costs less."""
    groups: int = 1
    """How many NELI groups share the topic. Each broadcasts n times less often, as far as T allows."""

    times: ClassVar[tuple[str, ...]] = (*GroupSettings.times, "t", "clock_error", "beat_every")

    @property
    def exclusive(self) -> bool:
        return self.guarantee == "exclusive"

    @property
    def t(self) -> float:
        """T, the paper's threshold."""
        if self.threshold is not None:
            return self.threshold
        return self.session_timeout / 2 if self.exclusive else 2 * self.session_timeout

    @property
    def grace(self) -> float:
        """How long a new leader waits. The paper says T, but the old leader's clock may be e behind the broker's."""
        return self.t + self.clock_error if self.exclusive else 0.0

    @property
    def beat_every(self) -> float:
        """The paper, "Topic reuse": a second group halves the frequency of both."""
        return min(self._proof / 6 * self.groups, self._proof / 3) if self.beat is None else self.beat * self.groups

    @property
    def _proof(self) -> float:
        """How long a message is certain to prove anything: to a clock e ahead of the broker's, it looks older."""
        return max(0.0, self.t - self.clock_error) if self.exclusive else self.t

    def advice(self) -> Iterator[Notice]:
        yield from super().advice()
        if self.session_timeout > SESSION:
            remedy = "lower session, and group.min.session.timeout.ms of the brokers, as far as the group settles"
            yield _advice("a member that dies is missed for a session", remedy, session=self.session_timeout)
        if self.session_timeout < SESSION:
            remedy = "set group.min.session.timeout.ms of the brokers to the session or less"
            yield _advice("brokers refuse so short a session by default", remedy, session=self.session_timeout)
        if self.groups > 1:
            remedy = "give each group a topic of its own, so that they do not fail together"
            yield _advice("the topic is shared", remedy, groups=self.groups)

    def _problems(self) -> Iterator[str]:
        if self.guarantee not in ("exclusive", "available"):
            yield f"guarantee={self.guarantee!r} is unknown: choose 'available' or 'exclusive'"
        elif self.groups < 1:
            yield f"groups={self.groups!r} must be a whole number of at least 1: count the groups that share the topic"
        else:
            yield from super()._problems()

    def _inequalities(self) -> Iterator[str]:
        t, e, session = self.t, self.clock_error, self.session_timeout
        if self.exclusive and t <= e:
            yield f"T={t:g} must be greater than e={e:g}, or no message proves anything: raise threshold above {e:g}"
        elif not 0 < self.beat_every <= self._proof / 3:
            less = f" less e={e:g}" if self.exclusive else ""
            yield (
                f"beat={self.beat_every:g} (with groups={self.groups}) must be above 0 and at most a third of T={t:g}"
                f"{less}, or one lost message would look like a lost partition: lower beat to "
                f"{self._proof / 3 / self.groups:g} or raise threshold to {t - self._proof + 3 * self.beat_every:g}"
            )
        if self.exclusive and t + e >= session:
            yield (
                f"T={t:g} plus e={e:g} must be less than session={session:g}, or a member can lead a partition that "
                f"the broker gave to another: lower threshold to under {max(0.0, session - e):g} or raise session "
                f"above {t + e:g}"
            )
        if not self.exclusive and t <= session:
            yield (
                f"T={t:g} must be greater than session={session:g}, or a leader that is cut off ends before the broker "
                f"gives its partitions to another: raise threshold above {session:g} or lower session to under {t:g}"
            )


class FastNeliSettings(GroupSettings, frozen=True, kw_only=True):
    """Settings of `fast-neli`, with goNELI's names and defaults where it has them."""

    heartbeat_timeout: float = 5.0
    """HeartbeatTimeout: how long a leader leads without hearing itself. A shorter timeout shortens gaps and fences more
    often."""
    min_poll_interval: float = 0.1
    """MinPollInterval: seconds between heartbeats. goNELI sends one at each poll."""
    goneli: bool = False
    """Take part in a goNELI group: lead only partition 0, and send what goNELI sends."""

    times: ClassVar[tuple[str, ...]] = (*GroupSettings.times, "heartbeat_timeout", "min_poll_interval")

    @property
    def session_timeout(self) -> float:
        return 3 * self.heartbeat_timeout if self.session is None else self.session

    @property
    def beat_every(self) -> float:
        return self.min_poll_interval

    def _problems(self) -> Iterator[str]:
        if not 0 <= self.heartbeat_timeout < inf:
            yield f"heartbeat_timeout={self.heartbeat_timeout!r} must be a number of seconds: correct it"
            return  # The session follows from the heartbeat timeout.
        yield from super()._problems()
        if "%" in self.name:
            yield f"the name {self.name!r:.60} must have no %, which ends the time in a heartbeat: choose another"
        if self.goneli and self.layout.partitions != 1:
            yield (
                f"goneli=True needs a layout of one partition, got {self.layout.partitions}: goNELI leads partition 0 "
                "and no other, so every role is its leader's"
            )

    def _inequalities(self) -> Iterator[str]:
        timeout, session, every = self.heartbeat_timeout, self.session_timeout, self.group_heartbeat_every
        if not 0 < self.min_poll_interval <= timeout / 3:
            yield (
                f"min_poll_interval={self.min_poll_interval:g} must be above 0 and at most a third of "
                f"heartbeat_timeout={timeout:g}, or one lost heartbeat would look like silence: lower it to "
                f"{timeout / 3:g} or raise heartbeat_timeout to {3 * self.min_poll_interval:g}"
            )
        if timeout > session / 3:
            yield (
                f"heartbeat_timeout={timeout:g} must be at most a third of session={session:g}, so that a leader that "
                f"is cut off stops well before the broker gives its partitions away: lower it to {session / 3:g} or "
                f"raise session to {3 * timeout:g}"
            )
        if timeout + every >= session:
            yield (
                f"heartbeat_timeout={timeout:g} plus group_heartbeat={every:g} must be less than session={session:g}, "
                f"or two members can lead at once: lower group_heartbeat to under {max(0.0, session - timeout):g}"
            )
        if self.goneli and session != 3 * timeout:
            yield (
                f"session={session:g} must be three times heartbeat_timeout={timeout:g} with goneli=True, because "
                "goNELI knows no other: leave session out"
            )


def _advice(found: str, remedy: str, **fields: object) -> Notice:
    return Notice("group.advice", {"found": found, "remedy": remedy, **fields})
