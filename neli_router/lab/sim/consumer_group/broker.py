"""The simulated broker: a topic, and the coordinator of one group that consumes it.

    member: join --> alive --beats, each within a session--> alive ... --silent, or left, or sooner--> forgotten
    partition: free --given--> held --asked back--> held --given back, or its holder is forgotten--> free

Members come and go in any order, and every change makes a new target. With `cooperative`, only partitions whose holder
differs from the target are asked back, and each is given on once it is free. Apart from the number of rounds, the
classic protocol and KIP-848 look alike to a member here. With `eager`, all partitions are asked back at every change,
and none is given before all are free. A member that gives nothing back within the broker's patience is forgotten
entirely.

Each giving has its own number. Givings of one partition never overlap at the broker: the next begins when the previous
one has ended. Members' beliefs about givings lag behind, and the checkers measure belief by these numbers.

The topic's messages are stamped with the broker's clock of the day, which never goes back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from neli_router.lab.sim.consumer_group.options import ConsumerOptions
from neli_router.lab.sim.world import World
from neli_router.protocols.consumer_group.events import Message

__all__ = ["Answer", "Broker", "DayClock", "draw_day_clock"]

EPOCH = 1_700_000_000.0
"""Seconds since 1970 when a run begins."""

RETRY = 0.05
"""In sessions: how soon a coordinator that currently cannot forget a silent member looks again."""


SILENCE = "was silent for a session"


class DayClock:
    """A clock of the day: true time plus an error that jumps at some times, as if the clock were set from outside."""

    def __init__(self, errors: list[tuple[float, float]]) -> None:
        self._errors = errors

    def set_right(self, time: float) -> None:
        """From `time` on, show the true time."""
        self._errors = [*(error for error in self._errors if error[0] < time), (time, 0.0)]

    def at(self, time: float) -> float:
        error = next(error for start, error in reversed(self._errors) if start <= time)
        return EPOCH + time + error


def draw_day_clock(world: World, options: ConsumerOptions) -> DayClock:
    """A clock within e of all others, or off by anything `beyond`; often exactly at a bound, because there it hurts."""
    random = world.random
    # While T passes, clocks also drift apart, and e has to cover that, too.
    kept = max(0.0, options.error - 2 * options.drift * (options.current + options.error)) / 2
    most = (kept if options.weather != "beyond" else 3.0) * options.session
    starts = [0.0, *sorted(random.uniform(0.0, 2 * options.sessions) for _ in range(random.choice((0, 0, 3))))]
    return DayClock([(at * options.session, most * random.choice((-1.0, 1.0, random.uniform(-1, 1)))) for at in starts])


class Answer(NamedTuple):
    """The coordinator's answer to a beat: the givings that the member has, and which of them are asked back."""

    holds: dict[int, int]
    asked: frozenset[int]


@dataclass(slots=True)
class _Seat:
    label: str
    alive_until: float
    holds: dict[int, int] = field(default_factory=dict)
    """Partition -> the number of its giving."""
    asked: dict[int, float] = field(default_factory=dict)
    """Partition -> since when it has been asked back."""


class Broker:
    """`on_given` and `on_taken` get givings (the member's label, partition, number); `on_append` gets messages."""

    def __init__(
        self,
        world: World,
        options: ConsumerOptions,
        *,
        on_given: Callable[[str, int, int], None],
        on_taken: Callable[..., None],
        on_append: Callable[[Message], None],
    ) -> None:
        self.world, self.options = world, options
        self._on_given, self._on_taken, self._on_append = on_given, on_taken, on_append
        self.logs: list[list[Message]] = [[] for _ in range(options.partitions)]
        self.day = draw_day_clock(world, options)
        self.away_until = 0.0
        """Until then, no part of the broker answers."""
        self.moving_until = 0.0
        """Until then, the coordinator does not answer. Its successor knows all members, each gets a new session."""
        self.healed = False
        self.seats: dict[str, _Seat] = {}
        """In the order of joining."""
        self._forgotten: set[str] = set()
        self._givings = 0
        self._target: dict[int, str] = {}
        self._gathering = False
        """Eager: whether everything is asked back, and nothing given yet."""
        self._stamped = 0.0
        self._ends = [world.random.choice((0, 0, 100)) for _ in range(options.partitions)]

    # The topic

    def end(self, partition: int) -> int:
        """The lowest offset that the next message of `partition` can have."""
        return self._ends[partition]

    def append(self, partition: int, body: bytes | None) -> None:
        self._stamped = max(self._stamped, self.day.at(self.world.now))
        step = self.world.random.choice((1, 1, 2, 5)) if self.options.sparse else 1
        message = Message(partition, self._ends[partition] + step - 1, self._stamped, body)
        self._ends[partition] += step
        self.logs[partition].append(message)
        self.world.include(repr(message).encode())
        self._on_append(message)

    # The coordinator

    @property
    def answers(self) -> bool:
        return self.world.now >= max(self.away_until, self.moving_until)

    def beat(self, identity: str, label: str, given_back: Mapping[int, int]) -> Answer | None:
        """`identity` lives, and has returned these givings. None: it was forgotten, and can only join again."""
        if identity in self._forgotten:
            return None
        now, session = self.world.now, self.options.session
        seat = self.seats.get(identity)
        if seat is None:
            seat = self.seats[identity] = _Seat(label, now + session)
            self.world.note("broker", f"{identity} joins")
            self._rebalance()
            self.world.at(seat.alive_until, self._look, identity)
        seat.alive_until = now + session
        returned = [partition for partition, giving in given_back.items() if seat.holds.get(partition) == giving]
        for partition in returned:
            self._take(seat, partition, silent=False)
        if returned:
            self._settle()
        return Answer(dict(seat.holds), frozenset(seat.asked))

    def counts(self, identity: str) -> bool:
        """Whether `identity` is a member."""
        return identity in self.seats

    def forget(self, identity: str, why: str) -> None:
        """Remove it as a member; it may not know."""
        seat = self.seats.pop(identity, None)
        self._forgotten.add(identity)
        if seat is None:
            return
        self.world.note("broker", f"forgets {identity}, which {why}")
        for partition in list(seat.holds):
            self._take(seat, partition, silent=why == SILENCE)
        self._rebalance()

    def identity_of(self, label: str) -> str | None:
        return next((identity for identity, seat in self.seats.items() if seat.label == label), None)

    def move(self, seconds: float) -> None:
        """The coordinator is moved to another broker."""
        self.moving_until = max(self.moving_until, self.world.now + seconds)
        self.renew(self.moving_until)

    def go_away(self, seconds: float) -> None:
        self.away_until = max(self.away_until, self.world.now + seconds)
        self.renew(self.away_until)

    def renew(self, since: float) -> None:
        """From `since` on, give all members a full session, and everything asked back the full patience."""
        for seat in self.seats.values():
            seat.alive_until = max(seat.alive_until, since + self.options.session)
            for partition in seat.asked:
                seat.asked[partition] = max(seat.asked[partition], since)

    def heal(self) -> None:
        self.healed = True
        self.away_until = self.moving_until = self.world.now
        self.day.set_right(self.world.now)
        self._stamped = 0.0

    @property
    def settled(self) -> bool:
        """Whether each partition is where it should be, and nothing is asked back."""
        held = {partition: identity for identity, seat in self.seats.items() for partition in seat.holds}
        return held == self._target and not any(seat.asked for seat in self.seats.values())

    @property
    def holders(self) -> dict[int, str]:
        """Partition -> the label of the member that holds it."""
        return {partition: seat.label for seat in self.seats.values() for partition in seat.holds}

    def _look(self, identity: str) -> None:
        seat, now = self.seats.get(identity), self.world.now
        if seat is None:
            return
        if now < seat.alive_until:
            self.world.at(seat.alive_until, self._look, identity)
        elif not self.answers:
            self.world.at(now + RETRY * self.options.session, self._look, identity)
        else:
            self.forget(identity, SILENCE)

    def _rebalance(self) -> None:
        if not self.seats:
            self._target.clear()
            self._gathering = False
            return
        if self.options.assignor == "eager":
            self._gathering = True
            members = sorted(self.seats)
            self._target = {i: members[i % len(members)] for i in range(self.options.partitions)}
        else:
            self._target = self._share()
        self._settle()

    def _share(self) -> dict[int, str]:
        """Each member's share, with the fewest moves."""
        holders = {partition: identity for identity, seat in self.seats.items() for partition in seat.holds}
        has = {identity: sorted(i for i, holder in holders.items() if holder == identity) for identity in self.seats}
        least, more = divmod(self.options.partitions, len(has))
        ranked = sorted(has, key=lambda identity: -len(has[identity]))
        quota = {identity: least + (rank < more) for rank, identity in enumerate(ranked)}
        target = {i: identity for identity, mine in has.items() for i in mine[: quota[identity]]}
        room = [one for one in self.seats for _ in range(quota[one] - min(quota[one], len(has[one])))]
        return target | dict(zip((i for i in range(self.options.partitions) if i not in target), room, strict=True))

    def _settle(self) -> None:
        held = {partition: identity for identity, seat in self.seats.items() for partition in seat.holds}
        for partition, identity in held.items():
            seat = self.seats[identity]
            if (self._gathering or self._target[partition] != identity) and partition not in seat.asked:
                seat.asked[partition] = self.world.now
                self._wait_for(identity, partition, seat.holds[partition])
        if self._gathering and held:
            return
        self._gathering = False
        for partition, identity in sorted(self._target.items()):
            if partition not in held:
                self._givings += 1
                self.seats[identity].holds[partition] = self._givings
                self.world.note("broker", f"gives {partition} to {identity}, giving {self._givings}")
                self._on_given(self.seats[identity].label, partition, self._givings)

    def _take(self, seat: _Seat, partition: int, *, silent: bool) -> None:
        giving = seat.holds.pop(partition)
        seat.asked.pop(partition, None)
        self.world.note("broker", f"has {partition} back from {seat.label}, giving {giving}")
        self._on_taken(seat.label, partition, giving, silent=silent)

    def _wait_for(self, identity: str, partition: int, giving: int) -> None:
        seat = self.seats.get(identity)
        if seat is None or seat.holds.get(partition) != giving or partition not in seat.asked:
            return
        patient_until = seat.asked[partition] + self.options.poll_patience * self.options.session
        if self.world.now >= patient_until and self.answers:
            self.forget(identity, "gave nothing back")
        else:
            again = max(patient_until, self.world.now + RETRY * self.options.session)
            self.world.at(again, self._wait_for, identity, partition, giving)
