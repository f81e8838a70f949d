"""`neli events`, and the command that runs at each change: what they report, and what a change cannot do to them."""

import io
import json
import shlex
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import Result
from msgspec.structs import replace

from neli_router.agent.wire import EventView, MovedView, OwnerView
from neli_router.commands.events import sentence
from neli_router.commands.hook import ChangeHook
from neli_router.member.member import Member
from neli_router.protocols.protocol import Cause
from tests.support.agents.running import PARTITIONS, configured
from tests.support.agents.stand_in import FOUNDED, StandIn, whenever
from tests.support.commands import neli
from tests.support.processes.forked import Program, lives
from tests.support.waiting import PATIENCE, until

TOKEN = "correct-horse-battery"  # noqa: S105 - for tests only.

DRAIN = EventView(7, 0.0, "drain", "alpha", "ops", [MovedView("alpha", "beta", 2, [3, 4])], last=9, lasted=0.5)
DEATH = EventView(20, 0.0, "expire", "beta", "alpha", [], last=20)

NOTE = """
import os, sys
parts = {name: text for name, text in sorted(os.environ.items()) if name.startswith("NELI_")}
with open(sys.argv[1], "a") as file:
    print(repr((sys.stdin.read(), parts)), file=file)
"""


@pytest.fixture(name="notes")
def _notes(tmp_path: Path) -> Path:
    (tmp_path / "note.py").write_text(NOTE)
    return tmp_path / "notes"


def hook(notes: Path) -> str:
    """A command that writes down what it gets."""
    return shlex.join([sys.executable, str(notes.parent / "note.py"), str(notes)])


def noted(notes: Path) -> list[tuple[str, dict[str, str]]]:
    return [eval(line) for line in notes.read_text().splitlines()] if notes.exists() else []  # noqa: S307 - our own.


def test_the_past_is_a_line_for_each_cause_with_the_time_at_which_it_was(place: StandIn) -> None:
    place.history = [FOUNDED, replace(DRAIN, ago=30.0)]
    result = neli("events")
    lines = [line.split("  ", 1) for line in result.stdout.splitlines()]
    told = ["alpha joined: 100 partitions to alpha", "alpha was drained by ops: 2 partitions to beta"]
    assert told == [text for _, text in lines]
    past = datetime.now(UTC) - datetime.fromisoformat(lines[0][0])
    assert timedelta(seconds=59) <= past < timedelta(seconds=180)
    assert 0 == result.exit_code
    line = json.loads(neli("events", "--output", "json").stdout.splitlines()[0])
    assert (1, "join", "alpha", 100) == (line["offset"], line["cause"], line["member"], line["moved"][0]["number"])
    assert lines[0][1] == line["text"]


def test_a_followed_event_is_reported_when_it_begins_and_grows(place: StandIn, notes: Path) -> None:
    def then() -> None:
        place.say("event", replace(DRAIN, moved=[], last=7, lasted=0.0))
        place.say("event", DRAIN)
        place.say("event", DEATH)
        until(lambda: len(noted(notes)) == 3)
        place.hang_up()

    with whenever(lambda: place.held == 1 and "/v1/history" in place.requests, then):
        result = neli("events", "--follow", "--exec", hook(notes), NELI_TOKEN=TOKEN)
    told = ["alpha was drained by ops", "alpha was drained by ops: 2 partitions to beta", "beta was expired by alpha"]
    printed = [line.split("  ", 1)[1] for line in result.stdout.splitlines()]
    assert ["alpha joined: 100 partitions to alpha", *told] == printed
    assert (4, told) == (result.exit_code, [json.loads(given)["text"] for given, _ in noted(notes)])
    parts = noted(notes)[-1][1]
    assert ("expire", "beta", "alpha") == tuple(parts[f"NELI_CHANGE_{part}"] for part in ("CAUSE", "MEMBER", "BY"))
    assert "NELI_TOKEN" not in parts


def test_each_cause_is_said_in_words() -> None:
    said: dict[Cause, str] = {
        "replace": "a was replaced by a newer process of its name",
        "leave": "a left",
        "certify": "a was certified dead by ops",
        "fence": "a was heard again: it had lived on, and was fenced",
        "pin": "partition 3 was pinned to a by ops",
        "unpin": "partition 3 was unpinned by ops",
        "weigh": "a was weighed by ops",
        "load": "loads were set by ops",
        "handover": "ops handed over",
        "other": "records were not read",
    }
    assert said == {cause: sentence(EventView(1, 0.0, cause, "a", "ops", [], 3)) for cause in said}


def test_many_targets_are_named_up_to_a_bound_and_a_hostile_name_is_shown_as_text() -> None:
    moved = [MovedView("a", f"m{number}", 1, []) for number in range(11)]
    text = sentence(EventView(1, 0.0, "expire", "a", "b\x1b[2J", moved))
    assert text.startswith("a was expired by b\\x1b[2J: 11 partitions to m0, m1, ")
    assert text.endswith("m7 and 3 others")


def watched(place: StandIn, notes: Path, *changes: OwnerView, command: str = "") -> Result:
    def then() -> None:
        for change in changes:
            place.say("owner", change)
        place.hang_up()

    with whenever(lambda: place.held == 1, then):
        return neli("watch", "--exec", command or hook(notes), "--exec-timeout", "60")


def test_a_watch_tells_each_change_in_order_and_not_what_was_there_before(place: StandIn, notes: Path) -> None:
    changes = [OwnerView(0, f"m{number}", "http://m:1", 5 + number) for number in range(5)]
    watched(place, notes, *changes, OwnerView(0, None, why="none is left"))
    told = [(parts["NELI_CHANGE_NAME"], parts["NELI_CHANGE_TERM"]) for _, parts in noted(notes)]
    assert [(f"m{number}", str(5 + number)) for number in range(5)] == told[:5]
    assert ("", "0") == told[5]
    assert ["m0", 0] == [json.loads(noted(notes)[0][0])[part] for part in ("name", "partition")]


def test_no_name_can_become_a_command(place: StandIn, notes: Path, tmp_path: Path) -> None:
    names = ["$(touch hurt)", "; touch hurt #", "`touch hurt`", "a\nb", "--output", "a\0b"]
    watched(place, notes, *(OwnerView(0, name, "http://m:1", 5 + term) for term, name in enumerate(names)))
    for name, (given, parts) in zip(names, noted(notes), strict=True):
        assert name == json.loads(given)["name"]
        expected = name if name.isprintable() else name.encode("unicode_escape").decode()
        assert expected == parts["NELI_CHANGE_NAME"]
    assert not (tmp_path / "hurt").exists()


def test_a_command_that_fails_or_is_not_there_is_said_and_the_watch_goes_on(place: StandIn, notes: Path) -> None:
    changes = [OwnerView(0, name, "http://m:1", 5) for name in ("b", "c")]
    failing = shlex.join([sys.executable, "-c", "raise SystemExit(7)"])
    missing = "it cannot be started: No such file or directory"
    for command, said in (failing, "was to handle a change, but it ended with 7"), ("/no/such/command", missing):
        result = watched(place, notes, *changes, command=command)
        assert (2, 3) == (result.stderr.count(said), len(result.stdout.splitlines()))


def test_a_command_that_hangs_is_killed_with_what_it_started(notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    with ChangeHook("sleep 3600", 0.1) as hanging:
        hanging.put(b"{}")
        until(lambda: "it took longer than 0.1 s and was killed" in said.getvalue())
    command = f"sh -c 'sleep 3600 & echo $! > {notes}; wait'"
    with pytest.raises(KeyboardInterrupt), ChangeHook(command, 3600.0) as hanging:  # noqa: PT012 - its end kills.
        hanging.put(b"{}")
        child = until(lambda: notes.exists() and int(notes.read_text() or 0))
        raise KeyboardInterrupt
    assert "this ended before 1 of them were handled" in said.getvalue()
    until(lambda: not lives(child))


def test_a_ledger_without_any_agent_is_followed_and_tells_its_whole_past(tmp_path: Path) -> None:
    code = "from neli_router.commands.events import events_command; events_command(prog_name='neli events')"
    given, began = ("--ledger", f"sqlite://{tmp_path}/ledger.db"), datetime.now(UTC)
    with Member(configured(tmp_path)) as member:
        assert member.pulse(60.0)
        with Program(code, *given, "--follow", folder=tmp_path) as process:
            assert "a joined" in process.stdout.readline()
            member.operator.drain("a", timeout=PATIENCE)
            assert "a was drained by a" in process.stdout.readline()
    lines = neli("events", *given).stdout.splitlines()
    times, texts = zip(*(line.split("  ", 1) for line in lines), strict=True)
    joined, left = f"a joined: {PARTITIONS} partitions to a", f"a left: {PARTITIONS} partitions to nobody"
    assert (joined, "a was drained by a", left) == texts
    for at in times:
        assert began - timedelta(seconds=5) <= datetime.fromisoformat(at) <= datetime.now(UTC) + timedelta(seconds=5)
