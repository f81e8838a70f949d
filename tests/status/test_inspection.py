"""The inspection: what a reader that takes no part in a group learns of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from neli_router import Config, Layout, Member
from neli_router.ledgers.sqlite.ledger import SqliteLedger
from neli_router.status.inspection import Inspection

LEASE = 0.2


@pytest.fixture(name="ledger")
def _ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    ledger = SqliteLedger(tmp_path / "jobs.db")
    yield ledger
    ledger.close()


def config(path: Path, *, lease: float = LEASE) -> Config:
    return Config(f"sqlite://{path}/jobs.db", name="alice", lease=lease, layout=Layout(partitions=4))


def test_an_empty_ledger_has_no_group(ledger: SqliteLedger, tmp_path: Path) -> None:
    found = Inspection(ledger)
    assert (False, None, [], 0) == (found.is_founded, found.lease, found.members, found.records)
    assert found.mismatch(config(tmp_path).settings()) is None


def test_a_group_is_told_with_its_members_and_compared_with_a_configuration(
    ledger: SqliteLedger, tmp_path: Path
) -> None:
    with Member(config(tmp_path)) as member:
        assert member.pulse(60.0)
        found = Inspection(ledger)
        assert (True, LEASE, ["alice"], 4, 0) == (
            found.is_founded,
            found.lease,
            found.members,
            found.partitions,
            found.unowned,
        )
        assert found.mismatch(config(tmp_path).settings()) is None
        assert "lease 9 s here and 0.2 s there" in str(found.mismatch(config(tmp_path, lease=9.0).settings()))
        assert ("alice", None) == (found.living(10.0), found.living(LEASE, name="bob"))
    after = Inspection(ledger)
    assert ([], 4, None) == (after.members, after.unowned, after.living(2 * LEASE))
