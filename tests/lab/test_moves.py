"""The history of a ledger distinguishes records that counted from those that did not."""

from neli_router.lab.moves import Departure, history_of
from neli_router.protocols.induction.records import Beat, Certify, Expire, Join, Leave, Record
from tests.support.audited import entries
from tests.support.records import expire, genesis, join


def test_only_departures_that_counted_are_told() -> None:
    records: list[Record] = [
        genesis(),
        join("x", "m1", at=2),
        join("y", "m2", at=3),
        Beat(by="y", sent_at=0.0, at=3, digest="0" * 16),
        expire("x", "y", 3),  # Void: there has been a Beat since.
        expire("x", "y", 4),
        join("z", "m1", at=7),
        Leave(by="z"),
        join("w", "m3", at=9),
        Certify(by="agent", incarnation="w"),
        Certify(by="agent", incarnation="w"),  # Void: once is enough.
        Leave(by="y"),  # Void: it is not a member any longer.
    ]
    history = history_of(entries(records, first=1))
    expected = [Departure(6, "m2", Expire), Departure(7, "m1", Join), Departure(8, "m1", Leave)]
    expected += [Departure(10, "m3", Certify)]
    assert expected == history.departures
    assert ["m2"] == history.departed_by(Expire)
    assert ["m3"] == history.departed_by(Certify)
