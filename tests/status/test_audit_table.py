"""The tables of an audit: its facts as rows, which Delta keeps."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable

from neli_router.errors import NeliError
from neli_router.status.audit import audited
from neli_router.status.audit_table import tables_of, write_tables
from tests.support.audited import entries, written
from tests.support.records import expire, genesis, join

ALICE = [("a", float(second)) for second in range(8)]
BOB = [("b", 7.5 + second) for second in range(8)]
LAST = ("b", 15.5), ("b", 16.5)
HISTORY = written(
    genesis(), join("a", "alice", at=1), *ALICE, join("b", "bob", at=10), *BOB, expire("b", "a", 9), *LAST
)


def test_each_tenure_is_a_row_with_its_times() -> None:
    rows = tables_of(audited(entries(HISTORY), one_clock=True))["tenures"].to_pylist()
    assert 8 == len(rows)
    first = rows[0]
    assert (0, 1001, "alice", 1, 19, "join", "expire") == tuple(
        first[name] for name in ("partition", "term", "member", "first_offset", "last_offset", "began_by", "ended_by")
    )
    assert (0.0, 15.0) == (first["since"], first["until"])
    assert datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC) == first["since_at"]


def test_what_is_not_known_yet_is_missing() -> None:
    last = tables_of(audited(entries(HISTORY), one_clock=True))["tenures"].to_pylist()[-1]
    assert ("bob", None, None) == (last["member"], last["last_offset"], last["ended_by"])


def test_moves_members_takeovers_and_findings_are_rows_too() -> None:
    tables = tables_of(audited(entries(HISTORY), one_clock=True))
    moves = tables["moves"].to_pylist()
    assert [("alice", "bob", "expire", "bob")] * 4 == [
        (it["source"], it["target"], it["cause"], it["by"]) for it in moves
    ]
    assert [("alice", "expire", 8), ("bob", None, 10)] == [
        (it["member"], it["ended_by"], it["beats"]) for it in tables["members"].to_pylist()
    ]
    assert [("alice", 4, 7.5)] == [
        (it["member"], it["partitions"], it["seconds"]) for it in tables["takeovers"].to_pylist()
    ]
    assert ["note"] == tables["findings"]["severity"].to_pylist()


def test_delta_keeps_them_and_a_later_audit_replaces_them(tmp_path: Path) -> None:
    write_tables(tables_of(audited(entries(HISTORY[:12]))), tmp_path)
    found = audited(entries(HISTORY), one_clock=True)
    write_tables(tables_of(found), tmp_path)
    for name, table in tables_of(found).items():
        assert table.to_pylist() == DeltaTable(tmp_path / name).to_pyarrow_table().to_pylist()
    assert 1 == DeltaTable(tmp_path / "moves").version()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tenures").mkdir()
    (tmp_path / "tenures" / "_delta_log").write_text("no folder")
    with pytest.raises((NeliError, OSError)):
        write_tables(tables_of(audited(entries(HISTORY))), tmp_path)
