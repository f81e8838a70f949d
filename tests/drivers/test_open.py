"""Opening by address: what shares a ledger, and what a member creates."""

from pathlib import Path

import pytest

from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.drivers.open import open_ledger
from tests.support.forking import in_child


def test_members_that_name_the_same_memory_share_its_log_and_a_forked_child_has_one_of_its_own() -> None:
    first, second = (open_ledger("memory://test-config-shared", create=True, patience=1.0) for _ in range(2))
    other = open_ledger("memory:test-config-other", create=True, patience=1.0)
    first.append([b"x"])
    assert ([1], 0) == ([entry.offset for entry in second.read(0)], len(other.read(0)))
    assert [] == in_child(lambda: open_ledger("memory://test-config-shared", create=True, patience=1.0).read(0))


def test_sqlite_is_opened_by_absolute_and_by_relative_path_and_made_for_members_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = open_ledger(f"sqlite://{tmp_path}/jobs.db", create=True, patience=1.0)
    second = open_ledger("sqlite:jobs.db", create=False, patience=1.0)
    assert isinstance(first, SqliteLedger)
    first.append([b"x"])
    assert [1] == [entry.offset for entry in second.read(0)]
    first.close()
    second.close()
