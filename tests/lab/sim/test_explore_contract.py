"""Every explorer keeps the same contract, whatever its miniatures run: it separates worlds that differ, finds what is
broken and the way there, ends, and prints its bounds. The other files cover what is particular to one protocol.
"""

import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace as changed

from neli_router.commands.cli import main
from neli_router.lab.commands import proofs
from neli_router.lab.commands.proofs import PROFILES, AnyBounds, miniatures_of
from neli_router.lab.sim.cells import CellBounds
from neli_router.lab.sim.consumer_group import canon as consumers
from neli_router.lab.sim.consumer_group.miniature import ConsumerBounds, broken_consumer_rule
from neli_router.lab.sim.consumer_group.steps import next_in_calm
from neli_router.lab.sim.explore import Miniatures, Profile, explore, transcript
from neli_router.lab.sim.gossip import canon as rumours
from neli_router.lab.sim.gossip.miniature import GossipBounds
from neli_router.lab.sim.gossip.steps import GossipMiniatures
from neli_router.lab.sim.induction import steps as ledger_steps
from neli_router.lab.sim.induction.miniature import Bounds
from neli_router.lab.sim.term import canon as electors
from neli_router.lab.sim.term.canon import ElectorCover
from neli_router.lab.sim.term.miniature import ElectorBounds
from neli_router.lab.sim.term.steps import ElectorMiniatures
from neli_router.protocols.consumer_group.machine import GroupMachine
from neli_router.protocols.consumer_group.neli import NeliMachine
from neli_router.protocols.induction.snapshots import restore

SMALL = Bounds(slots=2, apart=1, lease=1)
EXCLUSIVE = ConsumerBounds("neli", leave=False, crash=False)
RIVALS = GossipBounds(terms=2, lease=1)
CHANGING = GossipBounds(terms=2, changes=1, lease=1)

KINDS: dict[str, AnyBounds] = {
    "induction": Bounds(slots=2, apart=2, lease=2),
    "neli": ConsumerBounds("neli"),
    "neli available": ConsumerBounds("neli", guarantee="available"),
    "neli of two partitions": ConsumerBounds("neli", partitions=2, apart=2),
    "fast-neli": ConsumerBounds("fast-neli"),
    "fast-neli with zombies": ConsumerBounds("fast-neli", zombies=True),
    "term restarted": ElectorBounds(restarts=1),
    "term forgotten": ElectorBounds(restarts=1, forget=True),
    "term of longer leases": ElectorBounds(lease=2, wires=2),
    "gossip of rivals": RIVALS,
    "gossip drifting": GossipBounds(terms=2, rates=(1, 2, 1)),
    "gossip of a fast rival": GossipBounds(terms=2, rates=(1, 1, 2)),
    "gossip restarted": replace(RIVALS, restarts=1),
    "gossip of older words": replace(RIVALS, wires=2, cede=True),
    "gossip of any": replace(RIVALS, rivals=False, restarts=1),
    "gossip changing": CHANGING,
    "gossip changing apart": replace(CHANGING, lease=2, separate=True, fickle=(1, 3)),
    "gossip changing and restarted": replace(CHANGING, restarts=1, forget=True),
    "gossip changing late": replace(CHANGING, late=True, wires=2, cede=True, fickle=(1, 3)),
    "cells": CellBounds(),
    "cells and back": CellBounds(members=(1, 1), births=(2, 2), moves=2, ready=False),
}

NEAR, FAR = 60, 120
"""How many worlds of each kind are examined: the first ones, and some on random walks."""

AHEAD = 0.97
"""How often a walk goes on: about thirty steps until it starts over."""


def nearest(miniatures: Miniatures[Any]) -> Iterator[Any]:
    """Every world in the order in which steps lead there, including those that equal another."""
    seen: set[bytes] = set()
    queue = [miniatures.first()]
    for world in queue:
        yield world
        if (key := miniatures.key(world)) not in seen:
            seen.add(key)
            queue += [found for _, found in miniatures.steps(world)]


def wandering(miniatures: Miniatures[Any]) -> Iterator[Any]:
    """Worlds on random walks, which reach one key by ways of many lengths."""
    random, world = Random(7), miniatures.first()
    while True:
        yield world
        after = [found for _, found in miniatures.steps(world)]
        world = random.choice(after) if random.random() < AHEAD else miniatures.first()


@pytest.mark.parametrize("kind", KINDS)
def test_worlds_with_one_key_can_do_the_same_and_a_step_changes_no_world_but_its_own(kind: str) -> None:
    miniatures, after = miniatures_of(KINDS[kind]), dict[bytes, set[bytes]]()
    # Where places forget, nothing is ignored forever, and one way to a broken rule is all we want.
    far = 0 if kind == "term forgotten" else FAR
    for world in (*islice(nearest(miniatures), NEAR), *islice(wandering(miniatures), far)):
        before, key = pickle.dumps(world), miniatures.key(world)
        found = {miniatures.key(one) for _, one in miniatures.steps(world)} - {key}
        assert after.setdefault(key, found) == found
        assert before == pickle.dumps(world)
    assert len(after) < NEAR + far


ELECTION = GossipMiniatures(RIVALS).first().places[0].election


@pytest.mark.parametrize(
    ("kept", "left_out", "machines"),
    [
        (consumers.KEPT, consumers.LEFT_OUT, [ConsumerBounds(it).machine("m0", 0, 0) for it in ("neli", "fast-neli")]),
        (electors.KEPT, electors.LEFT_OUT, [ElectorMiniatures(ElectorBounds()).first().places[0].elector]),
        (rumours.KEPT, rumours.LEFT_OUT, [ELECTION, ELECTION.clocks]),
    ],
    ids=["consumers", "electors", "rumours"],
)
def test_every_field_is_kept_or_left_out(kept: set[str], left_out: dict[str, str], machines: list[object]) -> None:
    assert {name for machine in machines for name in vars(machine)} == kept | left_out.keys()
    assert not kept & left_out.keys()


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(slots=1, apart=1, lease=1),
        ElectorBounds(terms=1),
        GossipBounds(terms=1, lease=1),
        CellBounds(members=(1, 1), births=(1, 1)),
    ],
    ids=lambda bounds: type(bounds).__name__,
)
def test_the_exploration_of_a_small_group_ends_and_breaks_no_rule(bounds: AnyBounds) -> None:
    covers = ElectorCover().covers if isinstance(bounds, ElectorBounds) else lambda _: False
    report = explore(miniatures_of(bounds), covers=covers)
    assert (True, None) == (report.complete, report.broken)


def begin_at_once(machine: GroupMachine, partition: int, offset: int) -> None:
    """A member that does not ask the group whether it is still a member."""
    held = machine._held[partition]
    if not (held.asked_back or held.began):
        held.began = True
        machine._tenures[partition] = offset


SETTLES = "it settles: nothing fails from here on, and yet no member leads what it was given"
EVIDENCE_ENDS = "evidence ends: m0 acts for partition 0, which it has not heard for T"

SEARCHED: dict[str, AnyBounds] = {
    "exclusive": EXCLUSIVE,
    "available": replace(EXCLUSIVE, guarantee="available"),
    "neli zombies": replace(EXCLUSIVE, zombies=True),
}


@pytest.mark.parametrize(
    ("owner", "name", "broken", "kind", "rule"),
    [
        # Members publish nothing.
        (NeliMachine, "_bodies", lambda *_: {}, "exclusive", SETTLES),
        # A tenure does not lapse.
        (NeliMachine, "_ends", lambda machine, partition: machine.vector[partition] + 3, "available", EVIDENCE_ENDS),
        # A zombie that does not ask the group has the term of its successor.
        (GroupMachine, "_propose", begin_at_once, "neli zombies", "terms grow: "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_broken_is_found_with_the_way_there(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, broken: Callable[..., object], kind: str, rule: str
) -> None:
    monkeypatch.setattr(owner, name, broken)
    report = explore(miniatures_of(SEARCHED[kind]))
    assert report.broken is not None
    assert (False, rule) == (report.complete, report.broken[: len(rule) if rule.endswith(": ") else None])
    first, *_, last = transcript(report)
    assert first.startswith("t=0   genesis ")
    assert f"FAIL {report.broken}" == last


def test_the_way_to_what_is_broken_is_the_shortest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that differs from the fold shows as soon as one incarnation starts from it."""
    monkeypatch.setattr(ledger_steps, "restore", lambda record: changed(restore(record), drains={"x": 3}))
    *way, fail = transcript(explore(miniatures_of(SMALL)))
    assert ["genesis", "start"] == [line.split()[1] for line in way]
    assert "FAIL equal prefixes give equal tables: i0 computed another than the rest" == fail


@pytest.mark.parametrize("bounds", [bounds for bounds in KINDS.values() if isinstance(bounds, ConsumerBounds)], ids=str)
def test_a_group_in_calm_settles_and_a_program_that_believes_too_much_breaks_a_rule(bounds: ConsumerBounds) -> None:
    world = miniatures_of(bounds).first()
    while (after := next_in_calm(world, bounds)) is not None:
        world = after
    partitions = range(bounds.partitions)
    assert all(1 == sum(place.acts[partition] is not None for place in world.places) for partition in partitions)
    assert broken_consumer_rule(world, bounds) is None
    idle = tuple(place._replace(acts=(None,) * bounds.partitions) for place in world.places)
    broken = broken_consumer_rule(world._replace(places=idle), bounds)
    assert broken is not None
    assert broken.startswith("belief is within tenure: the program of m")


def neli(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ("explore", *arguments))
    return result.exit_code, result.output


def test_the_way_to_what_is_broken_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that waits less than members expect lets two lead."""
    hasty = Profile("The broker is hasty.", ConsumerBounds("fast-neli", session=1, leave=False, crash=False))
    monkeypatch.setitem(proofs.PROFILES, "fast-neli", {"hasty": hasty})
    code, output = neli("--protocol", "fast-neli", "--profile", "hasty")
    *_, both, fail = output.splitlines()
    assert (1, "FAIL at most one acts: m0 and m1 both may, for partition 0") == (code, fail)
    assert "m0 0 under" in both
    assert "m1 0 under" in both


PRINTED = {
    Bounds(slots=3, births=4, lease=1, leave=False, crash=False, certify=False, states_max=1000): """
3 incarnations at once (4 over all time), 1 partition, readers at most 2 records apart, lease 1 ticks, without Leave,
without crashes, without certificates of them, with restarts under the same name and starts from any snapshot; at most
1,000 states
""",
    ConsumerBounds("neli", zombies=True, crash=False): """
neli, exclusive: 2 members, 1 partition, T=2 ticks, e=1, readers at most 1 messages behind, with fetching zombies, with
clean stops, without kills; all states
""",
    ElectorBounds(restarts=1, forget=True, cede=False): """
term: 3 electors, 2 terms over all time, lease 1 ticks, each stands at any time, without ceding, 1 restarts over all
time, which forget their term, the newest message of each kind between two lost, late, doubled; all states
""",
    GossipBounds(changes=1, separate=True, restarts=1, fickle=(1, 3)): """
gossip: 4 electors, two rivals and two voters, of whom one has no vote at first and both favour either, 1 terms and 1
restarts of the voters over all time, 1 changes of the electorate, which travel apart from declarations, P=2 ticks,
clocks that run alike, without ceding, words heard at once or lost; all states
""",
    CellBounds(): """
cells of 2 and 1 incarnations at a time (2 and 1 over all time), 1 range that moves 1 times at most, readers at most 1
record apart, lease 1 ticks, without Leave, with crashes, the second cell ready at first; all states
""",
}


@pytest.mark.parametrize("bounds", PRINTED, ids=lambda bounds: type(bounds).__name__)
def test_bounds_say_what_they_leave_out(bounds: AnyBounds) -> None:
    assert PRINTED[bounds].strip().replace("\n", " ") == str(bounds)


@pytest.mark.parametrize(
    ("protocol", "profile"), [(protocol, name) for protocol, profiles in PROFILES.items() for name in profiles]
)
def test_all_bounds_of_a_profile_are_explored_up_to_the_limit(protocol: str, profile: str) -> None:
    code, output = neli("--protocol", protocol, "--profile", profile, "--states", "20")
    assert 0 == code
    limited = [replace(bounds, states_max=20) for bounds in PROFILES[protocol][profile].bounds]
    assert [f"explore: {bounds}" for bounds in limited] == output.splitlines()[::2]
    assert all(line.startswith("  as far as it came: ") for line in output.splitlines()[1::2])


@pytest.mark.parametrize("protocol", PROFILES)
def test_the_help_lists_the_profiles_of_a_protocol_and_how_they_differ(protocol: str) -> None:
    code, output = neli("--protocol", protocol, "--help")
    _, listed = output.split(f"Profiles of {protocol}:\n")
    assert 0 == code
    assert [*PROFILES[protocol]] == re.findall(r"^  ([\w-]+)  ", listed, re.MULTILINE)
    assert sum(len(profile.bounds) for profile in PROFILES[protocol].values()) == listed.count("[")
    assert protocol != "induction" or "[slots=3, apart=1, lease=1, leave=False, births=3]" in listed


def test_a_profile_of_another_protocol_is_refused_with_those_that_there_are() -> None:
    code, output = neli("--protocol", "fast-neli", "--profile", "available")
    assert 2 == code
    assert "fast-neli has test, exclusive, zombies, full, and not available" in " ".join(output.split())
