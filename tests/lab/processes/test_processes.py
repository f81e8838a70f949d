"""Real processes on one ledger, killed and stopped at random, and a referee that reads their notes.

    chaos --kill -9, SIGSTOP, SIGCONT--> workers --notes--> referee: did two act for one partition together?
                                            |                  | every partition, term and process that acted
                                            '--ledger--> copy --fold---> exactly the same
                                                           '--audit--> the same members, terms, moves and overlaps

`NELI_TEST_SECONDS` sets how long the main run lasts, at least 15 so that there is something to see. With
`NELI_TEST_SEED`, a run draws the same misfortunes as the run that printed the seed.
"""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neli_router.commands.audit import acts_in
from neli_router.lab.moves import History, history_of
from neli_router.lab.processes.group import MemberProcess, ProcessGroup, send
from neli_router.lab.processes.worker import EXIT_REPLACED
from neli_router.lab.referee import Verdict
from neli_router.protocols.induction.records import Certify, Expire
from neli_router.status.audit import Audit
from tests.chaos import report
from tests.support.audited import audited
from tests.support.draws import SEED, SNAPSHOT_EVERY, say
from tests.support.processes.forked import Program
from tests.support.processes.ledger_copy import LedgerCopy
from tests.support.processes.storm import BaseStorm, Fault

pytestmark = pytest.mark.process

LEASE = 0.3
NAMES = ["m1", "m2", "m3", "m4", "m5"]
PARTITIONS = 16
PAUSE = LEASE / 20
SECONDS = max(15.0, float(os.environ.get("NELI_TEST_SECONDS", "0")))
AVAILABLE_SECONDS = 5.0

OUT_MAX = 2
"""Out of five: others must remain, or nothing would ever be taken over."""


class Chaos(BaseStorm):
    """
    kill    kill -9; a while later a new process starts under its name, and must not take it for alive
    stop    stands still, for less than a lease or for several, then continues
    double  stands still, while a new process starts to replace it; then it continues, and there are two
    """

    def run(self, seconds: float, seen: Callable[[Verdict], object]) -> None:
        """Start the group, and let things happen for `seconds`, or longer until the verdict has `seen` something. Then
        let it settle and leave, which must succeed."""
        for name in self._names:
            self.start(name)
        self._group.settle()
        self._rage(seconds, lambda: seen(self._group.verdict()))
        self._group.settle()
        self._group.leave()

    def start(self, name: str, *, replace: bool = False) -> None:
        self._present[name] = self._group.start(name, replace=replace)

    def _strike(self) -> None:
        if len(self._out) >= OUT_MAX:
            return
        name = self._rng.choice([name for name in self._names if name not in self._out])
        (kind,) = self._rng.choices(["kill", "stop", "double"], [5, 4, 1])
        process = self._present[name]
        if kind == "double" and not process.life.held:
            kind = "stop"  # If it never was a member, it may join after the newer process, and is then the newer.
        if kind == "kill":
            process.kill()
            undo: Callable[[], object] = partial(self.start, name)
        else:
            process.stop()
            undo = process.resume
        if kind == "double":
            self.start(name, replace=True)
            undo = partial(self._let_two_live, process)
        self._unmet.discard(kind)
        self._end_later(Fault(kind, name, self.lease * self._rng.uniform(0.2, 4), [undo]), {name})

    def _let_two_live(self, older: MemberProcess) -> None:
        """The older process ends on its own: when the newer one joins, or now if it has joined already."""

        def has_ended() -> bool:
            self._look()  # A process that was stopped in the middle of an append blocks all others until it goes on.
            return not older.is_running

        older.resume()
        label = older.life.label
        self._group.wait_until(has_ended, f"{label} was to end, being replaced")
        assert EXIT_REPLACED == older.exit_code(), f"{label} ended with\n{older.log}"


def chaotic(
    folder: Path, guarantee: str, seconds: float, seen: Callable[[Verdict, History], object]
) -> tuple[Verdict, History, Chaos, Audit]:
    """Put a group through chaos, with this guarantee, for `seconds`, and longer until something was seen."""
    say(f"repeat with NELI_TEST_SEED={SEED} NELI_TEST_SECONDS={seconds:g}")
    options: dict[str, Any] = {"lease": LEASE, "guarantee": guarantee, "snapshot_every": SNAPSHOT_EVERY}
    with ProcessGroup(folder, partitions=PARTITIONS, pause=PAUSE, **options) as group:
        chaos = Chaos(group, NAMES, ["kill", "stop"], lease=LEASE, seed=SEED)
        with LedgerCopy(group.ledger) as copy:
            chaos.run(seconds, lambda verdict: seen(verdict, history_of(copy.entries)))
    acts, ends = list(acts_in(folder)), {life.label: life.killed_at for life in group.lives}
    if guarantee == "available":  # For the audit a process lives until its certificate; the referee has killed it.
        acts = [replace(span, until=min(span.until, ends[span.process])) for span in acts]
    assert [] == chaos.ended
    verdict, history = group.verdict(), history_of(copy.close())
    audit = audited(copy.entries, acts, one_clock=True)
    assert "broken" != audit.verdict, audit.findings
    assert history.owners == {(it.partition, it.term): it.member for it in audit.tenures}
    assert history.moves == audit.moved
    assert len(history.departures) == sum(life.ended is not None for life in audit.lives)
    assert verdict.terms == {(span.partition, span.term, span.process) for span in acts}
    # The audit knows the end of a process that was certified only to within a record, so it may miss short ones.
    assert set(overlaps(audit)) <= set(overlaps(verdict))
    assert 2 * len(audit.overlaps) >= len(verdict.overlaps)
    return verdict, history, chaos, audit


def overlaps(seen: Verdict | Audit) -> list[tuple[int, int, int]]:
    return sorted((it.first.partition, it.first.term, it.second.term) for it in seen.overlaps)


def has_seen(verdict: Verdict, history: History) -> bool:
    """A run in which nothing happens proves nothing. A stopped process is only suspected, and the others see a killed
    one end; but on a busy machine they may suspect many killed ones first."""
    names = [{process.partition(".")[0] for process in who} for who in verdict.processes.values()]
    moved = len(names) == PARTITIONS and all(len(who) > 1 for who in names)
    ended = history.departed_by(Expire) and history.departed_by(Certify)
    return bool(ended) and moved and verdict.acts > 100 * PARTITIONS and verdict.takeovers > 0 and verdict.handovers > 0


BUSY = """
import threading, time

def spin():
    while True:
        pass

for _ in range(4):
    threading.Thread(target=spin, daemon=True).start()
print("ready", flush=True)
time.sleep(3600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list the states of threads")
@pytest.mark.parametrize("sign", [1, -1], ids=["process", "group"])
def test_a_process_that_was_stopped_stands_still(sign: int, tmp_path: Path) -> None:
    """Or it could be stopped within a transaction: after the signal was sent, and before it was heeded."""
    with Program(BUSY, folder=tmp_path, own_group=True) as process:
        assert "ready\n" == process.stdout.readline()
        for _ in range(20):
            send(signal.SIGSTOP, sign * process.pid)
            threads = Path(f"/proc/{process.pid}/task").glob("*/stat")
            assert ["T"] * 5 == [thread.read_text().rpartition(")")[2].split()[0] for thread in threads]
            send(signal.SIGCONT, sign * process.pid)


def test_no_two_processes_ever_act_for_one_partition_at_once(tmp_path: Path) -> None:
    """And the ledger assigned every term that they act under."""
    verdict, history, chaos, audit = chaotic(tmp_path, "exclusive", SECONDS, has_seen)
    assert [] == verdict.faults
    assert audit.takeovers

    # The fold, over the same records, gives exactly the terms that were noted.
    noted = {(partition, term): process.partition(".")[0] for partition, term, process in verdict.terms}
    assert noted == {key: owner for key, owner in history.owners.items() if key in noted}

    assert has_seen(verdict, history)
    assert max(fault.seconds for fault in chaos.injected if fault.kind == "stop") > LEASE
    say(report.table(chaos.injected))
    say(report.seen(verdict))


def test_where_overlaps_are_promised_the_same_referee_sees_them(tmp_path: Path) -> None:
    """Under `available`, an owner goes on until it has heard its successor: a referee that misses that is blind."""
    verdict, *_ = chaotic(tmp_path, "available", AVAILABLE_SECONDS, lambda verdict, _: verdict.overlaps)
    assert verdict.overlaps
