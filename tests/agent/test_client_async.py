"""The client on an event loop: the same answers, and blocks that are cancelled when their lease is lost."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from neli_router.agent import AsyncClient, NoAgent
from neli_router.agent.wire import LeaseView, ShareView
from neli_router.core.clock import host_clock
from neli_router.errors import Closed, LeaseLost, NoOwner, NotLeading
from tests.support.agents.running import PATIENCE, over_once_told
from tests.support.agents.stand_in import StandIn
from tests.support.looping import in_loop
from tests.support.waiting import until_in_loop

Story = Callable[[StandIn, AsyncClient], Coroutine[Any, Any, None]]


def scene(story: Story) -> Callable[[tuple[StandIn, str]], None]:
    """The test that plays `story` with a stand-in and a client of it."""

    @in_loop
    async def test(place: tuple[StandIn, str]) -> None:
        agent, address = place
        async with AsyncClient(address, timeout=PATIENCE) as client:
            await story(agent, client)

    return test


@scene
async def test_it_asks_what_the_other_form_asks(agent: StandIn, client: AsyncClient) -> None:
    assert "alpha" == (await client.owner("k")).name == (await client.owner_of_role(3)).name
    assert ["alpha", None] == [view.name for view in await client.owners(["a", "nobody"])]
    assert 2 == len((await client.table()).partitions)
    assert ["alpha"] == [member.name for member in (await client.members()).members]
    assert "alpha" == (await client.status()).agent
    assert [False, True] == [(await client.drain("a", preview=True)).done, (await client.pin(3, None)).done]
    assert 1.5 == (await client.load({0: 1.0})).before
    with pytest.raises(NoOwner):
        await client.owner("nobody")
    assert None is await client.lease("nightly")
    agent.leads()
    lease = await client.lease("nightly")
    assert lease is not None
    assert 7 == lease.term
    async with client.watch("k") as watch:
        async for view in watch:
            assert "alpha" == view.name
            await watch.close()
    await until_in_loop(lambda: agent.held == 0)


@in_loop
async def test_without_an_agent_it_says_how_to_start_one(tmp_path: Path) -> None:
    async with AsyncClient(f"{tmp_path}/agent.sock") as client:
        with pytest.raises(NoAgent, match="there is no socket: start one"):
            await client.owner("k")
    with pytest.raises(Closed):
        await client.owner("k")


@scene
async def test_leading_waits_is_renewed_and_gives_the_role_back(agent: StandIn, client: AsyncClient) -> None:
    with pytest.raises(NotLeading, match="beta leads it"):
        async with over_once_told(client.leading("nightly", timeout=PATIENCE)):
            raise AssertionError("nobody leads yet")
    agent.leads(remaining=20)
    async with client.leading("nightly") as lease:
        agent.lease = LeaseView(0, True, "alpha", 7, 50.0, 10.0)
        agent.say("renewed")
        await until_in_loop(lambda: lease.remaining() > 30)
        began = host_clock()
        assert (False, True) == (await lease.revoked.wait(0.01), host_clock() >= began + 0.01)
        agent.say("revoked")
        assert (True, True) == (await lease.revoked.wait(PATIENCE), lease.holds())
    assert not lease.holds()
    await until_in_loop(lambda: agent.held == 0)


@scene
async def test_a_block_is_cancelled_when_its_lease_or_a_partition_is_lost(agent: StandIn, client: AsyncClient) -> None:
    agent.leads()
    with pytest.raises(LeaseLost, match="was expired by beta"):  # noqa: PT012 - its end raises.
        async with client.leading("nightly"):
            agent.say("fenced", why="it was expired by beta")
            await asyncio.Event().wait()
    agent.share = ShareView("alpha", {3: 7, 5: 7}, 30.0, 10.0)
    with pytest.raises(LeaseLost, match="expired by beta"):  # noqa: PT012 - its end raises.
        async with client.share([3, 5]) as share:
            agent.say("revoked", ShareView("alpha", {3: 7}))
            assert await share.ending.wait(PATIENCE)
            agent.say("fenced", ShareView("alpha", {5: 7}, why="expired by beta"))
            await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert 0 == task.cancelling()
    await until_in_loop(lambda: agent.held == 0)


@scene
async def test_a_broken_stream_is_reopened_and_a_closed_client_ends_the_block(
    agent: StandIn, client: AsyncClient
) -> None:
    agent.leads()
    with pytest.raises(LeaseLost, match="client was closed"):  # noqa: PT012 - its end raises.
        async with client.leading("nightly") as lease:
            agent.hang_up()
            await until_in_loop(lambda: agent.requests.count("/v1/leadership/events") == 2)
            lease.check()
            await client.close()
            await asyncio.Event().wait()
