"""The barrier between the protocol and the program: when a program is notified, and when the barrier waits for it.

Its answers are in `transcripts/barrier.txt`, and `--rewrite` writes them again.
"""

import re
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from neli_router.member.barrier import Barrier, Period, PeriodState
from neli_router.member.runtime import Changed
from neli_router.protocols.protocol import Acquired, Event, Fenced, Revoked, Standby, Stopped
from tests.support.waiting import PATIENCE, beside


class Stand:
    """A barrier whose lanes are turned by hand; it reports the result of each command in words."""

    def __init__(self, *, silent: bool = False) -> None:
        self.said: list[str] = []
        self.now = 0.0
        self.meanwhile: dict[str, str] = {}
        """Kind of event -> the command that its handler carries out."""
        self.entered: list[Period] = []
        self.barrier = Barrier(
            None if silent else self._tell,
            Changed(),
            clock=lambda: self.now,
            release=lambda terms: self.said.append(f"release {_spelled(terms)}"),
            failed=lambda event, error: self.said.append(f"{event} raised {type(error).__name__}"),
            lane_name="stand",
        )

    def _tell(self, event: Event) -> None:
        kind = type(event).__name__
        about = " ".join(map(str, event.partitions)) if isinstance(event, Standby) else _spelled(event.terms)
        self.said.append(f"{kind} {about}")
        assert self.barrier.is_here
        if command := self.meanwhile.get(kind):
            self.act(*command.split())

    def do(self, command: str) -> str:
        """Carry out one line of a script, and return its result in words."""
        self.act(*command.split())
        said, self.said = self.said, []
        return ", ".join(said) or "."

    def act(self, *words: str) -> None:
        match words:
            case ["in", kind, *command]:
                self.meanwhile[kind] = " ".join(command)
            case ["raise", *_]:
                raise SystemExit
            case ["acquired", *terms]:
                self.barrier.tell(Acquired(_terms(terms)))
            case ["revoked", *terms]:
                self.barrier.tell(Revoked(_terms(terms)))
            case ["fenced", *terms]:
                self.barrier.tell(Fenced(_terms(terms), "silence"))
                if self.barrier.is_here:
                    self.act("urgent")
            case ["standby", *partitions]:
                self.barrier.tell(Standby(tuple(map(int, partitions))))
                self.said.append(f"standby {sorted(self.barrier.standby)}")
            case ["events"]:
                while self.barrier.orderly.turn():
                    pass
            case ["urgent"]:
                while self.barrier.urgent.turn():
                    pass
            case ["enter", partition]:
                period = self.barrier.period(int(partition))
                assert period is not None
                self.barrier.enter(period)
                self.entered.append(period)
            case ["leave"]:
                self.barrier.leave([self.entered.pop()])
            case ["led"]:
                self.said.append(_spelled({period.partition: period.term for period in self.barrier.led()}))
            case ["end"]:
                self.barrier.lose_all("the end")
            case _:
                raise AssertionError(f"no such command: {words}")


def _terms(words: list[str]) -> dict[int, int]:
    return {int(partition): int(term) for partition, _, term in (word.partition("@") for word in words)}


def _spelled(terms: Mapping[int, int]) -> str:
    return " ".join(f"{partition}@{term}" for partition, term in sorted(terms.items())) or "nothing"


def replay(stand: Stand, script: str) -> str:
    commands = (line.partition("->")[0].strip() for line in script.strip().splitlines())
    return "\n".join(
        command if command[:1] in {"", "#"} else f"{command:<15} -> {stand.do(command)}" for command in commands
    )


TRANSCRIPT = Path(__file__).parent / "transcripts" / "barrier.txt"
PREFACE, *BLOCKS = re.split(r"(?m)^(?=## )", TRANSCRIPT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("block", BLOCKS, ids=[re.sub(r"\W+", "_", block.splitlines()[0][3:]) for block in BLOCKS])
def test_the_barrier_answers_as_its_transcript(block: str, pytestconfig: pytest.Config) -> None:
    stand = Stand()
    answered = replay(stand, block)
    if pytestconfig.getoption("rewrite"):
        whole = TRANSCRIPT.read_text(encoding="utf-8")
        TRANSCRIPT.write_text(whole.replace(block.rstrip(), answered), encoding="utf-8")
        return
    assert block.rstrip() == answered
    assert not stand.barrier.is_here


def test_a_higher_term_takes_the_place_of_a_lower_one_and_numbers_start_again_with_it_and_not_with_a_period() -> None:
    stand = Stand()
    script = """
acquired 0@5    -> .
events          -> Acquired 0@5
enter 0         -> .
acquired 0@9    -> .
events          -> Acquired 0@9
led             -> 0@9
fenced 0@5      -> .
led             -> 0@9
"""
    assert script.strip() == replay(stand, script)
    assert (PeriodState.LOST, "it was acquired again under term 9") == (stand.entered[0].state, stand.entered[0].reason)
    stand, numbers = Stand(silent=True), list[int]()
    for line in ("acquired 0@5", "fenced 0@5", "acquired 0@5", "acquired 0@9"):
        stand.do(line)
        if (period := stand.barrier.period(0)) is not None:
            numbers += [next(period.numbers), next(period.numbers)]
    assert [1, 2, 3, 4, 1, 2] == numbers


def test_without_a_handler_there_is_nothing_to_wait_for_but_blocks() -> None:
    script = """
acquired 0@5 1@5 -> .
led             -> 0@5 1@5
enter 0         -> .
revoked 0@5 1@5 -> release 1@5
leave           -> release 0@5
acquired 2@7    -> .
fenced 2@7      -> .
led             -> nothing
"""
    assert script.strip() == replay(Stand(silent=True), script)
    assert () == Stand(silent=True).barrier.lanes


def test_a_loss_is_explained_before_it_is_told_and_remembered_with_its_time() -> None:
    """The standing is published between the two, and a lease may be checked at that moment."""
    stand = Stand(silent=True)
    stand.do("acquired 0@5")
    period = stand.barrier.period(0)
    assert period is not None
    stand.barrier.enter(period)
    stand.now = 12.5
    stand.do("revoked 0@5")
    stand.barrier.explain([Revoked({0: 5}), Fenced({0: 4}, "an echo"), Stopped(None)])
    assert (PeriodState.FINISHING, "it was revoked, and its successor acts") == (period.state, period.reason)
    stand.barrier.explain([Fenced({0: 5}, "silence")])
    assert (PeriodState.FINISHING, "silence") == (period.state, period.reason)
    stand.do("fenced 0@5")
    assert (PeriodState.LOST, 12.5, "silence") == (period.state, period.lost_at, period.reason)


def test_each_lane_is_one_thread_and_orderly_events_keep_their_order() -> None:
    """On real threads: the Fenced handler is called while the Revoked handler for another partition still runs."""
    fenced = threading.Event()
    order: list[str] = []

    def during(event: Event) -> None:
        if isinstance(event, Revoked):
            assert fenced.wait(PATIENCE)
        order.append(type(event).__name__)
        if isinstance(event, Fenced):
            fenced.set()

    changed = Changed()
    barrier = Barrier(
        during, changed, clock=lambda: 0.0, release=lambda _: None, failed=lambda *_: None, lane_name="stand"
    )
    with beside(*(lane.run for lane in barrier.lanes)):
        barrier.tell(Acquired({0: 5, 1: 5}))
        with changed:
            assert changed.wait_for(lambda: order == ["Acquired"], PATIENCE)
        barrier.tell(Revoked({0: 5}))
        barrier.tell(Acquired({2: 6}))
        barrier.tell(Fenced({1: 5}, "silence"))
        for lane in barrier.lanes:
            lane.end()
    assert ["Acquired", "Fenced", "Revoked", "Acquired"] == order
