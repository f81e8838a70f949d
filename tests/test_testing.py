"""The group in memory that users test with."""

import doctest

import pytest

from neli_router import testing
from neli_router.errors import Closed, ConfigError, HandlerFailed, LeaseLost, NotLeading
from neli_router.protocol import Acquired, Event, Fenced, Revoked
from neli_router.testing import Group


def told(group: Group, name: str) -> list[str]:
    return [type(event).__name__ for event in group.told[name]]


def test_the_example_of_the_essay_holds() -> None:
    failed, tried = doctest.testmod(testing, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert (0, 3) == (failed, tried)


def test_time_stands_still_unless_it_is_turned_and_a_group_settles_into_equal_shares() -> None:
    with testing.group("a", "b", "c", partitions=12) as group:
        assert (0.0, {}) == (group.now, group["a"].led)
        group.advance(7.5)
        assert 7.5 == group.now
        group.settle()
        assert [4, 4, 4] == [len(group[name].led) for name in "abc"]
        assert set(range(12)) == group["a"].led.keys() | group["b"].led.keys() | group["c"].led.keys()


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> list[Event]:
        with testing.group("a", "b", partitions=4, seed=seed) as group:
            group.settle()
            group.restart("a")
            group.settle()
            incarnation = group["a"].incarnation
            return [*group.told["a"], *group.told["b"], Fenced({}, incarnation)]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_killed_member_is_replaced_within_two_leases() -> None:
    with testing.group("a", "b", partitions=8, lease=1.0) as group:
        group.settle()
        lost = set(group["a"].led)
        group.kill("a")
        group.advance(2.1)
        assert lost <= group["b"].led.keys()
        with pytest.raises(Closed, match="the test killed it"):
            group["a"].lease(0)


def test_a_paused_member_finds_its_lease_over_before_it_has_read_anything() -> None:
    with testing.group("a", partitions=1, lease=1.0) as group:
        group.settle()
        lease = group["a"].lease(0)
        assert lease is not None
        group.pause("a")
        group.advance(1.0)
        assert not lease.holds()
        assert [] == [name for name in told(group, "a") if name == "Fenced"]
        group.resume("a")
        group.advance(0.0)
        assert ["Acquired", "Fenced"] == told(group, "a")[:2]


def test_a_restart_keeps_the_name_and_its_partitions() -> None:
    with testing.group("a", "b", partitions=8) as group:
        group.settle()
        before, terms = set(group["a"].led), dict(group["b"].led)
        group.restart("a")
        group.settle()
        assert (before, terms) == (set(group["a"].led), dict(group["b"].led))


def test_waiting_turns_the_clock() -> None:
    with testing.group("a", partitions=1, lease=1.0) as group, group["a"].leading("k") as lease:
        assert (1.0 < group.now < 1.1, True) == (True, lease.holds())


def test_waiting_without_effect_ends_with_an_error() -> None:
    with testing.group("a", "b", partitions=2) as group:
        group.settle()
        mine = next(iter(group["a"].led))
        with pytest.raises(NotLeading, match="a owns it under term"), group["b"].leading(mine, timeout=5.0):
            pass
        with pytest.raises(AssertionError, match="waited in vain"), group["b"].leading(mine):
            pass


def test_a_handler_that_takes_time_turns_the_clock_itself() -> None:
    def slow(event: Event) -> None:
        if isinstance(event, Revoked):
            group.advance(2.0)

    with testing.group("a", partitions=2, drain_timeout=10.0, on_event={"a": slow}) as group:
        group.settle()
        group.join("b")
        began = group.now
        group.settle()
        assert group.now - began > 2.0
        assert ["Acquired", "Revoked"] == told(group, "a")


def test_what_a_handler_raises_comes_out_of_what_turned_the_clock() -> None:
    def broken(event: Event) -> None:
        assert not isinstance(event, Acquired), "never prepared"

    with testing.group("a", "b", on_event={"a": broken}, partitions=2) as group:
        with pytest.raises(AssertionError, match="never prepared"):
            group.settle()
        group.settle()
        assert ({0, 1}, "HandlerFailed") == (set(group["b"].led), type(group["a"].error).__name__)
        with pytest.raises(HandlerFailed, match="handler of Acquired was to return, but it raised AssertionError"):
            group["a"].await_closed()


def test_owner_is_what_a_router_would_say_and_a_group_without_a_member_is_settled() -> None:
    with testing.group(partitions=1, lease=1.0) as group:
        assert group.owner("k") is None
        group.join("a")
        group.settle()
        assert "a" == group.owner("k")
        group.kill("a")
        group.settle()
        group.advance(10.0)
        assert group.owner("k") is None


def test_a_group_that_cannot_settle_says_where_it_stands() -> None:
    def fickle(event: Event) -> None:
        if isinstance(event, Acquired):
            group.restart("b")

    where = r"within 3 s: a is up as <Member a: \d of 2 partitions>, b is up as"
    with (
        testing.group("a", "b", partitions=2, lease=0.1, drain_timeout=0.0, on_event={"b": fickle}) as group,
        pytest.raises(AssertionError, match=where),
    ):
        group.settle()


def test_what_a_group_cannot_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean lease"), testing.group("a", leese=1):
        pass
    with testing.group("a", partitions=2) as group:
        with pytest.raises(KeyError, match="there is no member 'b' in this group: there is a"):
            group.kill("b")
        with pytest.raises(ValueError, match="member 'a' is in this group already"):
            group.join("a")
        group.kill("a")
        group.join("a")
        group.settle()
        assert {0, 1} == set(group["a"].led)


def test_a_lease_that_was_lost_never_holds_again() -> None:
    """After an outage the same member leads under the same term; a block from before it must not go on."""
    with testing.group("a", partitions=1, lease=1.0) as group:

        def work() -> None:
            with group["a"].leading(0) as lease:
                group.cut("a")
                group.advance(1.5)
                assert {} == group["a"].led
                group.heal("a")
                group.settle()
                assert {0: lease.term} == group["a"].led

        with pytest.raises(LeaseLost, match="no Beat of this member came back for 1 s"):
            work()
        assert ["Acquired", "Fenced", "Acquired"] == told(group, "a")
