"""Every tick lands once, whatever happens to drivers and hosts. `takeovers` says what does; test_standalone.py has the
executors."""

from pathlib import Path

import pytest

from neli_router.exit_codes import EXIT_LOST
from tests.spark.takeovers import TICKS, play


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.timeout(3600)  # Seconds. Only a test that hangs meets it: one that goes on, however slowly, is waited for.
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
