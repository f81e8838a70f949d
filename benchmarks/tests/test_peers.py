"""The rivals that `failover --peers` measures along with ours: how their setting is chosen, and that a kill is seen."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks._peers import ladder
from benchmarks._peers import zookeeper_server as zookeeper
from benchmarks._peers.contest import Contest
from benchmarks._peers.ladder import smallest
from benchmarks._peers.rivals import Asked, Rival
from benchmarks._peers.zookeeper_server import ZooKeeper
from tests.conftest import require
from tests.support.servers import redis as redis_servers
from tests.support.servers.redis import Redis


class Steady:
    """Expires `expires` members wrongly, the second time that it is looked at."""

    def __init__(self, expires: int) -> None:
        self.false_expiries, self._expires, self._looks = 0, expires, 0

    def look(self) -> None:
        self._looks += 1
        self.false_expiries = self._expires if self._looks > 1 else 0

    def takeover(self, rng: random.Random) -> float:
        return 0.0


def rival(expires: dict[float, int]) -> Rival:
    @contextmanager
    def at(setting: float) -> Iterator[Asked]:
        if expires[setting] < 0:
            raise TimeoutError("it never came to rest")
        yield Steady(expires[setting])

    return Rival("rival", "", tuple(expires), at)


@pytest.fixture(autouse=True)
def _idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep no core busy where nothing is measured."""

    @contextmanager
    def idle() -> Iterator[None]:
        yield

    monkeypatch.setattr(ladder, "busy_cores", idle)


@pytest.mark.parametrize(
    ("expires", "chosen"),
    [
        ({0.1: 0, 0.2: 0}, 0.1),
        ({0.1: 3, 0.2: 1, 0.3: 0}, 0.3),
        ({0.1: -1, 0.2: 0}, 0.2),
        ({0.1: 1, 0.2: -1}, None),
    ],
    ids=["the first", "one without a wrong expiry", "one that comes to rest", "none"],
)
def test_the_smallest_setting_is_chosen_without_a_wrong_expiry(expires: dict[float, int], chosen: float | None) -> None:
    assert chosen == smallest(rival(expires), tuple(expires), seconds=0.2)


@pytest.mark.redis
@pytest.mark.process
def test_a_lock_in_redis_passes_on_when_its_holder_is_killed() -> None:
    require(redis_servers.missing())
    with Redis.started() as server, Contest("redis_lock", server.socket, 1.0) as contest:
        assert contest.takeover(random.Random(1)) > 0
        assert 1 == sum(contender.holds for contender in contest._present)


@pytest.mark.kafka
@pytest.mark.process
def test_a_role_in_zookeeper_passes_on_when_its_holder_is_killed() -> None:
    require(zookeeper.missing())
    pytest.importorskip("kazoo")
    with ZooKeeper.started(1.0) as server, Contest("zookeeper", server.address, 1.0) as contest:
        assert contest.takeover(random.Random(1)) > 0
        assert 1 == sum(contender.holds for contender in contest._present)
