"""Checkers of electors see what they are for: a small elector that is right keeps every promise, and each of its
broken kinds breaks the rule that was made for it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from neli_router.electors.events import PeerEffect
from neli_router.electors.settings import PeerSettings
from neli_router.electors.voter import Voter
from neli_router.errors import NeliError
from neli_router.sim.electors.insight import Insight
from neli_router.sim.electors.options import ElectorOptions, ElectorWeather
from neli_router.sim.electors.simulate import ElectorOutcome, run_electors, simulate_electors
from neli_router.sim.world import World
from tests.sim.toy_voter import ToyVoter

SEARCHED = range(150)
"""Seeds among which a planted fault has to show."""


class _NeverStands(ToyVoter):
    def _due(self) -> float:
        return 1e9

    def _turn(self, now: float, effects: list[PeerEffect]) -> None:
        pass


class _GivesUp(ToyVoter):
    """A leader that tires of leading, although all support it."""

    def tenures(self, now: float) -> dict[int, int]:
        acts = super().tenures(now)
        return acts if now % (8 * self._peer.lease) < 7 * self._peer.lease else {}


class _Quits(ToyVoter):
    """Ends by itself."""

    def _turn(self, now: float, effects: list[PeerEffect]) -> None:
        super()._turn(now, effects)
        if self._term > 2:
            self._end(None, now, effects)


class _Fails(ToyVoter):
    """Ends with an error when it is told to end."""

    def _end(self, error: NeliError | None, now: float, effects: list[PeerEffect]) -> None:
        super()._end(NeliError("a farewell was to be said", "nobody was there", "start it again"), now, effects)


class _AllLead(Insight):
    def led_by(self, machine: Voter) -> list[tuple[int, int]]:
        return [(0, 7)]


def run_toy(
    seed: int,
    weather: ElectorWeather | None = None,
    kind: type[ToyVoter] = ToyVoter,
    forced: dict[str, Any] | None = None,
    insight: type[Insight] = Insight,
    **toy: Any,
) -> ElectorOutcome:
    def build(settings: PeerSettings, memory: bytes, now: float, rng: Random) -> Voter:
        return kind(settings, memory, now, rng=rng, **toy)

    world = World(seed)
    options = ElectorOptions.draw(seed, world.random, protocol="term", weather=weather)
    options = replace(options, **(forced or {}))
    return run_electors(world, options, insight(options, build))


def broken_rules(runs: Iterable[ElectorOutcome]) -> Iterator[str]:
    return (one.violation.rule for one in runs if one.violation is not None)


def test_an_elector_that_is_right_keeps_every_promise() -> None:
    assert [] == list(broken_rules(run_toy(seed) for seed in range(10)))


THREE = {"size": 3, "replicas": 3}


@pytest.mark.parametrize(
    ("rule", "weather", "kind", "forced", "toy"),
    [
        # A peer promises at once after a start: its older self may have promised.
        ("at_most_one_acts", "foul", ToyVoter, {}, {"quiet": False}),
        # Promises are shorter than the lease.
        ("at_most_one_acts", "foul", ToyVoter, {}, {"share": 0.3}),
        # Disks forget, and a term is given twice.
        ("terms_grow", "amnesiac", ToyVoter, {}, {}),
        ("led_in_time", "fair", _NeverStands, {}, {}),
        ("converges", "foul", _NeverStands, {}, {}),
        ("sticks", "fair", _GivesUp, THREE, {}),
        ("stays", "foul", _GivesUp, THREE, {}),
        ("stops_for_a_reason", "fair", _Quits, {"faults": ("close",)}, {}),
        ("stops_for_a_reason", "fair", _Fails, {"faults": ("close",)}, {}),
    ],
)
def test_an_elector_that_is_broken_is_seen(
    rule: str, weather: ElectorWeather, kind: type[ToyVoter], forced: dict[str, Any], toy: dict[str, Any]
) -> None:
    found = broken_rules(run_toy(seed, weather, kind, forced, **toy) for seed in SEARCHED)
    assert rule == next(found)


def test_two_leaders_of_one_term_are_seen_though_none_acts() -> None:
    found = run_toy(1, "fair", forced=THREE, insight=_AllLead)
    assert ["one_leader_a_term"] == list(broken_rules([found]))


def test_peers_that_do_not_scout_unseat_leaders_that_a_majority_hears(monkeypatch: pytest.MonkeyPatch) -> None:
    """BlazingMQ's stories, found by chance."""
    settings = ElectorOptions.settings

    def without_scouting(options: ElectorOptions, place: int) -> PeerSettings:
        return msgspec.structs.replace(settings(options, place), scouting=False)

    monkeypatch.setattr(ElectorOptions, "settings", without_scouting)
    found = broken_rules(simulate_electors(seed, protocol="term", weather="fair") for seed in SEARCHED)
    assert "sticks" == next(found)
