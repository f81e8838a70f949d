"""`neli group delete`: what it takes to lose a group, and that no member that lives loses its group."""

import json
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from neli_router import Config, Layout, Member
from neli_router.commands.group import group_command
from neli_router.errors import LedgerMissing, LedgerUnavailable
from neli_router.induction.records import Drain, encode
from neli_router.ledgers.addresses import delete_ledger, open_ledger
from neli_router.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.ledgers.sqlite.ledger import SqliteLedger
from neli_router.status.inspection import Inspection
from tests.support.waiting import until

LEASE = 0.2

LIVING = 2.0
"""The lease of one that must be heard: what is busy for the 2.5 leases that are listened for is taken for dead."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no file of the developer's lies."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def member(path: Path, *, lease: float = LEASE) -> Member:
    return Member(Config(f"sqlite://{path}", name="alice", lease=lease, layout=Layout(partitions=4)))


def found_and_leave(path: Path) -> None:
    with member(path) as founder:
        assert founder.pulse(60.0)


def run(
    path: Path, *arguments: str, typed: str | None = None, ledger: str | None = None, ownership: str | None = None
) -> Result:
    given = ["delete", "--ledger", ledger or f"sqlite://{path}", *arguments]
    environment = {"NELI_CONFIG": None, "NELI_LEASE": str(LEASE), "NELI_OWNERSHIP": ownership}
    return CliRunner().invoke(group_command, given, input=typed, env=environment)


def test_a_group_that_all_left_is_deleted_when_its_address_was_typed(path: Path) -> None:
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
    with member(path, lease=LIVING) as alive:
        assert alive.pulse(60.0)
        result = run(path, "--yes")
        assert (5, True) == (result.exit_code, path.exists())
        assert f"alice is alive in sqlite:{path}: stop every member and agent of the group" in result.stderr
        assert alive.pulse(60.0)


def test_yes_does_not_ask_and_json_says_what_went(path: Path) -> None:
    SqliteLedger(path).close()
    result = run(path, "--yes", "--output", "json")
    assert (0, {"ledger": f"sqlite:{path}", "deleted": [str(path)]}) == (result.exit_code, json.loads(result.stdout))


def test_what_lies_beside_the_file_and_the_link_to_it_go_too(path: Path, tmp_path: Path) -> None:
    """A process that was killed leaves its write-ahead log behind."""
    SqliteLedger(path).close()
    held = SqliteLedger(path)  # A reader keeps the companions there.
    (tmp_path / "link.db").symlink_to(path)
    result = run(path, "--yes", ledger=f"sqlite://{tmp_path}/link.db")
    assert (0, []) == (result.exit_code, list(tmp_path.iterdir()))
    held.close()


def test_a_ledger_that_is_not_there_is_told_and_not_made(path: Path) -> None:
    result = run(path, "--yes")
    assert (1, False) == (result.exit_code, path.exists())
    assert "there is no such file: there is nothing to delete, or correct the address" in result.stderr


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


@pytest.fixture(params=[pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("kafka", "redis")])
def remote(request: pytest.FixtureRequest) -> str:
    """The address of a ledger on a server, which is not there yet."""
    pytest.importorskip({"kafka": "confluent_kafka", "redis": "redis"}[request.param])
    server = request.getfixturevalue(request.param)
    return f"{server if '://' in server else f'kafka://{server}'}/{uuid4().hex}"


def remote_member(address: str, ownership: str | None = None, *, lease: float = 0.5) -> Member:
    return Member(
        Config(
            address,
            name="alice",
            lease=lease,
            layout=Layout(partitions=4),
            accept_rewinds=True,
            ownership=ownership,
        )
    )


def deleted_name(address: str) -> str:
    group = address.rpartition("/")[2]
    return f"{group}.ledger" if address.startswith("kafka:") else f"{group}:ledger"


def test_on_a_server_a_group_that_all_left_is_deleted_when_its_address_was_typed(path: Path, remote: str) -> None:
    with remote_member(remote) as founder:
        assert founder.pulse(60.0)
    result = run(path, "--output", "json", ledger=remote, typed=f"{remote}\n")
    assert 0 == result.exit_code, result.stderr
    assert {"ledger": remote, "deleted": [deleted_name(remote)]} == json.loads(result.stdout)
    with pytest.raises(LedgerMissing):
        open_ledger(remote, create=False, patience=1.0)


def test_on_a_server_a_member_that_lives_is_named_and_keeps_its_group(path: Path, remote: str) -> None:
    with remote_member(remote, lease=LIVING) as alive:
        assert alive.pulse(60.0)
        result = run(path, "--yes", ledger=remote)
        assert 5 == result.exit_code
        assert f"alice is alive in {remote}" in result.stderr
        assert alive.pulse(60.0)


def test_on_a_server_a_ledger_that_is_not_there_is_told_and_not_made(path: Path, remote: str) -> None:
    for _ in range(2):
        result = run(path, "--yes", ledger=remote)
        assert (1, "") == (result.exit_code, result.stdout)
        assert "has none" in result.stderr or "there is no key" in result.stderr
    with pytest.raises(LedgerMissing, match="there is none"):
        delete_ledger(remote)


@pytest.mark.redis
def test_the_table_of_owners_stays_and_that_is_told(path: Path, redis: str) -> None:
    client = pytest.importorskip("redis").Redis.from_url(redis)
    address = f"{redis}/{uuid4().hex}"
    group = address.rpartition("/")[2]
    with remote_member(address, address) as founder, founder.leading("nightly", timeout=60.0):
        until(lambda: client.exists(f"{group}:owners:v1"))
    result = run(path, "--yes", ledger=address, ownership=address)
    assert (0, f"deleted {group}:ledger\n") == (result.exit_code, result.stdout)
    assert f"The table of owners at {address} stays" in result.stderr
    assert (0, 1) == (client.exists(f"{group}:ledger"), client.exists(f"{group}:owners:v1"))
    client.close()


@pytest.mark.parametrize("address", ["kafka://127.0.0.1:9/jobs", "redis://127.0.0.1:9/jobs"])
def test_a_server_that_is_away_is_an_outage(address: str) -> None:
    pytest.importorskip({"kafka": "confluent_kafka", "redis": "redis"}[address.partition(":")[0]])
    with pytest.raises(LedgerUnavailable, match=r"127\.0\.0\.1:9"):
        delete_ledger(address)
