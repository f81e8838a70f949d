"""The inspection: what a reader learns about a group that it does not take part in."""

from contextlib import closing
from pathlib import Path

from neli_router import Config, Layout, Member
from neli_router.drivers.ledgers.base import Entry
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.protocols.induction.digest import digest_text
from neli_router.protocols.induction.records import Beat, Record, encode
from neli_router.protocols.induction.snapshots import snapshot
from neli_router.status.inspection import Inspection
from tests.support.records import beat, genesis, join
from tests.support.waiting import PATIENCE

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


class Overtaken(MemoryLedger):
    """Its group never stops writing. Before a read that is due, it drops what that read would return."""

    due = 0

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.group = MemoryLedger(log)

    def read(self, timeout: float) -> list[Entry]:
        if self.due:
            self.due -= 1
            self.group.append([encode(snapshot("a", Inspection(self.group).state))])
            self.group.trim(self.group.tip() - 1)
        self.group.append([encode(beat("a"))])
        return super().read(timeout)


def test_records_that_were_dropped_before_they_were_read_are_in_a_newer_snapshot() -> None:
    ledger = Overtaken(MemoryLog())
    ledger.append([encode(genesis(lease=1.0)), encode(join("a", "anna"))])
    ledger.due = 1
    found = Inspection(ledger)
    assert (0, ["anna"]) == (ledger.due, found.members)
    for ask in (lambda: found.living(PATIENCE), lambda: found.await_state(lambda state: not ledger.due, PATIENCE)):
        ledger.due = 1
        ledger.group.append([encode(beat("a"))])
        assert ask()
    assert Inspection(ledger.group).state.digest == found.state.digest
