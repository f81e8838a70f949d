"""A group's life through a storm, and its outcome.

    storm --kill, stop, cut, step--> members, servers, their witness
                                        |--notes--> referee: did two act for one partition together?
                                        |        '-- writes --> fence, SQLite: was a zombie let through?
                                        '--ledger--> copy --fold--> exactly the terms that were noted

`NELI_TEST_SECONDS` says how long the main storm lasts (at least 30, so that every fault occurs); `NELI_TEST_SEED` draws
the same faults as in the run that printed it.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from neli_router.lab.moves import History, history_of
from neli_router.lab.processes.group import ProcessGroup
from neli_router.lab.referee import Verdict
from neli_router.protocols.induction.records import Certify
from tests.chaos import clocks, report
from tests.chaos.cluster import AGENT, Cluster
from tests.chaos.faults import LEADER_FAULTS, WITNESS_FAULTS
from tests.chaos.fenced import FencedWriter, Writes, writes_in
from tests.chaos.storm import Storm
from tests.conftest import require
from tests.support.agents.processes import AgentProcess
from tests.support.draws import SEED, SNAPSHOT_EVERY, say
from tests.support.processes.ledger_copy import LedgerCopy

__all__ = ["LEASE", "NAMES", "PARTITIONS", "PAUSE", "SECONDS", "Run", "require_safe", "require_terms_of", "weather"]

LEASE = 1.0
NAMES = ["m1", "m2", "m3", "m4", "m5"]
PARTITIONS = 16
PAUSE = LEASE / 20
SECONDS = max(30.0, float(os.environ.get("NELI_TEST_SECONDS", "30")))


class Run(NamedTuple):
    """The outcome of a storm."""

    verdict: Verdict
    history: History
    storm: Storm
    writes: Writes

    @property
    def certified(self) -> int:
        """How many members were seen to end by the witness."""
        return len(self.history.departed_by(Certify))

    def say(self) -> None:
        say(report.table(self.storm.injected))
        say(report.seen(self.verdict))
        say(f"{self.writes.written} writes, {len(self.writes.refusals)} refused by the fence")
        say(
            f"all led {self.storm.led_after:.2f} s after the calm, and shared evenly after "
            f"{self.storm.balanced_after:.2f} s; {len(self.history.departures)} departures, {self.certified} of them "
            f"certified, {self.history.state.at} records; {len(self.storm.ended)} processes ended on their own"
        )


def weather(
    cluster: Cluster, folder: Path, guarantee: str, kinds: Sequence[str], seconds: float, **options: Any
) -> Run:
    """Let a group live through a storm of these faults, with this guarantee, for `seconds`, and longer until it has
    seen what the guarantee is about: takeovers, or overlaps and writes that the fence refuses."""
    require(clocks.missing())
    clock = clocks.WallClock(folder)
    say(f"repeat with NELI_TEST_SEED={SEED} NELI_TEST_SECONDS={seconds:g}")
    fence, name = folder / "fence.db", f"chaos-{uuid4().hex}"
    FencedWriter.install(fence)
    program = ("tests.chaos.fenced", str(fence))
    options |= {"lease": LEASE, "guarantee": guarantee, "snapshot_every": SNAPSHOT_EVERY}
    ledger = cluster.ledger(name)

    def seen() -> bool:
        verdict, writes = group.verdict(), writes_in(fence)
        if guarantee == "available":
            return bool(verdict.overlaps and writes.refusals)
        if not (len(verdict.processes) == PARTITIONS and verdict.takeovers > 0 and writes.written > 100 * PARTITIONS):
            return False
        return bool(history_of(copy.entries).departed_by(Certify))

    with (
        ProcessGroup(folder, partitions=PARTITIONS, pause=PAUSE, ledger=ledger, program=program, **options) as group,
        # Not the test's folder: the path of a socket has at most 107 bytes.
        tempfile.TemporaryDirectory(prefix="neli-host-") as host,
        AgentProcess(
            *("witness", Path(host), "--weight", "0"),
            prefix=cluster.network.prefix(AGENT),
            begun=False,
            ledger=ledger,
            layout={"partitions": PARTITIONS},
            **options,
        ) as agent,
    ):
        storm = Storm(cluster, group, agent, NAMES, kinds, called=name, lease=LEASE, seed=SEED, clock=clock)
        with LedgerCopy(ledger) as copy:
            storm.run(seconds, seen)
    verdict = group.verdict()
    run = Run(verdict, history_of(copy.close()), storm, writes_in(fence))
    run.say()
    return run


def require_terms_of(history: History, verdict: Verdict) -> None:
    """The fold, over the ledger's records, gives exactly the terms that were noted."""
    noted = {(partition, term): process.partition(".")[0] for partition, term, process in verdict.terms}
    assert noted == {key: owner for key, owner in history.owners.items() if key in noted}


def require_safe(run: Run) -> None:
    """The promises of `exclusive`, and that there was something to see: a storm of nothing proves nothing."""
    assert [] == run.verdict.faults
    assert [] == run.writes.zombies
    assert [] == [said for said in run.storm.ended if "LedgerUnavailable" not in said]
    require_terms_of(run.history, run.verdict)
    assert set(range(PARTITIONS)) == run.verdict.processes.keys()
    assert run.verdict.takeovers > 0
    assert run.writes.written > 100 * PARTITIONS
    met = {fault.kind for fault in run.storm.injected}
    assert {"kill", "stop"} <= met
    assert met & set(WITNESS_FAULTS)
    assert run.certified > 0
    assert met & set(LEADER_FAULTS)
    assert met & {"cut off", "torn", "mute", "deaf"}
