"""`neli group delete`: what it takes to delete a group, and that a living member never loses its group."""

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any
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
from tests.support.waiting import PATIENCE, until

LEASE = 0.2

LIVING = 2.0
"""Lease of a member that must be heard. The command listens for 2.5 leases, and a member busy for longer seems dead."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def member(address: str, **options: Any) -> Member:
    protocol = Induction(accept_rewinds=not address.startswith("sqlite:"))
    chosen = {"name": "alice", "lease": LEASE, "layout": Layout(partitions=4), "protocol": protocol, **options}
    return Member(Config(address, **chosen))


def run(ledger: Path | str, *words: str, typed: str | None = None, ownership: str | None = None) -> Result:
    address = ledger if isinstance(ledger, str) else f"sqlite://{ledger}"
    given = ("group", "delete", "--ledger", address, *words)
    return neli(*given, given=typed, NELI_LEASE=str(LEASE), NELI_OWNERSHIP=ownership)


@pytest.fixture(
    params=["sqlite", *(pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("kafka", "redis"))]
)
def address(request: pytest.FixtureRequest, path: Path) -> str:
    """The address of a ledger that does not exist yet."""
    if request.param == "sqlite":
        return f"sqlite://{path}"
    pytest.importorskip({"kafka": "confluent_kafka", "redis": "redis"}[request.param])
    server = request.getfixturevalue(request.param)
    return f"{server if '://' in server else f'kafka://{server}'}/{uuid4().hex}"


def deleted_names(address: str) -> list[str]:
    kind, _, place = address.partition("://")
    group = place.rpartition("/")[2]
    names = {"sqlite": [place, f"{place}-members"], "kafka": [f"{group}.ledger"], "redis": [f"{group}:ledger"]}
    return names[kind]


def test_a_group_is_deleted_when_all_have_left_and_its_address_was_typed(address: str) -> None:
    shown = address.replace("sqlite://", "sqlite:")
    for _ in range(2):
        result = run(address, "--yes")
        assert (1, "") == (result.exit_code, result.stdout)
        assert re.search("has none|there is no key|there is no such file", result.stderr)
        assert "there is nothing to delete, or correct the address" in result.stderr
    if not address.startswith("sqlite:"):
        with pytest.raises(LedgerMissing, match="there is none"):
            delete_ledger(address)
    with member(address, lease=LIVING) as alive:
        assert alive.pulse(60.0)
        result = run(address, "--yes")
        assert 5 == result.exit_code
        assert f"alice is alive in {shown}: stop every member and agent of the group" in result.stderr
        assert alive.pulse(60.0)
        expected = {"ledger": shown, "deleted": deleted_names(address), "highest_term": max(alive.state.terms)}
    result = run(address, typed="yes\n")
    assert (5, True) == (result.exit_code, f"{shown} has " in result.stderr)
    assert "that is not the ledger's address: nothing was deleted" in result.stderr
    result = run(address, "--output", "json", typed=f"{shown}\n")
    assert 0 == result.exit_code, result.stderr
    assert expected == json.loads(result.stdout)
    with pytest.raises(LedgerMissing):
        open_ledger(address, create=False, patience=PATIENCE)


def test_a_group_of_an_older_release_starts_over_with_higher_terms_whatever_the_clock_says(path: Path) -> None:
    with closing(SqliteLedger(path)) as ledger:
        founded = genesis(version=1, layout=Layout(partitions=4), lease=LEASE)
        ledger.append([encode(founded), encode(replace(join("old", versions=(1, 1)), floor=2**51))])
    with pytest.raises(GroupMismatch, match="delete the ledger by `neli group delete`, and start all of them"):
        member(f"sqlite://{path}")
    result = run(path, "--yes")
    highest = 2**51
    assert (0, True) == (result.exit_code, f"use --term-base {highest} from now on" in result.stderr), result.stderr
    with member(f"sqlite://{path}", term_base=highest) as anew, anew.leading(0, timeout=PATIENCE) as lease:
        assert lease.term > highest


def test_what_lies_beside_the_file_and_the_link_to_it_go_too(path: Path, tmp_path: Path) -> None:
    """A killed process leaves its write-ahead log behind."""
    SqliteLedger(path).close()
    held = SqliteLedger(path)  # A reader keeps the companions there.
    (tmp_path / "link.db").symlink_to(path)
    result = run(tmp_path / "link.db", "--yes")
    assert (0, []) == (result.exit_code, list(tmp_path.iterdir()))
    assert f"deleted {path}\n" in result.stdout
    held.close()


def test_what_is_no_ledger_is_told_and_stays(path: Path) -> None:
    path.write_text("my diary" * 1000, encoding="utf-8")
    assert (1, True) == (run(path, "--yes").exit_code, path.exists())
    result = run("memory://jobs", "--yes")
    assert (1, True) == (result.exit_code, "one of the kind 'memory' ends with its process" in result.stderr)


def test_a_wish_from_outside_is_no_sign_of_life() -> None:
    ledger = MemoryLedger(MemoryLog())
    inspection = Inspection(ledger)
    ledger.append([encode(Drain(by="operator", name="alice")), b"no record at all"])
    assert None is inspection.living(0.01)


@pytest.mark.redis
def test_the_table_of_owners_stays_and_that_is_told(redis: str) -> None:
    client = pytest.importorskip("redis").Redis.from_url(redis)
    address = f"{redis}/{uuid4().hex}"
    group = address.rpartition("/")[2]
    with member(address, lease=0.5, ownership=address) as founder, founder.leading("nightly", timeout=PATIENCE):
        until(lambda: client.exists(f"{group}:owners:v1"))
    result = run(address, "--yes", ownership=address)
    assert (0, f"deleted {group}:ledger\n") == (result.exit_code, result.stdout)
    assert f"The table of owners at {address} stays" in result.stderr
    assert (0, 1) == (client.exists(f"{group}:ledger"), client.exists(f"{group}:owners:v1"))
    client.close()
