"""The copy of a ledger has what members will trim away, and its history tells what counted from what did not."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from neli_router.errors import LedgerTrimmed
from neli_router.induction.records import Beat, Certify, Expire, Genesis, Handover, Join, Leave, Record, encode
from neli_router.keyspace import Layout
from neli_router.ledgers.base import Entry
from neli_router.ledgers.sqlite.ledger import SqliteLedger
from neli_router.processes.history import Departure, history_of
from tests.support.processes.ledger_copy import LedgerCopy

GENESIS = Genesis(by="a", layout=Layout(partitions=2), lease=1.0, guarantee="exclusive", base=1000, version=1)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    with closing(SqliteLedger(tmp_path / "ledger.db")) as opened:
        yield opened


def join(by: str, name: str, at: int) -> Join:
    return Join(by=by, name=name, versions=(1, 1), at=at)


def entries(*records: Record) -> list[Entry]:
    return [Entry(offset, encode(record)) for offset, record in enumerate(records, start=1)]


def test_it_reads_to_the_end_what_was_written_before_it_came_and_after(ledger: SqliteLedger, tmp_path: Path) -> None:
    payloads = [f"{number}".encode() for number in range(3000)]
    ledger.append(payloads[:10])
    with LedgerCopy(f"sqlite://{tmp_path / 'ledger.db'}") as copy:
        ledger.append(payloads[10:])
        kept = copy.close()
        assert payloads == [entry.payload for entry in kept]
        assert kept == copy.close()


def test_one_that_fell_behind_what_was_trimmed_says_so_in_the_end(ledger: SqliteLedger, tmp_path: Path) -> None:
    ledger.append([b"read"])
    copy = LedgerCopy(f"sqlite://{tmp_path / 'ledger.db'}")
    ledger.close()
    with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            connection.execute("INSERT INTO records (payload, checksum) VALUES (x'00', 0)")
        connection.execute("DELETE FROM records")
        connection.execute("COMMIT")
    with pytest.raises(LedgerTrimmed):
        copy.close()


def test_it_names_the_owner_under_every_term() -> None:
    history = history_of(
        entries(GENESIS, join("x", "m1", 2), join("y", "m2", 3), Handover(by="x", partition=1, term=1002))
    )
    assert {(0, 1002): "m1", (1, 1002): "m1", (1, 1004): "m2"} == history.owners


def test_only_departures_that_counted_are_told() -> None:
    history = history_of(
        entries(
            GENESIS,
            join("x", "m1", 2),
            join("y", "m2", 3),
            Beat(by="y", sent_at=0.0, at=3, digest="0" * 16),
            Expire(by="x", incarnation="y", last_beat=3),  # Void: there was a Beat since.
            Expire(by="x", incarnation="y", last_beat=4),
            join("z", "m1", 7),
            Leave(by="z"),
            join("w", "m3", 9),
            Certify(by="agent", incarnation="w"),
            Certify(by="agent", incarnation="w"),  # Void: once is enough.
            Leave(by="y"),  # Void: it is no member any more.
        )
    )
    expected = [Departure(6, "m2", Expire), Departure(7, "m1", Join), Departure(8, "m1", Leave)]
    expected += [Departure(10, "m3", Certify)]
    assert expected == history.departures
    assert ["m2"] == history.departed_by(Expire)
    assert ["m3"] == history.departed_by(Certify)
