"""The benchmark of rolling restarts: what is counted as a move, as led and as served, and the figures it promises."""

from math import inf

import pytest

from benchmarks import restart
from benchmarks._crowd import settings_of
from benchmarks.restart import Claims, moves_of
from neli_router.drivers.ledgers.base import Entry
from neli_router.lab.referee import Life
from neli_router.protocols.induction.admission import genesis, join
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Leave, Record, encode
from neli_router.status.notes import Acts, Done
from tests.conftest import require
from tests.support.servers import kafka as kafka_servers

MINE, YOURS = settings_of(2, 4, 1.0)


def life(label: str, *notes: Acts | Done) -> Life:
    made = Life(label)
    for note in notes:
        made.hear(note)
    return made


def entries(*records: Record) -> list[Entry]:
    """The genesis is at offset 1."""
    founding = genesis(MINE, "founder", 0, 1)
    return [Entry(offset, encode(record)) for offset, record in enumerate([founding, *records], start=1)]


def test_a_partition_that_goes_to_another_name_and_back_has_moved_twice() -> None:
    ledger = entries(
        join(MINE, "a", State(at=2), "", 0),
        join(YOURS, "b", State(at=3), "", 0),
        Leave(by="a"),  # All four go to b.
        join(MINE, "a2", State(at=5), "", 0),
        Leave(by="b"),
    )
    assert {"moves": 8, "expired": 0, "left": 2} == moves_of(ledger, 1)
    assert {"moves": 4, "expired": 0, "left": 1} == moves_of(ledger, 5)


def test_a_partition_that_comes_back_to_its_name_has_not_moved() -> None:
    ledger = entries(
        join(MINE, "a", State(at=2), "", 0),
        join(MINE, "a2", State(at=3), "", 0),
        Leave(by="a2"),
        join(MINE, "a3", State(at=5), "", 0),
    )
    assert {"moves": 0, "expired": 0, "left": 1} == moves_of(ledger, 1)


def test_a_request_is_served_by_the_process_that_the_client_was_named_if_it_leads_then() -> None:
    claims = Claims([life("m1.1", Acts(1.0, 2.0, {0: 10})), life("m2.1", Acts(3.0, 5.0, {0: 11}))])
    assert 0.0 == claims.delay(0, 1.5, 9.0, lambda *_: "m1")
    assert pytest.approx(1.0, abs=0.011) == claims.delay(0, 2.0, 9.0, lambda _, at: "m1" if at < 2.5 else "m2")
    assert pytest.approx(1.5, abs=0.011) == claims.delay(0, 2.0, 9.0, lambda _, at: "m1" if at < 3.495 else "m2")
    assert pytest.approx(1.0, abs=0.011) == claims.delay(0, 2.0, 9.0, None)
    assert inf == claims.delay(0, 2.0, 9.0, lambda *_: None)
    assert inf == claims.delay(1, 2.0, 9.0, None)


def test_a_killed_process_serves_nothing_after_its_kill() -> None:
    killed = life("m1.1", Acts(1.0, 9.0, {0: 10}))
    killed.killed_at = 2.0
    claims = Claims([killed, life("m1.2", Acts(4.0, 9.0, {0: 11}))])
    assert [(0, 1.0, 2.0), (0, 4.0, 9.0)] == list(claims.all)
    assert pytest.approx(1.5, abs=0.011) == claims.delay(0, 2.5, 9.0, lambda *_: "m1")


def test_moves_of_consumers_are_changes_of_the_name() -> None:
    claims = Claims(
        [
            life("m1.1", Acts(1.0, 2.0, {0: 1, 1: 1})),
            life("m1.2", Acts(3.0, 4.0, {0: 3})),
            life("m2.1", Acts(3.0, 4.0, {1: 3})),
        ]
    )
    assert 1 == claims.moves(2.5)
    assert 0 == claims.moves(3.5)


@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_rolling_restart_is_measured_for_both_signals() -> None:
    figures = restart.run(restart.Options(members=2, partitions=8, every=0.0))
    assert {"expired@sigterm": 0, "left@kill": 0, "members": 2}.items() <= figures.items()
    for kind in ("sigterm", "kill"):
        assert {f"{name}@{kind}" for name in ("moves", "gap_s_max", "restart_s_max", "lost_percent")} <= figures.keys()
        assert figures[f"requests@{kind}"]


@pytest.mark.kafka
@pytest.mark.process
@pytest.mark.timeout(600)
def test_static_membership_of_kafka_is_measured_in_the_same_run() -> None:
    require(kafka_servers.missing())
    figures = restart.run(restart.Options(members=2, partitions=8, every=1.0, static=True))
    for kind in ("sigterm", "kill"):
        assert figures[f"requests@static-{kind}"]
        assert figures[f"moves@static-{kind}"] is not None
