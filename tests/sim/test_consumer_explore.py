"""The explorer of borrowed groups: it tells worlds apart that differ, finds what is broken, and ends."""

from collections.abc import Iterator
from copy import deepcopy
from itertools import islice
from math import inf

import pytest
from click.testing import CliRunner

from neli_router.belief import Belief
from neli_router.cli import main
from neli_router.consumer_group.contender import Contender, Held
from neli_router.consumer_group.neli import Neli
from neli_router.sim.consumers.canon import KEPT, LEFT_OUT
from neli_router.sim.consumers.miniature import ConsumerBounds, ConsumerMiniature, broken_consumer_rule, twin
from neli_router.sim.consumers.steps import ConsumerMiniatures, next_in_calm
from neli_router.sim.explore import Report, explore, transcript

EXCLUSIVE = ConsumerBounds("neli", leave=False, crash=False)
KINDS = {
    "exclusive": ConsumerBounds("neli"),
    "available": ConsumerBounds("neli", guarantee="available"),
    "fast": ConsumerBounds("fast-neli"),
    "zombies": ConsumerBounds("fast-neli", zombies=True),
    "two partitions": ConsumerBounds("neli", partitions=2, apart=2),
}
each_kind = pytest.mark.parametrize("bounds", KINDS.values(), ids=KINDS)

WORLDS = 500
"""How many of each kind are looked at one by one."""


def worlds(bounds: ConsumerBounds) -> Iterator[ConsumerMiniature]:
    """Every world in the order in which steps lead there, also one that is like another."""
    miniatures = ConsumerMiniatures(bounds)
    seen: set[bytes] = set()
    queue = [miniatures.first()]
    for world in queue:
        yield world
        if (key := miniatures.key(world)) not in seen:
            seen.add(key)
            queue += [found for _, found in miniatures.steps(world)]


def in_calm(bounds: ConsumerBounds) -> Iterator[ConsumerMiniature]:
    """The first world, and what follows on it as long as nothing fails."""
    world: ConsumerMiniature | None = ConsumerMiniatures(bounds).first()
    while world is not None:
        yield world
        world = next_in_calm(world, bounds)


def explored(bounds: ConsumerBounds) -> Report[ConsumerMiniature]:
    return explore(ConsumerMiniatures(bounds))


def neli(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ("explore", *arguments))
    return result.exit_code, result.output


@each_kind
def test_worlds_with_one_key_can_do_the_same(bounds: ConsumerBounds) -> None:
    miniatures = ConsumerMiniatures(bounds)
    steps: dict[bytes, set[bytes]] = {}
    for world in islice(worlds(bounds), WORLDS):
        key = miniatures.key(world)
        found = {miniatures.key(after) for _, after in miniatures.steps(world)} - {key}
        assert steps.setdefault(key, found) == found
    assert len(steps) < WORLDS


@each_kind
def test_a_step_changes_no_world_but_its_own(bounds: ConsumerBounds) -> None:
    miniatures = ConsumerMiniatures(bounds)
    for world in islice(worlds(bounds), WORLDS // 5):
        before = [vars(deepcopy(place.machine)) for place in world.places if place.machine is not None]
        key = miniatures.key(world)
        for _ in miniatures.steps(world):
            pass
        after = [vars(place.machine) for place in world.places if place.machine is not None]
        assert key == miniatures.key(world)
        assert [_plain(one) for one in before] == [_plain(one) for one in after]


def _plain(fields: dict[str, object]) -> dict[str, object]:
    """With fields instead of objects that cannot be compared."""
    plain: dict[str, object] = {}
    for name, value in fields.items():
        if isinstance(value, Held | Belief):
            plain[name] = _plain(vars(value))
        elif isinstance(value, dict):
            plain[name] = {key: vars(one) if isinstance(one, Held) else one for key, one in value.items()}
        else:
            plain[name] = value
    return plain


@pytest.mark.parametrize("protocol", ["neli", "fast-neli"])
def test_a_twin_shares_nothing_that_changes(protocol: str) -> None:
    machine = ConsumerBounds(protocol).machine("m0", 0, 0)  # type: ignore[arg-type]
    other = twin(machine)
    for one, two in ((machine, other), (machine._belief, other._belief)):
        for name, value in vars(one).items():
            changes = isinstance(value, dict | list | set | Belief)
            assert changes != (vars(two)[name] is value), name


def test_every_field_of_a_machine_is_in_the_key_or_left_out_for_a_reason() -> None:
    named = KEPT | LEFT_OUT.keys()
    for bounds in (ConsumerBounds("neli"), ConsumerBounds("fast-neli")):
        assert not vars(bounds.machine("m0", 0, 0)).keys() - named
    machines = [ConsumerBounds("neli").machine("m0", 0, 0), ConsumerBounds("fast-neli").machine("m0", 0, 0)]
    assert named == vars(machines[0]).keys() | vars(machines[1]).keys()
    assert not KEPT & LEFT_OUT.keys()


@each_kind
def test_a_group_in_calm_settles(bounds: ConsumerBounds) -> None:
    *_, world = in_calm(bounds)
    assert [1] * bounds.partitions == [
        sum(place.acts[partition] is not None for place in world.places) for partition in range(bounds.partitions)
    ]


def test_a_new_leader_without_grace_is_found_beside_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Neli, "_begins", lambda *_: -inf)
    report = explored(EXCLUSIVE)
    assert (False, "at most one acts: m0 and m1 both may, for partition 0") == (report.complete, report.broken)
    lines = list(transcript(report))
    assert lines[0].startswith("t=0   genesis ")
    assert "m0 0 under" in lines[-2]
    assert "m1 0 under" in lines[-2]
    assert f"FAIL {report.broken}" == lines[-1]


def test_a_zombie_that_does_not_ask_the_group_is_found_with_the_term_of_its_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin_at_once(machine: Contender, partition: int, offset: int) -> None:
        held = machine._held[partition]
        if not (held.asked_back or held.began):
            held.began = True
            machine._tenures[partition] = offset

    monkeypatch.setattr(Contender, "_propose", begin_at_once)
    for protocol in ("neli", "fast-neli"):
        report = explored(ConsumerBounds(protocol, zombies=True, leave=False, crash=False))
        assert report.broken is not None
        assert report.broken.startswith("terms grow: ")


def test_members_that_publish_nothing_are_found_never_to_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Neli, "_bodies", lambda *_: {})
    report = explored(EXCLUSIVE)
    assert "it settles: nothing fails from here on, and yet no member leads what it was given" == report.broken


def test_a_tenure_that_does_not_lapse_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Neli, "_ends", lambda machine, partition: machine.vector[partition] + 3)
    report = explored(ConsumerBounds("neli", guarantee="available", leave=False, crash=False))
    assert "evidence ends: m0 acts for partition 0, which it has not heard for T" == report.broken


@each_kind
def test_a_program_that_believes_more_than_its_machine_breaks_a_rule(bounds: ConsumerBounds) -> None:
    world = next(
        one
        for one in worlds(bounds)
        if any(place.machine is not None and place.machine.leading for place in one.places)
    )
    assert broken_consumer_rule(world, bounds) is None
    nothing = (None,) * bounds.partitions
    places = tuple(place._replace(acts=nothing) for place in world.places)
    broken = broken_consumer_rule(world._replace(places=places), bounds)
    assert broken is not None
    assert broken.startswith("belief is within tenure: the program of m")


def test_a_broker_that_waits_less_than_members_were_told_lets_two_lead() -> None:
    code, output = neli("--protocol", "fast-neli", "--session", "1", "--no-leave", "--no-crash")
    assert (1, "FAIL at most one acts: m0 and m1 both may, for partition 0") == (code, output.splitlines()[-1])


def test_bounds_are_printed_with_what_they_leave_out() -> None:
    code, output = neli("--protocol", "neli", "--zombies", "--no-crash", "--states", "100")
    first, last = output.splitlines()
    assert 0 == code
    assert (
        "explore: neli, exclusive: 2 members, 1 partition, T=2 ticks, e=1, readers at most 1 messages behind, with "
        "fetching zombies, with clean stops, without kills; at most 100 states"
    ) == first
    assert last.startswith("  as far as it came: ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--protocol", "neli", "--slots", "2"), "Invalid value for --slots: neli has no such bound"),
        (("--protocol", "fast-neli", "--error", "0"), "Invalid value for --error: fast-neli has no such bound"),
        (("--zombies",), "Invalid value for --zombies: induction has no such bound"),
    ],
)
def test_a_bound_of_another_protocol_is_refused(arguments: tuple[str, ...], complaint: str) -> None:
    code, output = neli(*arguments)
    assert (2, True) == (code, complaint in " ".join(output.replace("│", " ").split())), output
