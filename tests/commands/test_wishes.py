"""The commands for wishes: what they request from the agent, and when they ask the operator first."""

import json
from pathlib import Path

import pytest

from neli_router.agent.wire import LoadAsked, Refusal, WishAsked
from neli_router.core.keyspace import Layout
from neli_router.router.loads import LoadProfile
from tests.support.agents.stand_in import StandIn
from tests.support.commands import neli

LAYOUT = Layout(slots=16, partitions=2)
MOVES = ["FROM   TO    COUNT  PARTITIONS", "alpha  beta  1      0"]


@pytest.fixture(autouse=True)
def _profile(tmp_path: Path) -> None:
    LoadProfile.of(LAYOUT, [(4, 30.0), (2, 20.0), (5, 15.0)], {0: 50.0, 1: 15.0}).save(tmp_path / "profile.json")


def test_each_wish_asks_for_what_it_was_told_and_prints_what_moves(place: StandIn) -> None:
    wishes = {
        "drain a": ("drain", WishAsked(name="a")),
        "drain a --undo": ("undrain", WishAsked(name="a")),
        "pin 3 b": ("pin", WishAsked(name="b", partition=3)),
        "pin 3 --undo": ("unpin", WishAsked(partition=3)),
        "weigh c 50": ("weigh", WishAsked(name="c", weight=50)),
        "weigh c --undo": ("weigh", WishAsked(name="c")),
        "drain a --output json": ("drain", WishAsked(name="a")),
    }
    results = [neli(*line.split()) for line in wishes]
    assert [*wishes.values()] == place.wishes
    assert ["1 partition to move:", *MOVES] == results[0].stdout.splitlines()
    assert [0] == json.loads(results[-1].stdout)["moves"][0]["partitions"]


def test_the_loads_of_a_profile_are_told_with_its_layout(place: StandIn) -> None:
    result = neli("load", "profile.json")
    assert [LoadAsked({0: 50.0, 1: 15.0}, LAYOUT)] == place.loads
    last = "The busiest member carries 1.50 times what is fair, and 1.02 times after this."
    assert ["1 partition to move:", *MOVES, last] == result.stdout.splitlines()
    found = json.loads(neli("load", "profile.json", "--output", "json").stdout)
    assert (1.5, 1.02) == (found["before"], found["after"])
    assert 0 == neli("load", "--undo").exit_code
    assert LoadAsked({0: 0.0, 1: 0.0}) == place.loads[-1]


@pytest.mark.parametrize(
    ("words", "question"),
    [("drain alpha", "Drain alpha?"), ("load profile.json", "Let partitions count with these loads, 65 in all?")],
)
def test_a_dry_run_changes_nothing_and_on_a_terminal_a_command_asks(
    place: StandIn, words: str, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def previews() -> list[bool]:
        return [*(asked.preview for asked in place.loads), *(asked.preview for _, asked in place.wishes)]

    assert "1 partition would move:" == neli(*words.split(), "--dry-run").stdout.splitlines()[0]
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    result = neli(*words.split(), given="n\n")
    assert (1, True, [True, True]) == (result.exit_code, question in result.output, previews())
    neli(*words.split(), given="y\n")
    neli(*words.split(), "--yes")
    assert [True, True, True, False, False] == previews()


def test_slots_that_no_member_should_carry_alone_are_named(place: StandIn) -> None:
    place.balance = (2.0, 1.8, 0.25)
    remarks = neli("load", "profile.json").stdout.splitlines()[4:]
    alone = "Slot {} (partition 0) alone is {} times what is fair: loads cannot be even, whichever member has it."
    last = "Say it again when these are handed over: more may be exchanged then."
    assert [alone.format(4, 1.85), alone.format(2, 1.23), last] == remarks


@pytest.mark.parametrize("words", ["pin 3 x", "load profile.json"])
def test_what_the_agent_finds_wrong_with_a_wish_is_one_sentence_without_ceremony(place: StandIn, words: str) -> None:
    found = "no member is called 'x': the members are a, b"
    place.refusal = Refusal("ConfigError", "a usable configuration was wanted", "it has 1 problem", found)
    result = neli(*words.split())
    assert (2, "", f"Error: {found}\n") == (result.exit_code, result.stdout, result.stderr)
