"""The replay: where it may start, and what it says of a record whose place is not known."""

import pytest
from msgspec.structs import replace

from neli_router.drivers.ledgers.base import Entry
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Handover, Leave, Record, Snapshot, encode
from neli_router.protocols.induction.snapshots import BadSnapshot, snapshot
from neli_router.status.replay import Transition, beginning, step
from tests.support.records import beat, folded, genesis, join

PAIR = (genesis(), join("a", "alice"), join("b", "bob"), Handover(by="a", terms={1: 1001}))


def entries(*records: Record | bytes | None, first: int = 0) -> list[Entry]:
    payloads = [encode(it) if isinstance(it, Record) else it or b"junk" for it in records]
    return [Entry(offset, payload) for offset, payload in enumerate(payloads, start=first)]


def test_it_starts_from_the_first_record_or_a_whole_snapshot_and_before_that_a_record_changes_nothing() -> None:
    state = folded(*PAIR)
    good = snapshot("a", state)
    assert isinstance(good, Snapshot)
    assert State() == beginning(entries(beat("a"), first=1))
    assert State() == beginning(entries(beat("a"), genesis(), first=9))
    assert beginning(entries(beat("a"), good, first=5)) is None  # It covers the records below 4: that at 4 is missing.
    assert state == beginning(entries(beat("a"), good, first=4))
    forged = Snapshot(by="a", state=replace(good.state, digest=16 * "0"), upto=4)
    with pytest.raises(BadSnapshot):
        beginning(entries(beat("a"), forged, first=4))
    state = folded(*PAIR)
    late = step(state, entries(Leave(by="b"), first=3)[0])
    for change in (late, step(None, entries(Leave(by="b"), first=4)[0])):
        assert (False, "leave", [], []) == (change.is_known, change.kind, change.gone, change.moved)
    assert step(state, entries(Leave(by="b"), first=4)[0]) == Transition.of(state, 4, Leave(by="b"))
