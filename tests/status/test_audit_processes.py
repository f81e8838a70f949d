"""The audit of real processes, compared with the referee, who heard all of them and knows when they were killed.

chaos --kill, stop--> workers --notes--> the referee's verdict
                        |       '------> audit --agree? overlaps, terms
                        '--ledger copy --'  '---agree? members, tenures, moves (the history of the same records)
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neli_router.commands.audit import acts_in
from neli_router.lab.moves import history_of
from neli_router.lab.processes.group import ProcessGroup
from neli_router.lab.referee import Verdict
from tests.support.audited import audited
from tests.support.draws import SEED, SNAPSHOT_EVERY, say
from tests.support.processes.chaos import Chaos
from tests.support.processes.ledger_copy import LedgerCopy

pytestmark = pytest.mark.process

LEASE = 0.5
NAMES = ["m1", "m2", "m3", "m4", "m5"]
PARTITIONS = 16
SECONDS = 1.5


@pytest.mark.parametrize("guarantee", ["exclusive", "available"])
def test_it_agrees_with_the_referee_that_all_is_well_or_on_the_very_overlaps_there_were(
    tmp_path: Path, guarantee: str
) -> None:
    say(f"repeat with NELI_TEST_SEED={SEED}")
    options: dict[str, Any] = {"lease": LEASE, "guarantee": guarantee, "snapshot_every": SNAPSHOT_EVERY}

    def seen(verdict: Verdict) -> object:
        return verdict.takeovers if guarantee == "exclusive" else verdict.overlaps

    with (
        ProcessGroup(tmp_path, partitions=PARTITIONS, pause=LEASE / 20, **options) as group,
        LedgerCopy(group.ledger) as copy,
    ):
        Chaos(group, NAMES, lease=LEASE, seed=SEED).run(SECONDS, seen)
        entries = copy.close()
    acts, verdict, history = list(acts_in(tmp_path)), group.verdict(), history_of(entries)
    if guarantee == "available":  # For the audit a process lives until its certificate; the referee has killed it.
        ends = {life.label: life.killed_at for life in group.lives}
        acts = [replace(span, until=min(span.until, ends[span.process])) for span in acts]
    audit = audited(entries, acts, one_clock=True)
    assert history.owners == {(it.partition, it.term): it.member for it in audit.tenures}
    assert history.moves == audit.moved
    assert len(history.departures) == sum(life.ended is not None for life in audit.lives)
    assert verdict.terms == {(span.partition, span.term, span.process) for span in acts}
    noted = sorted((it.first.partition, it.first.term, it.second.term) for it in audit.overlaps)
    assert sorted((it.first.partition, it.first.term, it.second.term) for it in verdict.overlaps) == noted
    assert (guarantee == "available") == bool(noted)
    assert audit.takeovers or guarantee == "available"
    assert "broken" != audit.verdict, audit.findings
