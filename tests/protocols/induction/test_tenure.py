"""May a member act? For each of the three conditions: what counts, and from which moment.

The rules are in `rules/tenure.txt`, each with what a member reads and what it may act for then: `--rewrite` writes the
answers again. A lease is 10 s and a wait 12 s. `p` starts at 0, so the wait that it owes on everything is over at 12.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from neli_router.core.keyspace import Layout
from neli_router.protocols.induction.fold import fold
from neli_router.protocols.induction.records import Beat
from neli_router.protocols.induction.tenure import Linger, Tenure
from neli_router.protocols.protocol import Settings
from tests.protocols.rules import Rule, rules_in
from tests.support.records import founded, parsed

SETTINGS = Settings(name="p", layout=Layout(), lease=10.0, beat=2.0, delay_max=2.0, drift=1 / 11)


class Reader:
    """The tenure of member p: reads one record after another, and says what p may act for."""

    def __init__(self, start: float = 0.0, *words: str, exclusive: bool = True) -> None:
        self.state = founded()
        for word in words:
            self.state = fold(self.state, self.state.at, parsed(word, self.state))
        settings = SETTINGS if exclusive else replace(SETTINGS, guarantee="available")
        self.tenure = Tenure.begin("p", settings, self.state, start, {})

    def read(self, now: float, *words: str) -> "Reader":
        for word in words:
            before, record = self.state, parsed(word, self.state)
            self.state = fold(before, before.at, record)
            self.tenure = self.tenure.read(before, record, self.state, now)
        return self

    def may(self, now: float, partition: int = 0) -> int | None:
        return self.tenure.term(self.state, partition, now)

    def answer(self, line: str) -> str:
        what, *rest = line.split()
        match what:
            case "gave":
                self.tenure = self.tenure.gave({0: self.state.terms[0]})
            case "left":
                self.tenure = self.tenure.leaving()
            case "asking":
                self.tenure = self.tenure.asking(float(rest[0]))
            case "may":
                partition, times = (int(rest[1]), rest[2:]) if rest[0] == "of" else (0, rest)
                return " ".join(str(self.may(float(now), partition)) for now in times)
            case "who":
                told = [
                    f"{name} {at:g}" for name, at in sorted(self.tenure.heard.items(), key=lambda one: (one[1], one[0]))
                ]
                told += [f"{i} lingers as {it}" for i, it in self.tenure.lingering.items()]
                return ", ".join(told)
            case _ if rest[0] == "heard":
                self.read(float(what), f"p:beat(sent_at={rest[1]})")
            case _:
                self.read(float(what), *rest)
        return ""


def owner(*, exclusive: bool = True) -> Reader:
    """p owns everything under term 1001 and heard its own Beat that it sent at 100."""
    return Reader(exclusive=exclusive).read(90.0, "p:join").read(100.5, "p:beat(sent_at=100)")


def played(lines: list[str]) -> Iterator[str]:
    reader = Reader()
    for line in lines:
        asked = line.split(" ->")[0]
        what, *rest = asked.split() or [""]
        exclusive = "available" not in rest
        if what == "start":
            reader = Reader(float(rest[0]), *(word for word in rest[1:] if word != "available"), exclusive=exclusive)
        elif what == "owner":
            reader = owner(exclusive=exclusive)
        elif asked and not asked.startswith("#") and (answer := reader.answer(asked)):
            asked += f" -> {answer}"
        yield asked


@pytest.mark.parametrize("rule", rules_in(Path(__file__).parent / "rules" / "tenure.txt"))
def test_a_member_acts_by_the_rule(rule: Rule, pytestconfig: pytest.Config) -> None:
    rule.require(played, pytestconfig)


@given(
    st.lists(st.builds(Beat, by=st.sampled_from("pqrz"), sent_at=st.integers(0, 9), at=st.integers(0, 9))),
    st.booleans(),
)
def test_beats_in_a_row_are_heard_as_if_each_came_alone(beats: list[Beat], forged: bool) -> None:
    reader = Reader(0.0, "p:join", "q:join", "r:join", exclusive=False)
    lingering = {i: Linger(1001, lost_at, 20.0) for i, lost_at in enumerate((2, 4, 6))}
    owners = ("q", "r", "p", *reader.state.owners[3:])
    tenure, state = replace(reader.tenure, lingering=lingering, sent=4.0), replace(reader.state, owners=owners)
    alone = tenure
    for beat in beats:
        alone = alone.read(state, beat, state, 5.0, forged=forged)
    assert alone == tenure.hear(beats, state, 5.0, forged=forged)
