"""The member on an event loop: on a clock that the tests turn, and in real time."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import nan

import pytest

from neli_router.config.config import Config
from neli_router.core.keyspace import Layout
from neli_router.errors import (
    Closed,
    ConfigError,
    GroupMismatch,
    HandlerFailed,
    LeaseLost,
    LedgerUnavailable,
    NotLeading,
)
from neli_router.member.async_member import AsyncLease, AsyncMember
from neli_router.protocols.protocol import BEATS_PER_LEASE, Acquired, Event
from neli_router.testing import Group
from tests.support.looping import in_loop
from tests.support.waiting import PATIENCE, until, until_in_loop


@pytest.fixture(name="config")
def configured(request: pytest.FixtureRequest) -> Config:
    return Config(f"memory://{request.node.name}", name="a", lease=0.5, layout=Layout(partitions=8))


async def turns(count: int = 20) -> None:
    """Let the loop do its pending work."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("harm", "why"),
    [("cut", "no Beat of this member came back for 1 s"), ("pause", "no heartbeat of a having come back in time")],
)
@in_loop
async def test_a_lost_lease_cancels_the_block_at_once_and_only_once(group: Group, harm: str, why: str) -> None:
    """While the member's own thread hangs, nothing notifies the block: it looks when its lease is due to end."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    member = await AsyncMember(group["a"]).open()
    with pytest.raises(LeaseLost, match=why):  # noqa: PT012 - the block itself raises it.
        async with member.leading(min(member.led)):
            loop.call_soon(getattr(group, harm), "a")
            loop.call_soon(group.advance, 1.5)
            await asyncio.sleep(PATIENCE)
    assert task is not None
    assert 0 == task.cancelling()
    await turns()


@in_loop
async def test_a_timeout_around_a_block_stays_a_timeout(group: Group) -> None:
    member = await AsyncMember(group["a"]).open()
    with pytest.raises(TimeoutError):  # noqa: PT012 - the end of the block raises it.
        async with asyncio.timeout(PATIENCE) as limit, member.leading(min(member.led)) as lease:
            limit.reschedule(0.0)
            await asyncio.sleep(PATIENCE)
    assert lease.holds()


@pytest.mark.parametrize("error", [LeaseLost, ZeroDivisionError])
@in_loop
async def test_a_block_that_ends_after_its_lease_says_so_unless_it_fails(group: Group, error: type[Exception]) -> None:
    member = await AsyncMember(group["a"]).open()
    with pytest.raises(error):  # noqa: PT012 - the end of the block raises it.
        async with member.leading(min(member.led)):
            group.pause("a")
            group.advance(1.5)
            group.resume("a")
            if error is ZeroDivisionError:
                raise ZeroDivisionError


@in_loop
async def test_a_block_holds_up_its_successor_and_is_told_to_finish(group: Group) -> None:
    member = await AsyncMember(group["a"]).open()
    other = await AsyncMember(group["b"]).open()
    role = min(member.led)
    async with member.leading(role) as lease:
        assert (False, False) == (lease.revoked.is_set(), await lease.revoked.wait(0.0))
        group["b"].operator.drain("a")
        assert await lease.revoked.wait(PATIENCE)
        group.advance(2.0)
        assert (True, True, None) == (lease.holds(), bool(lease.revoked), member.lease(role))
    group.settle()
    held = other.lease(role)
    assert held is not None
    assert ("b", role, 8, False) == (held.member, held.partition, len(other.led), lease.holds())


@in_loop
async def test_the_same_names_give_the_same_answers(group: Group) -> None:
    member, plain = AsyncMember(group["a"]), group["a"]
    assert ("<AsyncMember: not open>", False, None) == (repr(member), member.closed, member.error)
    for call in (lambda: member.led, lambda: member.lease(0), lambda: member.router, lambda: member.state):
        with pytest.raises(Closed, match="this one was not opened yet"):
            call()
    await member.close()  # Nothing was opened, so there is nothing to close.
    async with member:
        assert (plain.name, plain.layout, plain.incarnation) == (member.name, member.layout, member.incarnation)
        assert (plain.led, plain.state, plain.error) == (member.led, member.state, member.error)
        assert (plain.router.owner("k"), f"<AsyncMember: {plain!r}>") == (member.router.owner("k"), repr(member))
        assert await member.pulse(0.0, role=min(plain.led))
        assert member is await member.open()
        assert plain.mine(map(str, range(9))) == member.mine(map(str, range(9)))
        await member.wait_ready()
        seen: list[int] = []
        async for led in member.changes():
            seen.append(len(led))
            if len(led) == 8:
                await member.close()
            elif led:
                group["b"].close()
        assert [4, 8] == seen
        with pytest.raises(Closed):
            await member.wait_ready()
    assert (True, True) == (member.closed, plain.closed)


@in_loop
async def test_whoever_waits_for_a_member_of_a_test_turns_its_clock(group: Group) -> None:
    """`close` used to wait in real time for a clock that stood still, and never returned."""
    async with AsyncMember(group["a"]) as member:
        role = min(group["b"].led)
        with pytest.raises(ConfigError, match="timeout=nan must be at least 0"):
            await member.pulse(nan)
        with pytest.raises(NotLeading, match="b owns it under term"):
            async with member.leading(role, timeout=0.01):
                pass
        assert not await member.pulse(1.0, role=role)
        group.cut("a")
        with pytest.raises(LedgerUnavailable, match="a drain of b was to be read back"):
            await member.operator.drain("b", timeout=0.05)
        group.heal("a")
        group.kill("b")
        async with member.leading(role, timeout=PATIENCE) as lease:
            assert role == lease.partition
    assert member.closed


@in_loop
async def test_an_asynchronous_program_from_beginning_to_end(config: Config) -> None:
    async def handle(event: Event) -> None:
        assert asyncio.get_running_loop() is loop
        await asyncio.sleep(0)
        told.append(type(event).__name__)

    loop, told = asyncio.get_running_loop(), list[str]()
    async with AsyncMember(config, on_event=handle) as member:
        async with member.leading("nightly", timeout=PATIENCE) as lease:
            assert (True, "nightly", "a") == (lease.holds(), lease.role, lease.member)
        await member.operator.pin(3, "b")
        await member.operator.pin(3, None)
        await member.operator.weigh("b", 2)
        await member.operator.weigh("a", 7)
        await member.operator.weigh("a", None)
        await member.operator.load({1: 2.0})
        await member.operator.upgrade()
        await member.operator.drain("b")
        state = member.state
        assert (["b"], {"b": 2}, {1: 2.0}, {}) == (list(state.drains), state.weights, state.loads, state.pins)
        await member.operator.drain("b", undo=True)
        assert {} == member.state.drains
        async with member.leading(0) as lease:
            await member.close()  # In the member's own block, it takes effect when the block ends.
            assert lease.holds()
        assert await member.wait(timeout=PATIENCE)
    for call in (member.pulse(0.0), member.operator.drain("b")):
        with pytest.raises(Closed):
            await call
    assert ["Acquired", "Revoked"] == told


@in_loop
async def test_a_loop_that_is_busy_for_longer_than_a_lease_stays_a_member(config: Config) -> None:
    async with AsyncMember(config) as member:
        assert await member.pulse(PATIENCE)
        incarnation, terms = member.incarnation, member.led
        last = member.state.last_beats[incarnation] + 2 * BEATS_PER_LEASE  # The ledger has only its Beats.
        # A careless program: the loop stands still.
        until(lambda: member.state.last_beats[incarnation] >= last)
        assert incarnation == member.incarnation
        await until_in_loop(lambda: terms == member.led)


@in_loop
async def test_a_plain_handler_runs_on_the_loop_too_and_may_close(config: Config) -> None:
    def handle(event: Event) -> object:
        told.append((type(event).__name__, threading.current_thread() is threading.main_thread()))
        return member.close() if isinstance(event, Acquired) else None

    told: list[tuple[str, bool]] = []
    async with AsyncMember(config, on_event=handle) as member:
        assert await member.wait(timeout=PATIENCE)
    assert [("Acquired", True), ("Revoked", True)] == told


@in_loop
async def test_closing_waits_until_the_owner_store_knows(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a program that exits after that leaves its entries in the store until they expire."""
    monkeypatch.setattr("neli_router.member.async_member.FLUSH_MAX", PATIENCE)
    member = await AsyncMember(config).open()
    member.engine.published = published = threading.Event()
    closing = asyncio.create_task(member.close())
    await until_in_loop(lambda: member.closed)
    assert (await asyncio.wait([closing], timeout=0.05))[1] == {closing}
    published.set()
    await closing


@in_loop
async def test_closing_with_a_timeout_cancels_another_tasks_block(config: Config) -> None:
    async def work() -> None:
        async with member.leading(0):
            entered.set()
            await asyncio.sleep(PATIENCE)

    entered = asyncio.Event()
    async with AsyncMember(config) as member:
        worker = asyncio.create_task(work())
        await entered.wait()
        await member.close(timeout=0.1)
        with pytest.raises(LeaseLost, match="the program left the group without finishing"):
            await worker


@in_loop
async def test_a_handler_that_raises_ends_the_member_and_its_tasks(config: Config) -> None:
    async def broken(_: Event | AsyncLease) -> None:
        raise ZeroDivisionError

    with pytest.raises(HandlerFailed):  # noqa: PT012 - the end of the block raises it again.
        async with AsyncMember(config, on_event=broken) as member:
            handle = member.background(broken)  # It never runs.
            with pytest.raises(HandlerFailed, match="it raised ZeroDivisionError") as raised:
                await member.wait(timeout=PATIENCE)
            assert isinstance(raised.value.__cause__, ZeroDivisionError)
            for call in (member.pulse(0.0), handle.wait()):
                with pytest.raises(HandlerFailed):
                    await call


@in_loop
async def test_opening_raises_what_the_constructor_would_and_when_cancelled_leaves_no_member(config: Config) -> None:
    async with AsyncMember(config) as watching:
        await until_in_loop(lambda: watching.state.seats)
        with pytest.raises(GroupMismatch):
            await AsyncMember(replace(config, lease=9.0)).open()
        loop, one_thread = asyncio.get_running_loop(), ThreadPoolExecutor(max_workers=1)
        loop.set_default_executor(one_thread)
        cancelled = threading.Event()
        one_thread.submit(cancelled.wait)  # Or the thread might have created the member by then.
        opening = asyncio.create_task(AsyncMember(replace(config, name="late")).open())
        await asyncio.sleep(0)
        opening.cancel()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await loop.run_in_executor(one_thread, bool)  # Not before the thread has created the member.
        await until_in_loop(lambda: not any(thread.name.startswith("neli-late") for thread in threading.enumerate()))
        await until_in_loop(lambda: ["a"] == [peer.name for peer in watching.router.members])


def test_another_loop_is_refused(config: Config) -> None:
    member = asyncio.run(AsyncMember(config).open())
    with pytest.raises(RuntimeError, match="belongs to the event loop that opened it"):
        asyncio.run(member.pulse(0.0))
    member._opened_parts[0].close()


@in_loop
async def test_a_background_task_ends_when_it_is_stopped_or_raises_or_its_member_closes(config: Config) -> None:
    async def work(lease: AsyncLease) -> None:
        ran.append(lease.holds())

    async def broken(_: AsyncLease) -> None:
        raise ValueError("customer-7")

    async def last(lease: AsyncLease) -> None:
        entered.set()
        await lease.revoked.wait()

    entered, ran = asyncio.Event(), list[bool]()
    async with AsyncMember(config) as member:
        handle = member.background(work, interval=0.01)
        await until_in_loop(lambda: len(ran) >= 3)
        assert handle.running
        assert not await handle.wait(0.0)
        handle.stop()
        assert await handle.wait()
        assert (False, {True}) == (handle.running, set(ran))
        handle = member.background(broken)
        for _ in range(2):
            with pytest.raises(ValueError, match="customer-7"):
                await handle.wait()
        assert not handle.running
        handle = member.background(last)
        await entered.wait()
    assert await handle.wait()
    with pytest.raises(Closed):
        member.background(last)


@in_loop
async def test_a_task_whose_lease_is_lost_is_cancelled_and_runs_again(group: Group) -> None:
    began, cancelled = list[int](), list[int]()

    async def work(lease: AsyncLease) -> None:
        began.append(lease.term)
        try:
            await asyncio.sleep(PATIENCE if len(began) == 1 else 0)
        except asyncio.CancelledError:
            cancelled.append(lease.term)
            raise

    member = await AsyncMember(group["a"]).open()
    handle = member.background(work, role=min(member.led), interval=0.0)
    await turns()
    group.cut("a")
    group.advance(1.5)
    await turns()
    group.heal("a")
    group.settle()
    await until_in_loop(lambda: len(began) > 1)
    assert (1, True) == (len(cancelled), handle.running)
    handle.stop()
    await handle.wait()
