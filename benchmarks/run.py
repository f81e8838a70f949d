"""How soon `neli run` kills its command once the role is lost, and how soon the command runs elsewhere after a kill.

    two hosts: each an agent and `neli run --key nightly --keep -- COMMAND`, in real processes on one SQLite ledger
    COMMAND: a dozen processes, two of which leave its group; all ignore SIGTERM, and all hold one lock of the kernel

A process that gets the lock knows that all of them are gone, however deeply they hid. The agent's own log shows, on the
same clock, when its member was fenced or asked to hand over.

    gone_ms_max          from the end of its time until the last process is gone; negative if it was gone before,
                         as it should be: killing begins a margin earlier
    gone_ms_max@cut      the ledger accepts no records, so the lease runs out, and the log says Fenced
    gone_ms_max@overdue  the role had to go elsewhere, and the command did not end within the drain timeout
    elsewhere_leases_p95 from kill -9 of the agent and of `neli run` until COMMAND has begun on the other host, over
                         the lease
    overlaps             how often COMMAND began while one of its processes was left anywhere

    last_act_before_successor_ms_min  from the last act of a command of nested sessions until another member may act,
                         the least of all trials: above 0 in every one (see `_last_act`). Nesting, lease and fault vary
    late_acts            how many of the trials were not above 0

`--part` chooses one of the two parts. `--nesting`, `--act-lease` and `--fault` restrict the second part. Each of its
trials takes about two seconds: five minutes with 20 trials of one lease and one fault. `--quick` takes two minutes.
"""

import fcntl
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles

from benchmarks import BenchmarkOptions, Figures, option, switch
from benchmarks._last_act import FAULTS, last_acts
from neli_router.agent import Client
from neli_router.errors import NeliError
from tests.support.waiting import PATIENCE, until

__all__ = ["Options", "run"]

ROLE = 1
PARTITIONS = 4
DRAIN_TIMEOUT = 0.3
NELI = "from neli_router.commands.cli import main; main(prog_name='neli')"

COMMAND = """
began=$EPOCHREALTIME
trap '' TERM INT HUP
exec 9>>lock
flock --nonblock 9 || echo overlap >> overlaps
for number in 1 2 3 4 5 6 7 8; do (while :; do sleep 1; done) & done
for number in 1 2; do setsid bash -c 'while :; do sleep 1; done' & done
echo "$began $NELI_MEMBER" >> begun
while :; do sleep 1; done
"""


class Host:
    """One host's processes: the agent, and `neli run` if this host should run COMMAND."""

    def __init__(self, folder: Path, name: str, lease: float) -> None:
        self._folder, self.name, self._lease = folder, name, lease
        self.socket, self._log = f"{folder}/{name}.sock", folder / f"{name}.log"
        self._agent = self._run = None  # type: subprocess.Popen[bytes] | None
        self.start_agent()

    def start_agent(self) -> None:
        group = ("--ledger", f"sqlite:///{self._folder}/ledger.db", "--name", self.name, "--lease", f"{self._lease}")
        layout = ("--layout-slots", "16", "--layout-partitions", f"{PARTITIONS}")
        rest = ("--drain-timeout", f"{DRAIN_TIMEOUT}", "--socket", self.socket, "--log-format", "json")
        self._agent = self._neli("agent", *group, *layout, *rest)

    def start_run(self) -> None:
        until(self._answers, f"an answer of {self.name}")  # `neli run` treats an agent that never answered as absent.
        options = ("--partition", f"{ROLE}", "--keep", "--grace", f"{PATIENCE}", "--agent", self.socket)
        self._run = self._neli("run", *options, "--", "bash", "-c", COMMAND)

    def _answers(self) -> bool:
        try:
            with Client(self.socket) as client:
                return bool(client.status().agent)
        except NeliError:
            return False

    def kill(self) -> float:
        """Kill the agent and `neli run` together; return the time of the kill."""
        processes = [process for process in (self._agent, self._run) if process is not None]
        killed_at = time.time()
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        self._agent = self._run = None
        return killed_at

    def noted_since(self, event: str, when: float) -> float:
        """When the agent logged `event`; 0 if it has not."""
        for line in self._log.read_text().splitlines():
            noted = json.loads(line) if line.startswith("{") else {}
            if noted.get("event") == event:
                at = datetime.fromisoformat(noted["time"]).timestamp()
                if at >= when:
                    return at
        return 0.0

    def _neli(self, *arguments: str) -> "subprocess.Popen[bytes]":
        root = str(Path(__file__).resolve().parent.parent)
        with self._log.open("a") as log:
            environment = {**os.environ, "PYTHONPATH": root}
            program = [sys.executable, "-c", NELI, *arguments]
            return subprocess.Popen(program, cwd=self._folder, env=environment, stderr=log)


class Options(BenchmarkOptions):
    lease: float = 1.0
    trials: int = 10
    quick: bool = switch("4 trials of each kind")
    part: str = option("both", "of the figures", choices=("gone", "last-act", "both"))
    nesting: tuple[int, ...] = option((0, 3, 8, 20, 50), "sessions of the last acts")
    act_lease: tuple[float, ...] = option((0.2, 0.5), "seconds, of the last acts")
    fault: tuple[str, ...] = option(FAULTS, "of the last acts", choices=FAULTS)


def run(options: Options) -> Figures:
    trials = 4 if options.quick else max(2, options.trials)
    figures = {} if options.part == "last-act" else _gone_and_elsewhere(options.lease, trials)
    if options.part != "gone":
        nestings = (0, 8) if options.quick else options.nesting
        figures |= last_acts(options.act_lease, nestings, options.fault, trials)
    return figures


def _gone_and_elsewhere(lease: float, trials: int) -> Figures:
    overlaps = 0
    with _hosts(lease) as (folder, hosts):
        hosts[0].start_run()
        cut = [_cut(folder, hosts, lease) for _ in range(trials)]
        overdue = [_overdue(folder, hosts) for _ in range(trials)]
        overlaps += _count(folder / "overlaps")
    with _hosts(lease) as (folder, hosts):
        for host in hosts:
            host.start_run()
        elsewhere = [_elsewhere(folder, hosts) / lease for _ in range(trials)]
        overlaps += _count(folder / "overlaps")
    return {
        "gone_ms_max": 1e3 * max(*cut, *overdue),
        "gone_ms_max@cut": 1e3 * max(cut),
        "gone_ms_median@cut": 1e3 * median(cut),
        "gone_ms_max@overdue": 1e3 * max(overdue),
        "gone_ms_median@overdue": 1e3 * median(overdue),
        "elsewhere_leases_median": median(elsewhere),
        "elsewhere_leases_p95": quantiles(elsewhere, n=20, method="inclusive")[18],
        "elsewhere_leases_max": max(elsewhere),
        "overlaps": overlaps,
        "trials": trials,
        "lease_s": lease,
    }


def _cut(folder: Path, hosts: Sequence[Host], lease: float) -> float:
    """Block all members' writes for more than a lease; return seconds from Fenced until the command is gone."""
    _settle(folder, hosts, hosts[0])
    started_at, count = time.time(), _count(folder / "begun")
    writer = sqlite3.connect(folder / "ledger.db", isolation_level=None, timeout=PATIENCE)
    try:
        writer.execute("BEGIN IMMEDIATE")
        cut_at = time.time()  # Not an earlier time: on a busy machine, others may have written until then.
        gone_at = _await_gone(folder)
        time.sleep(max(0.0, cut_at + 1.2 * lease - time.time()))
        writer.execute("ROLLBACK")
    finally:
        writer.close()
    fenced_at = until(lambda: hosts[0].noted_since("leader.fenced", started_at), "Fenced")
    until(lambda: _count(folder / "begun") > count, "the command once more")
    return gone_at - fenced_at


def _overdue(folder: Path, hosts: Sequence[Host]) -> float:
    """Move the role to a host that runs nothing; return seconds from the drain timeout until the command is gone."""
    _settle(folder, hosts, hosts[0])
    started_at, count = time.time(), _count(folder / "begun")
    with Client(hosts[1].socket) as client:
        client.pin(ROLE, hosts[1].name)
    gone_at = _await_gone(folder)
    revoked_at = until(lambda: hosts[0].noted_since("leader.revoked", started_at), "Revoked")
    with Client(hosts[0].socket) as client:
        client.pin(ROLE, hosts[0].name)
    until(lambda: _count(folder / "begun") > count, "the command once more")
    return gone_at - (revoked_at + DRAIN_TIMEOUT)


def _elsewhere(folder: Path, hosts: Sequence[Host]) -> float:
    """Kill the host that runs the command; return seconds until the other host runs it."""
    name = _settle(folder, hosts)
    victim = next(host for host in hosts if host.name == name)
    count = _count(folder / "begun")
    killed_at = victim.kill()
    until(lambda: _count(folder / "begun") > count, "the command on the other host")
    began_at, _ = _last_begun(folder)
    victim.start_agent()
    victim.start_run()
    return began_at - killed_at


def _settle(folder: Path, hosts: Sequence[Host], at: Host | None = None) -> str:
    """Wait until all have joined, no move is under way, and the command runs: `at` a host, or anywhere."""

    def is_settled() -> bool:
        try:
            return all(_is_at_rest(folder, host, len(hosts), at) for host in hosts)
        except NeliError:
            return False

    def is_settled_for_long() -> bool:
        for _ in range(10):
            if not is_settled():
                return False
            time.sleep(0.02)
        return True

    until(is_settled_for_long, "a group at rest")
    return _last_begun(folder)[1]


def _is_at_rest(folder: Path, host: Host, count: int, at: Host | None) -> bool:
    with Client(host.socket) as client:
        status = client.status()
        partitions = status.table.partitions
        if at is not None and len(status.members) == count and partitions[ROLE].pinned != at.name:
            client.pin(ROLE, at.name)
            return False
    if len(status.members) < count or any(one.owner is None or one.owner != one.target for one in partitions):
        return False
    owner = partitions[ROLE].owner
    return owner is not None and _last_begun(folder)[1] == status.members[owner].name


def _await_gone(folder: Path) -> float:
    """When the kernel's lock is free: every process that had it open is gone."""
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return time.time()


def _last_begun(folder: Path) -> tuple[float, str]:
    lines = (folder / "begun").read_text().splitlines() if (folder / "begun").exists() else []
    moment, _, name = lines[-1].partition(" ") if lines else ("0", "", "")
    return float(moment), name


def _count(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


@contextmanager
def _hosts(lease: float) -> Iterator[tuple[Path, list[Host]]]:
    with tempfile.TemporaryDirectory(prefix="neli-run-") as name, ExitStack() as stack:
        folder = Path(name)
        hosts: list[Host] = []
        stack.callback(_await_gone, folder)  # The guardians end the commands once their `neli run` is gone.
        for host in ("alpha", "beta"):
            hosts.append(Host(folder, host, lease))
            stack.callback(hosts[-1].kill)
        yield folder, hosts
