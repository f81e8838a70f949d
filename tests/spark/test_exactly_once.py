"""Every tick lands once, whatever happens to drivers, hosts and executors. See `takeovers` for what does."""

import os
from pathlib import Path

import pytest

from neli_router.exit_codes import EXIT_LOST
from tests.spark.takeovers import play, play_on_cluster
from tests.support.servers.spark import Spark

TICKS = int(os.environ.get("NELI_TEST_TICKS", "60000"))
"""`NELI_TEST_TICKS=1000000` takes some seconds more; `python -m benchmarks pipeline` does that, too."""

TEST_MAX = 3600.0
"""Seconds. Only a test that hangs meets it: one that goes on, however slowly, is waited for."""


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(TEST_MAX)
def test_every_tick_lands_once_while_drivers_are_killed_in_their_commit_stopped_past_their_lease_and_killed(
    tmp_path: Path,
) -> None:
    outcome = play(tmp_path, TICKS)
    assert (TICKS, TICKS, 0, 0) == (
        *(outcome.count.made, outcome.count.landed),
        *(outcome.count.doubled, outcome.count.missing),
    )
    assert outcome.has_same_bars
    assert outcome.killed_at_commit, "the driver was killed before its commit was made, so the aim was bad"
    assert (EXIT_LOST, []) == (outcome.zombie_code, outcome.zombie_files)
    assert "table.refused" in outcome.log
    assert {"alpha": 0, "charlie": 0} == outcome.codes


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(TEST_MAX)
def test_every_tick_lands_once_when_an_executor_of_the_cluster_is_killed_in_mid_run(tmp_path: Path) -> None:
    with Spark.started(workers=2) as cluster:
        outcome = play_on_cluster(tmp_path, cluster, TICKS)
    assert (TICKS, TICKS, 0, 0) == (
        *(outcome.count.made, outcome.count.landed),
        *(outcome.count.doubled, outcome.count.missing),
    )
    assert outcome.has_same_bars
    assert {"alpha": 0} == outcome.codes
    assert "Lost executor" in outcome.log
