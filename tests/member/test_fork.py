"""In a forked child, nothing of the parent's member holds, and nothing hangs."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.core.keyspace import Layout
from neli_router.errors import Forked, LeaseLost, NotLeading
from neli_router.member.member import Member
from tests.support.forking import in_child, raised_by
from tests.support.waiting import PATIENCE, beside, until

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Newer Pythons warn about this.

LEASE = 5.0
"""Forks delay the parent's threads, longer on a busy machine: that would lose a shorter lease."""


@pytest.fixture(name="member", scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    """One member for all tests, which end only its copies in children."""
    address = f"sqlite://{tmp_path_factory.mktemp('fork')}/ledger.db"
    with Member(Config(address, name="parent", lease=LEASE, layout=Layout(partitions=8))) as member:
        assert member.pulse(PATIENCE)
        yield member


def test_leases_are_void_in_the_child_and_every_call_says_so(member: Member) -> None:
    with member.leading(0, timeout=PATIENCE) as lease:

        def act() -> list[object]:
            with pytest.raises(Forked) as forked:
                member.lease(0)
            why = str(forked.value).replace(str(os.getpid()), "CHILD").replace(str(os.getppid()), "PARENT")
            calls: list[Callable[[], object]] = [
                *(lease.check, lambda: lease.revoked.wait(0.1), member.leading(0).__enter__, lambda: member.pulse(0.1)),
                *(lambda: member.background(lambda _: None), lambda: member.led, lambda: member.state),
                *(lambda: member.operator.drain("parent"), member.wait, lambda: member.router.owner("key")),
            ]
            return [lease.holds(), lease.remaining(), why, *(raised_by(call) for call in calls)]

        why = (
            "member parent was needed, but process PARENT opened it and this is process CHILD, forked from it: "
            "open a Member in this process, after the fork; the parent's goes on unharmed"
        )
        assert [False, 0.0, why, *["Forked"] * 10] == in_child(act)
        lease.check()


def test_the_childs_end_is_not_the_parents(member: Member) -> None:
    """The child leaves blocks and members through an error, through `close` and at exit: the parent stays a member."""
    with member.leading(0, timeout=PATIENCE) as lease:

        def act() -> list[str]:
            def leave_all() -> None:
                with member:
                    raise ZeroDivisionError

            member.close()
            member.__exit__(None, None, None)
            return [raised_by(leave_all)]

        assert ["ZeroDivisionError"] == in_child(act)
    incarnation = member.incarnation
    renewed = host_clock() + lease.remaining() + LEASE
    until(lambda: host_clock() + lease.remaining() > renewed, "beats for longer than a lease")
    assert not member.closed
    assert (incarnation, True) == (member.incarnation, incarnation in member.state.seats)
    assert lease.holds()


def test_a_child_may_open_a_member_of_its_own(tmp_path: Path) -> None:
    config = Config(f"sqlite://{tmp_path}/ledger.db", lease=0.5, layout=Layout(partitions=8))
    with Member(config) as parent:
        assert parent.pulse(PATIENCE)

        def act() -> bool:
            with Member(config) as child:
                until(lambda: len(child.led) == 4)
                return child.name != parent.name

        assert in_child(act) is True
        assert not parent.closed


def test_a_fork_while_other_threads_hold_the_members_locks_does_not_hang_the_child(member: Member) -> None:
    """Locks that a thread held at the fork are held forever in the child, where that thread does not exist."""
    over = threading.Event()

    def busy() -> None:
        while not over.is_set():
            member.lease(0)
            member.led  # noqa: B018 - it takes a lock, which is the point.
            # This many forks can delay heartbeats on a busy machine; this test is not about leases.
            with contextlib.suppress(LeaseLost, NotLeading), member.leading(0, timeout=PATIENCE):
                pass

    with beside(*[busy] * 3, end=over.set):
        for _ in range(8):
            assert ["Forked", "nothing"] == in_child(lambda: [raised_by(lambda: member.led), raised_by(member.close)])
