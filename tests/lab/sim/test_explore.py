"""The explorer of `induction` takes exactly the steps that a ledger and its members allow."""

from collections.abc import Callable

from neli_router.lab.sim.explore import Label
from neli_router.lab.sim.induction.miniature import Bounds, Miniature, acting, genesis_world
from neli_router.lab.sim.induction.steps import successors

BOUNDS = Bounds(slots=2, apart=3, lease=2)

Step = str | Callable[[Label], bool]


def walk(*verbs: Step, bounds: Bounds = BOUNDS) -> Miniature:
    """The world after the first step of each kind, one after another, from the genesis."""
    return walk_on(genesis_world(bounds)[0], *verbs, bounds=bounds)


def walk_on(world: Miniature, *verbs: Step, bounds: Bounds = BOUNDS) -> Miniature:
    settings = genesis_world(bounds)[1]
    for verb in verbs:
        steps = successors(world, bounds, settings)
        world = next(after for label, after in steps if (verb(label) if callable(verb) else label[0] == verb))
    return world


def fresh_beat(label: Label) -> bool:
    return label[:1] == ("beat",) and label[2] == 0


def by_name(verb: str, *who: str) -> Callable[[Label], bool]:
    return lambda label: label[: 1 + len(who)] == (verb, *who)


LEADS: tuple[Step, ...] = ("start", "join", "read", "tick", "tick", fresh_beat, "read")
PAIR: tuple[Step, ...] = ("start", "join", "read", "start", by_name("join", "i1", "i1"))


def verbs(world: Miniature) -> set[object]:
    return {label[0] for label, _ in successors(world, BOUNDS, genesis_world(BOUNDS)[1])}


def test_one_who_joined_waited_and_heard_itself_acts_and_not_before_its_wait_is_over() -> None:
    assert ["i0"] == acting(walk(*LEADS))
    assert [] == acting(walk("start", "join", "read", "tick", fresh_beat, "read"))


def test_a_target_may_change_at_any_time_while_two_are_members() -> None:
    pair = walk(*LEADS, "start", by_name("join", "i1", "i1"))
    assert "retarget" not in verbs(walk(*LEADS)), "there is no choice"
    world = walk_on(pair, "retarget")
    assert pair.tip.owners == world.tip.owners
    assert {*pair.tip.targets, *world.tip.targets} == {"i0", "i1"}


def test_a_certificate_that_comes_after_an_expire_is_read_by_all_and_changes_nothing() -> None:
    expired = walk(*PAIR, by_name("crash", "i0"), by_name("expire", "i0"))
    late = walk_on(expired, "certify")
    assert (expired.tip.seats, expired.tip.owners) == (late.tip.seats, late.tip.owners)
    assert len(expired.tail) + 1 == len(late.tail)


def test_the_living_are_not_certified() -> None:
    assert "certify" not in verbs(walk("start", "join", "read"))


def test_a_newcomer_gets_the_slot_of_one_whose_join_never_arrives_and_no_slot_is_left_without_certificates() -> None:
    assert ["i1", "i2"] == [slot.incarnation for slot in walk("start", "start", "crash", "start").slots]
    assert () == walk("start", "crash", bounds=Bounds(slots=2, apart=1, lease=1, certify=False)).slots


def test_one_that_is_away_keeps_its_seat_until_its_name_joins_or_its_grace_ends_and_appends_nothing() -> None:
    bounds = Bounds(slots=2, apart=3, lease=1, grace=True)
    went = walk(*PAIR, by_name("expire", "i0"), bounds=bounds)
    assert {"i0": 1.0} == went.tip.away
    labels = [label for label, _ in successors(went, bounds, genesis_world(bounds)[1])]
    assert not [label for label in labels if label[:2] == ("beat", "i0")]
    assert ["i1"] == list(walk_on(went, by_name("expire", "i0"), bounds=bounds).tip.seats)
    back = walk_on(went, by_name("crash", "i0"), "start", by_name("join", "i2", "i0"), bounds=bounds)
    assert ({}, ["i1", "i2"]) == (back.tip.away, list(back.tip.seats))
