"""The explorer of `induction` separates exactly the worlds that differ; and each of its rules can break."""

from collections.abc import Callable

from neli_router.lab.sim.explore import Label
from neli_router.lab.sim.induction.canon import key_of
from neli_router.lab.sim.induction.miniature import Bounds, Miniature, acting, broken_rule, genesis_world
from neli_router.lab.sim.induction.steps import successors

CAP = 2
BOUNDS = Bounds(slots=2, apart=3, lease=CAP)

Step = str | Callable[[Label], bool]


def walk(*verbs: Step, bounds: Bounds = BOUNDS) -> Miniature:
    """The world after the first step of each kind, one after another, from the genesis."""
    return walk_on(genesis_world(bounds)[0], *verbs, bounds=bounds)


def walk_on(world: Miniature, *verbs: Step, bounds: Bounds = BOUNDS) -> Miniature:
    settings = genesis_world(bounds)[1]
    for verb in verbs:
        world = next(
            after
            for label, after in successors(world, bounds, settings)
            if (verb(label) if callable(verb) else label[0] == verb)
        )
    return world


def fresh_beat(label: Label) -> bool:
    """A Beat that was sent just now."""
    return label[:1] == ("beat",) and label[2] == 0


def by_name(verb: str, *who: str) -> Callable[[Label], bool]:
    return lambda label: label[: 1 + len(who)] == (verb, *who)


LEADS: tuple[Step, ...] = ("start", "join", "read", "tick", "tick", fresh_beat, "read")


def key(world: Miniature) -> bytes:
    return key_of(world, CAP, None)


def verbs(world: Miniature) -> set[object]:
    return {label[0] for label, _ in successors(world, BOUNDS, genesis_world(BOUNDS)[1])}


def test_one_who_joined_waited_and_heard_itself_acts_and_not_before_its_wait_is_over() -> None:
    assert ["i0"] == acting(walk(*LEADS))
    assert [] == acting(walk("start", "join", "read", "tick", fresh_beat, "read"))


# Keys


def test_times_are_told_apart_as_long_as_a_rule_can_tell_them_apart() -> None:
    assert key(walk("start", "tick")) != key(walk("start", "tick", "tick"))
    assert key(walk("start", "tick", "tick")) == key(walk("start", "tick", "tick", "tick", "tick"))


def test_the_names_of_incarnations_do_not_matter() -> None:
    first = walk("start", "join", "read")
    second = walk("start", "join", "crash", "certify", "start", "join", "read")
    assert ("i0", "i1", key(first)) == (first.slots[0].incarnation, second.slots[0].incarnation, key(second))


def test_what_was_sent_is_told_apart() -> None:
    world = walk("start", "join", "read")
    (slot,) = world.slots
    left = world._replace(slots=(slot._replace(tenure=slot.tenure.leaving()),))
    assert 3 == len({key(world), key(walk_on(world, "send handover")), key(left)})


def test_the_lease_that_a_client_holds_is_told_apart_until_it_has_ended() -> None:
    lending, alone = walk(*LEADS, "crash as it lends"), walk(*LEADS, "crash")
    assert key(lending) != key(alone)
    assert key(lending) != key(walk_on(lending, "tick"))
    assert key(walk_on(lending, "tick", "tick")) == key(walk_on(alone, "tick", "tick"))


def test_a_member_that_was_certified_before_breaks_a_rule() -> None:
    world = walk("start", "join")
    certified = world._replace(slots=(world.slots[0]._replace(certified=True),))
    assert "the certified stay out: i0 is a member" == broken_rule(certified)


# Certificates


def test_one_that_crashed_is_certified_before_or_after_its_join_and_its_join_is_void_then() -> None:
    crashed = walk("start", "crash")
    assert verbs(crashed) >= {"join", "certify"}
    assert "join" not in verbs(walk_on(crashed, "certify"))
    assert ["i0"] == list(walk_on(crashed, "join").tip.seats)
    assert {} == walk_on(crashed, "join", "certify").tip.seats
    assert "certify" not in verbs(walk("start", "join", "read")), "the living are not certified"


def test_one_that_crashed_as_it_lent_its_lease_is_certified_when_that_has_ended() -> None:
    world = walk(*LEADS, "crash as it lends")
    assert (["i0"], False) == (acting(world), "certify" in verbs(world))
    world = walk_on(world, "tick", "tick")
    assert ([], True) == (acting(world), "certify" in verbs(world))


def test_a_certificate_that_comes_after_an_expire_is_read_by_all_and_changes_nothing() -> None:
    expired = walk(
        *("start", "join", "read", "start", by_name("join", "i1", "i1")),
        *(by_name("crash", "i0"), by_name("expire", "i0")),
    )
    late = walk_on(expired, "certify")
    assert (expired.tip.seats, expired.tip.owners) == (late.tip.seats, late.tip.owners)
    assert len(expired.tail) + 1 == len(late.tail)


def test_a_newcomer_gets_the_slot_of_one_whose_join_never_arrives() -> None:
    world = walk("start", "start", "crash", "start")
    assert ["i1", "i2"] == [slot.incarnation for slot in world.slots]


def test_without_certificates_one_that_crashed_leaves_no_slot_to_certify() -> None:
    assert () == walk("start", "crash", bounds=Bounds(slots=2, apart=1, lease=1, certify=False)).slots
