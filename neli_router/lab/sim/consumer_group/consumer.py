"""The simulated client library: the layer between a broker and a program that consumes in a group.

    broker --answers to beats--> changes: Given, AskedBack, Lost --.
           --messages----------> fetched, of each partition --------+--take--> program
           <--beats, given back, messages published-----------------'

A client library runs next to the program's thread. It sends its beats and fetches whatever the program does, unless the
whole process is frozen. So messages wait in here for a busy program, and a program may take old messages long after the
broker gave the partition to another consumer.

It learns what the broker decided from the answer to its next beat. Until then it believes the previous answer. If no
beat was answered for a session by its own clock, it considers itself forgotten, and joins again under another identity.
If its program takes nothing for too long, it leaves the group on its own. Either way the program gets Lost when it
takes its next change, which may come after messages that were fetched before.

Changes come one after another. As long as a program has not given back everything that was asked back, it gets no other
change, only messages and the group's confirmations; with a deaf driver, not even those. The library waits for that as
long as the broker does, and a driver that is not deaf only until it hears that the group has forgotten it. Then the
program gets Lost, and the partitions are given back without it.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from neli_router.lab.sim.consumer_group.broker import Answer, Broker
from neli_router.lab.sim.world import LocalClock
from neli_router.protocols.consumer_group.events import (
    AskedBack,
    BrokerAway,
    BrokerBack,
    BrokerInput,
    Confirmed,
    Given,
    Lost,
    Message,
)

__all__ = ["Consumer"]

SOON = 1e-4
"""In sessions: the shortest time anything takes."""

FIRST_A_CHANGE = 0.5
"""How often a change comes before messages that were fetched earlier."""


@dataclass(slots=True)
class _Fetching:
    giving: int
    start: int
    stop: float = inf
    """The offset at which the broker took the partition away, for a broker that refuses such fetches."""
    arrivals: deque[tuple[float, Message]] = field(default_factory=deque)


class Consumer:
    """One process's library. `on_news` is called with the time at which there may be something to take."""

    def __init__(self, broker: Broker, label: str, *, clock: LocalClock, on_news: Callable[[float], None]) -> None:
        self.broker, self.label = broker, label
        self.world, self.options = broker.world, broker.options
        self.closed = False
        self.frozen_until = self.group_cut_until = self.fetch_cut_until = self.mute_until = 0.0
        self.givings: dict[int, int] = {}
        """Partition -> the last giving its program got and has not lost or given back."""
        self.asked_until = -inf
        """The time until which the broker waited for something that it asked back."""
        self._clock, self._on_news = clock, on_news
        self._lives = 0
        self._identity = ""
        self._known: dict[int, int] = {}
        """Partition -> its giving, as the library believes: what the program knows once it has taken all changes."""
        self._newest = 0
        """The newest giving that it knows of. Answers that arrive late may name older ones."""
        self._asked: set[int] = set()
        self._given_back: dict[int, int] = {}
        self._changes: deque[tuple[BrokerInput, dict[int, int]]] = deque()
        self._draining: set[int] = set()
        """Partitions its program was asked for and has not given back."""
        self._drains_until = inf
        """How long the library waits for those."""
        self._fetching: dict[int, _Fetching] = {}
        self._answered_at = 0.0
        self._taken_at = self.world.now
        self._dozes = False
        """Whether it left because its program took nothing; it joins again when the program takes something."""
        self._away = False
        self._beats = 0
        self._flights: dict[int, deque[tuple[float, bytes | None]]] = {}
        """Partition -> the messages on their way to the broker, in order."""
        self._join()
        self._beat_soon()

    # For the process

    def take(self) -> BrokerInput | Sequence[Message] | None:
        """The next change or messages for the program, if there are any."""
        world = self.world
        self._taken_at = world.now
        if self._dozes:
            self._dozes = False
            self._join()
        if self._draining and world.now >= self._drains_until:
            return self._lose_late()
        visible = self._visible()
        if self._draining and self.options.deaf_while_draining:
            return None
        if self._may_change and (not visible or world.random.random() < FIRST_A_CHANGE):
            return self._take_change()
        if not visible:
            return None
        count = self.options.batch_max
        messages = [self._fetching[partition].arrivals.popleft()[1] for partition in visible[:count]]
        world.note(self.label, "takes " + " ".join(f"{message.partition}:{message.offset}" for message in messages))
        return messages

    def next_at(self) -> float:
        """When there is something to take, which may be now; inf if nothing is known."""
        if self._draining and self.options.deaf_while_draining:
            return self._drains_until
        if self._may_change:
            return self.world.now
        first = min((line.arrivals[0][0] for line in self._fetching.values() if line.arrivals), default=inf)
        return min(first, self._drains_until) if self._draining else first

    def publish(self, bodies: Mapping[int, bytes | None]) -> None:
        world, options = self.world, self.options
        for partition, body in bodies.items():
            starts = max(world.now, self.mute_until, self.broker.away_until)
            if not self.broker.healed and (
                world.random.random() < options.loss or (starts > world.now and world.random.random() < 0.5)
            ):
                continue
            flights = self._flights.setdefault(partition, deque())
            at = max(starts + self._delay(), flights[-1][0] if flights else 0.0)
            flights.append((at, body))
            world.at(at, self._land_messages, partition)

    def give_back(self, partitions: Collection[int]) -> None:
        """Its program is done with these partitions."""
        self.asked_until = self.world.now
        for partition in partitions:
            self._draining.discard(partition)
            self._asked.discard(partition)
            self._fetching.pop(partition, None)
            giving = self.givings.pop(partition, None)
            if giving is not None and self._known.get(partition) == giving:
                del self._known[partition]
                self._given_back[partition] = giving
        self._beat()
        self._on_news(self.world.now)

    def confirm(self, offsets: Mapping[int, int]) -> None:
        """Ask the coordinator whether it still counts this consumer."""
        if self._reaches_group() and not self._dozes and self.world.random.random() >= self.options.loss:
            at = self.world.now + self._delay()
            self.world.at(at, self._land_question, self._identity, dict(offsets))

    def leave(self) -> None:
        """Leave gracefully: the broker learns of it right away, if it can."""
        was_closed = self.closed
        self.close()
        if self._reaches_group() and not was_closed:
            identity = self._identity
            self.world.at(self.world.now + self._delay(), self.broker.forget, identity, "left")

    def close(self) -> None:
        self.closed = True
        self._fetching.clear()

    def break_for(self, event: BrokerInput) -> None:
        """Make `event` the next change."""
        self._changes.appendleft((event, {}))
        self._on_news(self.world.now)

    def heal(self) -> None:
        now = self.world.now
        self.frozen_until = self.group_cut_until = self.fetch_cut_until = self.mute_until = now
        soon = now + self._delay()
        for line in self._fetching.values():
            line.arrivals = deque((min(at, soon), message) for at, message in line.arrivals)
        for partition, flights in self._flights.items():
            self._flights[partition] = deque((min(at, soon), body) for at, body in flights)
            self.world.at(soon, self._land_messages, partition)
        self._beat_at(now)
        self._on_news(soon)

    # For the broker

    def on_append(self, message: Message) -> None:
        line = self._fetching.get(message.partition)
        if line is None or self.closed or not line.start <= message.offset < line.stop:
            return
        at = max(self.world.now, self.fetch_cut_until, self.broker.away_until) + self._delay()
        if line.arrivals:
            at = max(at, line.arrivals[-1][0])
        line.arrivals.append((at, message))
        self._on_news(at)

    def on_taken(self, partition: int, giving: int) -> None:
        """The broker took it, and answers no fetch of it from here on."""
        line = self._fetching.get(partition)
        if line is not None and line.giving == giving:
            line.stop = self.broker.end(partition)

    def on_dropped(self, partition: int) -> None:
        """The broker dropped its messages of `partition`. Messages that were fetched before are still there."""
        line = self._fetching.get(partition)
        if line is not None:
            line.arrivals = deque(arrival for arrival in line.arrivals if arrival[0] <= self.world.now)

    # Its own thread

    def _delay(self) -> float:
        options, random = self.options, self.world.random
        if not self.broker.healed and random.random() < options.tail:
            return random.uniform(0.0, 1.5) * options.session
        return (min(random.expovariate(1 / options.delay), options.delay_max) + SOON) * options.session

    def _reaches_group(self) -> bool:
        return self.world.now >= self.group_cut_until and self.broker.answers

    def _join(self) -> None:
        self._lives += 1
        self.asked_until = min(self.asked_until, self.world.now)
        self._identity = f"{self.label}/{self._lives}"
        self._known.clear()
        self._asked.clear()
        self._given_back.clear()
        self._answered_at = self._clock.at(self.world.now)
        self._beat()

    def _beat_soon(self) -> None:
        every = self.options.session / self.options.beats_per_session
        self._beat_at(self._clock.when(self._clock.at(self.world.now) + every))

    def _beat_at(self, time: float) -> None:
        self._beats += 1
        self.world.at(time, self._beat_again, self._beats)

    def _beat_again(self, ticket: int) -> None:
        world, options = self.world, self.options
        if self.closed or ticket != self._beats:
            return
        if world.now < self.frozen_until:
            self._beat_at(self.frozen_until + world.random.uniform(0.0, SOON) * options.session)
            return
        away = world.now < self.broker.away_until
        if away != self._away:
            self._away = away
            self._changes.append((BrokerAway() if away else BrokerBack(), {}))
            self._on_news(world.now)
        if not self._dozes:
            if self._clock.at(world.now) > self._answered_at + options.session:
                self._lose("no beat was answered for a session")
                self._join()
            elif world.now > self._taken_at + options.poll_patience * options.session:
                if self._reaches_group():
                    world.at(world.now + self._delay(), self.broker.forget, self._identity, "took nothing")
                self._lose("its program takes nothing")
                self._dozes = True
            else:
                self._beat()
        self._beat_soon()

    def _land_messages(self, partition: int) -> None:
        flights = self._flights[partition]
        while flights and flights[0][0] <= self.world.now:
            self.broker.append(partition, flights.popleft()[1])

    def _beat(self) -> None:
        if self._reaches_group() and not self.closed and not self._dozes:
            self.world.at(self.world.now + self._delay(), self._land, self._identity, dict(self._given_back))

    def _land(self, identity: str, given_back: dict[int, int]) -> None:
        """A beat reaches the broker, whatever has happened to its sender since."""
        if self.closed and self.broker.healed:
            return
        if self.broker.answers:
            answer = self.broker.beat(identity, self.label, given_back)
            self.world.at(self.world.now + self._delay(), self._hear, identity, answer)

    def _land_question(self, identity: str, offsets: dict[int, int]) -> None:
        if self.broker.answers:
            counts = self.broker.counts(identity)
            self.world.at(self.world.now + self._delay(), self._hear_word, identity, offsets, counts)

    def _hear_word(self, identity: str, offsets: dict[int, int], counts: bool) -> None:
        if self.world.now < self.frozen_until:
            self.world.at(self.frozen_until, self._hear_word, identity, offsets, counts)
        elif identity == self._identity and not self.closed and not self._dozes:
            if counts:
                self._changes.append((Confirmed(offsets), {}))
                self._on_news(self.world.now)
            else:
                self._lose("the group refuses its word")
                self._join()

    def _hear(self, identity: str, answer: Answer | None) -> None:
        world = self.world
        if identity != self._identity or self.closed or self._dozes:
            return
        if world.now < self.frozen_until:
            world.at(self.frozen_until + world.random.uniform(0.0, SOON), self._hear, identity, answer)
            return
        if world.now < self.group_cut_until:
            return
        if answer is None:
            self._lose("the group forgot it")
            self._join()
            return
        self._answered_at = self._clock.at(world.now)
        holds, asked = answer
        self._given_back = {i: giving for i, giving in self._given_back.items() if holds.get(i) == giving}
        given = {
            i: giving
            for i, giving in holds.items()
            if i not in self._known and i not in self._given_back and giving > self._newest
        }
        if given:
            self._newest = max(given.values())
            self._known.update(given)
            self._changes.append((Given(sorted(given)), given))
        back = {i: self._known[i] for i in asked - self._asked if self._known.get(i) == holds.get(i)}
        if back:
            self.asked_until = inf
            self._asked.update(back)
            self._changes.append((AskedBack(sorted(back)), back))
        self._on_news(world.now)

    def _lose(self, why: str) -> None:
        self.world.note(self.label, f"(library: {why})")
        self._changes.append((Lost(()), {}))
        if self._draining and not self.options.deaf_while_draining:
            self._drains_until = self.world.now
        self._on_news(self.world.now)

    # For its program

    @property
    def _may_change(self) -> bool:
        return bool(self._changes) and (not self._draining or isinstance(self._changes[0][0], Confirmed))

    def _lose_late(self) -> Lost:
        """The program has not given these back within the broker's patience."""
        late = sorted(self._draining)
        self.world.note(self.label, f"(library: waited in vain for {late})")
        self.give_back(late)
        return Lost(late)

    def _visible(self) -> list[int]:
        """The partitions with messages to take, once for each message, the earliest first."""
        now = self.world.now
        arrivals = sorted(
            (at, message.offset, partition)
            for partition, line in self._fetching.items()
            for at, message in line.arrivals
            if at <= now
        )
        return [partition for _, _, partition in arrivals]

    def _take_change(self) -> BrokerInput | None:
        event, givings = self._changes.popleft()
        match event:
            case Given():
                self.givings.update(givings)
                for partition, giving in givings.items():
                    self._fetching[partition] = _Fetching(giving, self.broker.end(partition))
            case AskedBack(partitions):
                self._draining.update(partitions)
                self._drains_until = self.world.now + self.options.poll_patience * self.options.session
            case Lost():
                event = Lost(sorted(self.givings))
                self.givings.clear()
                self._fetching.clear()
                if not event.partitions:
                    return None
            case _:
                pass
        self.world.note(self.label, f"takes {event}")
        return event
