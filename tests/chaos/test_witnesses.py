"""The witnesses of a storm: they must see a time without a leader, a refused write, and one that should have been
refused."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from neli_router.lab.referee import Life, Unled, judged
from neli_router.status.notes import Acts
from tests.chaos import report
from tests.chaos.fenced import FencedWriter, writes_in


@pytest.fixture
def fenced(tmp_path: Path) -> Path:
    path = tmp_path / "fence.db"
    FencedWriter.install(path)
    return path


def test_a_zombie_is_refused_what_its_successor_wrote_for_and_nothing_else(fenced: Path) -> None:
    with FencedWriter(fenced, "m1.1") as older, FencedWriter(fenced, "m2.1") as newer:
        assert ({0: 5, 1: 5}, {}) == older.write({0: 5, 1: 5})
        assert ({0: 9}, {}) == newer.write({0: 9})
        assert ({1: 5}, {0: 5}) == older.write({0: 5, 1: 5})
    assert (4, [("m1.1", 0, 5)], []) == writes_in(fenced)
    # A write that the fence let through wrongly is found.
    with closing(sqlite3.connect(fenced)) as connection, connection:
        connection.execute("INSERT INTO writes (partition, term, process) VALUES (0, 5, 'm1.1')")
    assert ["partition 0: m1.1 wrote under 5 after m2.1 under 9"] == writes_in(fenced).zombies


def test_who_finds_the_database_locked_writes_nothing_and_goes_on(fenced: Path) -> None:
    with FencedWriter(fenced, "m1.1") as writer, closing(sqlite3.connect(fenced, isolation_level=None)) as stopped:
        stopped.execute("BEGIN IMMEDIATE")
        assert ({}, {}) == writer.write({0: 5})
        stopped.execute("ROLLBACK")
        assert ({0: 5}, {}) == writer.write({0: 5})


def test_a_gap_is_a_time_in_which_no_process_acted() -> None:
    one, other = Life("a"), Life("b")
    for note in (Acts(1.0, 9.0, {0: 5}), Acts(12.0, 13.0, {0: 5})):
        one.hear(note)
    for note in (Acts(2.0, 3.0, {0: 7}), Acts(10.0, 11.0, {0: 7})):
        other.hear(note)
    verdict = judged([one, other])
    assert [Unled(0, 9.0, 10.0), Unled(0, 11.0, 12.0)] == verdict.unled
    assert "2 gaps, median 1.000 s, longest 1.000 s" in report.seen(verdict)
