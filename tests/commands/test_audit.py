"""`neli audit`: its summary, its JSON and its exit codes, for file ledgers."""

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import Result

from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.protocols.induction.records import Beat, Record, encode
from neli_router.status.notes import Acts, Notebook
from tests.support.audited import taken_over
from tests.support.commands import neli


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of two members, one of which took over from the other."""
    fill(tmp_path / "ledger.db", taken_over(first=1))
    return tmp_path / "ledger.db"


def fill(path: Path, records: Sequence[Record]) -> None:
    with closing(SqliteLedger(path)) as ledger:
        ledger.append([encode(record) for record in records])


def run(path: Path, *arguments: str) -> Result:
    return neli("audit", f"sqlite://{path}", *arguments)


def test_a_summary_says_in_plain_words_and_json_in_numbers_what_the_group_did(path: Path) -> None:
    result = run(path)
    assert 0 == result.exit_code, result.output
    lines = result.stdout.splitlines()
    assert [f"sqlite:{path}", "exclusive, lease 6 s, 4 partitions; 16.5 s, from 1970-01-01T00:00:00+00:00"] == lines[:2]
    assert "SOUND  no promise was broken, as far as a ledger can tell" == lines[3]
    told = {line[:10].strip(): line[12:] for line in lines[5:13]}
    assert "2 names; 2 joined, 0 left, 0 certified dead, 1 expired, 0 replaced by a newer one" == told["members"]
    assert told["takeovers"].startswith("1, median 7.5 s, p90 7.5 s, longest 7.5 s (± ")
    assert told["overlaps"].startswith("not looked for")
    told = json.loads(run(path, "--output", "json").stdout)
    assert ("sound", ["alice", "bob"], 4, 6) == (told["verdict"], told["members"], told["moves"], told["least"])
    assert (1, 7.5) == (told["takeovers"]["count"], told["takeovers"]["median"])
    assert (None, 0, ["notes"]) == (told["overlaps"], told["noted"], [it["kind"] for it in told["findings"]])


def test_a_broken_promise_in_the_ledger_or_in_the_notes_ends_it_with_1(path: Path, tmp_path: Path) -> None:
    Notebook(tmp_path / "alice.1.notes").write(Acts(6.1, 13.0, {0: 1002}))
    Notebook(tmp_path / "bob.1.notes").write(Acts(12.5, 20.0, {0: 1020}))
    result = run(path, "--notes", str(tmp_path))
    assert (1, True) == (result.exit_code, "acted at the same time, 500.0 ms" in result.stdout), result.stdout
    fill(path, [Beat(by="b", sent_at=17.5, at=len(taken_over()) + 1, digest="0" * 16)])
    result = run(path)
    assert (1, True) == (result.exit_code, "BROKEN  a promise was broken\n" in result.stdout)
    assert "bob computed another table than these records give" in result.stdout


@pytest.mark.parametrize(("folder", "said"), [(".", "has another kind of line"), ("nowhere", "nowhere has no *.notes")])
def test_notes_that_are_none_are_refused(path: Path, tmp_path: Path, folder: str, said: str) -> None:
    (tmp_path / "diary.notes").write_text("dear diary\n", encoding="utf-8")
    result = run(path, "--notes", str(tmp_path / folder))
    assert (1, True) == (result.exit_code, said in result.stderr)


def test_a_report_and_tables_are_written_where_they_are_wanted(path: Path, tmp_path: Path) -> None:
    result = run(path, "--report", str(tmp_path / "report.html"), "--table", str(tmp_path / "tables"))
    assert (0, True) == (result.exit_code, f"written: {tmp_path / 'report.html'}\n" in result.stdout)
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    written = {it.name for it in (tmp_path / "tables").iterdir()}
    assert {"findings", "members", "moves", "takeovers", "tenures"} == written


def test_without_delta_the_error_names_it(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.delitem(sys.modules, "neli_router.status.audit_table", raising=False)
    result = run(path, "--table", str(tmp_path / "tables"))
    assert 2 == result.exit_code, result.output
    assert "deltalake was wanted, for Delta tables, but" in result.stderr


def test_a_ledger_that_is_not_there_is_not_made_and_one_without_a_group_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    assert (1, False) == (run(path).exit_code, path.exists())
    fill(path, [])
    result = run(path)
    assert (1, True) == (result.exit_code, "there is no Genesis among them" in result.stderr)
