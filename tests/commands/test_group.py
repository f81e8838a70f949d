"""`neli group delete`: what it takes to delete a group, and that a living member never loses its group."""

import json
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import Result
from msgspec.structs import replace

from neli_router import Config, Layout, Member
from neli_router.config.protocols import Induction
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.drivers.open import delete_ledger, open_ledger
from neli_router.errors import GroupMismatch, LedgerMissing
from neli_router.protocols.induction.records import Drain, encode
from neli_router.status.inspection import Inspection
from tests.support.commands import neli
from tests.support.records import genesis, join
from tests.support.waiting import until

LEASE = 0.2

LIVING = 2.0
"""Lease of a member that must be heard. The command listens for 2.5 leases, and a member busy for longer seems dead."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def member(address: str, *, lease: float = LEASE, ownership: str | None = None, term_base: int = 0) -> Member:
    layout, rewinds = Layout(partitions=4), not address.startswith("sqlite:")
    return Member(
        Config(
            address,
            name="alice",
            lease=lease,
            layout=layout,
            protocol=Induction(accept_rewinds=rewinds),
            ownership=ownership,
            term_base=term_base,
        )
    )


def run(ledger: Path | str, *words: str, typed: str | None = None, ownership: str | None = None) -> Result:
    address = ledger if isinstance(ledger, str) else f"sqlite://{ledger}"
    given = ("group", "delete", "--ledger", address, *words)
    return neli(*given, given=typed, NELI_LEASE=str(LEASE), NELI_OWNERSHIP=ownership)


def test_a_group_that_all_left_is_deleted_when_its_address_was_typed(path: Path) -> None:
    with member(f"sqlite://{path}") as founder:
        assert founder.pulse(60.0)
    result = run(path, typed="yes\n")
    assert (5, True) == (result.exit_code, path.exists())
    assert "that is not the ledger's address: nothing was deleted" in result.stderr
    result = run(path, typed=f"sqlite:{path}\n")
    assert (0, []) == (result.exit_code, list(path.parent.iterdir()))
    assert f"deleted {path}" in result.stdout
    assert f"sqlite:{path} has " in result.stderr


def require_refusal_while_it_lives(address: str, shown: str) -> None:
    with member(address, lease=LIVING) as alive:
        assert alive.pulse(60.0)
        result = run(address, "--yes")
        assert 5 == result.exit_code
        assert f"alice is alive in {shown}: stop every member and agent of the group" in result.stderr
        assert alive.pulse(60.0)


def test_a_member_that_lives_is_named_and_keeps_its_group(path: Path) -> None:
    require_refusal_while_it_lives(f"sqlite://{path}", f"sqlite:{path}")


def test_a_group_of_an_older_release_starts_over_with_higher_terms_whatever_the_clock_says(path: Path) -> None:
    with closing(SqliteLedger(path)) as ledger:
        founded = genesis(version=1, layout=Layout(partitions=4), lease=LEASE)
        ledger.append([encode(founded), encode(replace(join("old", versions=(1, 1)), floor=2**51))])
    with pytest.raises(GroupMismatch, match="delete the ledger by `neli group delete`, and start all of them"):
        member(f"sqlite://{path}")
    result = run(path, "--yes")
    highest = 2**51
    assert (0, True) == (result.exit_code, f"use --term-base {highest} from now on" in result.stderr), result.stderr
    with member(f"sqlite://{path}", term_base=highest) as anew, anew.leading(0, timeout=60.0) as lease:
        assert lease.term > highest


def test_yes_does_not_ask_and_json_says_what_went(path: Path) -> None:
    SqliteLedger(path).close()
    result = run(path, "--yes", "--output", "json")
    expected = {"ledger": f"sqlite:{path}", "deleted": [str(path)], "highest_term": 0}
    assert (0, expected) == (result.exit_code, json.loads(result.stdout))


def test_what_lies_beside_the_file_and_the_link_to_it_go_too(path: Path, tmp_path: Path) -> None:
    """A killed process leaves its write-ahead log behind."""
    SqliteLedger(path).close()
    held = SqliteLedger(path)  # A reader keeps the companions there.
    (tmp_path / "link.db").symlink_to(path)
    result = run(tmp_path / "link.db", "--yes")
    assert (0, []) == (result.exit_code, list(tmp_path.iterdir()))
    held.close()


def test_what_is_no_ledger_is_told_and_stays(path: Path) -> None:
    result = run(path, "--yes")
    assert (1, False) == (result.exit_code, path.exists())
    assert "there is no such file: there is nothing to delete, or correct the address" in result.stderr
    path.write_text("my diary" * 1000, encoding="utf-8")
    assert (1, True) == (run(path, "--yes").exit_code, path.exists())
    result = run("memory://jobs", "--yes")
    assert (1, True) == (result.exit_code, "one of the kind 'memory' ends with its process" in result.stderr)


def test_a_wish_from_outside_is_no_sign_of_life() -> None:
    ledger = MemoryLedger(MemoryLog())
    inspection = Inspection(ledger)
    ledger.append([encode(Drain(by="operator", name="alice")), b"no record at all"])
    assert None is inspection.living(0.01)


@pytest.fixture(params=[pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("kafka", "redis")])
def remote(request: pytest.FixtureRequest) -> str:
    """The address of a ledger on a server, which does not exist yet."""
    pytest.importorskip({"kafka": "confluent_kafka", "redis": "redis"}[request.param])
    server = request.getfixturevalue(request.param)
    return f"{server if '://' in server else f'kafka://{server}'}/{uuid4().hex}"


def deleted_name(address: str) -> str:
    group = address.rpartition("/")[2]
    return f"{group}.ledger" if address.startswith("kafka:") else f"{group}:ledger"


def test_on_a_server_a_group_is_deleted_when_all_have_left_and_its_address_was_typed(remote: str) -> None:
    for _ in range(2):
        result = run(remote, "--yes")
        assert (1, "") == (result.exit_code, result.stdout)
        assert "has none" in result.stderr or "there is no key" in result.stderr
    with pytest.raises(LedgerMissing, match="there is none"):
        delete_ledger(remote)
    require_refusal_while_it_lives(remote, remote)
    result = run(remote, "--output", "json", typed=f"{remote}\n")
    assert 0 == result.exit_code, result.stderr
    assert {"ledger": remote, "deleted": [deleted_name(remote)]}.items() <= json.loads(result.stdout).items()
    with pytest.raises(LedgerMissing):
        open_ledger(remote, create=False, patience=1.0)


@pytest.mark.redis
def test_the_table_of_owners_stays_and_that_is_told(redis: str) -> None:
    client = pytest.importorskip("redis").Redis.from_url(redis)
    address = f"{redis}/{uuid4().hex}"
    group = address.rpartition("/")[2]
    with member(address, lease=0.5, ownership=address) as founder, founder.leading("nightly", timeout=60.0):
        until(lambda: client.exists(f"{group}:owners:v1"))
    result = run(address, "--yes", ownership=address)
    assert (0, f"deleted {group}:ledger\n") == (result.exit_code, result.stdout)
    assert f"The table of owners at {address} stays" in result.stderr
    assert (0, 1) == (client.exists(f"{group}:ledger"), client.exists(f"{group}:owners:v1"))
    client.close()
