"""The client and the real agent, in real time."""

from collections.abc import Iterator

import pytest

from neli_router.agent import Client
from neli_router.errors import BadKey, NeliError, NotLeading
from neli_router.keyspace import Layout
from neli_router.member.member import Member
from tests.support.agents.running import PARTITIONS, STEADY, TOKEN, Running
from tests.support.waiting import PATIENCE, until

LAYOUT = Layout(partitions=PARTITIONS)


@pytest.fixture(name="client")
def _client(agent: Running) -> Iterator[Client]:
    with Client(agent.options.socket or "", timeout=PATIENCE) as client:
        yield client


def test_it_is_asked_over_both_doors(agent: Running, client: Client) -> None:
    with client.leading(0, timeout=PATIENCE) as lease:
        assert ("a", 0) == (lease.member, lease.partition)
    owner = client.owner("customer-7")
    assert owner == client.owners(["customer-7"])[0] or owner.at <= client.owners([b"customer-7"])[0].at
    long = client.owner("x" * 20_000)
    assert ("a", "a", "a") == (owner.name, long.name, client.owner_of_role("nightly").name)
    assert (PARTITIONS, ["a"]) == (len(client.table().partitions), [one.name for one in client.members().members])
    assert (LAYOUT, "a") == (client.table().layout, client.status().agent)
    with client.watch(role=1) as changes:
        assert "a" == next(iter(changes)).name
    with Client(agent.address, token="another-token-of-ours", timeout=PATIENCE) as stranger:  # noqa: S106 - of a test.
        assert 1 == len(stranger.members().members)
        with pytest.raises(NeliError, match="it knows another one"):
            stranger.owner("customer-7")
    with Client(agent.address, token=TOKEN, timeout=PATIENCE) as friend:
        assert "a" == friend.owner("customer-7").name
    with pytest.raises(BadKey):
        client.owner("\ud800")


def test_a_role_is_waited_for_until_a_pin_brings_it(follower: Running, other: Member) -> None:
    with Client(follower.options.socket or "", timeout=PATIENCE) as client:
        assert not client.pin(2, "a", preview=True).done
        assert None is client.lease(2, within=0.1)
        with pytest.raises(NotLeading), client.leading(2, timeout=0.1):
            raise AssertionError("b leads it")
        before = other.led[2]
        client.pin(2, "a")
        waited_for = client.lease(2, within=PATIENCE)
        assert waited_for is not None
        assert waited_for.term > before
        assert waited_for.remaining() > 0
        with client.leading(2, timeout=PATIENCE) as lease:
            assert (waited_for.term, "a", True) == (lease.term, lease.member, lease.remaining() <= STEADY)


def test_loads_exchange_hot_partitions_for_cold_ones(follower: Running, other: Member) -> None:
    with Client(follower.options.socket or "", timeout=PATIENCE) as client:

        def is_even() -> bool:
            shares = {member.partitions for member in client.members().members}
            return {PARTITIONS // 2} == shares and all(one.owner == one.target for one in client.table().partitions)

        other.undrain("a")
        until(is_even, "an even share")
        owners = [one.owner for one in client.table().partitions]
        loads = {partition: 9.0 if owner == owners[0] else 1.0 for partition, owner in enumerate(owners)}
        planned = client.load(loads, layout=LAYOUT, preview=True)
        assert owners == [one.target for one in client.table().partitions]
        done = client.load(loads, layout=LAYOUT)
        assert (1.8, 1.0, 0.5) == (planned.before, planned.after, planned.share)
        assert [(move.source, move.target, move.partitions) for move in planned.moves] == [
            (move.source, move.target, move.partitions) for move in done.moves
        ]
        until(lambda: {20.0} == {member.load for member in client.members().members})
        assert PARTITIONS // 2 == sum(len(move.partitions) for move in done.moves)
        other.drain("a")
        client.load(dict.fromkeys(loads, 0.0))
