"""The client and the real agent, in real time."""

from collections.abc import Iterator

import pytest

from neli_router.agent import Client
from neli_router.errors import BadKey, NeliError, NotLeading
from neli_router.keyspace import Layout
from neli_router.member.member import Member
from tests.support.agents.running import PARTITIONS, STEADY, TOKEN, Running
from tests.support.waiting import PATIENCE

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
