"""Background tasks, which run on whichever member leads their role."""

import re
from collections.abc import Callable

import pytest

from neli_router import testing
from neli_router.errors import Closed, HandlerFailed, LeaseLost, NoOwner
from neli_router.member.membership import Lease
from neli_router.member.runtime import Lane
from neli_router.protocols.protocol import Acquired, Event


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of the log about tasks."""
    return [line for line in caplog.messages if line.startswith("background.")]


def test_a_task_runs_again_and_again_without_spinning_until_it_is_stopped() -> None:
    with testing.group("a", partitions=1) as group:
        ran, unpaced = list[float](), list[float]()
        group["a"].background(lambda _: ran.append(round(group.now, 2)), interval=0.5)
        group.settle()
        began = group.now
        group.advance(1.4)
        assert [round(began + 0.5 * turn, 2) for turn in range(3)] == ran
        handle = group["a"].background(lambda _: unpaced.append(group.now), interval=0.0)
        group.advance(0.1)
        assert 90 <= len(unpaced) <= 102
        assert not handle.wait(0.0)
        handle.stop()
        assert handle.wait()
        before = len(unpaced)
        group.advance(0.1)
        assert before == len(unpaced)


def test_a_task_that_overruns_is_warned_about_once_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def slow(_: Lease) -> None:
        group.advance(3.5)
        ran.append(group.now)

    ran: list[float] = []
    with testing.group("a", partitions=1, lease=1.0) as group:
        group.settle()
        group["a"].background(slow)
        group.advance(9.5)
        assert 3 == len(ran)
    expected = "background.overrun member=a partition=0 ran_for=1.165 lease=1.0"  # Noticed with the next beat.
    assert [expected] * 3 == told(caplog)


# A lost lease other than the task's own also ends it.
@pytest.mark.parametrize("error", [ValueError("customer-7"), LeaseLost("a lease was needed", "customer-7", "stop")])
def test_what_a_task_raises_ends_it_and_is_raised_by_wait(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Lease) -> None:
        ran.append(1)
        raise error

    ran: list[int] = []
    with testing.group("a", partitions=1) as group:
        handle = group["a"].background(broken)
        group.advance(10.0)
        assert (1, False) == (len(ran), handle.running)
        for _ in range(2):
            with pytest.raises(type(error), match="customer-7"):
                handle.wait()
        assert {0} == set(group["a"].led)
    (line,) = told(caplog)
    assert re.fullmatch(rf"background\.failed .*error={type(error).__name__} .*test_background\.py.*", line)
    assert "customer-7" not in line


def test_a_task_that_stops_for_its_lost_lease_runs_again_when_it_leads_again(caplog: pytest.LogCaptureFixture) -> None:
    def careful(lease: Lease) -> None:
        ran.append(lease)
        if len(ran) == 1:
            group.cut("a")
            group.advance(2.0)
            lease.check()

    ran: list[Lease] = []
    with testing.group("a", partitions=1, lease=1.0) as group:
        handle = group["a"].background(careful)
        group.settle()
        group.heal("a")
        group.settle()
        group.advance(1.0)
        assert (True, False, True) == (handle.running, ran[0].holds(), ran[-1].holds())
    lost = [line for line in told(caplog) if "lease_lost" in line]
    assert [f"background.lease_lost member=a partition=0 term={ran[0].term}"] == lost


def test_a_member_that_closes_waits_for_the_run_in_progress_and_ends_the_task() -> None:
    def work(lease: Lease) -> None:
        group["a"].close()
        group.advance(2.0)
        seen.append((lease.holds(), bool(lease.revoked)))

    seen: list[tuple[bool, bool]] = []
    with testing.group("a", "b", partitions=1) as group:
        group["a"].operator.pin(0, "a")
        group.settle()
        handle = group["a"].background(work)
        assert handle.wait()
        assert [(True, True)] == seen
        group.settle()
        assert {0} == set(group["b"].led)
        with pytest.raises(Closed):
            group["a"].background(work)


def test_a_member_that_fails_ends_its_tasks_with_its_error_also_if_that_is_one_of_ours() -> None:
    """The library catches some of its own errors; one that the program raises must not be mistaken for those."""

    def broken(event: Event) -> None:
        if isinstance(event, Acquired):
            raise NoOwner("an owner was wanted", "there is none", "wait")

    with testing.group("a", partitions=1, on_event={"a": broken}) as group:
        handle = group["a"].background(lambda _: None)
        with pytest.raises(NoOwner):
            group.settle()
        group.settle()
        with pytest.raises(HandlerFailed, match="handler of Acquired was to return, but it raised NoOwner"):
            handle.wait()
        with pytest.raises(HandlerFailed):
            group["a"].background(lambda _: None)


def test_a_lane_works_off_what_it_has_before_it_ends_and_is_not_turned_from_within() -> None:
    done: list[object] = []
    lane: Lane[Callable[[], object]] = Lane("lane", lambda item: item(), lambda: done.append("ended"))
    lane.put(lambda: done.append(lane.turn()))
    lane.put(lambda: done.append("second"))
    lane.put(lambda: done.append("third"))
    assert (True, [False]) == (lane.turn(), done)
    lane.end()
    lane.run()
    assert ([False, "second", "third", "ended"], True, False) == (done, lane.is_over, lane.turn())
