"""The commands that ask: what they print, and with which code they end."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from neli_router.agent.wire import Refusal
from neli_router.commands.lookups import members_command, owner_command, table_command, watch_command
from tests.support.agents.stand_in import StandIn, standing_in, whenever


@pytest.fixture(name="place")
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    with standing_in(tmp_path) as (agent, address):
        monkeypatch.setenv("NELI_AGENT", address)
        yield agent


def run(command: click.Command, *arguments: str, given: bytes | None = None) -> Result:
    return CliRunner().invoke(command, arguments, input=given, catch_exceptions=False)


def after_the_time(printed: str) -> list[str]:
    """The lines, each without the time that it begins with."""
    times, rest = zip(*(line.split("  ", 1) for line in printed.splitlines()), strict=True)
    assert all(datetime.fromisoformat(time).tzinfo is not None for time in times)
    return list(rest)


def test_an_owner_is_printed_with_its_address_partition_and_term(place: StandIn) -> None:
    result = run(owner_command, "customer-7")
    assert (0, "alpha http://alpha:1 partition 0 term 4  customer-7\n") == (result.exit_code, result.output)


def test_a_key_without_an_owner_ends_with_3_after_all_were_printed(place: StandIn) -> None:
    result = run(owner_command, "a", "nobody", "--output", "json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert (3, [("a", "alpha"), ("nobody", None)]) == (result.exit_code, [(one["key"], one["name"]) for one in lines])
    assert "no member is left" == lines[1]["why"]


def test_keys_come_from_standard_input_one_a_line(place: StandIn) -> None:
    given = b"a b\n\xff\xfe\n\nlast"
    result = run(owner_command, "-", "--output", "json", given=given)
    assert result.stdout == run(owner_command, "--output", "json", given=given).stdout
    assert ["a b", None, "last"] == [json.loads(line).get("key") for line in result.stdout.splitlines()]
    assert "fffe" == json.loads(result.stdout.splitlines()[1])["key_hex"]


def test_keys_with_newlines_come_with_null(place: StandIn) -> None:
    result = run(owner_command, "--null", "--output", "json", given=b"a\nb\0c\0")
    assert ["a\nb", "c"] == [json.loads(line)["key"] for line in result.stdout.splitlines()]
    assert 2 == len(run(owner_command, "--null", given=b"a\nb\0c\0").stdout.splitlines())


def test_thousands_of_keys_come_in_their_order(place: StandIn) -> None:
    keys = [f"k{number}" for number in range(3500)]
    result = run(owner_command, "--output", "json", given="\n".join(keys).encode())
    assert keys == [json.loads(line)["key"] for line in result.stdout.splitlines()]


def test_one_endless_key_is_refused(place: StandIn) -> None:
    result = run(owner_command, given=b"x" * (1 << 20))
    assert (2, True) == (result.exit_code, "are they separated?" in result.stderr)


def test_roles_are_asked_for_by_number_or_name(place: StandIn) -> None:
    result = run(owner_command, "--role", "3", "--role", "nightly", "--output", "json")
    assert (0, [3, "nightly"]) == (result.exit_code, [json.loads(line)["role"] for line in result.stdout.splitlines()])


def test_a_role_of_too_many_digits_is_refused_in_a_sentence(place: StandIn) -> None:
    result = run(owner_command, "--role", "9" * 5000)
    assert (2, "") == (result.exit_code, result.stdout)
    assert "this number has 5000 characters" in result.stderr


def test_the_table_names_owners_and_members(place: StandIn) -> None:
    result = run(table_command)
    assert ["PARTITION", "OWNER", "TERM", "TARGET", "PINNED", "LOAD"] == result.stdout.splitlines()[0].split()
    assert [["0", "alpha"], ["1", "-"]] == [line.split()[:2] for line in result.stdout.splitlines()[1:]]
    lines = [json.loads(line) for line in run(table_command, "--output", "json").stdout.splitlines()]
    assert [(0, "alpha", 4), (1, None, 0)] == [(one["partition"], one["owner"], one["term"]) for one in lines]


def test_members_are_printed_as_text_and_as_json(place: StandIn) -> None:
    assert ["alpha", "http://alpha:1", "-", "100"] == run(members_command).stdout.splitlines()[1].split()[:4]
    assert ["WITNESS", "agent"] == [line.split()[-1] for line in run(members_command).stdout.splitlines()]
    assert "agent" == json.loads(run(members_command, "--output", "json").stdout)["witness"]
    assert "alpha" == json.loads(run(members_command, "--output", "json").stdout)["name"]


def test_an_old_answer_says_how_old_it_is(place: StandIn) -> None:
    place.age = 12.4
    for command in (members_command, table_command):
        assert "Note: this is 12 s old: the agent could read nothing newer\n" == run(command).stderr
    place.age = 0.1
    assert "" == run(members_command).stderr


def test_a_watch_prints_until_the_agent_ends_it(place: StandIn) -> None:
    with whenever(lambda: place.held == 1, place.hang_up):
        result = run(watch_command, "k")
    assert (["alpha http://alpha:1 partition 0 term 4"], 4) == (after_the_time(result.stdout), result.exit_code)


def test_a_watch_as_json_says_the_time_of_each_change(place: StandIn) -> None:
    with whenever(lambda: place.held == 1, place.hang_up):
        result = run(watch_command, "k", "--output", "json")
    line = json.loads(result.stdout)
    assert ("alpha", 4) == (line["name"], line["term"])
    assert datetime.fromisoformat(line["time"]).tzinfo is not None


def test_a_watch_ends_when_its_reader_is_gone(place: StandIn) -> None:
    """As behind `| head -1`: a write would find out, but the next change may be days away."""
    code = "from neli_router.commands.lookups import watch_command; watch_command(prog_name='neli watch')"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", code, "k"], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert ["alpha http://alpha:1 partition 0 term 4"] == after_the_time(line)
        process.stdout.close()
        assert 0 == process.wait(60)


@pytest.mark.parametrize("command", [members_command, table_command, watch_command])
def test_without_an_agent_they_end_with_4_and_one_sentence(command: click.Command, tmp_path: Path) -> None:
    result = run(command, "--agent", f"{tmp_path}/none.sock")
    assert (4, "", 1) == (result.exit_code, result.stdout, len(result.stderr.splitlines()))
    assert result.stderr.startswith("Error: an agent was wanted at unix:")


def test_a_refusal_ends_with_5_and_an_address_that_is_none_with_2(place: StandIn) -> None:
    place.refusal = Refusal("StaleTable", "a table was wanted", "it is old", "wait")
    assert 5 == run(owner_command, "k").exit_code
    assert 2 == run(members_command, "--agent", "nonsense").exit_code
    assert 2 == run(owner_command, "--token-file", "/no/such/file", "k").exit_code


def test_a_token_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("correct-horse-battery\n")
    (tmp_path / "token").chmod(0o644)
    assert "has mode 0644" in run(members_command, "--token-file", f"{tmp_path}/token").stderr
    (tmp_path / "token").chmod(0o600)
    with standing_in() as (agent, address):
        agent.token = "correct-horse-battery"  # noqa: S105 - of a test.
        assert 0 == run(members_command, "--agent", address, "--token-file", f"{tmp_path}/token").exit_code
        refused = run(members_command, "--agent", address)
        assert (5, True) == (refused.exit_code, "--token-file" in refused.stderr)


def test_each_help_has_an_example_and_the_exit_codes() -> None:
    for command in (members_command, owner_command, table_command, watch_command):
        text = run(command, "--help").output
        assert [True, True, True] == ["Example" in text, "Exit codes" in text, "NELI_AGENT" in text]
