"""The inspection: what a reader learns about a group that it does not take part in."""

from contextlib import closing
from pathlib import Path

from neli_router import Config, Layout, Member
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.protocols.induction.digest import digest_text
from neli_router.protocols.induction.records import Beat, Record, encode
from neli_router.status.inspection import Inspection
from tests.support.records import genesis, join

LEASE = 0.2


def config(path: Path, *, lease: float = LEASE) -> Config:
    return Config(f"sqlite://{path}/jobs.db", name="alice", lease=lease, layout=Layout(partitions=4))


def test_a_group_is_told_with_its_members_and_compared_with_a_configuration(tmp_path: Path) -> None:
    with closing(SqliteLedger(tmp_path / "jobs.db")) as ledger:
        found = Inspection(ledger)
        assert (False, None, [], 0) == (found.is_founded, found.lease, found.members, found.records)
        assert found.mismatch(config(tmp_path).settings()) is None
        with Member(config(tmp_path)) as member:
            assert member.pulse(60.0)
            found = Inspection(ledger)
            expected = (found.is_founded, found.lease, found.members, found.partitions, found.unowned)
            assert (True, LEASE, ["alice"], 4, 0) == expected
            assert [("alice", True)] == [(name, agrees) for name, (_, agrees) in found.digests.items()]
            assert found.mismatch(config(tmp_path).settings()) is None
            assert "lease 9 s here and 0.2 s there" in str(found.mismatch(config(tmp_path, lease=9.0).settings()))
            assert ("alice", None) == (found.living(10.0), found.living(LEASE, name="bob"))
        after = Inspection(ledger)
        assert ([], 4, None) == (after.members, after.unowned, after.living(2 * LEASE))


def beating(round_trips: dict[str, float], *, leases: int = 20) -> MemoryLedger:
    """A ledger with a lease of a second, whose members read their records back after these round trips."""
    log = MemoryLog()
    ledger = MemoryLedger(log)

    def write(record: Record) -> None:
        ledger.append([encode(record)])

    write(genesis(lease=1.0))
    for name in round_trips:
        write(join(name, at=log.tip))
    # A member's record is in the ledger half a round trip after sending, and is read after another half.
    acts = sorted(
        (number / 6 + trip / 2, name, number / 6) for number in range(6 * leases) for name, trip in round_trips.items()
    )
    written: list[float] = []
    first = log.tip
    for at, name, sent in acts:
        read = sum(there <= sent - round_trips[name] / 2 for there in written)
        write(Beat(by=name, sent_at=sent, at=first + read, digest=digest_text(0)))
        written.append(at)
    return ledger


def test_members_whose_beats_come_back_too_late_are_powerless_and_told_with_how_late() -> None:
    for round_trip in (0.02, 0.3, 0.5, 0.8):
        assert {} == Inspection(beating({"alice": round_trip, "bob": round_trip})).powerless
    assert not any(agrees for _, agrees in Inspection(beating({"alice": 0.02})).digests.values())
    for round_trip in (0.9, 0.95, 1.0, 1.7):
        found = Inspection(beating({"alice": 0.1, "bob": round_trip})).powerless
        assert ["bob"] == list(found)
        assert round_trip <= found["bob"] <= round_trip + 1 / 6 + 1e-9
    assert {} == Inspection(beating({"alice": 0.95}, leases=8)).powerless  # A few leases prove nothing.
