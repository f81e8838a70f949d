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
        "without Leave, without crashes, without certificates of them, with restarts under the same name and starts "
        "from any snapshot; at most 5,000 states"
    ) == str(Bounds(slots=3, apart=2, lease=1, leave=False, crash=False, certify=False, births=4, states_max=5000))


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
    second = walk("start", "join", "crash", "certify", "start", "join", "read")
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


# Certificates


def verbs(world: Miniature) -> set[object]:
    return {label[0] for label, _ in successors(world, BOUNDS, genesis_world(BOUNDS)[1])}


def test_one_that_crashed_is_certified_before_or_after_its_join_and_its_join_is_void_then() -> None:
    crashed = walk("start", "crash")
    assert verbs(crashed) >= {"join", "certify"}
    assert "join" not in verbs(walk_on(crashed, "certify"))
    assert ["i0"] == list(walk_on(crashed, "join").tip.seats)
    assert {} == walk_on(crashed, "join", "certify").tip.seats


def test_the_living_are_not_certified() -> None:
    assert "certify" not in verbs(walk("start", "join", "read"))


def test_one_that_crashed_as_it_lent_its_lease_is_certified_when_that_has_ended() -> None:
    world = walk("start", "join", "read", "tick", "tick", fresh_beat, "read", "crash as it lends")
    assert (["i0"], False) == (acting(world), "certify" in verbs(world))
    world = walk_on(world, "tick", "tick")
    assert ([], True) == (acting(world), "certify" in verbs(world))


def test_a_certificate_that_comes_after_an_expire_is_read_by_all_and_changes_nothing() -> None:
    world = walk("start", "join", "read", "start", by_name("join", "i1", "i1"), by_name("crash", "i0"))
    expired = walk_on(world, by_name("expire", "i0"))
    late = walk_on(expired, "certify")
    assert (expired.tip.seats, expired.tip.owners) == (late.tip.seats, late.tip.owners)
    assert len(expired.tail) + 1 == len(late.tail)


def test_a_newcomer_gets_the_slot_of_one_whose_join_never_arrives() -> None:
    world = walk("start", "start", "crash", "start")
    assert ["i1", "i2"] == [slot.incarnation for slot in world.slots]


def test_one_that_was_certified_is_told_apart_from_one_that_may_still_join() -> None:
    assert key(walk("start", "crash")) != key(walk("start", "crash", "certify"))


def test_the_lease_that_a_client_holds_is_told_apart_until_it_has_ended() -> None:
    leads: tuple[Step, ...] = ("start", "join", "read", "tick", "tick", fresh_beat, "read")
    lending, alone = walk(*leads, "crash as it lends"), walk(*leads, "crash")
    assert key(lending) != key(alone)
    assert key(lending) != key(walk_on(lending, "tick"))
    assert key(walk_on(lending, "tick", "tick")) == key(walk_on(alone, "tick", "tick"))


def test_a_member_that_was_certified_before_breaks_a_rule() -> None:
    world = walk("start", "join")
    certified = world._replace(slots=(world.slots[0]._replace(certified=True),))
    assert "the certified stay out: i0 is a member" == broken_rule(certified)


def test_without_certificates_there_are_none() -> None:
    bounds = Bounds(slots=2, apart=1, lease=1, certify=False)
    report = explore(LedgerMiniatures(bounds))
    assert (True, None) == (report.complete, report.broken)
    world = genesis_world(bounds)[0]
    settings = genesis_world(bounds)[1]
    started = next(after for label, after in successors(world, bounds, settings) if label[0] == "start")
    crashed = next(after for label, after in successors(started, bounds, settings) if label[0] == "crash")
    assert () == crashed.slots
