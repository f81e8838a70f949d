"""The history of a ledger distinguishes records that counted from those that did not."""

from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.base import Entry
from neli_router.lab.moves import Departure, history_of
from neli_router.protocols.induction.records import (
    Beat,
    Certify,
    Expire,
    Genesis,
    Handover,
    Join,
    Leave,
    Record,
    encode,
)

GENESIS = Genesis(by="a", layout=Layout(partitions=2), lease=1.0, guarantee="exclusive", base=1000, version=2)


def join(by: str, name: str, at: int) -> Join:
    return Join(by=by, name=name, versions=(2, 2), at=at)


def entries(*records: Record) -> list[Entry]:
    return [Entry(offset, encode(record)) for offset, record in enumerate(records, start=1)]


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
            Expire(by="x", incarnation="y", last_beat=3),  # Void: there has been a Beat since.
            Expire(by="x", incarnation="y", last_beat=4),
            join("z", "m1", 7),
            Leave(by="z"),
            join("w", "m3", 9),
            Certify(by="agent", incarnation="w"),
            Certify(by="agent", incarnation="w"),  # Void: once is enough.
            Leave(by="y"),  # Void: it is not a member any longer.
        )
    )
    expected = [Departure(6, "m2", Expire), Departure(7, "m1", Join), Departure(8, "m1", Leave)]
    expected += [Departure(10, "m3", Certify)]
    assert expected == history.departures
    assert ["m2"] == history.departed_by(Expire)
    assert ["m3"] == history.departed_by(Certify)
