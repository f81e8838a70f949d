"""The command `neli load`: it tells the group a profile, shows what moves, and says how even loads are."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from neli_router.agent.wire import LoadAsked, Refusal
from neli_router.commands.wishes import load_command
from neli_router.keyspace import Layout
from neli_router.loads import LoadProfile
from tests.support.agents.stand_in import StandIn, standing_in

LAYOUT = Layout(slots=16, partitions=2)
PROFILE = LoadProfile.of(LAYOUT, [(4, 30.0), (2, 20.0), (5, 15.0)], {0: 50.0, 1: 15.0})


@pytest.fixture(name="place")
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    PROFILE.save(tmp_path / "profile.json")
    monkeypatch.chdir(tmp_path)
    with standing_in(tmp_path) as (agent, address):
        monkeypatch.setenv("NELI_AGENT", address)
        yield agent


def run(*arguments: str, given: str = "") -> Result:
    return CliRunner().invoke(load_command, arguments, input=given, catch_exceptions=False)


def test_the_loads_of_a_profile_are_told_with_its_layout(place: StandIn) -> None:
    result = run("profile.json")
    assert [LoadAsked({0: 50.0, 1: 15.0}, LAYOUT)] == place.loads
    assert [
        "1 partition to move:",
        "FROM   TO    COUNT  PARTITIONS",
        "alpha  beta  1      0",
        "The busiest member carries 1.50 times what is fair, and 1.02 times after this.",
    ] == result.stdout.splitlines()
    assert [1.5, 1.02] == [json.loads(run("profile.json", "--output", "json").stdout)[at] for at in ("before", "after")]


def test_a_dry_run_changes_nothing(place: StandIn) -> None:
    assert "1 partition would move:" == run("profile.json", "--dry-run").stdout.splitlines()[0]
    assert [True] == [asked.preview for asked in place.loads]


def test_on_a_terminal_it_shows_the_moves_and_asks(place: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    result = run("profile.json", given="n\n")
    assert (1, [True]) == (result.exit_code, [asked.preview for asked in place.loads])
    assert "Let partitions count with these loads, 65 in all?" in result.output
    run("profile.json", given="y\n")
    run("profile.json", "--yes")
    assert [True, True, False, False] == [asked.preview for asked in place.loads]


def test_slots_that_no_member_should_carry_alone_are_named(place: StandIn) -> None:
    place.balance = (2.0, 1.8, 0.25)
    remarks = run("profile.json").stdout.splitlines()[4:]
    assert [
        "Slot 4 (partition 0) alone is 1.85 times what is fair: loads cannot be even, whichever member has it.",
        "Slot 2 (partition 0) alone is 1.23 times what is fair: loads cannot be even, whichever member has it.",
        "Say it again when these are handed over: more may be exchanged then.",
    ] == remarks


def test_loads_are_forgotten_partition_by_partition(place: StandIn) -> None:
    assert 0 == run("--forget").exit_code
    assert [LoadAsked({0: 0.0, 1: 0.0})] == place.loads


def test_either_a_profile_or_its_end_is_wanted(place: StandIn) -> None:
    assert [2, 2] == [run().exit_code, run("profile.json", "--forget").exit_code]
    assert [] == place.requests


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "Error: bad.json is no JSON: give a file that LoadProfile.save wrote"),
        (
            '{"layout": {"slots": 16, "partitions": 2}, "partitions": [-1, 0], "slots": {}}',
            "Error: bad.json is no load profile that can be used: Expected `float` >= 0.0 - at `$.partitions[0]`",
        ),
        (
            '{"layout": {"slots": 16, "partitions": 2}, "partitions": [0, 0], "slots": {}}',
            "Error: the profile has no load in it: measure where keys are worked on",
        ),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused_before_the_agent_is_asked(
    place: StandIn, text: str, sentence: str
) -> None:
    Path("bad.json").write_text(text)
    result = run("bad.json")
    assert (2, "", sentence) == (result.exit_code, result.stdout, result.stderr.strip())
    assert [] == place.requests


def test_a_profile_of_another_layout_is_refused_in_one_sentence(place: StandIn) -> None:
    found = "these loads are of another layout than the group's: slots=16"
    place.refusal = Refusal("ConfigError", "a usable configuration was wanted", "it has 1 problem", found)
    result = run("profile.json")
    assert (2, f"Error: {found}") == (result.exit_code, result.stderr.strip())


def test_its_help_has_an_example_and_the_exit_codes() -> None:
    text = run("--help").output
    assert [True, True, True] == ["Example" in text, "Exit codes" in text, "--dry-run" in text]
