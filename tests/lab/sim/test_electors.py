"""Checkers of electors notice what they are for: each way to break an elector breaks the rule that was made for it.

`test_contract` has more ways: disks that forget, supporters that owe nothing and gossipers that change their mind.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from neli_router.errors import NeliError
from neli_router.lab.sim.electors.insight import insight_of
from neli_router.lab.sim.electors.options import ElectorOptions, ElectorWeather
from neli_router.lab.sim.electors.simulate import run_electors
from neli_router.lab.sim.world import World
from neli_router.protocols.electors.events import PeerEffect
from neli_router.protocols.term.machine import TermMachine

SEARCHED = range(150)
"""Seeds within which a planted fault has to show."""

THREE = {"size": 3, "replicas": 3}
CLOSING = {"faults": ("close",)}


def broken_rules(weather: ElectorWeather, forced: dict[str, Any]) -> Iterator[str]:
    for seed in SEARCHED:
        world = World(seed)
        options = replace(ElectorOptions.draw(seed, world.random, protocol="term", weather=weather), **forced)
        if (violation := run_electors(world, options, insight_of(options)).violation) is not None:
            yield violation.rule


TENURES, TURN, END = TermMachine.tenures, TermMachine._turn, TermMachine._end


def gives_up(machine: TermMachine, now: float) -> dict[int, int]:
    """A leader tires of leading, although everyone supports it."""
    lease = machine._settings.lease
    return TENURES(machine, now) if now % (8 * lease) < 7 * lease else {}


def quits(machine: TermMachine, now: float, effects: list[PeerEffect]) -> None:
    """A leader ends without being asked."""
    TURN(machine, now, effects)
    if TENURES(machine, now):
        machine._end(None, now, effects)


def fails(machine: TermMachine, error: NeliError | None, now: float, effects: list[PeerEffect]) -> None:
    """A member that is asked to end does so with an error."""
    END(machine, NeliError("a farewell was to be said", "no peer was there", "start it again"), now, effects)


Broken = dict[str, Callable[..., object]]
NEVER_STANDS: Broken = {"_turn": lambda *_: None, "_due": lambda _: inf}


@pytest.mark.parametrize(
    ("rule", "weather", "forced", "broken"),
    [
        ("led_in_time", "fair", {"faults": ()}, NEVER_STANDS),
        ("converges", "foul", {}, NEVER_STANDS),
        ("sticks", "fair", THREE, {"tenures": gives_up}),
        ("stays", "foul", THREE, {"tenures": gives_up}),
        ("stops_for_a_reason", "fair", CLOSING, {"_turn": quits}),
        ("stops_for_a_reason", "fair", CLOSING, {"_end": fails}),
    ],
)
def test_an_elector_that_is_broken_is_seen(
    rule: str, weather: ElectorWeather, forced: dict[str, Any], broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, method in broken.items():
        monkeypatch.setattr(TermMachine, name, method)
    assert rule == next(broken_rules(weather, forced))
