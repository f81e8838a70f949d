"""Real processes on a server that keeps what it acknowledged, in a network of their own, and a storm upon them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster import OUTSIDE, LoneServer
from tests.chaos.faults import FAIL_OVER, LEADER_FAULTS, MAIN_FAULTS, SEVERAL
from tests.chaos.weather import NAMES, SECONDS, require_safe, weather
from tests.conftest import require

FAULTS = [kind for kind in (*MAIN_FAULTS, *LEADER_FAULTS) if kind not in SEVERAL]

pytestmark = [pytest.mark.process, pytest.mark.timeout(SECONDS * 1.5 + 900)]


@pytest.fixture(
    params=[pytest.param("postgresql", marks=pytest.mark.postgresql), pytest.param("redis", marks=pytest.mark.redis)]
)
def server(request: pytest.FixtureRequest) -> Iterator[LoneServer]:
    require(LoneServer.missing(request.param))
    with LoneServer.started(request.param, NAMES) as started, started.network.entered(OUTSIDE):
        yield started


def test_no_two_processes_ever_act_at_once_in_a_storm(server: LoneServer, tmp_path: Path) -> None:
    """PostgreSQL with a synchronous standby promises that it never rewinds. Members accept that Redis might; with
    `appendfsync always` it does not, if it is killed."""
    faults, accepted = (FAULTS, True) if server.standby is None else ([*FAULTS, FAIL_OVER], False)
    run = weather(server, tmp_path, "exclusive", faults, SECONDS, accept_rewinds=accepted)
    require_safe(run)
    assert set(faults) - {"witness"} <= {fault.kind for fault in run.storm.injected}
