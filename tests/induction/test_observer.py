"""Who only reads: it has the members' table, sends nothing of its own, and distrusts the ledger by the same signs."""

from math import inf
from typing import cast

import pytest
from msgspec.structs import replace

from neli_router.errors import Diverged, GroupMismatch, LedgerRewound, LedgerUnusable
from neli_router.induction.events import Acknowledged, Append, Away, Broken, Effect, Read, Recheck, Restart, Wish
from neli_router.induction.fold import State
from neli_router.induction.observer import Observer
from neli_router.induction.records import Drain, Record, Upgrade
from neli_router.protocol import NO_STANDING, TICK, Close, Notice, Released, Stopped
from tests.support.records import beat, folded, founded, genesis, join, table


def read(observer: Observer, *records: Record | None, now: float = 1.0) -> list[Effect]:
    at = observer.state.at
    entries = [(at + place, record) for place, record in enumerate(records)]
    return observer.step(Read(entries, inf if entries else 0.0), now)


def watching(*records: Record | None) -> Observer:
    """One that has read `records` after a genesis, and then nothing."""
    observer = Observer(State(), 0.0)
    assert [] == read(observer, genesis(), *records)
    assert [] == read(observer)
    return observer


def test_it_computes_the_members_table() -> None:
    assert "a@1001 a@1001 a@1001 a@1001" == table(watching(join("a")).state)


def test_it_may_act_for_nothing_and_wants_to_be_woken_for_nothing() -> None:
    observer = watching(join("a"))
    assert (NO_STANDING, {}, inf) == (observer.standing, observer.tenures(1.0), observer.deadline)


def test_it_reads_without_a_pause_until_it_was_at_the_tip_once() -> None:
    observer = Observer(State(), 0.0)
    read(observer, genesis())
    assert (False, -inf) == (observer.caught_up, observer.deadline)
    read(observer)
    assert (True, inf) == (observer.caught_up, observer.deadline)
    read(observer, join("a"))
    assert (True, inf) == (observer.caught_up, observer.deadline)


def test_it_knows_when_a_member_was_last_heard() -> None:
    observer = Observer(founded(join("a")), 5.0)
    assert 5.0 == observer.heard_at
    read(observer, Drain(by="operator", name="a"), None, beat("z"), now=7.0)
    assert 5.0 == observer.heard_at
    read(observer, beat("a", observer.state), now=9.0)
    assert 9.0 == observer.heard_at


def test_it_can_carry_a_wish_to_the_ledger() -> None:
    wish = Drain(by="operator", name="a")
    assert [Append([wish], lasting=True)] == watching().step(Wish(wish), 1.0)


def test_it_says_when_bytes_are_no_record() -> None:
    assert [Notice("record.skipped", {"offset": 2, "skipped": 1})] == read(watching(join("a")), None)


def test_unreadable_records_are_told_of_at_each_doubling_of_their_number() -> None:
    notices = read(watching(join("a")), *[None] * 9)
    assert [1, 2, 4, 8] == [cast("Notice", notice).fields["skipped"] for notice in notices]


def test_after_a_restart_it_has_to_catch_up_again() -> None:
    observer = watching(join("a"))
    state = replace(founded(join("b")), at=50)
    assert [Notice("observer.restarted", {"at": 50})] == observer.step(Restart(state), 2.0)
    assert (state, False, -inf) == (observer.state, observer.caught_up, observer.deadline)
    assert [] == read(observer, beat("b", state))
    odd = replace(beat("b"), at=50)
    *_, effect = read(observer, odd, odd)  # It compares with what the snapshot says.
    assert isinstance(effect, Stopped)


def test_an_outage_and_what_concerns_members_only_leave_it_alone() -> None:
    observer = watching(join("a"))
    before = observer.state
    for event in (TICK, Away(), Acknowledged([9]), Released({0: 1001})):
        assert [] == observer.step(event, 2.0)
    assert before is observer.state


SIGNS: dict[str, tuple[Effect | Read, type[Exception]]] = {
    "an offset that is not above the last": (Read([(1, None)]), LedgerRewound),
    "two beats of one who had read further": (Read([(i, replace(beat("a"), at=9)) for i in (3, 4)]), LedgerRewound),
    "a member's other table, of one member": (Read([(i, replace(beat("a"), at=3)) for i in (3, 4)]), Diverged),
}


@pytest.mark.parametrize("sign", SIGNS)
def test_it_ends_by_every_sign_that_the_ledger_cannot_be_trusted(sign: str) -> None:
    event, kind = SIGNS[sign]
    observer = watching(join("a"), beat("a"))
    assert isinstance(event, Read)
    (effect,) = [effect for effect in observer.step(event, 2.0) if not isinstance(effect, Notice | Recheck)]
    assert isinstance(effect, Stopped)
    assert kind is type(effect.error)
    assert effect.error is observer.error


@pytest.mark.parametrize("by", ["a", "z"])
def test_a_line_that_anyone_may_have_written_makes_it_look_and_go_on(by: str) -> None:
    observer = watching(join("a"), beat("a"))
    assert [Recheck()] == read(observer, replace(beat(by), at=9))
    assert [Recheck()] == read(observer, genesis(at=2))


def test_a_read_that_brings_the_last_records_there_are_ends_at_the_tip_without_an_empty_one() -> None:
    observer = Observer(State(), 0.0)
    read(observer, genesis(), join("a"))
    assert not observer.caught_up
    observer.step(Read([(observer.state.at, beat("a"))], 0.25), 2.0)
    assert observer.caught_up


def test_it_reads_nothing_behind_a_fault() -> None:
    observer = watching(join("a"))
    effects = observer.step(Read([(1, None), (2, None)]), 2.0)
    assert [Notice, Stopped] == [type(effect) for effect in effects]


def test_it_ends_when_the_ledger_cannot_be_used() -> None:
    error = LedgerUnusable("a ledger", "it is corrupt", "mend it")
    assert [Stopped(error)] == watching().step(Broken(error), 2.0)


def test_it_ends_when_the_group_moves_to_a_fold_that_it_does_not_know() -> None:
    (effect,) = read(watching(join("a", versions=(1, 2))), Upgrade(by="operator", version=2))
    assert isinstance(effect, Stopped)
    assert isinstance(effect.error, GroupMismatch)
    assert "version 2" in effect.error.found


def test_it_ends_when_it_is_told_to_and_says_nothing_more() -> None:
    observer = watching()
    assert [Stopped(None)] == observer.step(Close(), 2.0)
    assert [] == observer.step(Wish(Drain(by="operator", name="a")), 3.0)
    assert [] == read(observer, join("a"))


def test_a_void_record_is_read_as_well() -> None:
    assert folded(genesis(), beat("z")) == watching(beat("z")).state
