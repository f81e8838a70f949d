"""`neli group delete`: what it takes to lose a group, and that nobody who lives loses theirs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from neli_router import Config, Layout, Member
from neli_router.commands.group import group_command
from neli_router.induction.records import Drain, encode
from neli_router.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.ledgers.sqlite.ledger import SqliteLedger
from neli_router.status.inspection import Inspection

LEASE = 0.2


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no file of the developer's lies."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def member(path: Path) -> Member:
    return Member(Config(f"sqlite://{path}", name="alice", lease=LEASE, layout=Layout(partitions=4)))


def found_and_leave(path: Path) -> None:
    with member(path) as founder:
        assert founder.pulse(10.0)


def run(path: Path, *arguments: str, typed: str | None = None, ledger: str | None = None) -> Result:
    given = ["delete", "--ledger", ledger or f"sqlite://{path}", *arguments]
    return CliRunner().invoke(group_command, given, input=typed, env={"NELI_CONFIG": None, "NELI_LEASE": str(LEASE)})


def test_a_group_that_everybody_left_is_deleted_when_its_address_was_typed(path: Path) -> None:
    found_and_leave(path)
    result = run(path, typed=f"sqlite:{path}\n")
    assert (0, []) == (result.exit_code, list(path.parent.iterdir()))
    assert f"deleted {path}" in result.stdout
    assert f"sqlite:{path} has " in result.stderr


def test_without_the_address_nothing_is_deleted(path: Path) -> None:
    found_and_leave(path)
    result = run(path, typed="yes\n")
    assert (5, True) == (result.exit_code, path.exists())
    assert "that is not the ledger's address: nothing was deleted" in result.stderr


def test_a_member_that_lives_is_named_and_keeps_its_group(path: Path) -> None:
    with member(path) as alive:
        assert alive.pulse(10.0)
        result = run(path, "--yes")
        assert (5, True) == (result.exit_code, path.exists())
        assert f"alice is alive in sqlite:{path}: stop every member and agent of the group" in result.stderr
        assert alive.pulse(10.0)


def test_yes_does_not_ask_and_json_says_what_went(path: Path) -> None:
    SqliteLedger(path).close()
    result = run(path, "--yes", "--output", "json")
    assert (0, {"ledger": f"sqlite:{path}", "deleted": [str(path)]}) == (result.exit_code, json.loads(result.stdout))


def test_what_lies_beside_the_file_and_the_link_to_it_go_too(path: Path, tmp_path: Path) -> None:
    """A process that was killed leaves its write-ahead log behind."""
    SqliteLedger(path).close()
    held = SqliteLedger(path)  # Who still reads keeps the companions there.
    (tmp_path / "link.db").symlink_to(path)
    result = run(path, "--yes", ledger=f"sqlite://{tmp_path}/link.db")
    assert (0, []) == (result.exit_code, list(tmp_path.iterdir()))
    held.close()


def test_a_ledger_that_is_not_there_is_told_and_not_made(path: Path) -> None:
    result = run(path, "--yes")
    assert (1, False) == (result.exit_code, path.exists())
    assert "there is no such file: correct the path, or let the ledger be created" in result.stderr


def test_a_file_that_is_something_else_stays(path: Path) -> None:
    path.write_text("my diary" * 1000, encoding="utf-8")
    result = run(path, "--yes")
    assert (1, True) == (result.exit_code, path.exists())


def test_a_ledger_in_memory_has_nothing_to_delete(path: Path) -> None:
    result = run(path, "--yes", ledger="memory://jobs")
    assert (1, True) == (result.exit_code, "one of the kind 'memory' ends with its process" in result.stderr)


def test_a_configuration_that_is_not_usable_deletes_nothing(path: Path) -> None:
    SqliteLedger(path).close()
    result = run(path, "--yes", ledger=f"sqlit://{path}")
    assert (2, True) == (result.exit_code, path.exists())


def test_a_wish_from_outside_is_no_sign_of_life() -> None:
    ledger = MemoryLedger(MemoryLog())
    inspection = Inspection(ledger)
    ledger.append([encode(Drain(by="operator", name="alice")), b"no record at all"])
    assert None is inspection.living(0.01)
