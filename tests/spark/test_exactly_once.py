"""Every tick lands once, whatever happens to drivers and hosts: see `takeovers`."""

from pathlib import Path

import pytest

from neli_router.core.exit_codes import EXIT_LOST
from tests.spark.takeovers import TICKS, play


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(3600)  # Seconds. Only a test that hangs reaches it; slow progress is waited for.
def test_every_tick_lands_once_while_drivers_and_hosts_are_killed_and_stopped(tmp_path: Path) -> None:
    outcome = play(tmp_path, TICKS)
    count = outcome.count
    assert (TICKS, TICKS, 0, 0) == (count.made, count.landed, count.doubled, count.missing)
    assert outcome.has_same_bars
    assert outcome.killed_at_commit, "the driver was killed before its commit was made, so the aim was bad"
    assert (EXIT_LOST, []) == (outcome.zombie_code, outcome.zombie_files)
    assert "table.refused" in outcome.log
    assert 0 == outcome.code
