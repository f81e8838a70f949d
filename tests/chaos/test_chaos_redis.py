"""Real processes on a Redis that keeps what it acknowledged, all in a separate network, and a storm upon them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster import OUTSIDE, RedisCluster
from tests.chaos.faults import LEADER_FAULTS, MAIN_FAULTS, SEVERAL
from tests.chaos.weather import NAMES, SECONDS, require_safe, weather
from tests.conftest import require

FAULTS = [kind for kind in (*MAIN_FAULTS, *LEADER_FAULTS) if kind not in SEVERAL]

pytestmark = [pytest.mark.redis, pytest.mark.process, pytest.mark.timeout(SECONDS * 1.5 + 900)]


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    require(RedisCluster.missing())
    with RedisCluster.started(NAMES) as started, started.network.entered(OUTSIDE):
        yield started


def test_no_two_processes_ever_act_at_once_whatever_happens_to_them_and_to_redis(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    """One Redis with `appendfsync always` loses nothing when it is killed, which its members accept as a risk."""
    require_safe(weather(cluster, tmp_path, "exclusive", FAULTS, SECONDS, accept_rewinds=True))
