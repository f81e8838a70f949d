"""The explorer of electors: worlds that others cover are not looked at, and each known way to a broken rule."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neli_router.electors.ballot import Ballot, Triplet
from neli_router.sim.electors.canon import ElectorCover, elector_frame, elector_keys
from neli_router.sim.electors.miniature import ElectorBounds, ElectorMiniature
from neli_router.sim.electors.rumour_steps import GossipMiniatures
from neli_router.sim.electors.rumours import GossipBounds
from neli_router.sim.electors.steps import ElectorMiniatures
from neli_router.sim.explore import Miniatures, explore

TRANSCRIPTS = Path(__file__).parent / "transcripts"

PAIRS = 100
"""How many pairs of a world and one that covers it are looked at."""


@pytest.mark.parametrize(
    "bounds",
    [
        ElectorBounds(terms=1, restarts=1, states_max=500),
        ElectorBounds(terms=1, lease=2, states_max=1000),
        ElectorBounds(terms=2, states_max=1000),
    ],
    ids=["restarted", "longer", "two terms"],
)
def test_a_world_that_is_covered_can_do_nothing_that_the_one_which_covers_it_cannot(bounds: ElectorBounds) -> None:
    """And covers it again: so whatever follows from the covered one follows from the other, too."""
    miniatures, cover = ElectorMiniatures(bounds), ElectorCover()
    worlds: dict[bytes, ElectorMiniature] = {}
    pairs: set[tuple[bytes, bytes]] = set()

    class Noted(ElectorMiniatures):
        def key(self, world: ElectorMiniature) -> bytes:
            key = super().key(world)
            worlds.setdefault(key, world)
            return key

    def covers(key: bytes) -> bool:
        if (by := cover.covering(key)) is not None:
            pairs.add((by, key))
        return by is not None

    explore(Noted(bounds), covers=covers)
    assert len(pairs) > PAIRS
    for by, covered in sorted(pairs)[:PAIRS]:
        again = ElectorCover()
        for key in (by, *(miniatures.key(after) for _, after in miniatures.steps(worlds[by]))):
            again.covers(key)
        for label, after in miniatures.steps(worlds[covered]):
            # Places that are alike may have been put in another order.
            assert any(again.covering(key) for key in elector_keys(after, bounds)), label


def test_worlds_that_are_not_looked_at_have_no_places_that_others_have_not() -> None:
    cover, frames = ElectorCover(), (set[bytes](), set[bytes]())

    def covers_none(key: bytes) -> bool:
        frames[0].add(elector_frame(key))
        return False

    def covers(key: bytes) -> bool:
        frames[1].add(elector_frame(key))
        return cover.covers(key)

    bounds = ElectorBounds(terms=1)
    whole = explore(ElectorMiniatures(bounds), covers=covers_none)
    reduced = explore(ElectorMiniatures(bounds), covers=covers)
    assert (True, True) == (whole.complete, reduced.complete)
    assert frames[0] == frames[1]
    assert reduced.states < whole.states


# Gossip: what the text says, word for word, and what is shipped


RIVALS = GossipBounds(terms=2, lease=1)
DRIFTING = GossipBounds(terms=2, rates=(1, 2, 1))
CHANGING = GossipBounds(terms=2, changes=1)


def change_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the text had no period P before a change."""
    monkeypatch.setattr(Ballot, "is_free", lambda ballot, now: ballot.favourite is not None or now >= ballot.free_at)


def freeze_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """P counts from when a favourite was chosen or doubted, as the text has it, and bounds go on meanwhile."""
    declare = Ballot.declare

    def declare_with_a_fresh_bound(ballot: Ballot, now: float) -> Triplet:
        former, declared_at = ballot.triplet, ballot.declared_at
        triplet = declare(ballot, now)
        if former is not None and former[:2] == triplet[:2]:
            ballot.declared_at = declared_at
        return triplet

    monkeypatch.setattr(Ballot, "declare", declare_with_a_fresh_bound)


def allow_for_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The voter's own clock is taken to be right."""
    begin = Ballot.begin

    def begin_with_a_short_wait(ballot: Ballot, life: int, now: float) -> None:
        begin(ballot, life, now)
        ballot._wait = ballot._lease

    monkeypatch.setattr(Ballot, "begin", begin_with_a_short_wait)


def keep_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that has a majority again leads under the term that it took for the last one."""
    lead = Ballot.lead

    def lead_under_the_same_term(ballot: Ballot, now: float, *, would: bool, fresh: bool) -> None:
        before = vars(ballot).get("first")
        if ballot.lead_term is None and before is not None and now < ballot._until(0):
            ballot.lead_term = before
        lead(ballot, now, would=would, fresh=fresh)
        if ballot.lead_term is not None:
            vars(ballot)["first"] = ballot.lead_term

    monkeypatch.setattr(Ballot, "lead", lead_under_the_same_term)


def begin_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that restarts has a favourite at once: the text says nothing of a start within P."""
    begin = Ballot.begin

    def begin_without_quiet(ballot: Ballot, life: int, now: float) -> None:
        begin(ballot, life, now)
        if life > 1:
            ballot.quiet_until = now

    monkeypatch.setattr(Ballot, "begin", begin_without_quiet)


def replace_voters_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader goes by its new electorate as soon as it has thought of it."""

    def replace_at_once(ballot: Ballot, new: tuple[int, ...]) -> None:
        assert ballot.lead_term is not None
        ballot.electorate = ballot.electorate.joint(ballot.lead_term, new)._replace(old=new)

    monkeypatch.setattr(Ballot, "replace", replace_at_once)


def settle_by_the_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is over when a majority of the new voters hold to it, whatever the old ones do."""
    settle = Ballot.settle

    def settle_without_the_old_ones(ballot: Ballot, now: float) -> bool:
        joint = ballot.electorate
        ballot.electorate = joint._replace(old=joint.new)
        if not (settled := settle(ballot, now)):
            ballot.electorate = joint
        return settled

    monkeypatch.setattr(Ballot, "settle", settle_without_the_old_ones)


def count_any_electorate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A declaration counts although its maker knows a later electorate than its favourite."""
    until = Ballot._until

    def until_by_all(ballot: Ballot, term: int) -> float:
        supports, tag = ballot.supports, ballot.electorate.tag
        ballot.supports = {place: each._replace(tag=min(each.tag, tag)) for place, each in supports.items()}
        found = until(ballot, term)
        ballot.supports = supports
        return found

    monkeypatch.setattr(Ballot, "_until", until_by_all)


def change_nothing(_: pytest.MonkeyPatch) -> None:
    """A place that restarts forgets, and no rule is to blame."""


STORIES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], GossipBounds | ElectorBounds]] = {
    "a_change_at_once": (change_at_once, RIVALS),
    "a_restart_within_p": (begin_at_once, replace(RIVALS, restarts=1)),
    "a_fresh_bound_while_frozen": (freeze_no_bound, RIVALS),
    "a_voter_whose_clock_is_fast": (allow_for_one_clock, DRIFTING),
    "a_term_that_was_kept": (keep_terms, RIVALS),
    "an_electorate_replaced_at_once": (replace_voters_at_once, CHANGING),
    "a_change_settled_by_the_new_ones_alone": (settle_by_the_new_ones, CHANGING),
    "a_vote_under_a_later_electorate": (count_any_electorate, replace(CHANGING, separate=True)),
    "a_forgotten_electorate": (change_nothing, replace(CHANGING, restarts=1, forget=True)),
    "a_forgotten_term": (change_nothing, ElectorBounds(restarts=1, forget=True)),
}


@pytest.mark.parametrize("story", STORIES)
def test_two_lead_by_rules_that_are_not_ours_and_by_ours_the_same_way_breaks_nothing(
    story: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way there was found by exploring; here it is gone again. By our rules there is none: see `test_proof`."""
    change, bounds = STORIES[story]
    *lines, last = (TRANSCRIPTS / f"{story}.txt").read_text().splitlines()
    assert set() == ends_of(lines, replace(bounds, forget=False)) - {None}
    change(monkeypatch)
    assert last in {f"FAIL {rule}" for rule in ends_of(lines, bounds)}


def miniatures_of(bounds: GossipBounds | ElectorBounds) -> Miniatures[Any]:
    return ElectorMiniatures(bounds) if isinstance(bounds, ElectorBounds) else GossipMiniatures(bounds)


def ends_of(lines: list[str], bounds: GossipBounds | ElectorBounds) -> set[str | None]:
    """The rule that is broken, or None, in each world to which these steps lead."""
    miniatures = miniatures_of(bounds)
    begun = miniatures.first()
    assert lines[0] == miniatures.tell(("genesis",), begun).rstrip()
    worlds = [begun]
    for line in lines[1:]:
        steps = (step for world in worlds for step in miniatures.steps(world))
        worlds = [after for label, after in steps if line == miniatures.tell(label, after).rstrip()]
    return {miniatures.broken_rule(world) for world in worlds}


def walk(bounds: GossipBounds, *steps: str) -> list[str]:
    """The peers that act after each step. A step is the beginning of its label; an impossible step is skipped."""
    miniatures = GossipMiniatures(bounds)
    world, acting = miniatures.first(), []
    for step in steps:
        found = ((" ".join(map(str, label)), after) for label, after in miniatures.steps(world))
        world = next((after for label, after in found if label.startswith(step)), world)
        acting.append(miniatures.tell((step,), world).partition("acting: ")[2])
    return list(dict.fromkeys(acting))


def test_one_leader_comes_to_act_after_another_among_rivals() -> None:
    elect = "favour {0} {0},favour p1 {0},hear {0} p1,declare {0},hear p1 {0},declare p1,hear {0} p1,tick"
    steps = [step for rival in ("p0", "p2") for step in elect.format(rival).split(",")]
    assert ["nobody", "p0 under 1", "p2 under 2"] == walk(RIVALS, *steps)


def test_a_change_of_the_electorate_is_settled_and_another_comes_to_lead_by_it() -> None:
    assert ["p0 under 1 by 012+013", "p0 under 1 by 013", "nobody", "p2 under 2 by 013"] == walk(
        replace(CHANGING, lease=1, fickle=(1, 3)),
        *("replace p0 p2 by p3", "say p0 p1", "say p1 p0", "settle p0", "say p0 p1"),
        *("tick", "favour p1 p2", "favour p3 p2", "say p1 p2", "say p3 p2"),
        *("say p2 p1", "say p2 p3", "say p1 p2", "say p3 p2"),
    )
