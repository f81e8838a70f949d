"""The commands that wish: what they ask of the agent, and when they ask the operator first."""

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from neli_router.agent.wire import Refusal, WishAsked
from neli_router.commands.wishes import drain_command, pin_command, undrain_command, unpin_command, weigh_command
from tests.support.agents.stand_in import StandIn, standing_in


@pytest.fixture(name="place")
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    with standing_in(tmp_path) as (agent, address):
        monkeypatch.setenv("NELI_AGENT", address)
        yield agent


def run(command: click.Command, *arguments: str, given: str = "") -> Result:
    return CliRunner().invoke(command, arguments, input=given, catch_exceptions=False)


def test_each_wish_asks_for_what_it_was_told(place: StandIn) -> None:
    run(drain_command, "a")
    run(undrain_command, "a")
    run(pin_command, "3", "b")
    run(unpin_command, "3")
    run(weigh_command, "c", "50")
    run(weigh_command, "c", "own")
    assert [
        ("drain", WishAsked(name="a")),
        ("undrain", WishAsked(name="a")),
        ("pin", WishAsked(name="b", partition=3)),
        ("unpin", WishAsked(partition=3)),
        ("weigh", WishAsked(name="c", weight=50)),
        ("weigh", WishAsked(name="c")),
    ] == place.wishes


def test_what_moves_is_printed(place: StandIn) -> None:
    result = run(drain_command, "alpha")
    assert [
        "1 partition to move:",
        "FROM   TO    COUNT  PARTITIONS",
        "alpha  beta  1      0",
    ] == result.stdout.splitlines()
    assert [0] == json.loads(run(drain_command, "alpha", "--output", "json").stdout)["moves"][0]["partitions"]


def test_a_dry_run_changes_nothing(place: StandIn) -> None:
    assert "1 partition would move:" == run(drain_command, "alpha", "--dry-run").stdout.splitlines()[0]
    assert [True] == [asked.preview for _, asked in place.wishes]


def test_on_a_terminal_it_shows_the_moves_and_asks(place: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    result = run(drain_command, "alpha", given="n\n")
    assert (1, [True]) == (result.exit_code, [asked.preview for _, asked in place.wishes])
    assert "Drain alpha?" in result.output
    run(drain_command, "alpha", given="y\n")
    run(drain_command, "alpha", "--yes")
    assert [True, True, False, False] == [asked.preview for _, asked in place.wishes]


def test_a_weight_that_is_none_is_refused(place: StandIn) -> None:
    assert [2, 2, 2] == [run(weigh_command, "c", weight).exit_code for weight in ("heavy", "1.5", "²")]
    assert [] == place.wishes


def test_each_help_has_an_example_and_the_exit_codes() -> None:
    for command in (drain_command, undrain_command, pin_command, unpin_command, weigh_command):
        text = run(command, "--help").output
        assert [True, True, True] == ["Example" in text, "Exit codes" in text, "--dry-run" in text]


def test_what_the_agent_finds_wrong_with_a_wish_is_one_sentence_without_ceremony(place: StandIn) -> None:
    found = "no member is called 'x': the members are a, b"
    place.refusal = Refusal("ConfigError", "a usable configuration was wanted", "it has 1 problem", found)
    result = run(pin_command, "3", "x")
    assert (2, "", f"Error: {found}\n") == (result.exit_code, result.stdout, result.stderr)
