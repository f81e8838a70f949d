"""The steps of the electors' miniature: everything that can come next, from any world.

    time passes | a message arrives | a machine is stepped, stands, cedes | a process restarts, even in mid-step

These are all, within the bounds, because:
- *Loss, delay, duplication and reordering need no steps.* A message stays on its wire after it has arrived: it may
  arrive again, at any later time, or never. Only newer messages of its kind push it off.
- *A no is on no wire.* It brings a term that its sender has had, or ends a candidacy. So any place may learn any term
  of another at any time, whether it asked or not, and may learn that it did not get a vote.
- *Being slow, or frozen, is not being stepped.* A machine whose time has come may be stepped late, or never.
- *Random waits have no length.* Any place may stand at any moment, without asking first. That is more than any policy
  allows, and more than scouting does: scouting changes nothing, and keeps some places from standing.
- *A crash is a restart*: a dead place does nothing that a slow place does not. A restart in mid-step finds on disk what
  was kept before it, and what was sent before it is on its way. It is a separate step only where something is sent
  before something is kept. Otherwise it is like a restart before the step, or after it with its messages lost.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from math import inf
from typing import TypeVar

from neli_router.lab.sim.explore import Label
from neli_router.lab.sim.term.canon import KEPT, elector_key
from neli_router.lab.sim.term.miniature import (
    PLACES,
    ElectorBounds,
    ElectorMiniature,
    ElectorPlace,
    acting_under,
    broken_elector_rule,
    founded_electors,
    started_elector,
    wire,
)
from neli_router.protocols.protocol import TICK
from neli_router.protocols.term.elector import (
    Became,
    Cede,
    Ceded,
    Heartbeat,
    InvalidHeartbeat,
    Message,
    Proposal,
    Rejection,
    Remember,
    Role,
    Said,
    Stand,
    Support,
    Tell,
    TermEffect,
    TermElector,
    TermEvent,
)

__all__ = ["ElectorMiniatures", "elector_steps"]

# The fields of machines are private to them: no program needs to know.
# ruff: noqa: SLF001

Step = tuple[Label, ElectorMiniature]
T = TypeVar("T")


class ElectorMiniatures:
    """All worlds of three electors that run `term`."""

    def __init__(self, bounds: ElectorBounds) -> None:
        self.bounds = bounds

    def first(self) -> ElectorMiniature:
        return founded_electors(self.bounds)

    def steps(self, world: ElectorMiniature) -> Iterator[Step]:
        return elector_steps(world, self.bounds)

    def key(self, world: ElectorMiniature) -> bytes:
        return elector_key(world, self.bounds)

    def broken_rule(self, world: ElectorMiniature) -> str | None:
        return broken_elector_rule(world)

    def tell(self, label: Label, world: ElectorMiniature) -> str:
        verb, *rest = label
        words = " ".join(str(part) for part in rest if part is not None)
        roles = " ".join(f"{place.elector.role.name.lower()[0]}{place.elector.term}" for place in world.places)
        acting = ", ".join(f"p{place} under {term}" for place, term in acting_under(world).items())
        return f"t={world.now:<3} {verb!s:8} {words:58} {roles} acting: {acting or 'none'}"


def elector_steps(world: ElectorMiniature, bounds: ElectorBounds) -> Iterator[Step]:
    """Every step that can come next."""
    yield ("tick",), _trimmed(_judged_all(world._replace(now=world.now + 1), bounds), bounds)
    for index, place in enumerate(world.places):
        me, elector = f"p{index}", place.elector
        if world.restarts < bounds.restarts:
            yield ("restart", me), _restarted(world, index, bounds)
        if elector.deadline <= world.now:
            yield from _taken(world, index, TICK, ("step", me), bounds)
        if max(elector.term, place.kept) < bounds.terms:
            yield from _taken(world, index, Stand(), ("stand", me), bounds)
        if bounds.cede and elector.role is Role.LEADER:
            yield from _taken(world, index, Cede(None), ("cede", me), bounds)
        for sender in PLACES:
            for message in world.wires[wire(sender, index)]:
                yield from _taken(world, index, Said(sender, message), ("hear", me, f"p{sender}", message), bounds)
            for message in _higher_terms(world, index, sender):
                yield from _taken(world, index, Said(sender, message), ("hear", me, f"p{sender}", message), bounds)
        yield from _rejected(world, index, bounds)


def _higher_terms(world: ElectorMiniature, index: int, sender: int) -> Iterator[Message]:
    """The terms that `sender` may have sent in answer to something that it did not honour."""
    elector, other = world.places[index].elector, world.places[sender].elector
    for term in range(elector.term + 1, other.term + 1):
        yield InvalidHeartbeat(term)


def _rejected(world: ElectorMiniature, index: int, bounds: ElectorBounds) -> Iterator[Step]:
    """A candidate has heard from both others that they reject it. The first no alone would only be noted."""
    elector = world.places[index].elector
    if elector.role is Role.CANDIDATE and all(place.elector.term >= elector.term for place in world.places):
        no = Rejection(elector.term, elector.term)
        senders = [place for place in PLACES if place != index]
        for sender in senders:
            label = ("hear", f"p{index}", " and ".join(f"p{one}" for one in senders), no)
            steps = list(_taken(world, index, Said(sender, no), label, bounds))
            world = steps[0][1]
            if sender == senders[-1] or _is_changed(elector, world.places[index].elector, world.now):
                yield from steps


def _is_changed(before: TermElector, after: TermElector, now: int) -> bool:
    """Whether anything changed apart from who rejected it, and beyond what any step would change."""
    idle = copy(before)
    idle.step(TICK, now)
    return {**_gist(idle, now), "_rejected": None} != {**_gist(after, now), "_rejected": None}


def _taken(
    world: ElectorMiniature, index: int, event: TermEvent, label: Label, bounds: ElectorBounds
) -> Iterator[Step]:
    """The world in which the machine has taken `event`, and those in which its process ended before it was done."""
    place = world.places[index]
    elector = copy(place.elector)
    effects = elector.step(event, world.now)
    whole = world._replace(places=_replaced(world.places, index, place._replace(elector=elector)))
    whole = _trimmed(_judged(_carried(whole, index, effects, bounds), index, bounds), bounds)
    if (broken := _promise_broken(place.elector, elector, event, world.now)) is not None:
        whole = whole._replace(broken=whole.broken or f"promises last: p{index} {broken}")
    yield label, whole
    if world.restarts < bounds.restarts:
        for done, effect in enumerate(effects):
            if isinstance(effect, Remember) and any(isinstance(former, Tell) for former in effects[:done]):
                part = _carried(world, index, effects[:done], bounds)
                yield (*label, f"and restart before {effect}"), _restarted(part, index, bounds)


def _carried(
    world: ElectorMiniature, index: int, effects: Sequence[TermEffect], bounds: ElectorBounds
) -> ElectorMiniature:
    """The world in which these effects were carried out, one after another."""
    for effect in effects:
        match effect:
            case Remember(term):
                place = world.places[index]._replace(kept=term)
                world = world._replace(places=_replaced(world.places, index, place))
            case Tell(to, message) if not _is_no(effect):  # See `_higher_terms`.
                for receiver in PLACES if to is None else (to,):
                    if receiver != index:
                        world = _sent(world, wire(index, receiver), message, bounds)
            case _:
                pass
    return world


def _sent(world: ElectorMiniature, at: int, message: Message, bounds: ElectorBounds) -> ElectorMiniature:
    """Put `message` on its wire, where it pushes off the oldest of its kind if there are too many."""
    kind = type(message)
    alike: list[Message] = []
    others: list[Message] = []
    for one in world.wires[at]:
        if one != message:  # If said again, it is the newest.
            (alike if type(one) is kind else others).append(one)
    kept = (message, *alike)[: bounds.wires]
    return world._replace(wires=_replaced(world.wires, at, (*kept, *others)))


def _trimmed(world: ElectorMiniature, bounds: ElectorBounds) -> ElectorMiniature:
    """Drop the messages that their receivers will ignore forever."""
    if bounds.forget:
        return world  # Nothing is permanent then.
    wires = list(world.wires)
    for at, under_way in enumerate(wires):
        if under_way:
            sender, receiver = divmod(at, len(PLACES))
            elector = world.places[receiver].elector
            kept = tuple(
                one
                for one in under_way
                if not (
                    _is_void(one, sender, elector, under_way, world.now)
                    and _is_ignored(one, sender, elector, world.now)
                )
            )
            if len(kept) < len(under_way):
                wires[at] = kept
    return world._replace(wires=tuple(wires))


def _is_ignored(message: Message, sender: int, elector: TermElector, now: int) -> bool:
    """Whether the message is ignored now: a broken machine may honour what is void by the rules."""
    hearing, idle = copy(elector), copy(elector)
    heard, told = hearing.step(Said(sender, message), now), idle.step(TICK, now)
    return _words(heard) == _words(told) and _gist(hearing, now) == _gist(idle, now)


def _words(effects: Sequence[TermEffect]) -> list[TermEffect]:
    return [one for one in effects if not isinstance(one, Became) and not _is_no(one)]


def _gist(elector: TermElector, now: int) -> dict[str, object]:
    """Everything of an elector that is in keys."""
    gist = {name: value for name, value in vars(elector).items() if name in KEPT}
    owed = max(now, elector._owes_until)
    gist["_promises"] = {leader: promise for leader, promise in elector._promises.items() if promise[1] > owed}
    gist["_lsn"] = max(elector._lsn[0], elector.term)
    if elector.role is Role.FOLLOWER:
        del gist["_due"]
    return gist


def _is_no(effect: TermEffect) -> bool:
    return isinstance(effect, Tell) and isinstance(effect.message, Rejection | InvalidHeartbeat)


def _is_void(message: Message, sender: int, elector: TermElector, under_way: tuple[Message, ...], now: int) -> bool:
    """Whether `elector`, whose term only grows, should ignore the message now and from now on."""
    match message:
        case Support(term, counter, owed):
            if term != elector.term or elector.role not in (Role.CANDIDATE, Role.LEADER):
                return term <= elector.term
            known = elector._supporters.get(sender)
            if elector.role is not Role.LEADER or known is None:
                return False
            # It must answer an older message than one answered before, and owe nothing that matters to the leader.
            is_clear = known.clear_at <= now + owed or elector.acts_from <= now
            return is_clear and elector._sent.get(counter, -inf) <= max(known.sent_at, now - elector._settings.lease)
        case Proposal(term):
            return term < elector.term or (term == elector.term and sender != elector._voted)
        case Heartbeat(term, counter):
            return term < elector.term or (term, counter) <= elector._lsn
        case Ceded(term, _, _):
            # It would end no promise, and nothing its sender said earlier can create one.
            promised, until = elector._promises.get(sender, (inf, -inf))
            if promised <= term and until > max(now, elector._owes_until):
                return False
            return not any(
                one.term >= elector.term and one.term <= term
                for one in under_way
                if isinstance(one, Proposal | Heartbeat)
            )
        case _:
            return False


def _restarted(world: ElectorMiniature, index: int, bounds: ElectorBounds) -> ElectorMiniature:
    place = world.places[index]
    kept = 0 if bounds.forget else place.kept
    restarts = world.restarts + 1
    place = ElectorPlace(started_elector(index, kept, world.now, bounds), kept, PLACES[-1] + restarts)
    return _trimmed(world._replace(places=_replaced(world.places, index, place), restarts=restarts), bounds)


def _judged_all(world: ElectorMiniature, bounds: ElectorBounds) -> ElectorMiniature:
    for index in PLACES:
        world = _judged(world, index, bounds)
    return world


def _judged(world: ElectorMiniature, index: int, bounds: ElectorBounds) -> ElectorMiniature:
    """Record what a place leads and may act under now, in addition to what was led and acted under before.

    A place that forgets may lead its older self's term again. That is not judged, to show the use of a voter's memory.
    """
    place = world.places[index]
    elector, broken = place.elector, world.broken
    led, (highest, holder) = world.led, world.acted
    if elector.role is Role.LEADER:
        for term_led, other, birth in led:
            if term_led == elector.term and birth != place.birth and not (bounds.forget and other == index):
                broken = broken or f"one leader a term: p{other} led term {term_led}, and now p{index} leads it"
        mine = (elector.term, index, place.birth)
        if mine not in led:
            led = tuple(sorted((*led, mine)))
    if (term := elector.tenure(world.now)) is not None:
        if term < highest or (term == highest and place.birth != holder):
            broken = broken or f"terms grow: p{index} acts under {term}, after {highest} was acted under"
        if term > highest:
            highest, holder = term, place.birth
    if (led, (highest, holder), broken) == (world.led, world.acted, world.broken):
        return world
    return world._replace(led=led, acted=(highest, holder), broken=broken)


def _promise_broken(before: TermElector, after: TermElector, event: TermEvent, now: int) -> str | None:
    """A sentence if a promise ended that had neither run out nor been given back; otherwise None."""
    for leader, (term, until) in before._promises.items():
        if until <= now:
            continue
        held = after._promises.get(leader)
        if held is not None and held[1] >= until:
            continue
        match event:
            case Said(sender, Ceded(over, _, _)) if sender == leader and over >= term:
                pass
            case Cede() if leader == after.me:
                pass
            case _:
                return f"forgot its promise to p{leader}, which it gave under {term} until {until:g}"
    return None


def _replaced(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])
