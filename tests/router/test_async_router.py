"""The router's async form: the same names and answers, and an event loop that never waits for a driver."""

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

from neli_router.config import Config
from neli_router.errors import Closed, LedgerUnavailable, LedgerUnusable, NeliError, StaleTable
from neli_router.induction.records import Genesis, Join, Leave, Record, encode
from neli_router.keyspace import Layout
from neli_router.ledgers.base import Ledger
from neli_router.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.ledgers.sqlite.ledger import SqliteLedger
from neli_router.router.async_router import AsyncRouter, AsyncWatch
from neli_router.router.router import Router
from neli_router.router.watch import Change

LAYOUT = Layout(slots=64, partitions=4)
GENESIS = Genesis(by="x", layout=LAYOUT, lease=3600.0, guarantee="exclusive", base=1_000, version=1)
PATIENCE = 180.0


def join(name: str) -> Join:
    return Join(by=name, name=name, address=f"{name}:1", versions=(1, 1), at=0)


def write(log: MemoryLog, *records: Record) -> None:
    MemoryLedger(log).append([encode(record) for record in records])


@pytest.fixture
def log() -> MemoryLog:
    log = MemoryLog()
    write(log, GENESIS, join("a"))
    return log


def run(act: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE):
            await act()

    asyncio.run(main())


def test_it_answers_as_a_router_does(tmp_path: Path) -> None:
    async def act() -> None:
        path = tmp_path / "ledger.db"
        ledger = SqliteLedger(path)
        ledger.append([encode(GENESIS), encode(join("a"))])
        config = Config(f"sqlite:{path}", name="a", layout=LAYOUT)
        async with AsyncRouter(config) as router, AsyncRouter(f"sqlite:{path}") as other:
            with Router(config) as plain:
                assert plain.owner("key") == router.owner("key") == other.owner("key")
                assert plain.owners(["key"]) == router.owners(["key"])
                assert plain.owner_of_role(7) == router.owner_of_role(7)
                assert ["key"] == plain.mine(["key"]) == router.mine(["key"])
                assert plain.members == router.members
                assert plain.table.partitions == router.table.partitions
                assert (plain.at.offset, None) == (router.at.offset, router.error)
                assert re.fullmatch(
                    rf"<AsyncRouter of sqlite:{re.escape(str(path))}: at offset 3, \d+\.\d s old>", repr(router)
                )
        with pytest.raises(Closed):
            router.owner("key")
        await router.close()
        ledger.close()

    run(act)


def test_its_look_ups_are_the_routers_own(log: MemoryLog) -> None:
    """Or a look-up would cost one more call."""

    async def act() -> None:
        with Router(lambda: MemoryLedger(log)) as plain:
            assert plain.owner == AsyncRouter(plain).owner

    run(act)


def test_before_it_is_opened_it_says_so(log: MemoryLog) -> None:
    async def act() -> None:
        router = AsyncRouter(lambda: MemoryLedger(log))
        assert "<AsyncRouter, not opened>" == repr(router)
        for ask in (lambda: router.owner("key"), lambda: router.table, lambda: router.owners(["key"]), router.watch):
            with pytest.raises(Closed, match="this one was not opened yet: use `async with`"):
                ask()
        await router.close()
        async with router:
            assert "a" == router.owner("key").name

    run(act)


def test_opening_fails_as_a_router_does(tmp_path: Path) -> None:
    async def act() -> None:
        with pytest.raises(LedgerUnusable):
            await AsyncRouter(f"sqlite:{tmp_path}/missing.db").open()

    run(act)


def test_opening_gives_up_when_the_time_is_up_and_leaves_nothing_open() -> None:
    def open_ledger() -> Ledger:
        raise LedgerUnavailable("the ledger was wanted", "it is locked", "wait")

    async def act() -> None:
        said = ""
        for timeout in (0.05, 5.0, PATIENCE):  # On a busy machine, the time may be up before the first try has failed.
            router = AsyncRouter(open_ledger)
            with pytest.raises(StaleTable, match=f"within {timeout:g} s") as caught:
                await router.open(timeout)
            with pytest.raises(Closed):
                router.owner("key")
            if "it is locked" in (said := str(caught.value)):
                break
        assert "it is locked" in said
        while "neli-router" in {thread.name for thread in threading.enumerate()}:  # noqa: ASYNC110 - it tells of no event.
            await asyncio.sleep(0.005)  # It ends by itself: nothing waits for that.

    run(act)


def test_waiting_does_not_hold_up_the_loop_and_ends_with_what_was_awaited(log: MemoryLog) -> None:
    async def act() -> None:
        ledger = MemoryLedger(log)
        router = AsyncRouter(Router(lambda: ledger))
        router._opened.feed.reopen()  # As if nothing had been read yet; the reader reads again in half a second.
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.001)

        task = asyncio.create_task(others())
        with pytest.raises(StaleTable, match=r"a table of memory was wanted within 0.02 s"):
            await router.await_table(0.02)
        await router.await_table()
        task.cancel()
        assert turns > 2
        await router.close()
        with pytest.raises(Closed):
            await router.await_table()

    run(act)


def test_changes_come_to_the_task_that_iterates(log: MemoryLog) -> None:
    async def act() -> None:
        async with AsyncRouter(lambda: MemoryLedger(log)) as router:
            watch = router.watch()
            assert watch.table is router.table
            assert await watch.take(0.01) is None
            write(log, join("b"), Leave(by="a"))
            partitions = {cast("Change", await anext(watch)).partition for _ in range(4)}
            assert ({0, 1, 2, 3}, "b") == (partitions, router.owner("key").name)
        assert [] == [change async for change in watch]

    run(act)


def test_a_watch_wakes_every_task_and_each_change_goes_to_one(log: MemoryLog) -> None:
    async def act() -> None:
        async with AsyncRouter(lambda: MemoryLedger(log)) as router, router.watch() as watch:
            tasks = [asyncio.create_task(watch.take()) for _ in range(4)]
            await asyncio.sleep(0)
            write(log, join("b"), Leave(by="a"))
            taken = await asyncio.gather(*tasks)
            assert {0, 1, 2, 3} == {cast("Change", change).partition for change in taken}
            waiting = asyncio.create_task(watch.take())
            await asyncio.sleep(0)
            await watch.close()
            assert await waiting is None

    run(act)


def test_a_watch_ends_with_what_ended_its_router(log: MemoryLog) -> None:
    async def act() -> None:
        async with AsyncRouter(lambda: MemoryLedger(log)) as router:
            watch = router.watch()
            waiting = asyncio.create_task(watch.take())
            await asyncio.sleep(0)
            router._opened.feed.fail(LedgerUnusable("a ledger was wanted", "it is damaged", "make a new one"))
            with pytest.raises(LedgerUnusable):
                await waiting
            with pytest.raises(NeliError):
                await router.await_table()
            await router.reopen()
            assert "a" == router.owner("key").name

    run(act)


def test_a_loop_that_has_ended_does_not_disturb_the_reading(log: MemoryLog) -> None:
    with Router(lambda: MemoryLedger(log)) as router:
        watches: list[AsyncWatch] = []

        async def act() -> None:
            watches.append(AsyncRouter(router).watch())

        run(act)
        with router.watch() as watch:
            write(log, join("b"), Leave(by="a"))
            assert watch.take(PATIENCE) is not None
        assert "b" == router.owner("key").name
