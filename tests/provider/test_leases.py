"""A task's work under a lease: how its loss ends it, on real agents."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.sdk.execution_time.timeout import TimeoutPosix

from airflow_provider import leases
from airflow_provider.exceptions import LeadershipEnding, LeadershipLost, NotLeadingHere
from airflow_provider.hooks.neli import NeliHook
from airflow_provider.leases import TALKING, HeldBlock, holding
from neli_router.agent import AgentLease
from neli_router.errors import ConfigError, LeaseLost, NoAgent
from neli_router.exit_codes import EXIT_LOST
from neli_router.fence import Refused
from tests.support.agents.processes import PARTITIONS, AgentProcess, agents, leader_of
from tests.support.agents.running import PATIENCE, over_once_told
from tests.support.given import spelled
from tests.support.waiting import until

pytestmark = pytest.mark.airflow

ROOT = Path(__file__).parents[2]
DRAIN = 0.3
"""Seconds that a successor waits for a block. Short, because most of these tests are about what comes then."""

LONG = 10 * PATIENCE
"""Seconds that a task would take if nothing ended it."""


class Group:
    """Two agents, and the host of one: a role that it leads, and ways to take it away."""

    def __init__(self, both: list[AgentProcess]) -> None:
        self.here, self.other = both
        with self.here.client() as client:
            owners = [client.owner_of_role(role).name for role in range(PARTITIONS)]
        self.role = owners.index(self.here.name)
        self.second = owners.index(self.here.name, self.role + 1)
        self.elsewhere = owners.index(self.other.name)

    def pin(self, role: int, agent: AgentProcess) -> None:
        """Say it to one of them each time, which has it recorded in this order. A pin that the group shows already may
        be recorded late: behind the next one, if that is said to another."""
        with self.other.client() as client:
            client.pin(role, agent.name)

    def take_away(self, role: int | None = None) -> None:
        """Let the other agent lead the role: after DRAIN at the latest, whoever still works."""
        self.pin(self.role if role is None else role, self.other)

    def give_back(self) -> None:
        with self.here.client() as client:
            for role in (self.role, self.second):
                self.pin(role, self.here)
                until(lambda role=role: client.lease(role) is not None, "the return of the role")  # type: ignore[misc]


@pytest.fixture(name="both", scope="module")
def _both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with agents(tmp_path_factory.mktemp("agents"), "a", "b", drain_timeout=DRAIN) as both:
        yield Group(both)


@pytest.fixture(name="group")
def _group(both: Group, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", both.here.connection)
    yield both
    both.give_back()


@pytest.fixture(name="hook")
def _hook(group: Group) -> Iterator[NeliHook]:
    with NeliHook() as hook:
        yield hook


@contextmanager
def signals_kept() -> Iterator[None]:
    """Nothing of a block is left behind in this process."""
    numbers = [leases.SIGNAL, signal.SIGTERM, signal.SIGALRM, signal.SIGINT]
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert before == [signal.getsignal(number) for number in numbers]
    assert [] == [thread.name for thread in threading.enumerate() if thread.name == "neli-holding"]


def test_a_block_has_the_lease_of_its_role_and_gives_it_back(group: Group, hook: NeliHook) -> None:
    with signals_kept(), holding(hook, group.role) as lease:
        assert (group.role, group.here.name) == (lease.partition, lease.member)
        lease.check()
    assert not lease.holds()
    with signals_kept(), pytest.raises(ZeroDivisionError), holding(hook, group.role):
        1 / 0  # noqa: B018 - an error under a lease that holds is passed on.
    with signals_kept(), holding(hook, partitions=[group.role, group.elsewhere]) as share:
        assert [group.role] == list(share.terms)


def test_a_block_that_can_have_no_lease_does_not_begin(
    group: Group, hook: NeliHook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with signals_kept(), pytest.raises(NotLeadingHere, match=f"but b leads partition {group.elsewhere}, under term "):
        holding(hook, group.elsewhere).take()
    ledger = group.here.socket.parent / "ledger.db"
    for address, error, text in (
        (f"unix:{tmp_path}/none.sock", NoAgent, "there is no socket"),
        (f"sqlite://{ledger}", ConfigError, "agent"),
    ):
        monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", spelled(address=address))
        with NeliHook() as asked, pytest.raises(error, match=text), holding(asked, group.role):
            pytest.fail("it began")


def test_a_role_that_was_lost_between_the_question_and_the_start_is_refused(
    group: Group, hook: NeliHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "START_MAX", PATIENCE)

    def lost_after_the_question(role: int) -> object:
        lease = NeliHook.lease(hook, role)
        group.take_away()
        leader_of(group.role, [group.other])
        with group.here.client() as client:  # Which may read of it later than the other does.
            until(lambda: client.owner_of_role(role).name == group.other.name, "the news of the other's role")
        return lease

    def leading(role: int, timeout: float) -> object:
        return over_once_told(NeliHook.leading(hook, role, timeout=timeout))

    monkeypatch.setattr(hook, "lease", lost_after_the_question)
    monkeypatch.setattr(hook, "leading", leading)
    with pytest.raises(NotLeadingHere, match="but b owns it under term"), holding(hook, group.role):
        pytest.fail("it began")


def test_a_role_that_no_member_leads_yet_is_waited_for(group: Group, hook: NeliHook) -> None:
    group.take_away()
    leader_of(group.role, [group.other])
    group.pin(group.role, group.here)
    with group.here.client() as client:
        until(lambda: client.owner_of_role(group.role).name == group.here.name)
    with holding(hook, group.role) as lease:
        assert lease.holds()


# The loss

Work = Callable[[AgentLease], object]


def sleep(_: object = None) -> None:
    time.sleep(LONG)


def wait_for_a_process(_: object) -> None:
    with subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({LONG})"]) as process:
        try:
            process.wait()
        finally:
            process.kill()


def wait_for_a_lock(_: object) -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()


def read_from_a_socket(_: object) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


def compute(_: object) -> None:
    while True:
        sum(range(1000))


def catch_errors(_: object) -> None:
    while True:
        with suppress(Exception):
            sleep()


def loss(group: Group, held: HeldBlock[Any], work: Callable[[Any], object] = sleep) -> LeadershipLost:
    """The error by which the block ends that loses its role while it does this work."""

    def lose_and_work(right: object) -> None:
        group.take_away()
        work(right)

    with pytest.raises(LeadershipLost) as caught, held as right:
        lose_and_work(right)
    return caught.value


@pytest.mark.parametrize(
    "work", [sleep, wait_for_a_process, wait_for_a_lock, read_from_a_socket, compute, catch_errors]
)
def test_a_lost_lease_ends_the_work_whatever_it_is_at(group: Group, hook: NeliHook, work: Work) -> None:
    with signals_kept():
        lost = loss(group, holding(hook, group.role), work)
    assert f"the lease of partition {group.role} under term" in str(lost)
    assert isinstance(lost, LeaseLost)
    assert isinstance(lost.__cause__, LeadershipEnding)
    assert work.__name__ in [frame.name for frame in traceback.extract_tb(lost.__cause__.__traceback__)]


def test_the_loss_of_one_partition_ends_a_share(group: Group, hook: NeliHook) -> None:
    assert f"{group.role}" in str(loss(group, holding(hook, partitions=[group.role, group.second])))


def test_a_lease_runs_out_when_its_agent_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        agent.kill()
        sleep()

    with agents(tmp_path, "a") as [agent]:
        monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", agent.connection)
        run_out = pytest.raises(LeadershipLost, match="without being renewed")
        with signals_kept(), NeliHook() as hook, run_out, holding(hook, "nightly"):
            work()


def test_code_that_swallows_the_exception_is_stopped_again(
    group: Group, hook: NeliHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "AGAIN", 0.05)
    swallowed = 0

    def swallow(_: object) -> None:
        nonlocal swallowed
        while swallowed < 3:
            with suppress(BaseException):  # The very thing that is not to help.
                sleep()
            swallowed += 1
        sleep()

    with signals_kept():
        loss(group, holding(hook, group.role), swallow)
    assert swallowed == 3


def test_a_block_that_ends_after_its_loss_or_fails_says_so(group: Group, hook: NeliHook) -> None:
    def end(lease: AgentLease) -> None:
        with suppress(LeadershipEnding):
            sleep()
        assert not lease.holds()

    def check(lease: AgentLease) -> None:
        end(lease)
        lease.check()

    for work in (end, check):
        assert type(loss(group, holding(hook, group.role), work).__cause__) is LeaseLost
        group.give_back()


def test_what_cleans_up_is_not_broken_off(group: Group, hook: NeliHook) -> None:
    done = []

    def work(_: object) -> None:
        try:
            sleep()
        finally:
            time.sleep(5 * leases.POKE_EVERY)
            done.append("rolled back")

    loss(group, holding(hook, group.role), work)
    assert done == ["rolled back"]


def test_a_process_that_does_not_stop_is_ended(group: Group) -> None:
    work = """
import sys, time
from airflow_provider.hooks.neli import NeliHook
from airflow_provider.leases import holding

with NeliHook() as hook, holding(hook, int(sys.argv[1]), end_within=0.5):
    print("works", flush=True)
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            pass
"""
    command = [sys.executable, "-c", work, str(group.role)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            until(lambda: "works" in process.stdout.readline() or process.poll() is not None)  # type: ignore[union-attr]
            group.take_away()
            said = process.communicate(timeout=PATIENCE)[1]
        finally:
            process.kill()
    assert process.returncode == EXIT_LOST, said
    assert "THE TASK DID NOT STOP within 0.5 s" in said
    assert 'File "<string>", line 10' in said, "it says where it hangs"


def test_a_revoked_lease_lets_the_work_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with agents(tmp_path, "a", "b", drain_timeout=PATIENCE) as both:
        here = leader_of(0, both)
        monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", here.connection)
        with NeliHook() as hook, holding(hook, 0) as lease:
            assert not lease.revoked
            with here.client() as client:
                client.drain(here.name)
            assert lease.revoked.wait(PATIENCE)
            lease.check()
            until(lambda: "s to finish" in caplog.text)
        assert leader_of(0, both) is not here


# Other errors


def test_the_word_of_a_fence_stands(group: Group, hook: NeliHook) -> None:
    def write(_: object) -> None:
        with suppress(LeadershipEnding):
            sleep()
        raise Refused.of("prices", 7, 9)

    held = holding(hook, group.role)
    with pytest.raises(Refused):
        loss(group, held, write)


@pytest.fixture
def _alarm() -> Iterator[None]:
    """A timeout of Airflow leaves its handler behind."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


def timeout(seconds: float) -> AbstractContextManager[object]:
    return TimeoutPosix(seconds)  # type: ignore[no-untyped-call]


@pytest.mark.usefixtures("_alarm")
def test_a_timeout_of_airflow_stays_one_on_either_side_of_the_block(group: Group, hook: NeliHook) -> None:
    with pytest.raises(AirflowTaskTimeout), timeout(0.05), holding(hook, group.role):
        sleep()
    with pytest.raises(AirflowTaskTimeout), holding(hook, group.role), timeout(0.05):
        sleep()
    with timeout(LONG):  # And a loss within one is the loss.
        loss(group, holding(hook, group.role))


# Blocks in blocks, other threads, coroutines


def test_the_loss_of_an_outer_block_ends_the_inner_one(group: Group, hook: NeliHook) -> None:
    inner = []

    def work(_: object) -> None:
        with holding(hook, group.second) as lease:
            inner.append(lease)
            sleep()

    with signals_kept():
        assert f"partition {group.role} " in str(loss(group, holding(hook, group.role), work))
    assert [False] == [lease.holds() for lease in inner]


def test_the_loss_of_an_inner_block_leaves_the_outer_one(group: Group, hook: NeliHook) -> None:
    with signals_kept(), holding(hook, group.second) as outer:
        assert f"partition {group.role} " in str(loss(group, holding(hook, group.role)))
        outer.check()


def test_a_handler_of_the_program_hears_what_is_its_own(group: Group, hook: NeliHook) -> None:
    heard = []

    def handler(number: int, frame: FrameType | None) -> None:
        heard.append(number)

    before = signal.signal(leases.SIGNAL, handler)
    try:
        with signals_kept(), holding(hook, group.role):
            os.kill(os.getpid(), leases.SIGNAL)
        assert heard == [leases.SIGNAL]
    finally:
        signal.signal(leases.SIGNAL, before)


def test_another_thread_than_the_main_one_asks_for_itself(group: Group, hook: NeliHook) -> None:
    found: list[object] = []

    def work(lease: AgentLease) -> None:
        until(lambda: not lease.holds())

    thread = threading.Thread(target=lambda: found.append(loss(group, holding(hook, group.role), work)))
    with signals_kept():
        thread.start()
        thread.join(PATIENCE)
    assert [LeadershipLost] == [type(one) for one in found]


def test_a_question_to_the_supervisor_is_not_broken_off(group: Group, hook: NeliHook) -> None:
    said: list[str] = []

    def talk(lease: AgentLease, said: list[str]) -> None:
        until(lambda: not lease.holds())
        time.sleep(4 * leases.POKE_EVERY)
        said.append("answered")

    talk_of_airflow = FunctionType(talk.__code__, {**globals(), "__name__": TALKING}, closure=talk.__closure__)

    def work(lease: AgentLease) -> None:
        talk_of_airflow(lease, said)
        sleep()

    loss(group, holding(hook, group.role), work)
    assert said == ["answered"]


def test_a_coroutine_is_cancelled(group: Group, hook: NeliHook) -> None:
    cleaned: list[str] = []

    async def wait() -> None:
        held.cancel_this_task()
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            cleaned.append("awaited")
            raise

    held = holding(hook, group.role)
    with signals_kept():
        loss(group, held, lambda _: asyncio.run(wait()))
    assert cleaned == ["awaited"]


def test_a_coroutine_that_blocks_its_loop_is_stopped_as_other_code_is(
    group: Group, hook: NeliHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "AGAIN", 0.05)

    async def block() -> None:
        held.cancel_this_task()
        sleep()

    held = holding(hook, group.role)
    loss(group, held, lambda _: asyncio.run(block()))
