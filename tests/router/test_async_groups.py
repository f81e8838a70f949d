"""Several groups in an event loop: the answers of `Groups`, and waiting that does not block the loop."""

import asyncio
import threading
from pathlib import Path
from typing import cast

import pytest

import neli_router
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.ledgers.memory import MemoryLedger
from neli_router.errors import Closed, ConfigError, LedgerUnavailable, StaleTable
from neli_router.protocols.induction.records import Leave
from neli_router.router.groups import AsyncGroups, Groups
from neli_router.router.watch import Change
from tests.support.groups import log_of, named, static, write
from tests.support.looping import in_loop
from tests.support.waiting import PATIENCE, until_in_loop


def unavailable() -> Ledger:
    raise LedgerUnavailable("the ledger was wanted", "it is locked", "wait")


@in_loop
async def test_it_answers_as_groups_do() -> None:
    logs = {"blue": log_of("anna"), "green": log_of("gerd")}
    sources = {group: lambda log=log: MemoryLedger(log) for group, log in logs.items()}
    async with neli_router.AsyncGroups(sources) as groups:
        with Groups(sources) as plain:
            assert plain.owners("key") == groups.owners("key")
            assert [] == plain.shared_hosts() == groups.shared_hosts()
            assert ["blue"] == plain.groups_on("anna") == groups.groups_on("anna")
        assert (["blue", "green"], 2, {}) == (list(groups), len(groups), groups.errors)
        assert "gerd" == groups["green"].owner("key").name
        assert groups["green"] is groups["green"]
        assert repr(groups).startswith("<AsyncGroups blue: <Router of ")
        assert Groups.owners is groups.owners.__func__  # type: ignore[attr-defined]
        await groups.reopen()
        assert {"blue": "anna", "green": "gerd"} == named(groups.owners("key"))
        watch = groups["blue"].watch()
        write(MemoryLedger(logs["blue"]), Leave(by="anna"))
        changes = [cast("Change", await anext(watch)) for _ in range(4)]
        assert {(0, None), (1, None), (2, None), (3, None)} == {(it.partition, it.after) for it in changes}
    with pytest.raises(Closed):
        groups.owners("key")


@in_loop
async def test_before_it_is_opened_it_says_so() -> None:
    groups = AsyncGroups({"blue": static("a")})
    for ask in (lambda: groups.owners("key"), lambda: groups["blue"], lambda: groups.errors, lambda: list(groups)):
        with pytest.raises(Closed, match="not opened yet"):
            ask()
    assert "<AsyncGroups, not opened>" == repr(groups)
    await groups.close()


@in_loop
async def test_opening_fails_as_groups_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name one at least"):
        await AsyncGroups({}).open()
    groups = AsyncGroups({"blue": f"sqlite://{tmp_path}/1.db", "green": f"sqlite://{tmp_path}/2.db"})
    with pytest.raises(StaleTable, match=r"group blue: .* group green: "):
        await groups.open(0.2)
    with pytest.raises(Closed):
        groups.owners("key")
    await until_in_loop(lambda: "neli-router" not in {thread.name for thread in threading.enumerate()})


@in_loop
async def test_waiting_does_not_hold_up_the_loop_and_can_be_given_up() -> None:
    before = asyncio.all_tasks()
    opening = asyncio.create_task(AsyncGroups({"blue": unavailable}).open(PATIENCE))
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert before == asyncio.all_tasks()
    await until_in_loop(lambda: "neli-router" not in {thread.name for thread in threading.enumerate()})
