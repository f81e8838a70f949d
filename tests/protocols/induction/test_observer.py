"""The observer has the members' table, sends nothing of its own, and distrusts the ledger at the same signs."""

from math import inf

import pytest
from msgspec.structs import replace

from neli_router.errors import Diverged, GroupMismatch, LedgerRewound, LedgerUnusable
from neli_router.protocols.induction.events import (
    Acknowledged,
    Append,
    Effect,
    LedgerAway,
    LedgerBroken,
    Read,
    Recheck,
    Restart,
    Wish,
)
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.observer import Observer
from neli_router.protocols.induction.records import Drain, Record, Upgrade
from neli_router.protocols.protocol import NO_STANDING, TICK, Close, Notice, Released, Stopped
from tests.support.records import beat, folded, founded, genesis, join


def read(observer: Observer, *records: Record | None, now: float = 1.0) -> list[Effect]:
    at = observer.state.at
    entries = [(at + place, record) for place, record in enumerate(records)]
    return observer.step(Read(entries, inf if entries else 0.0), now)


def watching(*records: Record | None) -> Observer:
    """An observer that has read `records` after a genesis, and then nothing."""
    observer = Observer(State(), 0.0)
    assert [] == read(observer, genesis(), *records)
    assert [] == read(observer)
    return observer


def test_it_computes_the_members_table_may_act_for_nothing_and_knows_when_a_member_was_last_heard() -> None:
    observer = watching(join("a"), beat("z"))
    assert folded(genesis(), join("a"), beat("z")) == observer.state
    assert (NO_STANDING, {}, inf) == (observer.standing, observer.tenures(1.0), observer.deadline)
    observer = Observer(founded(join("a")), 5.0)
    assert 5.0 == observer.heard_at
    read(observer, Drain(by="operator", name="a"), None, beat("z"), now=7.0)
    assert 5.0 == observer.heard_at
    read(observer, beat("a", observer.state), now=9.0)
    assert 9.0 == observer.heard_at


def test_it_reads_without_a_pause_up_to_the_tip_and_tells_of_unreadable_records_at_each_doubling() -> None:
    observer = Observer(State(), 0.0)
    read(observer, genesis())
    assert (False, -inf) == (observer.caught_up, observer.deadline)
    read(observer)
    assert (True, inf) == (observer.caught_up, observer.deadline)
    read(observer, join("a"))
    assert (True, inf) == (observer.caught_up, observer.deadline)
    observer = Observer(State(), 0.0)
    observer.step(Read([(0, genesis())], 0.25), 2.0)
    assert observer.caught_up, "a read that brings the last records there are ends at the tip"
    told = [(2, 1), (3, 2), (5, 4), (9, 8)]
    assert [Notice("record.skipped", {"offset": offset, "skipped": skipped}) for offset, skipped in told] == read(
        watching(join("a")), *[None] * 9
    )


def test_after_a_restart_it_has_to_catch_up_again_it_carries_wishes_and_ends_when_it_is_told_to() -> None:
    observer = watching(join("a"))
    state = replace(founded(join("b")), at=50)
    assert [Notice("observer.restarted", {"at": 50})] == observer.step(Restart(state), 2.0)
    assert (state, False, -inf) == (observer.state, observer.caught_up, observer.deadline)
    assert [] == read(observer, beat("b", state))
    odd = replace(beat("b"), at=50)
    *_, effect = read(observer, odd, odd)  # It compares them with the snapshot.
    assert isinstance(effect, Stopped)
    observer = watching(join("a"))
    before, wish = observer.state, Drain(by="operator", name="a")
    for event in (TICK, LedgerAway(), Acknowledged([9]), Released({0: 1001})):
        assert [] == observer.step(event, 2.0)
    assert [Append([wish], lasting=True)] == observer.step(Wish(wish), 2.0)
    assert before is observer.state
    assert [Stopped(None)] == observer.step(Close(), 2.0)
    assert [] == observer.step(Wish(wish), 3.0)
    assert [] == read(observer, join("a"))


SIGNS: dict[str, tuple[list[tuple[int, Record | None]], type[Exception]]] = {
    "an offset that is not above the last, and none behind it": ([(1, None), (2, None)], LedgerRewound),
    "two beats of one who had read further": ([(i, replace(beat("a"), at=9)) for i in (3, 4)], LedgerRewound),
    "a member's other table, of one member": ([(i, replace(beat("a"), at=3)) for i in (3, 4)], Diverged),
}


@pytest.mark.parametrize(("entries", "kind"), SIGNS.values(), ids=SIGNS)
def test_it_ends_by_every_sign_that_the_ledger_cannot_be_trusted(
    entries: list[tuple[int, Record | None]], kind: type[Exception]
) -> None:
    observer = watching(join("a"), beat("a"))
    notices = [effect for effect in observer.step(Read(entries), 2.0) if effect != Recheck()]
    stopped = notices.pop()
    assert isinstance(stopped, Stopped)
    assert kind is type(stopped.error)
    assert stopped.error is observer.error
    assert len(notices) == (entries[0][0] == 1)


@pytest.mark.parametrize("by", ["a", "z"])
def test_a_line_that_anyone_may_have_written_makes_it_look_and_go_on(by: str) -> None:
    observer = watching(join("a"), beat("a"))
    assert [Recheck()] == read(observer, replace(beat(by), at=9))
    assert [Recheck()] == read(observer, genesis(at=2))


def test_it_ends_when_the_ledger_cannot_be_used_or_the_group_moves_to_a_fold_that_it_does_not_know() -> None:
    error = LedgerUnusable("a ledger", "it is corrupt", "mend it")
    assert [Stopped(error)] == watching().step(LedgerBroken(error), 2.0)
    (effect,) = read(watching(join("a", versions=(2, 9))), Upgrade(by="operator", version=9))
    assert isinstance(effect, Stopped)
    assert isinstance(effect.error, GroupMismatch)
    assert "version 9" in effect.error.found
    # One that ends before it knows the group has no table of it to show.
    records: list[Record] = [genesis(), join("a", versions=(2, 9)), Upgrade(by="operator", version=9)]
    newcomer = Observer(State(), 0.0)
    assert [Stopped] == [type(one) for one in newcomer.step(Read([*enumerate(records, 1)], 0.0), 1.0)]
    assert not newcomer.caught_up
