"""A member's promises to its program, on a clock that the tests turn."""

import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from neli_router import testing
from neli_router.errors import (
    BadKey,
    Closed,
    ConfigError,
    GroupMismatch,
    HandlerFailed,
    LeaseLost,
    LedgerUnavailable,
    NotLeading,
    Replaced,
)
from neli_router.member.barrier import Period
from neli_router.member.member import Member
from neli_router.member.membership import Lease, why_not
from neli_router.member.wishes import NEWEST
from neli_router.protocols.induction.records import encode
from neli_router.protocols.protocol import Acquired, Event, Fenced, Revoked, Standby
from neli_router.testing import Group
from tests.support.records import genesis, join


def one_of(member: Member) -> int:
    """A partition that `member` leads; its number is also a role that belongs to it."""
    return min(member.led)


def names(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def test_a_lease_says_what_it_is_for_and_a_role_is_the_number_of_a_partition_or_a_key(group: Group) -> None:
    assert set(range(8)) == group["a"].led.keys() | group["b"].led.keys()
    assert not group["a"].led.keys() & group["b"].led.keys()
    role = one_of(group["a"])
    with group["a"].leading(role) as lease:
        assert (role, role, "a", group["a"].led[role]) == (lease.role, lease.partition, lease.member, lease.term)
        assert 0.8 < lease.remaining() < 1.001
        assert (True, False) == (lease.holds(), bool(lease.revoked))
    with pytest.raises(BadKey, match="from 0 to 7, but this number is none of them"):
        group["a"].lease(role + 8)
    owner = group.owner("nightly")
    assert owner is not None
    named = group[owner].lease("nightly")
    assert named is not None
    assert group["a"].layout.partition("nightly") == named.partition
    assert group["b" if owner == "a" else "a"].lease("nightly") is None


def test_a_block_whose_lease_was_lost_says_so_at_its_end_unless_it_fails_by_itself(group: Group) -> None:
    def work(fails: bool) -> None:
        with group["a"].leading(role):
            group.cut("a")
            group.advance(1.5)
            if fails:
                raise ZeroDivisionError

    role = one_of(group["a"])
    expected = (
        rf"the lease of partition {role} under term \d+ was needed, but it was lost 0\.\d+ s ago: "
        "no Beat of this member came back for 1 s: stop this work now"
    )
    with pytest.raises(LeaseLost, match=expected):
        work(fails=False)
    group.heal("a")
    group.settle()
    with pytest.raises(ZeroDivisionError):
        work(fails=True)


def test_a_stopped_process_finds_its_lease_over_at_the_first_question_and_comes_back_under_a_new_identity(
    group: Group,
) -> None:
    lease, before = group["a"].lease(one_of(group["a"])), group["a"].incarnation
    assert lease is not None
    same = group["a"].lease(lease.partition)
    assert same is not None
    assert [(lease.term, 1), (lease.term, 2), (lease.term, 3)] == [lease.next(), same.next(), lease.next()]
    group.pause("a")
    group.advance(60.0)
    assert (False, 0.0) == (lease.holds(), lease.remaining())
    with pytest.raises(LeaseLost, match=r"it ended 59\.\d+ s ago, no heartbeat of a having come back in time"):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.next()
    group.resume("a")
    group.settle()
    assert before != group["a"].incarnation
    assert ["Acquired", "Fenced", "Acquired"] == names(group.told["a"])


def test_not_leading_says_why_in_its_own_words_for_every_reason_and_a_longer_wait_does_so_in_the_log(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    other = one_of(group["b"])
    term = group["b"].led[other]
    expected = f"member a was to lead partition {other} within 2 s, but b owns it under term {term}: wait longer"
    with pytest.raises(NotLeading, match=expected):
        group["a"].leading(other, timeout=2.0).__enter__()
    with pytest.raises(ConfigError, match=r"timeout=-1 must be at least 0 seconds, or None to wait"):
        group["a"].leading(other, timeout=-1).__enter__()
    lines = [record.getMessage() for record in caplog.records if "leading.waits" in record.getMessage()]
    assert [f"leading.waits member=a partition={other} why='b owns it under term {term}'"] == lines
    state, me = group["a"].state, group["a"].incarnation
    mine, theirs = one_of(group["a"]), one_of(group["b"])
    assert [
        "the ledger is out of reach (the disk is full)",
        "this member is not admitted to the group yet: it must first read along for the length of a lease",
        "this member owns it, and its handler of events is busy with others",
        "this member owns it, and waits for its own heartbeat, or for the end of its predecessor's lease",
        f"b owns it under term {state.terms[theirs]}",
        f"b owns it under term {state.terms[theirs]}, and is to give it to this member",
    ] == [
        why_not(state, me, mine, None, "the disk is full"),
        why_not(state, "a stranger", mine, None, ""),
        why_not(state, me, mine, Period(mine, 7), ""),
        why_not(state, me, mine, None, ""),
        why_not(state, me, theirs, None, ""),
        why_not(replace(state, targets=(me,) * 8), me, theirs, None, ""),
    ]


def test_a_member_is_ready_once_it_leads_its_share_and_a_partition_is_led_once_its_handler_has_returned() -> None:
    with testing.group("a", partitions=2, lease=1.0, drain_timeout=60.0) as group:
        with pytest.raises(NotLeading, match=r"was to lead its share within 0\.1 s, but this member (is not|owns it)"):
            group["a"].wait_ready(0.1)
        group["a"].wait_ready()
        assert {0, 1} == group["a"].led.keys()
        b, c = group.join("b"), group.join("c")
        with group["a"].leading(0), group["a"].leading(1), pytest.raises(NotLeading, match="a owns it under term"):
            b.wait_ready(5.0)
        b.wait_ready()
        c.wait_ready()
        assert [1, 1, 0] == [len(member.led) for member in (group["a"], b, c)]
        c.close()
        with pytest.raises(Closed):
            c.wait_ready()

    def prepare(event: Event) -> None:
        if isinstance(event, Acquired):
            during.append((group["a"].lease(0), dict(group["a"].led)))
            with pytest.raises(NotLeading, match="its handler of Acquired has not returned"):
                group["a"].leading(0, timeout=0.1).__enter__()
            group.advance(0.5)

    during: list[tuple[Lease | None, dict[int, int]]] = []
    with testing.group("a", partitions=1, on_event={"a": prepare}) as group, group["a"].leading(0) as lease:
        assert ([(None, {})], True) == (during, lease.holds())


def test_mine_are_the_keys_whose_lease_holds(group: Group) -> None:
    keys: list[str | bytes] = [*map(str, range(20)), "Zoë", b"\xff", "{tag}"]
    for member in (group["a"], group["b"]):
        assert [key for key in keys if member.lease(key)] == member.mine(keys) == member.mine(iter(keys))
    assert sorted(map(repr, keys)) == sorted(map(repr, group["a"].mine(keys) + group["b"].mine(keys)))
    with pytest.raises(BadKey):
        group["a"].mine("key")
    group.pause("a")
    group.advance(1.5)
    assert [] == group["a"].mine(keys)
    group.resume("a")
    group["a"].close()
    with pytest.raises(Closed):
        group["a"].mine(keys)


def test_the_changes_are_what_is_led_now_and_after_each_change_until_the_member_ends(group: Group) -> None:
    changes, before = group["a"].changes(), group["a"].led
    assert before == next(changes)
    group["b"].close()
    group.settle()
    after = next(changes)
    assert ({*range(8)}, True) == ({*after}, before.items() <= after.items())
    group["a"].close()
    assert [] == list(changes)


def test_a_pulse_says_whether_it_leads_waits_no_longer_than_told_and_ends_as_soon_as_it_leads(group: Group) -> None:
    mine, other, began = one_of(group["a"]), one_of(group["b"]), group.now
    assert group["a"].pulse(10.0, role=mine)
    assert began == group.now
    assert not group["a"].pulse(2.0, role=other)
    assert group.now == pytest.approx(began + 2.0)
    began = group.now
    group.kill("b")
    assert group["a"].pulse(100.0, role=other)
    assert 1.0 < group.now - began < 2.1


def test_a_successor_waits_for_the_handler_and_for_the_blocks_which_a_revocation_wakes(group: Group) -> None:
    with group["a"].leading(one_of(group["a"])) as lease:
        assert not lease.revoked.wait(0.5)
        group["a"].operator.drain("a")
        assert lease.revoked.wait(5.0)
        group.advance(3.0)
        assert (True, True) == (bool(lease.revoked), lease.holds())
        assert group.owner(lease.partition) == "a"
        assert group["a"].lease(lease.partition) is None
    group.advance(0.1)
    assert group.owner(lease.partition) == "b"
    assert not lease.holds()


def test_after_the_drain_timeout_the_program_is_fenced_before_anybody_else_leads() -> None:
    def slow(event: Event) -> None:
        heard.append((group.now, "a", type(event).__name__))
        if isinstance(event, Revoked):
            group.advance(20.0)

    def other(event: Event) -> None:
        heard.append((group.now, "b", type(event).__name__))

    heard: list[tuple[float, str, str]] = []
    with testing.group("a", partitions=1, drain_timeout=5.0, on_event={"a": slow}) as group:
        group.settle()
        group.join("b", on_event=other)
        group["a"].operator.drain("a")
        group.settle()
    (_, *first), (revoked_at, *second), (fenced_at, *third), (acquired_at, *fourth) = heard
    assert [["a", "Acquired"], ["a", "Revoked"], ["a", "Fenced"], ["b", "Acquired"]] == [first, second, third, fourth]
    assert 5.0 == pytest.approx(fenced_at - revoked_at)
    assert fenced_at <= acquired_at < fenced_at + 0.1


def test_a_handler_that_raises_ends_the_member_also_while_it_closes_and_frees_its_partitions_at_once() -> None:
    def broken(event: Event) -> None:
        if isinstance(event, Revoked):
            raise KeyError("customer-7")
        if isinstance(event, Fenced):
            raise ZeroDivisionError  # The first failure counts.

    with testing.group("a", "b", partitions=8, on_event={"a": broken}) as group:
        group.settle()
        began = group.now
        with pytest.raises(KeyError):
            group["b"].operator.drain("a")
        with pytest.raises(ZeroDivisionError):
            group.settle()
        group.settle()
        assert (set(range(8)), True) == (set(group["b"].led), group.now - began < 1.1)
        assert ["Acquired", "Revoked", "Fenced"] == names(group.told["a"])
        with pytest.raises(HandlerFailed, match="handler of Revoked was to return, but it raised KeyError") as raised:
            group["a"].lease(0)
        assert isinstance(raised.value.__cause__, KeyError)
        assert "customer-7" not in str(raised.value)

    def failing(event: Event) -> None:
        if isinstance(event, Revoked):
            raise ZeroDivisionError

    with testing.group("a", partitions=1, on_event={"a": failing}) as group:
        group.settle()
        with pytest.raises(ZeroDivisionError):
            group["a"].close()
        with pytest.raises(HandlerFailed, match="handler of Revoked was to return"):
            group["a"].wait(timeout=5.0)


def test_closing_hands_over_at_once_and_moves_no_other_partitions() -> None:
    with testing.group("a", "b", "c", partitions=9) as group:
        group.settle()
        kept, began = {name: dict(group[name].led) for name in "bc"}, group.now
        group["a"].close()
        group.settle()
        assert group.now - began < 0.1
        for name, terms in kept.items():
            assert terms.items() <= group[name].led.items()
        assert ["Acquired", "Revoked"] == names(group.told["a"])
        assert (True, None) == (group["a"].closed, group["a"].error)
        assert group["a"].wait()


def test_closing_in_a_block_takes_effect_when_the_block_has_ended_and_everything_else_then_raises(group: Group) -> None:
    member = group["a"]
    with member.leading(one_of(member)) as lease:
        member.close()
        assert (False, True) == (member.closed, lease.holds())
        with pytest.raises(Closed, match="it is being closed"):
            member.pulse(0.0)
    assert member.wait()
    member.close()  # Closing twice is fine.
    calls = (lambda: member.lease(0), lambda: member.pulse(0.0), lambda: member.operator.drain("a"))
    for call in (*calls, member.leading(0).__enter__):
        with pytest.raises(Closed, match="member a was needed, but it was closed before"):
            call()


def test_a_member_that_was_never_admitted_just_stops_and_a_wish_waits_for_the_founding_of_the_group() -> None:
    with testing.group("a", partitions=2) as group:
        group.settle()
        group.join("b")
        group["b"].close()
        assert (True, 0) == (group["b"].closed, len(group.told["b"]))
        assert ["a"] == [peer.name for peer in group.router.members]
    with testing.group("a", partitions=2) as group:
        group["a"].operator.drain("b")
        assert ["b"] == list(group["a"].state.drains)


def test_a_member_that_cannot_reach_the_ledger_stops_trying_after_a_lease(group: Group) -> None:
    group.cut("a")
    with pytest.raises(
        LedgerUnavailable, match=r"a drain of b was to be read back within 3 s, but .* the test has cut"
    ):
        group["a"].operator.drain("b", timeout=3.0)
    began = group.now
    group["a"].close()
    assert (True, True) == (group["a"].closed, group.now - began < 2.5)


def test_what_is_wished_for_is_done_and_outlives_a_restart(group: Group) -> None:
    group["a"].operator.pin(3, "b")
    group["a"].operator.weigh("b", 0)
    group.settle()
    assert ({3}, {3: "b"}, {"b": 0}) == (set(group["b"].led), group["a"].state.pins, group["a"].state.weights)
    group.restart("b")
    group.settle()
    assert {3} == set(group["b"].led)
    group["a"].operator.weigh("b", None)
    group["a"].operator.pin(3, None)
    group["b"].operator.drain("a")
    group.settle()
    assert (8, ["a"]) == (len(group["b"].led), list(group["b"].state.drains))
    group["a"].operator.drain("a", undo=True)
    group.settle()
    assert 4 == len(group["a"].led)
    group["a"].operator.load({0: 2.5, 1: 0})
    assert {0: 2.5} == group["a"].state.loads


def test_an_upgrade_waits_until_the_last_member_that_does_not_know_the_version_is_gone() -> None:
    with testing.group(partitions=2) as group:
        older = join("old", address="host:1", versions=(NEWEST - 1, NEWEST - 1))
        founded = genesis(version=NEWEST - 1, lease=1.0, layout=group.config.layout)
        group.log.append([encode(founded), encode(older)])
        group.join("a")
        found = rf"1 of 2 members do not know it: old at host:1 \(knows {NEWEST - 1}\): restart each of them"
        with pytest.raises(GroupMismatch, match=found):
            group["a"].operator.upgrade(timeout=1.5)
        assert ["old", "a"] == [seat.name for seat in group["a"].state.seats.values()]
        group["a"].operator.upgrade()
        assert (NEWEST, 1) == (group["a"].state.version, len(group["a"].state.seats))


def test_a_wish_for_a_name_that_no_member_has_waits_for_one_and_says_so(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    group["a"].operator.pin(3, "c")
    group["a"].operator.pin(4, "b")
    group["a"].operator.drain("c", undo=True)  # Taking back a wish for an absent member needs no wait.
    group.settle()
    waits = [record.getMessage() for record in caplog.records if "wish.waits" in record.getMessage()]
    assert ["wish.waits_for_member member=a wish='a pin of partition 3 to c' name=c"] == waits
    group.join("c")
    group.settle()
    assert 3 in group["c"].led


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (lambda to: to.drain(""), "a member's name must be printable text of 1 to 256 characters, got ''"),
        (lambda to: to.drain("a\n", undo=True), "printable"),
        (lambda to: to.pin(8, "b"), "there is no partition 8: they count from 0 to 7"),
        (lambda to: to.pin(True, ""), "from 0 to 7; a member's name must be"),
        (lambda to: to.pin("3", None), "there is no partition '3'"),
        (lambda to: to.weigh("b", 1.5), "weight=1.5 must be a whole number from 0 to 1000000, or None"),
        (lambda to: to.load({0: -1.0}), "the load of partition 0 must be a number from 0 to"),
        (lambda to: to.load({0: float("nan")}), "got nan"),
    ],
)
def test_a_wish_that_no_member_could_read_is_refused(group: Group, wish: Callable[[Any], None], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        wish(group["a"].operator)


def test_a_newcomer_takes_a_name_from_a_living_member_if_it_is_told_to(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    group.join("twin", name="a", address="host:2", replace=True)
    with caplog.at_level(logging.WARNING):
        group.settle()
    with pytest.raises(Replaced, match="a newer process joined under that name from host:2"):
        group["a"].wait()
    for call in (lambda: group["a"].lease(0), lambda: group["a"].pulse(0.0), lambda: group["a"].operator.drain("a")):
        with pytest.raises(Replaced):
            call()
    assert "Fenced" in names(group.told["a"])
    assert {"a", "b"} == {peer.name for peer in group["twin"].router.members}
    assert (None, 4) == (group["twin"].error, len(group["twin"].led))
    assert any("member.replaces member=a name=a" in record.getMessage() for record in caplog.records)


def test_no_key_stands_in_a_repr_or_an_error(group: Group) -> None:
    role = next(f"customer-{number}" for number in range(20) if group.owner(f"customer-{number}") == "a")
    lease = group["a"].lease(role)
    assert lease is not None
    with pytest.raises(NotLeading) as raised:
        group["b"].leading(role, timeout=0.5).__enter__()
    group.pause("a")
    group.advance(2.0)
    for text in (repr(lease), repr(lease.revoked), str(lease.lost()), str(raised.value), repr(group["a"])):
        assert "customer" not in text


def test_a_member_says_how_it_is_and_cannot_be_pickled(group: Group) -> None:
    assert "<Member a: 4 of 8 partitions>" == repr(group["a"])
    with pytest.raises(TypeError, match="this process's place in the group"):
        pickle.dumps(group["a"])
    group["a"].close()
    assert "<Member a: closed>" == repr(group["a"])
    group.kill("b")
    assert "<Member b: void>" == repr(group["b"])


def test_a_lost_zone_goes_to_the_members_that_stood_by_for_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "neli_router"), testing.group(partitions=12, lease=1.0) as group:
        for name in "abc":
            group.join(name, zone=f"rack-{name}")
        group.settle()
        led, stood_by = group["a"].led.keys(), {name: group[name].standby for name in "abc"}
        assert list(range(12)) == sorted(partition for each in stood_by.values() for partition in each)
        assert all(stood_by[name].isdisjoint(group[name].led) for name in "abc")
        group.kill("a")
        group.settle()
        assert all(stood_by[name] & led == group[name].led.keys() & led for name in "bc")
        for name in "bc":
            stands_by = Standby(tuple(sorted(group[name].standby)))
            assert stands_by == [event for event in group.told[name] if isinstance(event, Standby)][-1]
        group["b"].close()
        assert frozenset() == group["b"].standby
    events = [getattr(record, "fields", {}) for record in caplog.records if "leader.standby" in record.getMessage()]
    assert {"partitions", "count"} <= events[0].keys()
