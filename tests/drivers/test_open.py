"""Opening by address: what shares a ledger, and what a member creates."""

import os
from pathlib import Path

import pytest

from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.drivers.open import open_ledger
from neli_router.errors import LedgerUnusable


def test_members_that_name_the_same_memory_share_its_log_and_a_forked_child_has_one_of_its_own() -> None:
    first, second = (open_ledger("memory://test-config-shared", create=True, patience=1.0) for _ in range(2))
    other = open_ledger("memory:test-config-other", create=True, patience=1.0)
    first.append([b"x"])
    assert ([1], 0) == ([entry.offset for entry in second.read(0)], len(other.read(0)))
    child = os.fork()
    if not child:  # pragma: no cover - counted in another process.
        os._exit(len(open_ledger("memory://test-config-shared", create=True, patience=1.0).read(0)))
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_sqlite_is_opened_by_absolute_and_by_relative_path_and_made_for_members_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LedgerUnusable, match="there is no such file"):
        open_ledger(f"sqlite://{tmp_path}/jobs.db", create=False, patience=1.0)
    with pytest.raises(LedgerUnusable, match="there is no folder"):
        open_ledger(f"sqlite://{tmp_path}/nowhere/jobs.db", create=True, patience=1.0)
    monkeypatch.chdir(tmp_path)
    first = open_ledger(f"sqlite://{tmp_path}/jobs.db", create=True, patience=1.0)
    second = open_ledger("sqlite:jobs.db", create=False, patience=1.0)
    assert isinstance(first, SqliteLedger)
    first.append([b"x"])
    assert [1] == [entry.offset for entry in second.read(0)]
    first.close()
    second.close()
