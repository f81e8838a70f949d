"""The client and the real agent: two hosts' agents on one ledger, in real time."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from neli_router.agent import AsyncClient, Client
from neli_router.agent.server.server import Agent
from neli_router.config import Config
from neli_router.errors import BadKey, LeaseLost, NeliError, NotLeading
from neli_router.keyspace import Layout
from neli_router.settings.agent_options import AgentOptions
from tests.support.agents.running import PATIENCE, STEADY
from tests.support.waiting import until

pytestmark = pytest.mark.process

TOKEN = "a-token-that-is-long-enough"  # noqa: S105 - of a test.


@contextmanager
def agent(folder: Path, name: str) -> Iterator[tuple[Agent, asyncio.AbstractEventLoop]]:
    made: list[tuple[Agent, asyncio.AbstractEventLoop]] = []
    config = Config.of(
        {
            "ledger": f"sqlite:///{folder}/ledger.db",
            "name": name,
            "lease": STEADY,
            "drain_timeout": 5.0,
            "layout": Layout(slots=16, partitions=4),
        }
    )
    options = AgentOptions(socket=f"{folder}/{name}.sock", listen="127.0.0.1:0", token=TOKEN)

    async def serve() -> None:
        inner = Agent(config, options)
        made.append((inner, asyncio.get_running_loop()))
        await inner.serve()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    until(lambda: made and made[0][0].started.is_set())
    try:
        yield made[0]
    finally:
        inner, loop = made[0]
        if thread.is_alive():
            loop.call_soon_threadsafe(inner.stop)
        thread.join(60)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def test_it_is_asked_over_both_doors(folder: Path) -> None:
    with agent(folder, "alpha") as (inner, _), Client(f"{folder}/alpha.sock", timeout=PATIENCE) as client:
        with client.leading(0, timeout=60) as lease:
            assert ("alpha", 0) == (lease.member, lease.partition)
        owner = client.owner("customer-7")
        assert owner == client.owners(["customer-7"])[0] or owner.at <= client.owners([b"customer-7"])[0].at
        long = client.owner("x" * 20_000)
        assert ("alpha", "alpha", "alpha") == (owner.name, long.name, client.owner_of_role("nightly").name)
        assert (4, ["alpha"]) == (len(client.table().partitions), [one.name for one in client.members().members])
        assert Layout(slots=16, partitions=4) == client.table().layout
        assert "alpha" == client.status().agent
        with client.watch(role=1) as changes:
            assert "alpha" == next(iter(changes)).name
        with Client(f"http://{inner.tcp_address}", token="another-token-of-ours", timeout=PATIENCE) as stranger:  # noqa: S106 - of a test.
            assert 1 == len(stranger.members().members)
            with pytest.raises(NeliError, match="it knows another one"):
                stranger.owner("customer-7")
        with Client(f"http://{inner.tcp_address}", token=TOKEN, timeout=PATIENCE) as friend:
            assert "alpha" == friend.owner("customer-7").name
        with pytest.raises(BadKey):
            client.owner("\ud800")


def test_a_pin_moves_a_role_once_its_block_has_finished(folder: Path) -> None:
    with ExitStack() as stack:
        for name in ("alpha", "beta"):
            stack.enter_context(agent(folder, name))
        alpha = stack.enter_context(Client(f"{folder}/alpha.sock", timeout=PATIENCE))
        beta = stack.enter_context(Client(f"{folder}/beta.sock", timeout=PATIENCE))
        until(lambda: len(beta.members().members) == 2)
        beta.pin(2, "alpha")
        with alpha.leading(2, timeout=60) as lease:
            assert not beta.pin(2, "beta", preview=True).done
            beta.pin(2, "beta")
            assert lease.revoked.wait(60)
            lease.check()
            assert None is beta.lease(2, within=0.1)
            with pytest.raises(NotLeading), beta.leading(2, timeout=0.1):
                raise AssertionError("alpha has not finished")
        waited_for = beta.lease(2, within=30)
        assert waited_for is not None
        assert waited_for.term > lease.term
        assert waited_for.remaining() > 0
        with beta.leading(2, timeout=60) as later:
            assert (True, "beta") == (later.term > lease.term, later.member)
            assert None is alpha.lease(2)
            assert later.remaining() <= STEADY


def test_loads_exchange_hot_partitions_for_cold_ones(folder: Path) -> None:
    def handed_over() -> bool:
        table = client.table()
        return len(client.members().members) == 2 and all(one.owner == one.target for one in table.partitions)

    with ExitStack() as stack:
        for name in ("alpha", "beta"):
            stack.enter_context(agent(folder, name))
        client = stack.enter_context(Client(f"{folder}/alpha.sock", timeout=PATIENCE))
        until(lambda: sum(one.partitions == 2 for one in client.members().members) == 2 and handed_over())
        owners = [one.owner for one in client.table().partitions]
        loads = {partition: 9.0 if owner == owners[0] else 1.0 for partition, owner in enumerate(owners)}
        planned = client.load(loads, layout=Layout(slots=16, partitions=4), preview=True)
        assert owners == [one.target for one in client.table().partitions]
        done = client.load(loads, layout=Layout(slots=16, partitions=4))
        assert (1.8, 1.0, 0.5) == (planned.before, planned.after, planned.share)
        assert [(move.source, move.target, move.partitions) for move in planned.moves] == [
            (move.source, move.target, move.partitions) for move in done.moves
        ]
        until(lambda: {member.load for member in client.members().members} == {10.0})
        assert 2 == sum(len(move.partitions) for move in done.moves)


def test_a_lease_is_renewed_for_longer_than_it_is(folder: Path) -> None:
    async def work() -> None:
        async with (
            AsyncClient(f"{folder}/alpha.sock", timeout=PATIENCE) as client,
            client.leading("nightly", timeout=60) as lease,
        ):
            await asyncio.sleep(1.25 * STEADY)
            lease.check()

    with agent(folder, "alpha"):
        asyncio.run(work())


def test_an_agent_that_is_stopped_revokes_and_waits(folder: Path) -> None:
    with agent(folder, "alpha") as (inner, loop), Client(f"{folder}/alpha.sock", timeout=PATIENCE) as client:
        with client.leading("nightly", timeout=60) as lease:
            loop.call_soon_threadsafe(inner.stop)
            assert lease.revoked.wait(60)
            lease.check()
        with pytest.raises(NeliError), client.leading("nightly", timeout=5):
            raise AssertionError("it is gone, or about to be")


def test_a_block_that_does_not_finish_loses_its_lease(folder: Path) -> None:
    with (  # noqa: PT012 - its end raises.
        agent(folder, "alpha") as (inner, loop),
        Client(f"{folder}/alpha.sock", timeout=PATIENCE) as client,
        pytest.raises(LeaseLost),
        client.leading("nightly", timeout=60) as lease,
    ):
        loop.call_soon_threadsafe(inner.stop)
        until(lambda: not lease.holds())
