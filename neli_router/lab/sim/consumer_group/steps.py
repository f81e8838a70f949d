"""The steps of a borrowed group's miniature: everything that can come next, from any world.

    time passes | a process takes a change, reads a message, is stepped, finishes what was revoked, closes, dies, starts
    a member joins or is forgotten | a partition is given or asked back | a question is answered | a message is appended

These are all, within the bounds, because:
- *Being slow, or frozen, is not being stepped.* Each change, message and answer is taken at any time after it was sent,
  or never. Until then it waits in the coordinator's order.
- *The coordinator has no plan.* It asks any partition back at any time and gives a free one to any member. So eager,
  cooperative and KIP-848's rebalances are all covered. A partition counts as asked back when the member learns of it,
  because the coordinator only waits until then. A question counts as answered when it was asked: a member that is still
  counted later was counted then. A member that was forgotten joins again when its program has learned of that.
- *`neli`: any member may be forgotten at any time*, and any message may be appended at any time, because other groups
  publish there, too. A clock of the day is off by e, either way, whenever it is read.
- *`fast-neli`: only a silent member is forgotten*, when the session has passed since a tick before it fell silent: that
  much is what its exclusivity assumes. When a member wakes, the coordinator hears it before anything else. With zombies
  it is as in `neli`: terms do not depend on silence.
- *A process that was killed* has a successor under its name as soon as the coordinator has forgotten it.
- *At most one message of each member for a partition is on its way*; a later one replaces it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations
from math import inf
from typing import Any, TypeVar

from neli_router.lab.sim.consumer_group.canon import consumer_key
from neli_router.lab.sim.consumer_group.miniature import (
    ActedTerms,
    ConsumerBounds,
    ConsumerMiniature,
    MemberPlace,
    ReadPosition,
    Told,
    broken_consumer_rule,
    founded,
    started,
    twin,
)
from neli_router.lab.sim.consumer_group.process import BorrowedMachine
from neli_router.lab.sim.explore import Label
from neli_router.protocols.consumer_group.events import (
    AskedBack,
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
from neli_router.protocols.protocol import TICK, Close, Released, Stopped

__all__ = ["ConsumerMiniatures", "consumer_steps", "next_in_calm"]

# The fields of machines are private to them: no program needs to know.
# ruff: noqa: SLF001

Step = tuple[Label, ConsumerMiniature]
T = TypeVar("T")


class ConsumerMiniatures:
    """All worlds of a small group that borrows a consumer group."""

    def __init__(self, bounds: ConsumerBounds) -> None:
        self.bounds = bounds
        self._settling: set[bytes] = set()
        """The keys of worlds that settle."""

    def first(self) -> ConsumerMiniature:
        return founded(self.bounds)

    def steps(self, world: ConsumerMiniature) -> Iterator[Step]:
        return consumer_steps(world, self.bounds)

    def key(self, world: ConsumerMiniature) -> bytes:
        return consumer_key(world, self.bounds)

    def broken_rule(self, world: ConsumerMiniature) -> str | None:
        return broken_consumer_rule(world, self.bounds) or self._unsettled(world)

    def tell(self, label: Label, world: ConsumerMiniature) -> str:
        verb, *rest = label
        words = " ".join(str(part) for part in rest if part is not None)
        acting = "; ".join(
            f"{place.name} {i} under {act[0]}"
            for i in range(self.bounds.partitions)
            for place in world.places
            if (act := place.acts[i]) is not None
        )
        return f"t={world.now:<3} {verb!s:10} {words:62} acting: {acting or 'none'}"

    def _unsettled(self, world: ConsumerMiniature) -> str | None:
        """A world settles if calm leads to one that does. A calm that returns to where it was never settles."""
        on_the_way: set[bytes] = set()
        found: ConsumerMiniature | None = world
        while found is not None and (key := self.key(found)) not in self._settling:
            if key in on_the_way:
                return "it settles: nothing fails from here on, and yet no member leads what it was given"
            on_the_way.add(key)
            found = next_in_calm(found, self.bounds)
        self._settling |= on_the_way
        return None


def consumer_steps(world: ConsumerMiniature, bounds: ConsumerBounds) -> Iterator[Step]:
    """Every step that can come next."""
    yield ("tick",), _ticked(world)
    for index, place in enumerate(world.places):
        yield from _steps_of(world, index, place, bounds)
        yield from _coordinator_on(world, index, place, bounds)
        yield from _messages_of(world, index, place, bounds)
    if bounds.protocol == "neli":
        for partition in range(bounds.partitions):
            if _has_room(world, partition, bounds):
                yield ("append", partition), _appended(world, partition, None)


def _steps_of(world: ConsumerMiniature, index: int, place: MemberPlace, bounds: ConsumerBounds) -> Iterator[Step]:
    """The steps of a process."""
    machine, me = place.machine, place.name
    if machine is None:
        return
    if bounds.crash:
        yield ("kill", me), _killed(world, index, bounds)
    if place.frozen:
        yield ("wake", me), _with(world, index, frozen=False, heard_at=world.now)
        return
    if _timed(bounds) and index in world.holders:
        yield ("freeze", me), _with(world, index, frozen=True)
    if place.changes:
        yield ("take", me, place.changes[0].event), _taken(world, index, bounds)
    for partition in range(bounds.partitions):
        if (message := _unread(world, place, partition)) is not None:
            for error in _errors(bounds):
                clock = f"its clock off by {error:+d}" if error else None
                yield (
                    ("read", me, f"{partition}:{message.offset}", clock),
                    _received(world, index, message, error, bounds),
                )
    if machine.deadline <= world.now:
        yield ("step", me), _stepped(world, index, TICK, bounds)
    if machine.finishing:
        yield ("finish", me), _stepped(world, index, _release(machine), bounds)
    if bounds.leave and not machine._closing:
        yield ("close", me), _stepped(world, index, Close(), bounds)


def _coordinator_on(world: ConsumerMiniature, index: int, place: MemberPlace, bounds: ConsumerBounds) -> Iterator[Step]:
    """The coordinator's steps that concern one member."""
    me = place.name
    if not place.is_member:
        return
    held = [i for i, holder in enumerate(world.holders) if holder == index]
    if held and _may_be_forgotten(world, place, bounds):
        yield ("forget", me), _forgotten(world, index, bounds)
    if place.changes:
        return
    if not place.frozen and place.machine is not None:
        for some in _subsets([i for i in held if not _was_asked(place.machine, i)]):
            yield ("ask back", me, *some), _stepped(world, index, AskedBack(some), bounds)
    for some in _subsets([i for i, holder in enumerate(world.holders) if holder is None]):
        yield ("give", me, *some), _gave(world, index, some)


def _messages_of(world: ConsumerMiniature, index: int, place: MemberPlace, bounds: ConsumerBounds) -> Iterator[Step]:
    """The possible fates of the messages that a process sent."""
    for partition, body in place.unsent:
        sent = _sent(world, index, partition)
        yield ("lose", place.name, partition), sent
        if _has_room(world, partition, bounds):
            yield ("append", place.name, partition), _appended(sent, partition, body)


# Limits of the world


def _timed(bounds: ConsumerBounds) -> bool:
    """Whether sessions are counted."""
    return bounds.protocol == "fast-neli" and not bounds.zombies


def _may_be_forgotten(world: ConsumerMiniature, place: MemberPlace, bounds: ConsumerBounds) -> bool:
    if not _timed(bounds):
        return True
    silent = place.frozen or place.machine is None
    return silent and world.now >= place.heard_at - 1 + bounds.patience


def _errors(bounds: ConsumerBounds) -> Sequence[int]:
    """How far the clock of the day may be off when it is read: it hurts most at its bounds."""
    exclusive = bounds.protocol == "neli" and bounds.guarantee == "exclusive"
    return (-bounds.error, bounds.error) if exclusive and bounds.error else (0,)


def _subsets(partitions: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(partitions, count) for count in range(1, len(partitions) + 1))


def _was_asked(machine: BorrowedMachine, partition: int) -> bool:
    held = machine._held.get(partition)
    return held is not None and held.asked_back


def _unread(world: ConsumerMiniature, place: MemberPlace, partition: int) -> Message | None:
    return next((message for message in world.logs[partition] if _reads(place, message)), None)


def _reads(place: MemberPlace, message: Message) -> bool:
    position = place.positions[message.partition]
    return position is not None and position.next <= message.offset < position.stop


def _has_room(world: ConsumerMiniature, partition: int, bounds: ConsumerBounds) -> bool:
    """Whether there is room to append one more message that some place would read."""
    read = any((position := place.positions[partition]) is not None and position.stop == inf for place in world.places)
    return read and len(world.logs[partition]) < bounds.apart


def _release(machine: BorrowedMachine) -> Released:
    leading = machine.leading
    return Released({partition: leading[partition] for partition in machine.finishing})


# Time and processes


def _ticked(world: ConsumerMiniature) -> ConsumerMiniature:
    world = world._replace(now=world.now + 1)
    for index, place in enumerate(world.places):
        if place.machine is not None and not place.frozen:
            world = _with(world, index, heard_at=world.now)
        world = _judged(world, index)
    return world


def _killed(world: ConsumerMiniature, index: int, bounds: ConsumerBounds) -> ConsumerMiniature:
    """If it holds nothing, another process takes its name immediately; otherwise once the coordinator has noticed."""
    place = world.places[index]
    remains = started(place.name, bounds, world.now, world.born)._replace(unsent=place.unsent)
    if place.is_member and index in world.holders:
        remains = remains._replace(machine=None, heard_at=place.heard_at)
    return _trimmed(world._replace(places=_replaced(world.places, index, remains), born=world.born + 1))


def _stepped(world: ConsumerMiniature, index: int, event: BrokerInput, bounds: ConsumerBounds) -> ConsumerMiniature:
    """A copy of the machine takes `event`, and its effects are carried out."""
    machine = world.places[index].machine
    assert machine is not None
    machine = twin(machine)
    effects = machine.step(event, world.now)
    world = _with(world, index, machine=machine)
    for effect in effects:
        place = world.places[index]
        match effect:
            case Publish(bodies) if bounds.protocol == "fast-neli":
                older = tuple(one for one in place.unsent if one[0] not in bodies)
                world = _with(world, index, unsent=(*older, *bodies.items()))
            case Confirm(offsets) if place.is_member:
                world = _confirmed(world, index, offsets)
            case GiveBack(partitions):
                world = _given_back(world, index, partitions)
            case LeaveGroup():
                positions = (None,) * bounds.partitions
                world = _freed(_with(world, index, changes=(), positions=positions), _held(world, index))
            case Stopped():
                world = _killed(world, index, bounds)
            case _:
                pass
    return _trimmed(_judged(world, index))


def _taken(world: ConsumerMiniature, index: int, bounds: ConsumerBounds) -> ConsumerMiniature:
    """The program takes the next change from its client library."""
    place = world.places[index]
    (event, givings), *rest = place.changes
    given, positions = list(place.given), list(place.positions)
    match event:
        case Given():
            for i, giving in givings:
                over = not bounds.zombies and (world.holders[i] != index or world.givings[i] != giving)
                given[i], positions[i] = giving, ReadPosition(world.ends[i], world.ends[i] if over else inf)
        case Lost():
            event = Lost([i for i, position in enumerate(positions) if position is not None])
            positions = [None] * bounds.partitions
        case _:
            pass
    world = _with(world, index, changes=tuple(rest), given=tuple(given), positions=tuple(positions))
    return _stepped(world, index, event, bounds)


# The coordinator


def _held(world: ConsumerMiniature, index: int) -> list[int]:
    return [i for i, holder in enumerate(world.holders) if holder == index]


def _gave(world: ConsumerMiniature, index: int, partitions: Sequence[int]) -> ConsumerMiniature:
    givings, holders = list(world.givings), list(world.holders)
    for i in partitions:
        givings[i] += 1
        holders[i] = index
    world = world._replace(givings=tuple(givings), holders=tuple(holders))
    if world.places[index].machine is None:
        return world
    return _told(world, index, Told(Given(partitions), tuple((i, givings[i]) for i in partitions)))


def _confirmed(world: ConsumerMiniature, index: int, offsets: Mapping[int, int]) -> ConsumerMiniature:
    """The coordinator answers. A later answer makes an earlier one that was not taken yet superfluous."""
    changes = world.places[index].changes
    if changes and isinstance(changes[-1].event, Confirmed):
        world = _with(world, index, changes=changes[:-1])
    return _told(world, index, Told(Confirmed(offsets)))


def _given_back(world: ConsumerMiniature, index: int, partitions: Sequence[int]) -> ConsumerMiniature:
    place = world.places[index]
    mine = [i for i in partitions if world.holders[i] == index and world.givings[i] == place.given[i]]
    positions = tuple(None if i in partitions else position for i, position in enumerate(place.positions))
    return _freed(_with(world, index, positions=positions), mine)


def _forgotten(world: ConsumerMiniature, index: int, bounds: ConsumerBounds) -> ConsumerMiniature:
    """The coordinator no longer counts it. It learns of that after everything that it was sent before."""
    place, held = world.places[index], _held(world, index)
    world = _freed(world, held)
    if place.machine is None:
        return _killed(world, index, bounds)
    if not bounds.zombies:  # It reads nothing that is appended from now on.
        positions = tuple(
            position._replace(stop=world.ends[i]) if position is not None and i in held else position
            for i, position in enumerate(place.positions)
        )
        world = _trimmed(_with(world, index, positions=positions))
    return _told(world, index, Told(Lost(())))


def _freed(world: ConsumerMiniature, partitions: Sequence[int]) -> ConsumerMiniature:
    return world._replace(holders=tuple(None if i in partitions else holder for i, holder in enumerate(world.holders)))


def _told(world: ConsumerMiniature, index: int, told: Told) -> ConsumerMiniature:
    return _with(world, index, changes=(*world.places[index].changes, told))


# The log


def _sent(world: ConsumerMiniature, index: int, partition: int) -> ConsumerMiniature:
    """A message of this place is no longer on its way."""
    return _with(world, index, unsent=tuple(one for one in world.places[index].unsent if one[0] != partition))


def _appended(world: ConsumerMiniature, partition: int, body: bytes | None) -> ConsumerMiniature:
    message = Message(partition, world.ends[partition], float(world.now), body)
    logs = _replaced(world.logs, partition, (*world.logs[partition], message))
    return world._replace(logs=logs, ends=_replaced(world.ends, partition, message.offset + 1))


def _received(
    world: ConsumerMiniature, index: int, message: Message, error: int, bounds: ConsumerBounds
) -> ConsumerMiniature:
    place, i = world.places[index], message.partition
    position, received_at = place.positions[i], place.received_at
    assert position is not None
    if bounds.guarantee == "available":
        received_at = _replaced(received_at, i, world.now)
    positions = _replaced(place.positions, i, position._replace(next=message.offset + 1))
    world = _with(world, index, positions=positions, received_at=received_at)
    return _stepped(world, index, Received((message,), float(world.now + error)), bounds)


def _trimmed(world: ConsumerMiniature) -> ConsumerMiniature:
    """Forget the messages that no place will read."""
    if not any(world.logs):
        return world
    places = world.places
    logs = (tuple(message for message in log if any(_reads(one, message) for one in places)) for log in world.logs)
    return world._replace(logs=tuple(logs))


# Acting


def _judged(world: ConsumerMiniature, index: int) -> ConsumerMiniature:
    """Set what a place may act for now, and check that terms have grown."""
    place = world.places[index]
    tenures = {} if place.machine is None else place.machine.tenures(world.now)
    if not tenures and not any(place.acts):
        return world
    acts: list[tuple[int, int] | None] = []
    for i, act in enumerate(place.acts):
        term, giving = tenures.get(i), place.given[i]
        if term is None or (act is not None and act[0] == term):
            acts.append(None if term is None else act)
        else:
            world = _grown(world, place.name, i, giving, term)
            acts.append((term, giving))
    return _with(world, index, acts=tuple(acts))


def _grown(world: ConsumerMiniature, name: str, partition: int, giving: int, term: int) -> ConsumerMiniature:
    """The world in which `name` begins to act for `partition` under `term`, by this giving."""
    low, high, acted, broken = term, term, world.acted[partition], world.broken
    for other in acted:
        if other.giving == giving:
            low, high = min(low, other.low), max(high, other.high)
        over_earlier = other.giving <= giving and other.high >= term
        if over_earlier or (other.giving > giving and term >= other.low):
            broken = (
                f"terms grow: {name} acts for partition {partition} under {term} by giving {giving}, and by giving "
                f"{other.giving} it was acted for under {other.low} to {other.high}"
            )
    acted = (*(one for one in acted if one.giving != giving), ActedTerms(giving, low, high))
    return world._replace(acted=_replaced(world.acted, partition, acted), broken=broken)


def _with(world: ConsumerMiniature, index: int, **changes: Any) -> ConsumerMiniature:
    """The world in which fields of one place are changed."""
    return world._replace(places=_replaced(world.places, index, world.places[index]._replace(**changes)))


def _replaced(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])


# Calm


def next_in_calm(world: ConsumerMiniature, bounds: ConsumerBounds) -> ConsumerMiniature | None:
    """The world that comes next if nothing fails; None if it has settled.

    Changes and messages are taken immediately, the dead are forgotten, and free partitions are given out. When all of
    that is done, time passes, and every process is stepped. Only messages that members publish are appended.
    """
    for index, place in enumerate(world.places):
        if (found := _calm_step_of(world, index, place, bounds)) is not None:
            return found
    members = [index for index, place in enumerate(world.places) if place.machine is not None and place.is_member]
    for i, holder in enumerate(world.holders):
        if holder is None and members:
            return _gave(world, members[i % len(members)], (i,))
    if all(_is_settled(world, i) for i in range(bounds.partitions)):
        return None
    return _beaten(_ticked(world), bounds)


def _calm_step_of(
    world: ConsumerMiniature, index: int, place: MemberPlace, bounds: ConsumerBounds
) -> ConsumerMiniature | None:
    """The step one place takes immediately."""
    if place.frozen:
        return _with(world, index, frozen=False, heard_at=world.now)
    if place.machine is None:
        return _forgotten(world, index, bounds) if _may_be_forgotten(world, place, bounds) else None
    if place.changes:
        return _taken(world, index, bounds)
    for partition in range(bounds.partitions):
        if (message := _unread(world, place, partition)) is not None:
            return _received(world, index, message, 0, bounds)
    if place.machine.finishing:
        return _stepped(world, index, _release(place.machine), bounds)
    for partition, body in place.unsent:
        sent = _sent(world, index, partition)
        return _appended(sent, partition, body) if _has_room(world, partition, bounds) else sent
    return None


def _beaten(world: ConsumerMiniature, bounds: ConsumerBounds) -> ConsumerMiniature:
    """Step every process; for `neli`, what it publishes is appended here."""
    for index, place in enumerate(world.places):
        if place.machine is None:
            continue
        if bounds.protocol == "neli":
            for effect in twin(place.machine).step(TICK, world.now):
                for i, body in effect.bodies.items() if isinstance(effect, Publish) else ():
                    if _has_room(world, i, bounds):
                        world = _appended(world, i, body)
        world = _stepped(world, index, TICK, bounds)
    return world


def _is_settled(world: ConsumerMiniature, partition: int) -> bool:
    """Whether only its holder acts for it, under this giving."""
    holder, giving = world.holders[partition], world.givings[partition]
    acting = [(index, act[1]) for index, place in enumerate(world.places) if (act := place.acts[partition]) is not None]
    return acting == [(holder, giving)]
