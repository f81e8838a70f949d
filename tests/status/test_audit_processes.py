"""The audit of real processes, beside the referee who heard all of them and knows when they were killed.

chaos --kill, stop--> workers --notes--> the referee's verdict
                        |       '------> audit --agree? overlaps, terms
                        '--ledger copy --'  '---agree? members, tenures, moves (the history of the same records)
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from neli_router.commands.audit import acts_in
from neli_router.induction.records import Beat, decode
from neli_router.ledgers.base import Entry
from neli_router.processes.group import MemberProcess, ProcessGroup, led_elsewhere
from neli_router.processes.history import History, history_of
from neli_router.processes.referee import Verdict
from neli_router.status.audit import Audit, audited
from tests.support.draws import SEED, SNAPSHOT_EVERY, say
from tests.support.processes.chaos import Chaos
from tests.support.processes.ledger_copy import LedgerCopy

pytestmark = pytest.mark.process

LEASE = 0.5
NAMES = ["m1", "m2", "m3"]
PARTITIONS = 16
SECONDS = 3.0


class Audited(NamedTuple):
    audit: Audit
    verdict: Verdict
    history: History
    acted: set[tuple[int, int, str]]
    """Partition, term and process of every note."""


def chaos(folder: Path, guarantee: str, seen: Callable[[Verdict], object]) -> Audited:
    say(f"repeat with NELI_TEST_SEED={SEED}")
    options: dict[str, Any] = {"lease": LEASE, "guarantee": guarantee, "snapshot_every": SNAPSHOT_EVERY}
    with (
        ProcessGroup(folder, partitions=PARTITIONS, pause=LEASE / 20, **options) as group,
        LedgerCopy(group.ledger) as copy,
    ):
        Chaos(group, [*NAMES, "m4", "m5"], lease=LEASE, seed=SEED).run(SECONDS, seen)
        entries = copy.close()
    acts = list(acts_in(folder))
    if guarantee == "available":  # To the audit a process lives until its certificate; the referee has killed it.
        ends = {life.label: life.killed_at for life in group.lives}
        acts = [replace(span, until=min(span.until, ends[span.process])) for span in acts]
    acted = {(span.partition, span.term, span.process) for span in acts}
    return Audited(audited(entries, acts, one_clock=True), group.verdict(), history_of(entries), acted)


def require_agreement(found: Audited) -> None:
    audit, verdict, history, _ = found
    assert history.owners == {(it.partition, it.term): it.member for it in audit.tenures}
    assert (history.moves, len(history.departures)) == (
        audit.moved,
        sum(life.ended is not None for life in audit.lives),
    )
    assert verdict.terms == found.acted
    noted = sorted((it.first.partition, it.first.term, it.second.term) for it in audit.overlaps)
    assert sorted((it.first.partition, it.first.term, it.second.term) for it in verdict.overlaps) == noted


def test_under_exclusive_it_agrees_with_the_referee_that_all_is_well(tmp_path: Path) -> None:
    found = chaos(tmp_path, "exclusive", lambda verdict: verdict.takeovers)
    require_agreement(found)
    assert [] == found.audit.overlaps
    assert "broken" != found.audit.verdict, found.audit.findings
    assert found.audit.takeovers


def test_under_available_it_finds_the_very_overlaps_that_the_referee_finds(tmp_path: Path) -> None:
    found = chaos(tmp_path, "available", lambda verdict: verdict.overlaps)
    require_agreement(found)
    assert found.audit.overlaps
    assert "broken" != found.audit.verdict, found.audit.findings


def test_a_takeover_took_as_long_as_those_saw_it_who_killed_the_member(tmp_path: Path) -> None:
    """To within a beat, and the time for which the killed member, on a busy machine, had not beaten as it should."""
    # With a shorter lease, a member that is not killed is expired while other tests take all cores.
    killed: list[tuple[MemberProcess, float, set[int]]] = []
    with (
        ProcessGroup(tmp_path, partitions=PARTITIONS, pause=LEASE / 20, lease=5.0, beat=LEASE / 3) as group,
        LedgerCopy(group.ledger) as copy,
    ):
        for name in NAMES:
            group.start(name)
        group.settle()
        for name in NAMES[:2]:
            victim = group.running[name]
            held = set(victim.life.held)
            killed.append((victim, victim.kill(), held))
            group.settle()
        group.leave()
        entries = copy.close()
    found = audited(entries, acts_in(tmp_path), one_clock=True)
    assert NAMES[:2] == [takeover.member for takeover in found.takeovers]
    for takeover, (victim, at, held) in zip(found.takeovers, killed, strict=True):
        seen = led_elsewhere(group.lives, victim.life, held, at) - at
        say(f"{takeover.member}: {takeover.seconds:.3f} s by the audit, {seen:.3f} s by the referee")
        assert len(held) == takeover.partitions
        late = max(0.0, at - last_beat(entries, takeover.incarnation) - found.beat)
        assert seen == pytest.approx(takeover.seconds, abs=found.beat + late)


def last_beat(entries: Iterable[Entry], incarnation: str) -> float:
    """When it was sent."""
    records = [decode(entry.payload) for entry in entries]
    return max(record.sent_at for record in records if isinstance(record, Beat) and record.by == incarnation)
