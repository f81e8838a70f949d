"""Owners in Redis of groups that elect among themselves: without a ledger, only the store knows them all.

m1, m2, m3 ---what each leads---> a real Redis ---messages---> Router.from_redis, and a reader of the raw entries
 '---'---'-- datagrams, which are cut; the connection to Redis is not
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from neli_router.drivers.open import owners_at
from neli_router.drivers.owners.base import Holding
from neli_router.lab.referee import LifePhase
from neli_router.router.router import Router
from neli_router.router.watch import Change
from tests.conftest import require
from tests.support.processes.peer_group import PeerProcesses
from tests.support.servers import network as networks
from tests.support.servers.network import Network
from tests.support.servers.redis import Redis, missing

pytestmark = [pytest.mark.redis, pytest.mark.process]

NAMES = ["m1", "m2", "m3"]
PARTITIONS = 24
"""Eight for each member, when they are shared out."""

OUTSIDE, REDIS = "out", "redis"

Holders = dict[int, tuple[str, int]]
"""Partition -> name, term."""


class Told:
    """A group of real processes, and two readers of what it writes to Redis."""

    def __init__(self, group: PeerProcesses, url: str, stack: ExitStack) -> None:
        self.group = group
        self.router = stack.enter_context(Router.from_redis(url, wait=False))
        self._watch = stack.enter_context(self.router.watch())
        self._store = stack.enter_context(closing(owners_at(url).open()))
        self._store.table()  # From now on it hears each message.

    def led(self) -> Holders:
        """The owners that the processes themselves report. A stopped process cannot note what it has lost."""
        return {
            partition: (one.life.name, span.term)
            for one in self.group.processes
            if one.is_running and one.life.phase is not LifePhase.STOPPED
            for partition, span in one.life.held.items()
        }

    def shown(self) -> Holders:
        """The owners that a router shows."""
        if self.router.at.offset < 0:
            return {}
        return {one.partition: (one.name, one.term) for one in self.router.table.partitions if one is not None}

    def settle(self) -> Holders:
        """Wait until everything is led, and the router shows which member leads it."""
        self.group.wait_until(
            lambda: len(self.led()) == PARTITIONS and self.led() == self.shown(),
            "the router was to show what the processes lead",
        )
        return self.led()

    def card(self, name: str) -> tuple[str, int]:
        """The identity of one life of a member, and when it expires."""
        holders = self._store.table().holders.items()
        return next((holder, expires_ms) for holder, (card, expires_ms) in holders if card.name == name)

    def messages(self) -> list[dict[int, Holding]]:
        """The content of each message since the last call."""
        heard: list[dict[int, Holding]] = []
        while news := self._store.follow(0.0):
            heard += [dict(one.holdings) for one in news]
        return heard

    def require_no_fall(self) -> None:
        """No term that was written, or that the router has begun to show, is lower than one before it."""
        shown = []
        while (change := self._watch.take(0.0)) is not None:
            assert isinstance(change, Change)
            if change.after is not None:
                shown.append((change.partition, change.after.term))
        written = [(partition, held.term) for one in self.messages() for partition, held in one.items()]
        for seen in (written, shown):
            for partition in range(PARTITIONS):
                terms = [term for one, term in seen if one == partition]
                assert sorted(terms) == terms, partition
        assert [] == self.group.verdict().faults


@pytest.fixture(name="apart")
def _apart(tmp_path: Path) -> Iterator[tuple[Told, Network]]:
    """Each process on its own host, and Redis on another."""
    require(missing() or networks.missing())
    with ExitStack() as stack:
        network = stack.enter_context(Network.started([*NAMES, REDIS, OUTSIDE]))
        stack.enter_context(network.entered(OUTSIDE))
        redis = Redis.started(host=network.address(REDIS), prefix=network.prefix(REDIS))
        url = stack.enter_context(redis).url("jobs")
        places = {name: f"{network.address(name)}:7801" for name in NAMES}
        # A lease so long that a busy machine does not disturb what the test waits for.
        options = {"protocol": "term", "lease": 2.0, "ownership": url}
        group = stack.enter_context(PeerProcesses(tmp_path, places, partitions=PARTITIONS, pause=0.02, **options))
        told = Told(group, url, stack)
        for name in NAMES:
            group.start(name, prefix=network.prefix(name))
        yield told, network


def test_a_leader_without_a_majority_goes_on_reaching_redis_and_says_no_more_that_it_leads(
    apart: tuple[Told, Network],
) -> None:
    told, network = apart
    before = told.settle()
    name = before[0][0]
    alone, others = told.group.running[name], [other for other in NAMES if other != name]
    for other in others:
        network.cut(name, other)

    def is_taken() -> bool:
        shown = {partition: term for partition, (owner, term) in told.shown().items() if owner != name}
        return all(shown.get(partition, 0) > term for partition, (owner, term) in before.items() if owner == name)

    told.group.wait_until(is_taken, "the router was to show others for what it led, under higher terms")
    told.group.wait_until(lambda: not alone.life.held, "the one alone was to lose everything")
    told.require_no_fall()

    # It still renews itself in Redis, but nothing that it says after it was fenced is in a partition's message.
    life, expires_ms = told.card(name)
    told.group.wait_until(lambda: told.card(name)[1] > expires_ms, "the one alone was to renew itself")
    assert life == told.card(name)[0]
    assert life not in {held.holder for one in told.messages() for held in one.values()}

    network.cut(*others)
    told.group.wait_until(lambda: not told.led() and not told.shown(), "no member was to lead, or to be shown as owner")
    assert set(NAMES) == {peer.name for peer in told.router.members}

    network.heal()
    after = told.settle()
    assert all(after[partition][1] > term for partition, (_, term) in before.items() if after[partition][0] != name)
    told.require_no_fall()
