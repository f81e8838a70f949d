"""The look-up commands: what they print, and their exit codes."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from neli_router.config.config import Config
from neli_router.core.keyspace import Layout
from neli_router.member.member import Member
from tests.support.agents.stand_in import StandIn, standing_in, whenever
from tests.support.commands import neli
from tests.support.processes.forked import Program
from tests.support.waiting import PATIENCE, until

WATCH = "from neli_router.commands.lookups import watch_command; watch_command(prog_name='neli watch')"
ALPHA = "alpha http://alpha:1 partition 0 term 4"


def printed(*words: str, given: str | bytes | None = None) -> list[Any]:
    """The output of a command as JSON, one value a line."""
    return [json.loads(line) for line in neli(*words, "--output", "json", given=given).stdout.splitlines()]


def after_the_time(printed: str) -> list[str]:
    """The lines, each without the time at its beginning."""
    times, rest = zip(*(line.split("  ", 1) for line in printed.splitlines()), strict=True)
    assert all(datetime.fromisoformat(time).tzinfo is not None for time in times)
    return list(rest)


def test_an_owner_is_printed_with_its_address_partition_and_term(place: StandIn) -> None:
    result = neli("owner", "customer-7")
    assert (0, f"{ALPHA}  customer-7\n") == (result.exit_code, result.output)
    assert 2 == len(printed("owner", "--partition", "3", "--partition", "5"))


def test_a_key_without_an_owner_ends_with_3_after_all_were_printed(place: StandIn) -> None:
    result = neli("owner", "a", "nobody", "--output", "json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert (3, [("a", "alpha"), ("nobody", None)]) == (result.exit_code, [(one["key"], one["name"]) for one in lines])
    assert "no member is left" == lines[1]["why"]


def test_keys_come_from_standard_input_in_their_order(place: StandIn) -> None:
    lines = printed("owner", "-", given=b"a b\n\xff\xfe\n\nlast")
    assert ["a b", None, "last"] == [line.get("key") for line in lines]
    assert "fffe" == lines[1]["key_hex"]
    assert ["a\nb", "c"] == [line["key"] for line in printed("owner", "--null", given=b"a\nb\0c\0")]
    assert 2 == len(neli("owner", "--null", given=b"a\nb\0c\0").stdout.splitlines())
    keys = [f"k{number}" for number in range(3500)]
    assert keys == [line["key"] for line in printed("owner", given="\n".join(keys))]


def test_an_endless_key_is_refused(place: StandIn) -> None:
    result = neli("owner", given=b"x" * (1 << 20))
    assert (2, "", True) == (result.exit_code, result.stdout, "are they separated?" in result.stderr)


def test_the_table_and_the_members_are_printed_as_text_and_as_json(place: StandIn) -> None:
    heads, *lines = [line.split() for line in neli("table").stdout.splitlines()]
    assert ["PARTITION", "OWNER", "TERM", "TARGET", "PINNED", "LOAD", "STANDBY"] == heads
    assert [["0", "alpha"], ["1", "-"]] == [line[:2] for line in lines]
    rows = printed("table")
    assert [(0, "alpha", 4), (1, None, 0)] == [(row["partition"], row["owner"], row["term"]) for row in rows]
    heads, row = [line.split() for line in neli("members").stdout.splitlines()]
    assert (["alpha", "http://alpha:1", "-", "100"], "WITNESS", "agent") == (row[:4], heads[-1], row[-1])
    (member,) = printed("members")
    assert ("alpha", "agent") == (member["name"], member["witness"])


def test_an_old_answer_says_how_old_it_is(place: StandIn) -> None:
    place.age = 12.4
    for command in ("members", "table"):
        assert "Note: this is 12 s old: the agent could read nothing newer\n" == neli(command).stderr
    place.age = 0.1
    assert "" == neli("members").stderr


def test_a_watch_prints_until_the_agent_ends_it(place: StandIn) -> None:
    with whenever(lambda: place.held == 1, place.hang_up):
        result = neli("watch", "k")
    assert ([ALPHA], 4) == (after_the_time(result.stdout), result.exit_code)
    with whenever(lambda: place.held == 1, place.hang_up):
        (line,) = printed("watch", "k")
    assert ("alpha", 4) == (line["name"], line["term"])
    assert datetime.fromisoformat(line["time"]).tzinfo is not None


def test_a_watch_ends_when_its_reader_is_gone(place: StandIn, tmp_path: Path) -> None:
    """As with `| head -1`: a write would notice, but the next change may be days away."""
    with Program(WATCH, "k", folder=tmp_path) as process:
        assert [ALPHA] == after_the_time(process.stdout.readline())
        process.stdout.close()
        assert process.wait(PATIENCE) in {0, 1}, "1 if it wrote a line before it noticed"


@pytest.mark.parametrize("command", ["members", "table", "watch", "owner a", "run --key r -- true"])
def test_without_an_agent_they_end_with_4_and_one_sentence(command: str, tmp_path: Path) -> None:
    result = neli(*command.split(), NELI_AGENT=f"unix:{tmp_path}/none.sock")
    assert (4, "") == (result.exit_code, result.stdout)
    assert re.fullmatch(r"Error: an agent was wanted at unix:.*start one with `neli agent`.*\n", result.stderr)


def test_a_token_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("correct-horse-battery\n")
    (tmp_path / "token").chmod(0o600)
    with standing_in() as (agent, address):
        agent.token = "correct-horse-battery"  # noqa: S105 - for tests only.
        assert 0 == neli("members", "--agent", address, "--token-file", f"{tmp_path}/token").exit_code
        refused = neli("members", "--agent", address)
        assert (5, True) == (refused.exit_code, "--token-file" in refused.stderr)


@pytest.mark.parametrize(
    ("commands", "option"), [("members owner table watch events", "NELI_AGENT"), ("drain pin weigh load", "--dry-run")]
)
def test_each_help_has_an_example_and_the_exit_codes(commands: str, option: str) -> None:
    for command in commands.split():
        text = neli(command, "--help").output
        assert [] == [part for part in ("Example", "Exit codes", option) if part not in text], command


@pytest.fixture(name="ledger")
def _ledger(tmp_path: Path) -> Iterator[Config]:
    """The ledger of a member, without an agent."""
    config = Config(f"sqlite://{tmp_path}/jobs.db", name="a", address="http://a", zone="z", layout=Layout(partitions=2))
    with Member(config) as member:
        until(lambda: len(member.led) == 2)
        yield config


def test_a_ledger_is_read_without_an_agent_and_without_httpx(ledger: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [one for one in sys.modules if one.startswith("neli_router.agent.client")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "httpx", None)  # As after `pip install .`: importing it raises.
    assert 2 == neli("members").exit_code
    (owner,) = printed("owner", "k", "--ledger", ledger.ledger)
    (member,) = printed("members", "--ledger", ledger.ledger)
    assert ("a", "http://a", "k") == (owner["name"], owner["address"], owner["key"])
    assert {"name": "a", "address": "http://a", "zone": "z", "weight": 1, "partitions": 2} == member
    rows = printed("table", "--ledger", ledger.ledger)
    assert [(0, "a"), (1, "a")] == [(row["partition"], row["owner"]) for row in rows]
    assert ["partition", "owner", "term"] == list(rows[0])
    heads = [neli(name, "--ledger", ledger.ledger).stdout.split()[:3] for name in ("members", "table")]
    assert [["NAME", "ADDRESS", "ZONE"], ["PARTITION", "OWNER", "TERM"]] == heads


def test_a_watch_of_a_ledger_prints_present_owners_and_changes(ledger: Config, tmp_path: Path) -> None:
    with Program(WATCH, "--ledger", ledger.ledger, "--output", "json", folder=tmp_path) as process:
        first = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [(0, "a"), (1, "a")] == [(line["partition"], line["name"]) for line in first]
        with Member(replace(ledger, name="b")):
            while json.loads(process.stdout.readline())["name"] != "b":  # Before, a partition may have no owner.
                pass
        process.stdout.close()
        assert process.wait(PATIENCE) in {0, 1}, "1 if it wrote a line before it noticed"
