"""The async router: the same API and answers, and an event loop that never waits for a driver."""

import asyncio
import re
import threading
from pathlib import Path
from typing import cast

import pytest

from neli_router.config.config import Config
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.errors import Closed, LedgerMissing, LedgerUnavailable, LedgerUnusable, NeliError, StaleTable
from neli_router.protocols.induction.records import Leave
from neli_router.router.async_router import AsyncRouter, AsyncWatch
from neli_router.router.router import Router
from neli_router.router.watch import Change
from tests.support.groups import LAYOUT, genesis, join, log_of, write
from tests.support.looping import in_loop
from tests.support.waiting import PATIENCE, until_in_loop


@pytest.fixture
def log() -> MemoryLog:
    return log_of("a")


@in_loop
async def test_it_answers_as_a_router_does(tmp_path: Path) -> None:
    address, ledger = f"sqlite:{tmp_path}/ledger.db", SqliteLedger(tmp_path / "ledger.db")
    write(ledger, genesis(), join("a"))
    config = Config(address, name="a", layout=LAYOUT)
    async with AsyncRouter(config) as router, AsyncRouter(address) as other:
        with Router(config) as plain:
            assert plain.owner == AsyncRouter(plain).owner  # Otherwise a look-up would cost one more call.
            assert plain.owner("key") == router.owner("key") == other.owner("key")
            assert plain.owners(["key"]) == router.owners(["key"])
            assert plain.owner_of_role(0) == router.owner_of_role(0)
            assert ["key"] == plain.mine(["key"]) == router.mine(["key"])
            assert plain.members == router.members
            assert plain.table.partitions == router.table.partitions
            assert (plain.at.offset, None) == (router.at.offset, router.error)
            assert re.fullmatch(rf"<AsyncRouter of {re.escape(address)}: at offset 3, \d+\.\d s old>", repr(router))
    with pytest.raises(Closed):
        router.owner("key")
    await router.close()
    ledger.close()


@in_loop
async def test_before_it_is_opened_it_says_so(log: MemoryLog) -> None:
    router = AsyncRouter(lambda: MemoryLedger(log))
    assert "<AsyncRouter, not opened>" == repr(router)
    for ask in (lambda: router.owner("key"), lambda: router.table, lambda: router.owners(["key"]), router.watch):
        with pytest.raises(Closed, match="this one was not opened yet: use `async with`"):
            ask()
    await router.close()
    async with router:
        assert "a" == router.owner("key").name


@in_loop
async def test_opening_fails_as_a_router_does_and_leaves_nothing_open(tmp_path: Path) -> None:
    def locked() -> Ledger:
        raise LedgerUnavailable("the ledger was wanted", "it is locked", "wait")

    plain = Router(f"sqlite:{tmp_path}/missing.db", wait=False)
    await until_in_loop(lambda: "there is no such file" in str(plain.feed.late(0.01)))  # The first try has failed.
    for router, kind in ((AsyncRouter(plain), LedgerMissing), (AsyncRouter(locked), StaleTable)):
        with pytest.raises(kind):
            await router.open(0.01)
        with pytest.raises(Closed):
            router.owner("key")
    await until_in_loop(lambda: "neli-router" not in {thread.name for thread in threading.enumerate()})


@in_loop
async def test_changes_come_to_the_task_that_iterates_and_each_to_one_of_those_that_wait(log: MemoryLog) -> None:
    async with AsyncRouter(lambda: MemoryLedger(log)) as router:
        watch = router.watch()
        assert watch.table is router.table
        assert await watch.take(0.01) is None
        async with router.watch() as shared:
            tasks = [asyncio.create_task(shared.take()) for _ in range(4)]
            await asyncio.sleep(0)
            write(MemoryLedger(log), join("b"), Leave(by="a"))
            partitions = {cast("Change", await anext(watch)).partition for _ in range(4)}
            assert ({0, 1, 2, 3}, "b") == (partitions, router.owner("key").name)
            taken = await asyncio.gather(*tasks)
            assert {0, 1, 2, 3} == {cast("Change", change).partition for change in taken}
            waiting = asyncio.create_task(shared.take())
            await asyncio.sleep(0)
            await shared.close()
            assert await waiting is None
    assert [] == [change async for change in watch]


@in_loop
async def test_a_watch_ends_with_what_ended_its_router(log: MemoryLog) -> None:
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


def test_a_loop_that_has_ended_does_not_disturb_the_reading(log: MemoryLog) -> None:
    with Router(lambda: MemoryLedger(log)) as router:
        watches: list[AsyncWatch] = []

        @in_loop
        async def watching() -> None:
            watches.append(AsyncRouter(router).watch())

        watching()
        with router.watch() as watch:
            write(MemoryLedger(log), join("b"), Leave(by="a"))
            assert watch.take(PATIENCE) is not None
        assert "b" == router.owner("key").name
