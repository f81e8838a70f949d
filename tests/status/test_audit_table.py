"""The tables of an audit: its facts as rows, which Delta keeps."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable

from neli_router.errors import NeliError
from neli_router.status.audit_table import tables_of, write_tables
from tests.support.audited import audited, entries, taken_over

HISTORY = taken_over()


def test_tenures_moves_members_takeovers_and_findings_are_rows() -> None:
    tables = {name: table.to_pylist() for name, table in tables_of(audited(entries(HISTORY), one_clock=True)).items()}
    rows = tables["tenures"]
    assert 8 == len(rows)
    names = ("partition", "term", "member", "first_offset", "last_offset", "began_by", "ended_by", "since", "until")
    assert (0, 1001, "alice", 1, 19, "join", "expire", 0.0, 15.0) == tuple(rows[0][name] for name in names)
    assert datetime(1970, 1, 1, 0, 0, 0, 1000, tzinfo=UTC) == rows[0]["since_at"]
    # Unknown values are missing.
    assert ("bob", None, None) == tuple(rows[-1][name] for name in ("member", "last_offset", "ended_by"))
    moves = [(it["source"], it["target"], it["cause"], it["by"]) for it in tables["moves"]]
    assert [("alice", "bob", "expire", "bob")] * 4 == moves
    members = [(it["member"], it["ended_by"], it["beats"]) for it in tables["members"]]
    assert [("alice", "expire", 8), ("bob", None, 10)] == members
    takeovers = [(it["member"], it["partitions"], it["seconds"]) for it in tables["takeovers"]]
    assert ([("alice", 4, 7.5)], ["note"]) == (takeovers, [it["severity"] for it in tables["findings"]])


def test_a_later_audit_replaces_the_tables_and_an_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    write_tables(tables_of(audited(entries(HISTORY[:12]))), tmp_path)
    found = audited(entries(HISTORY), one_clock=True)
    write_tables(tables_of(found), tmp_path)
    for name, table in tables_of(found).items():
        assert table.to_pylist() == DeltaTable(tmp_path / name).to_pyarrow_table().to_pylist()
    assert 1 == DeltaTable(tmp_path / "moves").version()
    (tmp_path / "other" / "tenures").mkdir(parents=True)
    (tmp_path / "other" / "tenures" / "_delta_log").write_text("no folder")
    with pytest.raises((NeliError, OSError)):
        write_tables(tables_of(found), tmp_path / "other")
