"""A member's promises to its program, on a clock that the tests turn."""

import logging
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from neli_router import testing
from neli_router.core.keyspace import Role
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


def held(member: Member, role: Role) -> Lease:
    lease = member.lease(role)
    assert lease is not None
    return lease


def names(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def calls(member: Member) -> list[Callable[[], object]]:
    return [lambda: member.lease(0), lambda: member.pulse(0.0), lambda: member.operator.drain("a")]


def test_a_lease_says_what_it_is_for_and_a_role_is_the_number_of_a_partition_or_a_key(group: Group) -> None:
    assert [*range(8)] == sorted([*group["a"].led, *group["b"].led])
    role = one_of(group["a"])
    with group["a"].leading(role) as lease:
        assert (role, role, "a", group["a"].led[role]) == (lease.role, lease.partition, lease.member, lease.term)
        assert 0.8 < lease.remaining() < 1.001
        assert (True, False) == (lease.holds(), bool(lease.revoked))
    with pytest.raises(BadKey, match="from 0 to 7, but this number is none of them"):
        group["a"].lease(role + 8)
    owner = group.owner("nightly")
    assert owner is not None
    assert group["a"].layout.partition("nightly") == held(group[owner], "nightly").partition
    assert group["b" if owner == "a" else "a"].lease("nightly") is None


def test_a_block_whose_lease_was_lost_says_so_at_its_end_unless_it_fails_by_itself(group: Group) -> None:
    role = one_of(group["a"])
    expected = (
        rf"the lease of partition {role} under term \d+ was needed, but it was lost 0\.\d+ s ago: "
        "no Beat of this member came back for 1 s: stop this work now"
    )
    with pytest.raises(LeaseLost, match=expected), group["a"].leading(role):  # noqa: PT012 - its end raises it.
        group.cut("a")
        group.advance(1.5)
    group.heal("a")
    group.settle()
    with pytest.raises(ZeroDivisionError), group["a"].leading(role):  # noqa: PT012 - as above.
        group.cut("a")
        group.advance(1.5)
        raise ZeroDivisionError


def test_a_stopped_process_finds_its_lease_over_and_comes_back_under_a_new_identity(group: Group) -> None:
    role, before = one_of(group["a"]), group["a"].incarnation
    lease, same = held(group["a"], role), held(group["a"], role)
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


def test_not_leading_says_why_and_a_longer_wait_logs_it(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    mine, theirs = one_of(group["a"]), one_of(group["b"])
    why = f"b owns it under term {group['b'].led[theirs]}"
    with pytest.raises(NotLeading, match=f"member a was to lead partition {theirs} within 2 s, but {why}: wait longer"):
        group["a"].leading(theirs, timeout=2.0).__enter__()
    with pytest.raises(ConfigError, match=r"timeout=-1 must be at least 0 seconds, or None to wait"):
        group["a"].leading(theirs, timeout=-1).__enter__()
    lines = [line for line in caplog.messages if "leading.waits" in line]
    assert [f"leading.waits member=a partition={theirs} why='{why}'"] == lines
    state, me = group["a"].state, group["a"].incarnation
    assert [
        "the ledger is out of reach (the disk is full)",
        "this member is not admitted to the group yet: it must first read along for the length of a lease",
        "this member owns it, and its handler of events is busy with others",
        "this member owns it, and waits for its own heartbeat, or for the end of its predecessor's lease",
        why,
        f"{why}, and is to give it to this member",
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

    during: list[object] = []
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
    assert (8, True) == (len(after), before.items() <= after.items())
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


def test_after_the_drain_timeout_the_program_is_fenced_before_anybody_else_leads() -> None:
    def handle(name: str, event: Event) -> None:
        heard.append(f"{name} {type(event).__name__}")
        times.append(group.now)
        if isinstance(event, Revoked):
            group.advance(20.0)

    heard, times = list[str](), list[float]()
    with testing.group("a", partitions=1, drain_timeout=5.0, on_event={"a": partial(handle, "a")}) as group:
        group.settle()
        group.join("b", on_event=partial(handle, "b"))
        group["a"].operator.drain("a")
        group.settle()
    assert ["a Acquired", "a Revoked", "a Fenced", "b Acquired"] == heard
    _, revoked_at, fenced_at, acquired_at = times
    assert 5.0 == pytest.approx(fenced_at - revoked_at)
    assert fenced_at <= acquired_at < fenced_at + 0.1


@pytest.mark.parametrize("ask", [lambda group: group["b"].operator.drain("a"), lambda group: group["a"].close()])
def test_a_handler_that_raises_ends_the_member_and_frees_its_partitions_at_once(ask: Callable[[Group], None]) -> None:
    def broken(event: Event) -> None:
        if isinstance(event, Revoked):
            raise KeyError("customer-7")
        if isinstance(event, Fenced):
            raise ZeroDivisionError  # The first failure counts.

    with testing.group("a", "b", partitions=8, on_event={"a": broken}) as group:
        group.settle()
        began = group.now
        with pytest.raises(KeyError):
            ask(group)
        with pytest.raises(ZeroDivisionError):
            group.settle()
        group.settle()
        assert (set(range(8)), True) == (set(group["b"].led), group.now - began < 1.1)
        assert ["Acquired", "Revoked", "Fenced"] == names(group.told["a"])
        for call in (lambda: group["a"].lease(0), lambda: group["a"].wait(timeout=5.0)):
            with pytest.raises(HandlerFailed, match="of Revoked was to return, but it raised KeyError") as raised:
                call()
            assert isinstance(raised.value.__cause__, KeyError)
            assert "customer-7" not in str(raised.value)


def test_closing_in_a_block_hands_over_when_the_block_has_ended_and_everything_else_then_raises(group: Group) -> None:
    """As in the handler of a signal, which runs on top of the block that `close` would wait for."""
    member, kept, began = group["a"], group["b"].led, group.now
    with member.leading(one_of(member)) as lease:
        member.close()
        assert (False, True) == (member.closed, lease.holds())
        with pytest.raises(Closed, match="it is being closed"):
            member.pulse(0.0)
    assert (True, True, None) == (member.wait(), member.closed, member.error)
    group.settle()
    assert (8, True) == (len(group["b"].led), group.now - began < 0.1)
    assert kept.items() <= group["b"].led.items()
    member.close()  # Closing twice is fine.
    for call in (*calls(member), member.leading(0).__enter__):
        with pytest.raises(Closed, match="member a was needed, but it was closed before"):
            call()


def test_a_member_that_was_never_admitted_just_stops_and_a_wish_waits_for_the_founding_of_the_group() -> None:
    with testing.group("a", partitions=2) as group:
        group["a"].operator.drain("c")
        assert ["c"] == list(group["a"].state.drains)
        group.settle()
        group.join("b")
        group["b"].close()
        assert (True, 0) == (group["b"].closed, len(group.told["b"]))
        assert ["a"] == [peer.name for peer in group.router.members]


def test_a_member_that_cannot_reach_the_ledger_stops_trying_after_a_lease(group: Group) -> None:
    group.cut("a")
    expected = r"a drain of b was to be read back within 3 s, but .* the test has cut"
    with pytest.raises(LedgerUnavailable, match=expected):
        group["a"].operator.drain("b", timeout=3.0)
    began = group.now
    group["a"].close()
    assert (True, True) == (group["a"].closed, group.now - began < 2.5)


def test_a_wish_whose_append_was_lost_is_written_again() -> None:
    with testing.group("a", "b", on_event={"b": lambda _: group.heal("a")}) as group:
        group.settle()
        group.cut("a")
        group["a"].operator.drain("b")  # The outage ends when b takes over.
        assert ["b"] == list(group["a"].state.drains)


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


def test_a_wish_for_an_absent_member_waits_and_says_so(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    group["a"].operator.pin(3, "c")
    group["a"].operator.pin(4, "b")
    group["a"].operator.drain("c", undo=True)  # Taking back a wish for an absent member needs no wait.
    group.settle()
    waits = [line for line in caplog.messages if "wish.waits" in line]
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


def test_a_newcomer_may_take_a_living_members_name(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    group.join("twin", name="a", address="host:2", replace=True)
    group.settle()
    for call in (*calls(group["a"]), group["a"].wait):
        with pytest.raises(Replaced, match="a newer process joined under that name from host:2"):
            call()
    assert "Fenced" in names(group.told["a"])
    assert {"a", "b"} == {peer.name for peer in group["twin"].router.members}
    assert (None, 4) == (group["twin"].error, len(group["twin"].led))
    assert "member.replaces member=a name=a" in caplog.text


def test_no_key_stands_in_a_repr_or_an_error(group: Group) -> None:
    role = next(f"customer-{number}" for number in range(20) if group.owner(f"customer-{number}") == "a")
    lease = held(group["a"], role)
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
        assert [*range(12)] == sorted(partition for each in stood_by.values() for partition in each)
        assert all(stood_by[name].isdisjoint(group[name].led) for name in "abc")
        group.kill("a")
        group.settle()
        for name in "bc":
            assert stood_by[name] & led == group[name].led.keys() & led
            *_, last = (event for event in group.told[name] if isinstance(event, Standby))
            assert Standby(tuple(sorted(group[name].standby))) == last
        group["b"].close()
        assert frozenset() == group["b"].standby
    assert re.search(r"leader\.standby member=\w partitions=\S+ count=\d", caplog.text)


def test_joins_of_nobody_stop_nobody_nor_one_that_starts_after_all_of_it(group: Group) -> None:
    """Anyone may write them. Phantoms lose whatever they are given once nothing was heard from them for a lease."""
    before, at = [group[name].incarnation for name in "ab"], group["a"].state.at
    group.log.append([encode(join(f"phantom {i}", f"nobody {i}", at=at)) for i in range(100)])
    group.advance(1.2)
    assert before == [group[name].incarnation for name in "ab"]
    late = group.join("late")  # It reads everything before this returns, and would raise any error that stops it.
    group.settle()
    assert [None] * 3 == [member.error for member in (group["a"], group["b"], late)]
    assert {"a", "b", "late"} == {seat.name for seat in late.state.seats.values()}
