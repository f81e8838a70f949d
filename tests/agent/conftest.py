"""Fixtures that the agent's tests share. Agents run once for all tests, because each has to wait for a lease first."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from neli_router.agent import Client
from neli_router.member.member import Member
from tests.support.agents.running import PARTITIONS, STEADY, Running, configured, on_both_sockets, paired, running
from tests.support.agents.stand_in import StandIn, standing_in
from tests.support.waiting import PATIENCE, until

Pair = tuple[Running, Member]


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Iterator[tuple[StandIn, str]]:
    with standing_in(tmp_path) as place:
        yield place


@pytest.fixture
def stand_in(place: tuple[StandIn, str]) -> StandIn:
    return place[0]


@pytest.fixture
def client(place: tuple[StandIn, str]) -> Iterator[Client]:
    """A client of the stand-in."""
    with Client(place[1], timeout=PATIENCE) as client:
        yield client


@pytest.fixture(name="agent", scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An agent on both kinds of socket, alone in its group. Tests leave it as they found it."""
    folder = tmp_path_factory.mktemp("agent")
    with running(configured(folder, lease=STEADY), on_both_sockets(folder)) as agent:
        until(lambda: PARTITIONS == len(agent.agent.member.led), "the lead of all partitions")
        yield agent


@pytest.fixture(name="one_pair", scope="session")
def _one_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with paired(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture(name="pair")
def with_another_member(one_pair: Pair) -> Iterator[Pair]:
    """An agent that leads nothing, and a member that leads everything. The fixture takes back a test's pins."""
    agent, other = one_pair
    yield agent, other
    for partition in other.state.pins:
        other.operator.pin(partition, None, timeout=PATIENCE)
    until(lambda: PARTITIONS == len(other.led) and not agent.agent.traffic.streams, "the rest of the pair")


@pytest.fixture
def follower(pair: Pair) -> Running:
    return pair[0]


@pytest.fixture
def other(pair: Pair) -> Member:
    return pair[1]
