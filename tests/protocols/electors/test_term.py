"""The elector of one partition: each rule of BlazingMQ's article, in our own words, and the lease on top.

Most rules are in `rules/term.txt`, each with an elector's inputs and answers; `--rewrite` writes the answers again. The
peers are 0, 1 and 2; the elector under test is 0 unless a test says otherwise.
"""

import re
from ast import literal_eval
from collections.abc import Iterator
from copy import copy
from math import inf, nan
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from neli_router.protocols.protocol import TICK
from neli_router.protocols.term.elector import (
    STARVED_MAX,
    Became,
    Cede,
    Ceded,
    Heartbeat,
    InvalidHeartbeat,
    Message,
    Proposal,
    Remember,
    Role,
    Said,
    Scouted,
    Scouting,
    Stand,
    Support,
    Tell,
    TermEffect,
    TermElector,
)
from tests.protocols.electors.scenes import new_elector, term_settings
from tests.protocols.rules import Rule, rules_in

WAIT = 3.0
"""Without drift, as long as the lease."""


def elector(me: int = 0, size: int = 3, *, term: int = 0, scouting: bool = True) -> TermElector:
    return new_elector(term_settings(size, me, scouting=scouting), term=term)


def hear(machine: TermElector, sender: int, message: Message, now: float) -> list[TermEffect]:
    return machine.step(Said(sender, message), now)


def tick(machine: TermElector) -> tuple[float, list[TermEffect]]:
    """Its deadline, and what it does then."""
    now = machine.deadline
    return now, machine.step(TICK, now)


def follower(leader: int = 2, *, me: int = 0, size: int = 3, term: int = 5, now: float = 10.0) -> TermElector:
    """A follower that owes only `leader`, whose first heartbeat it has just heard."""
    machine = elector(me, size)
    hear(machine, leader, Heartbeat(term, 1), now)
    return machine


def candidate(*, size: int = 3, me: int = 0, term: int = 5) -> tuple[TermElector, float]:
    """A candidate that proposed itself under `term`, when it no longer owed anything."""
    machine = elector(me, size, term=term - 1, scouting=False)
    now, _ = tick(machine)
    return machine, now


def leader(*, size: int = 3, me: int = 0, term: int = 5) -> tuple[TermElector, float]:
    """A leader under `term`, supported by peers 1 and so on, as many as it needs."""
    machine, now = candidate(size=size, me=me, term=term)
    for peer in range(1, machine.quorum):
        hear(machine, peer, Support(term, 0, 0.0, 0), now)
    return machine, now


MESSAGES: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


class Stage:
    """Plays one rule of `rules/term.txt`. Times in answers count from the rule's first line."""

    def __init__(self) -> None:
        self.machine, self.now, self.began = elector(), 0.0, 0.0

    def played(self, lines: list[str]) -> Iterator[str]:
        for line in lines:
            if not line.startswith("    "):  # An indented line is an answer, and is written again.
                yield line
                if line and not line.startswith("#"):
                    yield from (f"    -> {answer}" for answer in self.answers(line))

    def answers(self, line: str) -> Iterator[str]:
        if match := re.match(r"\+([\d.]+) (.*)", line):
            self.now += float(match[1])
            line = match[2]
        what, *rest = line.split()
        if what.endswith(":"):
            name, arguments = line.split(": ")[1].split("(")
            message = MESSAGES[name](*literal_eval(f"({arguments[:-1]},)"))
            yield from map(self.told, hear(self.machine, int(what[:-1]), message, self.now))
        elif what == "tick":
            for _ in range(int(*rest or "1")):
                self.now, effects = tick(self.machine)
                yield f"at {self.now - self.began:.2f}"
                yield from map(self.told, effects)
        elif what == "ask":
            yield self.standing()
        elif what == "beat_by":
            self.machine.beat_by(self.now + float(rest[0]))
        elif what == "stands":
            self.machine.stands = rest == ["yes"]
        elif what in {"stand", "cede"}:
            event = Cede(int(rest[0])) if rest else Stand()
            yield from map(self.told, self.machine.step(event, self.now))
        else:
            self.begin(what, rest)

    def begin(self, what: str, rest: list[str]) -> None:
        options: dict[str, Any] = {
            key: literal_eval(value) for key, value in (one.split("=") for one in rest if "=" in one)
        }
        match what:
            case "start":
                term = options.pop("term", 0)
                options |= {"policy": "priority"} if "replicas" in options else {}
                self.machine = new_elector(term_settings(**options), term=term)
            case "follower":
                self.machine, self.now = follower(int(rest[0]), **options), 10.0
            case _:
                self.machine, self.now = {"candidate": candidate, "leader": leader}[what](**options)
        self.began = self.now

    def told(self, effect: TermEffect) -> str:
        match effect:
            case Became(role, term, peer, reason):
                return f"{role.value} {term}, leader {peer}: {reason}"
            case Remember(term):
                return f"remember {term}"
            case Tell(to, message):
                said = ", ".join(
                    f"{value:.4g}" if isinstance(value, float) else str(value)
                    for value in msgspec.structs.astuple(message)
                )
                return f"to {'all' if to is None else to}: {type(message).__name__}({said})"

    def standing(self) -> str:
        machine, began = self.machine, self.began
        acts = "" if machine.tenure(self.now) is None else ", acts"
        if machine.role is Role.LEADER:
            acts = f", may act from {machine.acts_from - began:.2f} until {machine.acts_until - began:.2f}"
            heard = {peer: machine.heard_priority(peer) for peer in machine.peers}
            acts += "".join(f", priority of {peer}: {priority}" for peer, priority in heard.items() if priority)
        deadline = f"deadline {machine.deadline - began:.2f}"
        return f"{machine.role.value} {machine.term}, leader {machine.leader}{acts}, {deadline}"


@pytest.mark.parametrize("rule", rules_in(Path(__file__).parent / "rules" / "term.txt"))
def test_an_elector_follows_the_rule(rule: Rule, pytestconfig: pytest.Config) -> None:
    rule.require(Stage().played, pytestconfig)


def test_start_it_looks_out_for_a_wait_and_a_random_time_more_under_the_term_it_kept_or_the_base() -> None:
    settings = term_settings()
    deadlines = [new_elector(settings, seed=seed).deadline for seed in range(200)]
    assert WAIT <= min(deadlines) < WAIT + 0.1
    assert WAIT + settings.longest_wait - 0.1 < max(deadlines) <= WAIT + settings.longest_wait
    begun = [new_elector(term_settings(term_base=1000), term=kept).term for kept in (0, 5, 2000)]
    assert [1000, 1000, 2000] == begun


def test_missed_heartbeats_are_counted_by_the_slower_of_both_beats() -> None:
    """Otherwise a follower that beats faster would miss a living leader again and again."""
    for beat, until in ((0.5, 13.0), (2.0, 16.0)):
        machine = follower(now=10.0)
        machine.step(Said(2, Heartbeat(5, 2), beat), 10.0)
        assert (2, until) == (machine.leader, machine.deadline)


@pytest.mark.parametrize("message", [Heartbeat, Proposal, InvalidHeartbeat, Ceded, Support, Scouted])
def test_a_term_that_no_number_of_elections_comes_to_is_no_term(message: type[Message]) -> None:
    """No term would be left above it, and no node could be elected again."""
    rest: dict[type[Message], tuple[Any, ...]] = {
        Heartbeat: (1,),
        Ceded: (1, None),
        Support: (0, 0.0, 0),
        Scouted: (1, True, False),
    }
    machine, now = candidate(term=5)
    before = vars(copy(machine))
    assert [] == hear(machine, 1, message(2**61, *rest.get(message, ())), now)
    assert before == vars(machine)


@pytest.mark.parametrize("owed", [inf, nan])
def test_majority_has_none_of_those_who_owe_what_is_no_time(owed: float) -> None:
    machine, now = candidate(term=5)
    hear(machine, 1, Support(5, 0, owed, 0), now)
    assert Role.CANDIDATE is machine.role


@pytest.mark.parametrize(("led", "answered"), [(True, True), (False, False)])
def test_starved_is_nobody_whose_answers_see_a_leader_or_are_fewer_than_a_majority(led: bool, answered: bool) -> None:
    machine = elector(term=4)
    for round_ in range(1, 5 * STARVED_MAX):
        now, told = tick(machine)
        assert [Tell(None, Scouting(5, round_, 0))] == told
        if answered:
            hear(machine, 1, Scouted(4, round_, yes=False, led=led), now)


def test_lease_of_one_that_leads_for_long_takes_no_more_memory_than_at_first() -> None:
    alone = elector(size=1)
    sizes = []
    for _ in range(2):
        for _ in range(100):
            tick(alone)
        sizes.append({name: len(value) for name, value in vars(alone).items() if isinstance(value, dict)})
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    "written", [["H", -1, 2], ["H", 2**62, 2], ["H", 1.5, 2], ["Z", 1], ["H"], ["S", 1, 0, "x", 0]]
)
def test_messages_with_impossible_terms_are_not_read(written: list[object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(written), type=Message)
