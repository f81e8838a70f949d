"""The barrier between the protocol and the program: when a program is notified, and when the barrier waits for it.

Its answers are in `transcripts/barrier.txt`, and `--rewrite` writes them again.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from neli_router.member.barrier import Barrier, Period
from neli_router.member.runtime import Changed
from neli_router.protocols.protocol import Acquired, Event, Fenced, Revoked, Standby, Stopped
from tests.protocols.rules import Rule, rules_in


class Stand:
    """A barrier whose lanes are turned by hand; it reports the result of each command in words."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.now = 0.0
        self.meanwhile: dict[str, str] = {}
        """Kind of event -> the command that its handler carries out."""
        self.entered: list[Period] = []
        self.barrier = self.made(self._tell)

    def made(self, tell: Callable[[Event], None] | None) -> Barrier:
        return Barrier(
            tell,
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

    def played(self, script: list[str]) -> Iterator[str]:
        for command in (line.partition("->")[0].strip() for line in script):
            yield command if command[:1] in {"", "#"} else f"{command:<15} -> {self.do(command)}"

    def do(self, command: str) -> str:
        """Carry out one line of a script, and return its result in words."""
        self.act(*command.split())
        said, self.said = self.said, []
        return ", ".join(said) or "."

    def act(self, *words: str) -> None:
        match words:
            case ["no", "handler"]:
                self.barrier = self.made(None)
                self.said += [f"lane {lane}" for lane in self.barrier.lanes]
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
                self.entered.append(self.period(partition))
                self.barrier.enter(self.entered[-1])
            case ["leave"]:
                self.barrier.leave([self.entered.pop()])
            case ["led"]:
                self.said.append(_spelled({period.partition: period.term for period in self.barrier.led()}))
            case ["number", partition]:
                self.said.append(f"{next(self.period(partition).numbers)}")
            case ["why"]:
                self.said.append(f"{self.entered[-1].state.name} {self.entered[-1].reason}")
            case ["end"]:
                self.barrier.lose_all("the end")
            case _:
                raise AssertionError(f"no such command: {words}")

    def period(self, partition: str) -> Period:
        period = self.barrier.period(int(partition))
        assert period is not None
        return period


def _terms(words: list[str]) -> dict[int, int]:
    return {int(partition): int(term) for partition, _, term in (word.partition("@") for word in words)}


def _spelled(terms: Mapping[int, int]) -> str:
    return " ".join(f"{partition}@{term}" for partition, term in sorted(terms.items())) or "nothing"


@pytest.mark.parametrize("rule", rules_in(Path(__file__).parent / "transcripts" / "barrier.txt"))
def test_the_barrier_answers_as_its_transcript(rule: Rule, pytestconfig: pytest.Config) -> None:
    stand = Stand()
    rule.require(stand.played, pytestconfig)
    assert not stand.barrier.is_here


def test_a_loss_is_explained_before_it_is_told_and_remembered_with_its_time() -> None:
    """The standing is published between the two, and a lease may be checked at that moment."""
    stand = Stand()
    for command in ("no handler", "acquired 0@5", "enter 0"):
        stand.do(command)
    stand.now = 12.5
    stand.do("revoked 0@5")
    stand.barrier.explain([Revoked({0: 5}), Fenced({0: 4}, "an echo"), Stopped(None)])
    assert "FINISHING it was revoked, and its successor acts" == stand.do("why")
    stand.barrier.explain([Fenced({0: 5}, "silence")])
    assert "FINISHING silence" == stand.do("why")
    stand.do("fenced 0@5")
    assert ("LOST silence", 12.5) == (stand.do("why"), stand.entered[0].lost_at)
