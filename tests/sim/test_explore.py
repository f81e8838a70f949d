"""The explorer tells worlds apart that differ, and no others; and it ends."""

from collections.abc import Callable
from math import inf

from msgspec.structs import replace

from neli_router.sim.canon import key_of
from neli_router.sim.explore import Label, explore
from neli_router.sim.miniature import Bounds, Miniature, acting, broken_rule, genesis_world
from neli_router.sim.steps import LedgerMiniatures, successors

CAP = 2


BOUNDS = Bounds(slots=2, apart=3, lease=CAP)

Step = str | Callable[[Label], bool]


def walk(*verbs: Step) -> Miniature:
    """The world behind the first step of each kind, one after the other, from the genesis."""
    return walk_on(genesis_world(BOUNDS)[0], *verbs)


def walk_on(world: Miniature, *verbs: Step) -> Miniature:
    settings = genesis_world(BOUNDS)[1]
    for verb in verbs:
        found = (
            after
            for label, after in successors(world, BOUNDS, settings)
            if (verb(label) if callable(verb) else label[0] == verb)
        )
        world = next(found)
    return world


def fresh_beat(label: Label) -> bool:
    """A Beat that was sent just now."""
    return label[:1] == ("beat",) and label[2] == 0


def by_name(verb: str, *who: str) -> Callable[[Label], bool]:
    return lambda label: label[: 1 + len(who)] == (verb, *who)


def reads(who: str) -> Callable[[Label], bool]:
    return by_name("read", who)


def key(world: Miniature) -> bytes:
    return key_of(world, CAP, None)


def test_a_small_group_is_explored_completely_and_nothing_is_broken() -> None:
    report = explore(LedgerMiniatures(Bounds(slots=2, apart=1, lease=1)))
    assert (True, None, None) == (report.complete, report.broken, report.trace)


def test_an_exploration_that_was_cut_short_does_not_call_itself_complete() -> None:
    report = explore(LedgerMiniatures(Bounds(slots=2, apart=1, lease=1, states_max=1000)))
    assert (False, None) == (report.complete, report.trace)


def test_the_bounds_are_printed_with_what_they_leave_out() -> None:
    assert (
        "3 incarnations at once (4 over all time), 1 partition, readers at most 2 records apart, lease 1 ticks, "
        "without Leave, without crashes, with restarts under the same name and starts from any snapshot; "
        "at most 5,000 states"
    ) == str(Bounds(slots=3, apart=2, lease=1, leave=False, crash=False, births=4, states_max=5000))


def test_one_who_joined_waited_and_heard_itself_acts() -> None:
    world = walk("start", "join", "read", "tick", "tick", fresh_beat, "read")
    assert ["i0"] == acting(world)


def test_no_incarnation_acts_before_its_wait_is_over() -> None:
    world = walk("start", "join", "read", "tick", fresh_beat, "read")
    assert [] == acting(world)


def test_times_that_no_rule_can_tell_apart_are_one_time() -> None:
    early = walk("start", "tick", "tick")
    late = walk("start", "tick", "tick", "tick", "tick")
    assert key(early) == key(late)


def test_time_that_a_wait_still_counts_is_told_apart() -> None:
    assert key(walk("start", "tick")) != key(walk("start", "tick", "tick"))


def test_the_names_of_incarnations_do_not_matter() -> None:
    first = walk("start", "join", "read")
    second = walk("start", "crash", "start", "join", "read")
    assert ("i0", "i1", key(first)) == (first.slots[0].incarnation, second.slots[0].incarnation, key(second))


def test_what_was_sent_is_told_apart() -> None:
    world = walk("start", "join", "read")
    assert 3 == len({key(world), key(walk("start", "join", "read", "send handover")), key(_left(world))})


def _left(world: Miniature) -> Miniature:
    slot = world.slots[0]
    return world._replace(slots=(slot._replace(tenure=slot.tenure.leaving()),))


def test_two_who_act_break_a_rule() -> None:
    world = walk("start", "join", "read", "tick", "tick", fresh_beat, "read")
    owner = world.slots[0]
    twin = owner._replace(tenure=owner.tenure)
    assert "at most one acts: i0 and i0 both may" == broken_rule(world._replace(slots=(owner, twin)))


def test_a_table_that_is_not_the_others_breaks_a_rule() -> None:
    world = walk("start", "join", "read")
    slot = world.slots[0]
    other = replace(slot.state, terms=(7,))
    assert "equal prefixes give equal tables: i0 computed another than the rest" == broken_rule(
        world._replace(slots=(slot._replace(state=other),))
    )


def test_a_lease_that_never_ends_lets_two_act() -> None:
    """The rules must be able to break: two act as soon as a proof does not lapse."""
    world = walk("start", "join", "read", "tick", "tick", fresh_beat, "read", "start", by_name("join", "i1", "i0"))
    deaf = world.slots[0]  # It never reads that it was replaced.
    world = walk_on(world, reads("i1"), "tick", "tick", fresh_beat, reads("i1"))
    assert ["i1"] == acting(world)
    immortal = deaf._replace(tenure=replace(deaf.tenure, lasts=inf))
    assert "at most one acts: i0 and i1 both may" == broken_rule(world._replace(slots=(immortal, world.slots[1])))
