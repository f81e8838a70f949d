"""A task's work under a lease: how losing it ends the work, on real agents."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.sdk.execution_time.timeout import TimeoutPosix

from airflow_provider._machinery import leases
from airflow_provider._machinery.leases import TALKING, HeldBlock, holding
from airflow_provider.exceptions import LeadershipEnding, LeadershipLost, NotLeadingHere
from airflow_provider.hooks.neli import NeliHook
from neli_router.agent import AgentLease
from neli_router.core.exit_codes import EXIT_LOST
from neli_router.errors import LeaseLost
from neli_router.fence import Refused
from tests.provider.conftest import Group
from tests.support.agents.processes import agents, leader_of
from tests.support.agents.running import PATIENCE, over_once_told, paired
from tests.support.given import spelled
from tests.support.processes.forked import Program
from tests.support.waiting import until

pytestmark = pytest.mark.airflow

LONG = 10 * PATIENCE
"""Seconds that a task would take if nothing ended it."""


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


def test_a_block_that_can_have_no_lease_does_not_begin(group: Group, hook: NeliHook) -> None:
    with signals_kept(), pytest.raises(NotLeadingHere, match=f" leads partition {group.elsewhere}, under term "):
        holding(hook, group.elsewhere).take()


def test_a_role_lost_before_the_start_is_refused(group: Group, hook: NeliHook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "ASK_EVERY", PATIENCE)

    def lost_after_the_question(role: int) -> object:
        lease = NeliHook.lease(hook, role)
        group.take_away()
        leader_of(group.role, [group.other])
        with group.here.client() as client:  # This agent may read of it later than the other.
            until(lambda: client.owner_of_role(role).name == group.other.name, "the news of the other's role")
        return lease

    def leading(role: int, timeout: float) -> object:
        return over_once_told(NeliHook.leading(hook, role, timeout=timeout))

    monkeypatch.setattr(hook, "lease", lost_after_the_question)
    monkeypatch.setattr(hook, "leading", leading)
    with pytest.raises(NotLeadingHere, match="but b leads partition"), holding(hook, group.role):
        pytest.fail("it began")


def test_a_role_that_no_member_leads_yet_is_waited_for(group: Group, hook: NeliHook) -> None:
    group.take_away()
    leader_of(group.role, [group.other])
    group.pin(group.role, group.here)
    with group.here.client() as client:
        until(lambda: client.owner_of_role(group.role).name == group.here.name)
    with holding(hook, group.role) as lease:
        assert lease.holds()


Work = Callable[[AgentLease], object]


def sleep(_: object = None) -> None:
    time.sleep(LONG)


def wait_for_a_lock(_: object) -> None:
    lock = threading.Lock()
    with lock:
        lock.acquire()


def wait_for_a_process(_: object) -> None:
    subprocess.run(["/bin/sleep", str(LONG)], check=True)


def compute(_: object) -> None:
    while True:
        sum(range(1000))


def catch_errors(_: object) -> None:
    while True:
        with suppress(Exception):
            sleep()


AT_WORK = {one.__code__ for one in (sleep, until, wait_for_a_lock, wait_for_a_process, compute)}


def loss(group: Group, held: HeldBlock[Any], work: Callable[[Any], object] = sleep) -> LeadershipLost:
    """The error that ends the block if it loses its role while it does this work."""
    worker = threading.get_ident()

    def is_at_work() -> bool:
        return any(frame.f_code in AT_WORK for frame, _ in traceback.walk_stack(sys._current_frames()[worker]))

    def take_away() -> None:
        until(is_at_work, "the work")
        group.take_away()

    with pytest.raises(LeadershipLost) as caught, ThreadPoolExecutor(1) as pool, held as right:  # noqa: PT012 - the work raises.
        pool.submit(take_away)
        work(right)
    return caught.value


@pytest.mark.parametrize("work", [wait_for_a_lock, wait_for_a_process, compute, catch_errors])
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
    with agents(tmp_path, "a") as [agent]:
        monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", agent.connection)
        run_out = pytest.raises(LeadershipLost, match="nothing renewed it in time")
        with signals_kept(), NeliHook() as hook, run_out, holding(hook, "nightly"):
            agent.kill()
            sleep()


def test_code_that_swallows_the_exception_is_stopped_again(
    group: Group, hook: NeliHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "AGAIN", 0.05)
    swallowed: list[type[BaseException]] = []

    def swallow(_: object) -> None:
        while len(swallowed) < 3:
            try:
                sleep()
            except BaseException as ending:  # noqa: BLE001 - this is what must not help.
                swallowed.append(type(ending))
        sleep()

    with signals_kept():
        loss(group, holding(hook, group.role), swallow)
    assert [LeadershipEnding] * 3 == swallowed


def test_a_block_that_ends_after_its_loss_or_fails_says_so_unless_a_fence_refused(group: Group, hook: NeliHook) -> None:
    def end(lease: AgentLease) -> None:
        with suppress(LeadershipEnding):
            sleep()
        until(lambda: not lease.holds())

    def check(lease: AgentLease) -> None:
        end(lease)
        lease.check()

    def write(lease: AgentLease) -> None:
        end(lease)
        raise Refused.of("prices", 7, 9)

    for work in (end, check):
        assert type(loss(group, holding(hook, group.role), work).__cause__) is LeaseLost
        group.give_back()
    with pytest.raises(Refused):
        loss(group, holding(hook, group.role), write)


def test_what_cleans_up_or_asks_the_supervisor_is_not_broken_off(group: Group, hook: NeliHook) -> None:
    done: list[str] = []

    def work(_: object) -> None:
        try:
            sleep()
        finally:
            time.sleep(5 * leases.POKE_EVERY)
            done.append("rolled back")

    def talk(lease: AgentLease) -> None:
        until(lambda: not lease.holds())
        time.sleep(4 * leases.POKE_EVERY)
        done.append("answered")

    talk_of_airflow = FunctionType(talk.__code__, {**globals(), "__name__": TALKING}, closure=talk.__closure__)

    def ask(lease: AgentLease) -> None:
        talk_of_airflow(lease)
        sleep()

    for one in (work, ask):
        loss(group, holding(hook, group.role), one)
        group.give_back()
    assert done == ["rolled back", "answered"]


TASK = """
import sys, time
from airflow_provider.hooks.neli import NeliHook
from airflow_provider._machinery.leases import holding

with NeliHook() as hook, holding(hook, int(sys.argv[1]), end_within=float(sys.argv[2])):
{begin}
    print("works", flush=True)
    while True:
        try:
            time.sleep(1000)
        {end}
"""


def ended(group: Group, folder: Path, begin: str, end: str, end_within: float) -> tuple[int, str, str]:
    """The exit code and the output of a task that loses its lease."""
    task = TASK.format(begin=begin, end=end)
    with Program(task, str(group.role), str(end_within), folder=folder) as process:
        assert "works\n" in process.stdout, "a line of its own: the log says that the task works, too"
        group.take_away()
        said, printed = process.stderr.read(), process.stdout.read()
        return process.wait(PATIENCE), said, printed


def test_a_process_that_does_not_stop_is_ended_with_its_lease(group: Group, tmp_path: Path) -> None:
    code, said, _ = ended(group, tmp_path, "", "except BaseException: pass", 0.0)
    assert EXIT_LOST == code, said
    assert "THE TASK DID NOT STOP before the end of its lease" in said
    assert 'File "<program>", line 11' in said, "it says where it hangs"


def test_a_library_in_go_keeps_no_task_from_being_stopped(group: Group, tmp_path: Path) -> None:
    """Go's runtime replaces the handler of SIGURG, and passes nothing on."""
    load = "    import adbc_driver_flightsql, ctypes\n    ctypes.CDLL(adbc_driver_flightsql._driver_path())"
    code, said, printed = ended(group, tmp_path, load, "finally: print('cleaned up', flush=True)", LONG)
    assert (True, 1) == ("cleaned up" in printed, code), said
    assert "LeadershipLost: the lease of partition" in said


def test_a_revoked_lease_lets_the_work_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with paired(tmp_path, drain_timeout=PATIENCE) as (agent, other):
        other.operator.pin(0, "a", timeout=PATIENCE)
        until(lambda: 0 in agent.agent.member.led, "the role")
        monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", spelled(address=f"unix:{agent.options.socket}"))
        with NeliHook() as hook, holding(hook, 0) as lease:
            assert not lease.revoked
            other.operator.pin(0, None, timeout=PATIENCE)
            assert lease.revoked.wait(PATIENCE)
            lease.check()
            until(lambda: "s to finish" in caplog.text)
        until(lambda: 0 in other.led, "the other's role")


def test_a_timeout_of_airflow_stays_one_on_either_side_of_the_block(group: Group, hook: NeliHook) -> None:
    timeout: Callable[[float], AbstractContextManager[object]] = TimeoutPosix
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(AirflowTaskTimeout), timeout(LONG), holding(hook, group.role):  # noqa: PT012 - the sleep raises.
        signal.setitimer(signal.ITIMER_REAL, 0.05)  # Not from the outside: it would leave a socket that connects open.
        sleep()
    with pytest.raises(AirflowTaskTimeout), holding(hook, group.role), timeout(0.05):
        sleep()
    with timeout(LONG):  # A loss within a timeout is the loss.
        loss(group, holding(hook, group.role))
    signal.signal(signal.SIGALRM, before)  # A timeout of Airflow leaves its handler behind.


def test_the_loss_of_an_outer_block_ends_the_inner_one_only(group: Group, hook: NeliHook) -> None:
    inner = []

    def work(_: object) -> None:
        with holding(hook, group.second) as lease:
            inner.append(lease)
            sleep()

    with signals_kept():
        assert f"partition {group.role} " in str(loss(group, holding(hook, group.role), work))
    assert [False] == [lease.holds() for lease in inner]
    group.give_back()
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
    def ask(lease: AgentLease) -> None:
        until(lambda: not lease.holds())

    with signals_kept(), ThreadPoolExecutor(1) as pool:
        lost = pool.submit(loss, group, holding(hook, group.role), ask).result(PATIENCE)
    assert f"partition {group.role} " in str(lost)


def test_a_coroutine_that_blocks_its_loop_is_stopped_as_other_code_is(
    group: Group, hook: NeliHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other coroutines are cancelled: tests/provider/test_leader.py."""
    monkeypatch.setattr(leases, "AGAIN", 0.05)
    held = holding(hook, group.role)

    async def block() -> None:
        held.cancel_this_task()
        sleep()

    with signals_kept():
        loss(group, held, lambda _: asyncio.run(block()))
