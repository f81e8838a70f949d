"""Scenes of borrowed groups: the failures that the paper describes, each staged once and recorded.

The paper, "Exclusivity of role assignment", describes a consumer that mistakes old messages for new ones: (1) it
receives messages and buffers them within the client library, (2) its host gives it no time, (3) the session lapses and
the partition goes to another consumer, (4) which leads, and (5) it wakes up and takes the backlog as evidence that it
still leads.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from neli_router.errors import GroupMismatch
from neli_router.lab.sim.consumer_group.group import ConsumerGroup, TermsOfGivings
from neli_router.lab.sim.consumer_group.options import ConsumerOptions, ConsumerWeather
from neli_router.lab.sim.consumer_group.process import ConsumerProcess
from neli_router.lab.sim.consumer_group.simulate import simulate_consumers
from neli_router.lab.sim.world import Violation, World
from neli_router.protocols.consumer_group.events import BrokerBroken
from neli_router.protocols.protocol import Guarantee

TRANSCRIPTS = Path(__file__).parent / "transcripts"
TOLD = ("gives", "has", "forgets", "frozen", "stalled", "killed", "leaves", "Acquired", "Revoked", "Fenced")
STEP = 0.01


class Scene:
    """Two hosts, one partition, a session of a second, and no failures except those the test causes."""

    def __init__(self, guarantee: Guarantee, weather: ConsumerWeather, *, current: float) -> None:
        self.world = World(1)
        drawn = ConsumerOptions.draw(1, Random(1), protocol="neli", guarantee=guarantee, weather=weather)
        calm = {"tail": 0.0, "loss": 0.0, "hang": 0.0, "answer": 0.0, "sparse": False, "faults": (), "delay": 0.002}
        sizes = {"members": 2, "names": 2, "partitions": 1, "groups": 1, "batch_max": 3, "beats_per_session": 10}
        times = {"session": 1.0, "current": current, "beat": current / 5, "error": 0.01}
        forced: dict[str, Any] = {**calm, **sizes, **times, "assignor": "cooperative"}
        self.group = ConsumerGroup(self.world, replace(drawn, **forced))
        self.lines: list[str] = []
        self.woken = False
        """Whether the messages that a process takes are recorded, too."""
        self.together = 0.0
        """For how long two have acted together."""
        self._acting: list[str] = []

    def run(self, until: float) -> None:
        while self.world.now < until - STEP / 2:
            self.world.run(self.world.now + STEP)
            for line in self.world.lines:
                what = line.what.strip()
                takes = self.woken and what.startswith("takes 0:") and line.who.startswith("p#")
                if (takes or what.startswith(TOLD) or what.endswith(" joins")) and line.who != "world":
                    self.lines.append(f"{line.time:6.2f} {line.who:6} {what}")
            self.world.lines.clear()
            acting = [process.label for process in self.group.acting.who(0)]
            self.together += STEP * (len(acting) > 1)
            if acting != self._acting:
                self._acting = acting
                self.lines.append(f"{self.world.now:6.2f}        acting: {' and '.join(acting) or 'none'}")

    def told(self) -> str:
        return "\n".join(self.lines) + "\n"


def lapse(guarantee: Guarantee, current: float) -> Scene:
    """The paper's five steps."""
    scene = Scene(guarantee, "foul", current=current)
    p = scene.group.start("p")
    scene.run(3.0)
    scene.group.start("q")
    scene.run(5.0)
    p.pause(0.6, whole=False)  # 1. Its library goes on receiving.
    scene.run(5.5)
    p.pause(2.0, whole=True)  # 2. Its host gives it no time at all.
    scene.run(7.49)  # 3. and 4.
    scene.woken = True
    scene.run(7.53)  # 5.
    scene.woken = False
    scene.run(14.0)
    return scene


@pytest.mark.parametrize(("name", "guarantee", "current"), [("receipt", "available", 3), ("broker", "exclusive", 0.8)])
def test_in_the_papers_failure_two_lead_with_receipt_times_and_never_with_broker_times(
    name: str, guarantee: Guarantee, current: float, pytestconfig: pytest.Config
) -> None:
    path, scene = TRANSCRIPTS / f"papers_failure_with_{name}_times.txt", lapse(guarantee, current)
    if pytestconfig.getoption("rewrite"):
        path.write_text(scene.told(), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == scene.told()
    assert (scene.together > 0) == (name == "receipt")


def test_two_act_together_only_under_available_and_then_after_a_silence_more_briefly() -> None:
    def measured(seed: int, guarantee: Guarantee) -> Mapping[str, float]:
        return simulate_consumers(seed, protocol="neli", guarantee=guarantee, weather="fair").measured

    available = [measured(seed, "available") for seed in range(3)]
    assert max(one["overlap"] for one in available) > max(one["overlap_after_silence"] for one in available)
    assert {0.0} == {measured(seed, "exclusive")["overlap"] for seed in range(3)}


# Every check can fail. Mutants in `proofs.lock` show the same of the others.


def breaks(rule: str) -> AbstractContextManager[object]:
    return pytest.raises(Violation, match=rf"^{rule}: ")


def led(**kind: Any) -> tuple[Scene, ConsumerProcess]:
    scene = Scene(**{"guarantee": "exclusive", "weather": "fair", "current": 0.5, **kind})
    leader = scene.group.start("p")
    scene.run(3.0)
    assert [leader] == scene.group.acting.who(0)
    return scene, leader


def test_a_term_that_is_not_above_those_of_earlier_givings_is_found() -> None:
    for giving, term in ((2, 5), (2, 4), (0, 6), (0, 5)):
        terms = TermsOfGivings()
        terms.acted("p", 0, 1, 5)
        terms.acted("p", 0, 1, 7)
        with breaks("terms_grow"):
            terms.acted("q", 0, giving, term)


GROUP_CHANGED = GroupMismatch("4", "5", "start again")
AVAILABLE = {"guarantee": "available", "current": 2.0}

HARMS: list[tuple[str, dict[str, Any], Callable[[ConsumerProcess], None]]] = [
    # A partition is led no longer, without a cause.
    ("stays_led", {}, lambda leader: setattr(leader.consumer, "fetch_cut_until", 60.0)),
    # A leader that the group has lost goes on hearing until its session is over, and acts alongside its successor.
    ("brief_overlap", AVAILABLE, lambda leader: setattr(leader.consumer, "group_cut_until", 60.0)),
    # A process ends without a cause.
    ("stops_for_a_reason", {"weather": "foul"}, lambda leader: leader.consumer.break_for(BrokerBroken(GROUP_CHANGED))),
]


@pytest.mark.parametrize(("rule", "kind", "harm"), HARMS, ids=[rule for rule, _, _ in HARMS])
def test_a_harmed_leader_is_noticed(rule: str, kind: dict[str, Any], harm: Callable[[ConsumerProcess], None]) -> None:
    scene, leader = led(**kind)
    if "guarantee" in kind:
        scene.group.start("q")
        scene.run(5.0)
    harm(leader)
    with breaks(rule):
        scene.run(9.0)


def test_a_partition_that_moves_in_peace_is_found() -> None:
    scene, _ = led()
    scene.group.start("q")
    scene.group.calm = True
    scene.group.broker.options = replace(scene.group.broker.options, assignor="eager")
    with breaks("nothing_moves_in_peace"):
        scene.run(5.0)


def test_a_machine_that_does_not_rest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, leader = led()
    monkeypatch.setattr(type(leader.machine), "deadline", property(lambda _: leader.now))
    with breaks("rests"):
        scene.run(4.0)
