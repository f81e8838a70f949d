"""The benchmark of short sessions returns the promised figures. Tests do not check how many members are expelled."""

import pytest

from benchmarks import sessions
from tests.conftest import require
from tests.support.servers import kafka


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_a_group_that_settles_is_counted() -> None:
    require(kafka.missing())
    figures = sessions.run(sessions.Options(session=(1.5,), members=(2,), awake=("commit",), trials=1, seconds=0))
    assert {"trials": 1, "strategy": "cooperative-sticky", "partitions": 8}.items() <= figures.items()
    assert {
        f"{name}@1.5,2,commit" for name in ("settled", "expelled", "expelled_at_rest", "settled_ms_median")
    } <= figures.keys()
