"""The part that both protocols share: from a partition that the broker gave to a tenure with a term, and back.

                    evidence           the group confirmed         a message is fresh, and the grace is over
    (nothing) -Given-> held ----------> proposed ---------> tenure ------------------------------> may lead
        ^               ^                                     |                                       |
        |               '---- no fresh message: Fenced -------+---------------------------------------+
        '---------------- Lost, or asked back and let go -----+---------------------------------------'

**A term** is `term_base` + 1 + the offset of the message that began the tenure, so it is above `term_base`. Terms of
successive owners of a partition are never equal and never fall, even if one owner is a zombie. Why:

1. A tenure begins when its message m was received, and *after that* the group's coordinator still counted this
   member (`Confirm`). So m was in the log when the coordinator answered.
2. The coordinator gives the partition to another member only after it has stopped counting this one, or after this
   one let go. In the second case this machine knew, because a driver keeps the order of its inputs: it dropped its
   proposal, and a later answer refers to nothing.
3. So m was in the log before the next owner was given the partition. The next owner begins with a message that was
   appended after that (`neli`: its messages begin at the log's end, looked up after the partition was given;
   `fast_neli`: its own heartbeat, sent after that). A log's offsets rise. The same holds for one owner's next tenure.

Without (1), the offset of the first message received would not be enough. A consumer that was given a partition, hung,
and wakes up when another has it, begins at the end of the log like the owner. Both would take the same offset, or the
zombie a higher one, and then a fence would refuse the owner for as long as it leads. The group's generations would not
work either: they start again when a group is deleted.

**Not promised.** A tenure begins with the group's confirmation, and continues by messages alone, as both protocols
define it. Kafka lets a consumer keep fetching after the group has forgotten it. This zombie leads alongside the new
owner until it hears of its expulsion. Its term is lower: acts that matter carry the term, and a fence refuses them. A
recreated topic begins at offset 0. If a member sees this (an offset that is not above the last), it ends with an error;
if no member lived to see it, terms fall unless `term_base` is raised.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from random import Random

from neli_router.errors import GroupMismatch, LedgerRewound, NeliError
from neli_router.protocols.belief import BaseMachine
from neli_router.protocols.consumer_group.events import (
    AskedBack,
    BrokerAway,
    BrokerBack,
    BrokerBroken,
    BrokerEffect,
    BrokerInput,
    Confirm,
    Confirmed,
    GiveBack,
    Given,
    LeaveGroup,
    Lost,
    Message,
    Publish,
    Received,
)
from neli_router.protocols.consumer_group.settings import GroupSettings
from neli_router.protocols.protocol import Close, Released, Stopped

__all__ = ["GroupMachine", "Held"]

LOST = "the broker took the partition for itself, or the group forgot this member"


class Held:
    """A partition, from Given until it is given back or lost."""

    def __init__(self, given_at: float) -> None:
        self.given_at = given_at
        self.asked_back = False
        self.began = False
        """Whether the present tenure began after the partition was given."""
        self.proposed: int | None = None
        """The offset of the message that will begin a tenure, once the group has confirmed."""
        self.doubted = False
        """Whether the group must confirm the present tenure again. Until it has, no message prolongs the tenure."""


class GroupMachine(BaseMachine):
    """One member's machine. Not thread-safe. `partitions` is M, as the broker reported it at the start."""

    settings: GroupSettings

    def __init__(self, settings: GroupSettings, partitions: int, *, rng: Random) -> None:
        if partitions != settings.layout.partitions:
            raise _other_size(settings.layout.partitions, partitions)
        super().__init__(settings.drain_timeout, rng)
        self.settings = settings
        self._held: dict[int, Held] = {}
        self._tenures: dict[int, int] = {}
        """Partition -> the offset of the message that began the tenure."""
        self._offsets: dict[int, int] = {}
        self._publish_at = -inf
        self._confirm_at = -inf
        self._news = False
        """Whether there is a proposal that the group was not asked about so far."""
        self._away = self._advised = self._left = False

    # Defined by each protocol

    def _given(self, partition: int, now: float) -> None:
        """A partition was given. That alone proves nothing."""

    @abstractmethod
    def _receive(self, message: Message, wall: float, now: float, effects: list[BrokerEffect]) -> None:
        """Take one message, which may be evidence."""

    def _disregards(self, partition: int) -> bool:
        """Whether the protocol ignores this partition, although the broker gives it to members."""
        return False

    def _begins(self, partition: int) -> float:
        """When the tenure of `partition` may begin to lead."""
        return -inf

    @abstractmethod
    def _bodies(self, now: float) -> Mapping[int, bytes | None]:
        """The messages to publish now: partition -> body."""

    @property
    @abstractmethod
    def _silence(self) -> str:
        """Why evidence ends, in words for the program."""

    # Questions

    def tenures(self, now: float) -> dict[int, int]:
        first = self.settings.term_base + 1
        return {i: first + at for i, at in self._tenures.items() if self._begins(i) <= now < self._ends(i)}

    @property
    def deadline(self) -> float:
        if self._told:
            return inf
        wake = [self._belief.deadline]
        if not self._left:
            wake.append(self._publish_at)
            if self._questions():
                wake.append(self._confirm_at)
        leading = self._belief.leading
        wake += [self._ends(i) if i in leading or self._closing else self._begins(i) for i in self._tenures]
        return min(wake)

    # The step

    def step(self, event: BrokerInput, now: float) -> list[BrokerEffect]:
        effects: list[BrokerEffect] = []
        if self._told:
            return effects
        if not self._advised:
            self._advised = True
            effects += self.settings.advice()
        self._lapse(now, effects)  # Time first: an input that arrives late must not hide the silence before it.
        match event:
            case Given(partitions):
                self._give(partitions, now, effects)
            case AskedBack(partitions):
                self._ask_back(partitions, effects)
            case Lost(partitions):
                self._drop(partitions, LOST, now, effects)
            case Received(messages, wall):
                self._take(messages, wall, now, effects)
            case Confirmed(offsets):
                self._begin(offsets)
            case BrokerAway():
                self._away = True
            case BrokerBack():
                self._away, self._publish_at = False, now  # Others may lack a message since the outage began.
            case BrokerBroken(error):
                self._fail(error, now, effects)
            case Released(terms):
                for i in self._belief.release(terms):
                    self._tenures.pop(i)
            case Close():
                self._closing = True
                if event.at_once:
                    self._stop(event.error, event.reason, now, effects)
        if not self._told:
            self._act(now, effects)
        return effects

    def _act(self, now: float, effects: list[BrokerEffect]) -> None:
        self._settle(now, effects)
        if self.settings.exclusive:
            self._drain(now, effects)
        else:
            self._leave_at_once(effects)
        self._give_back(now, effects)
        if self._closing and not (self._belief.leading if self.settings.exclusive else self._tenures):
            self._leave(effects)
            self._told = True
            effects.append(Stopped(None))
        if self._left:
            return
        if (questions := self._questions()) and (self._news or now >= self._confirm_at):
            self._news, self._confirm_at = False, now + self.settings.beat_every
            effects.append(Confirm(questions))
        if now >= self._publish_at:
            self._publish_at = now + self.settings.beat_every
            if bodies := self._bodies(now):
                effects.append(Publish(bodies))

    def _lapse(self, now: float, effects: list[BrokerEffect]) -> None:
        """End the tenures whose evidence has expired."""
        over = [i for i in self._tenures if now >= self._ends(i)]
        if over:
            why = " while the broker could not be reached" if self._away else ""
            self._end(over, f"{self._silence}{why}", now, effects)
        for i, held in self._held.items():
            if held.proposed is not None and now >= self._ends(i):
                held.proposed = None

    def _give(self, partitions: Sequence[int], now: float, effects: list[BrokerEffect]) -> None:
        partitions = [i for i in partitions if not self._disregards(i)]
        if (other := max(partitions, default=0)) >= self.settings.layout.partitions:
            self._fail(_other_size(self.settings.layout.partitions, other + 1), now, effects)
            return
        self._drop(self._held.keys() & set(partitions), "the broker gave the partition again", now, effects)
        for i in partitions:
            self._held[i] = Held(now)
            self._given(i, now)

    def _ask_back(self, partitions: Sequence[int], effects: list[BrokerEffect]) -> None:
        if unknown := sorted(set(partitions) - self._held.keys()):
            effects.append(GiveBack(unknown))  # The broker waits for an answer in any case.
        for i in self._held.keys() & set(partitions):
            self._held[i].asked_back = True
            if i not in self._belief.leading:
                self._tenures.pop(i, None)  # Otherwise the program would be asked to begin what it has to end.

    def _take(self, messages: Sequence[Message], wall: float, now: float, effects: list[BrokerEffect]) -> None:
        for message in messages:
            i, last = message.partition, self._offsets.get(message.partition, -1)
            if self._disregards(i):
                continue
            if i >= self.settings.layout.partitions:
                self._fail(_other_size(self.settings.layout.partitions, i + 1), now, effects)
            elif message.offset <= last:
                # From here on terms could fall, so that a fence refuses them or, worse, they equal another owner's.
                highest = self.settings.term_base + 1 + last
                error = LedgerRewound(
                    f"a message above offset {last} was wanted in partition {i}",
                    f"offset {message.offset} was read: the topic was recreated, or it lost messages",
                    f"start all members of the group with a term_base of at least {highest}",
                )
                self._fail(error, now, effects)
            else:
                self._offsets[i] = message.offset
                self._receive(message, wall, now, effects)
            if self._told:
                return

    def _propose(self, partition: int, offset: int) -> None:
        """Let the message at `offset` begin a tenure, unless one exists or is already proposed."""
        held = self._held[partition]
        if not (self._closing or held.asked_back or held.began) and held.proposed is None:
            held.proposed, self._news = offset, True

    def _begin(self, offsets: Mapping[int, int]) -> None:
        for i, offset in offsets.items():
            held = self._held.get(i)
            if held is None:
                continue  # The answer came after the loss.
            if held.proposed == offset:
                held.proposed, held.began = None, True
                self._tenures[i] = offset
            elif self._tenures.get(i) == offset:
                held.doubted = False

    def _questions(self) -> dict[int, int]:
        """The questions that the group must answer: partition -> offset."""
        questions: dict[int, int] = {}
        for i, held in self._held.items():
            if held.proposed is not None:
                questions[i] = held.proposed
            elif held.doubted and i in self._tenures:
                questions[i] = self._tenures[i]
        return questions

    # Ends

    def _end(self, partitions: Iterable[int], reason: str, now: float, effects: list[BrokerEffect]) -> None:
        """End these tenures."""
        for i in partitions:
            self._tenures.pop(i, None)
            if i in self._held:
                self._held[i].began = self._held[i].doubted = False
        self._belief.reason = reason
        self._settle(now, effects)

    def _drop(self, partitions: Iterable[int], reason: str, now: float, effects: list[BrokerEffect]) -> None:
        """The broker has these partitions again. Under `available`, their tenures last as long as their evidence."""
        gone = [i for i in partitions if self._held.pop(i, None) is not None]
        if self.settings.exclusive:
            self._end(gone, reason, now, effects)

    def _settle(self, now: float, effects: list[BrokerEffect]) -> None:
        effects += self._belief.settle(self.tenures(now), take=not self._closing)

    def _drain(self, now: float, effects: list[BrokerEffect]) -> None:
        """Ask the program for the partitions that the broker asked back; for all of them, if the member leaves."""
        leading = self._belief.leading
        wanted = {i: term for i, term in leading.items() if self._closing or self._held[i].asked_back}
        late, told = self._belief.drain(wanted, now)
        effects += told
        for i in late:
            self._tenures.pop(i)

    def _leave_at_once(self, effects: list[BrokerEffect]) -> None:
        """Under `available`, the partitions go first, and the program keeps leading while the evidence lasts."""
        orderly = self._held.keys() if self._closing else [i for i, held in self._held.items() if held.asked_back]
        self._belief.succeeded(i for i in orderly if i in self._belief.leading)
        if self._closing:
            self._leave(effects)

    def _give_back(self, now: float, effects: list[BrokerEffect]) -> None:
        led: Mapping[int, int] = self._belief.leading if self.settings.exclusive else {}
        done = sorted(i for i, held in self._held.items() if held.asked_back and i not in led)
        if done:
            self._drop(done, "the broker asked for the partition", now, effects)
            effects.append(GiveBack(done))

    def _leave(self, effects: list[BrokerEffect]) -> None:
        if not self._left:
            self._left = True
            self._held.clear()
            if self.settings.exclusive:
                self._tenures.clear()  # They were still in their grace: the program never heard of them.
            effects.append(LeaveGroup())

    def _fail(self, error: NeliError, now: float, effects: list[BrokerEffect]) -> None:
        self._stop(error, str(error), now, effects)

    def _stop(self, error: NeliError | None, reason: str, now: float, effects: list[BrokerEffect]) -> None:
        """End without waiting for the program, which is fenced in this same step."""
        self.error, self._told = error, True
        self._held.clear()
        self._end(list(self._tenures), reason, now, effects)
        effects.append(Stopped(error))


def _other_size(wanted: int, found: int) -> GroupMismatch:
    return GroupMismatch(
        f"a topic with M={wanted} partitions was wanted, which never changes while a group runs",
        f"it has {found} or more" if found > wanted else f"it has {found}",
        "stop all members of the group, give all of them the layout that the topic has, and start them again",
    )
