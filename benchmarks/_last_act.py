"""The last act of a command before its successor may begin: a part of the benchmark `run`.

    first host: agent, `neli run` --> COMMAND --> a session in a session in a session ...: the last one writes the time
    fault: the agent is killed or stopped; or it is to hand over, and `neli run` is killed
    successor: a member in this process

COMMAND ignores SIGTERM. It writes the time into shared memory as fast as Python can. The successor counts as leading
from the call of its handler, which is before it gets a lease. Both times are on this machine's clock.

A trial counts only if COMMAND was running when the fault came. On a busy machine, a short lease may be lost before.
"""

import fcntl
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import Figures
from neli_router.agent import Client
from neli_router.config.config import Config
from neli_router.core.keyspace import Layout
from neli_router.errors import NeliError
from neli_router.lab.processes.group import send_at_rest
from neli_router.member.member import Member
from neli_router.protocols.protocol import Acquired, Event
from tests.support.waiting import PATIENCE

__all__ = ["FAULTS", "last_acts"]

FAULTS = ("agent_killed", "run_killed", "agent_stopped")

ROLE = 1
ATTEMPTS = 10
"""The number of attempts for one trial: see the essay."""

GRACE = 600.0
NELI = "from neli_router.commands.cli import main; main(prog_name='neli')"

COMMAND = """
import fcntl, mmap, os, signal, struct, sys, time
page_file = open(sys.argv[1], "r+b")
fcntl.flock(page_file, fcntl.LOCK_EX)
page = mmap.mmap(page_file.fileno(), 4096)
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
nesting = int(sys.argv[2])
def told(*_):
    page[9] = 1
signal.signal(signal.SIGTERM, told)
for _ in range(nesting):
    if os.fork():
        while True:
            signal.pause()
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
page[8] = 1
while True:
    struct.pack_into("d", page, 0, time.monotonic())
"""


class _Page:
    """The memory that COMMAND writes to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(4096))
        self._file = path.open("r+b")
        self._page = mmap.mmap(self._file.fileno(), 4096)

    def last_act(self) -> float:
        return float(struct.unpack_from("d", self._page, 0)[0])

    def has_begun(self) -> bool:
        return bool(self._page[8])

    def was_asked_to_stop(self) -> bool:
        return bool(self._page[9])

    def await_gone(self) -> None:
        """Wait until every process of COMMAND is gone: together they hold one lock of the kernel."""
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def close(self) -> None:
        self._page.close()
        self._file.close()


class _Group:
    """The first host, as processes, and its successor, in this process."""

    def __init__(self, folder: Path, lease: float) -> None:
        self._folder, self._lease, self._trials = folder, lease, 0
        self.ledger = folder / "ledger.db"
        self.socket = f"{folder}/first.sock"
        self._agent: subprocess.Popen[bytes] | None = None
        self._led_at = 0.0
        layout = Layout(slots=16, partitions=4)
        # The successor has nothing to drain, so it hands over immediately.
        self._successor = Member(
            Config(f"sqlite:///{self.ledger}", name="second", lease=lease, layout=layout, drain_timeout=GRACE),
            on_event=self._told,
        )

    def close(self) -> None:
        if self._agent is not None:
            self._agent.kill()
            self._agent.wait()
        self._successor.close()

    def trial(self, nesting: int, fault: str) -> float | None:
        """Seconds from the last act until the successor led; None if COMMAND did not run long enough."""
        agent = self._started_agent()
        self._pin("first")
        self._trials += 1
        page = _Page(self._folder / f"page.{self._trials}")
        command = (sys.executable, "-S", "-E", "-c", COMMAND, str(page.path), str(nesting))
        options = ("--partition", f"{ROLE}", "--grace", f"{GRACE}", "--agent", self.socket, "--wait", f"{PATIENCE}")
        run = self._neli("run", *options, "--", *command)
        try:
            if not _until(lambda: page.has_begun() or run.poll() is not None) or run.poll() is not None:
                return None
            began_at = time.monotonic()
            match fault:
                case "agent_killed":
                    send_at_rest(signal.SIGKILL, agent.pid, self.ledger)
                case "agent_stopped":
                    send_at_rest(signal.SIGSTOP, agent.pid, self.ledger)
                case _:
                    self._pin("second")
                    _until(lambda: page.was_asked_to_stop() or run.poll() is not None)
                    run.kill()
            if not _until(lambda: self._successor.lease(ROLE) is not None):
                raise TimeoutError("the successor did not lead")
            page.await_gone()
            # The fault must have hit a running COMMAND, for a role that was not lost yet.
            is_hit = began_at < min(self._led_at, page.last_act())
            return self._led_at - page.last_act() if is_hit else None
        finally:
            if agent.poll() is not None or fault == "agent_stopped":
                agent.kill()
                agent.wait()
                self._agent = None
            if not _until(lambda: run.poll() is not None):
                run.kill()
            run.wait()
            page.close()
            page.path.unlink()

    def _told(self, event: Event) -> None:
        """The successor's handler: it gets no lease before this returns."""
        if isinstance(event, Acquired) and ROLE in event.partitions:
            self._led_at = time.monotonic()

    def _started_agent(self) -> "subprocess.Popen[bytes]":
        if self._agent is None:
            group = ("--ledger", f"sqlite:///{self.ledger}", "--name", "first", "--lease", f"{self._lease}")
            layout = ("--layout-slots", "16", "--layout-partitions", "4", "--drain-timeout", f"{GRACE}")
            self._agent = self._neli("agent", *group, *layout, "--socket", self.socket)
        return self._agent

    def _pin(self, name: str) -> None:
        """Give the role to one of them. If that is the agent, wait until it knows."""

        def is_pinned() -> bool:
            try:
                with Client(self.socket) as client:
                    client.pin(ROLE, name)
                    return name != "first" or client.owner_of_role(ROLE).name == name
            except NeliError:
                return False

        if not _until(is_pinned):
            raise TimeoutError(f"the role did not move to {name}")

    def _neli(self, *arguments: str) -> "subprocess.Popen[bytes]":
        root = str(Path(__file__).resolve().parent.parent)
        with (self._folder / "log").open("a") as log:
            environment = {**os.environ, "PYTHONPATH": root}
            program = [sys.executable, "-c", NELI, *arguments]
            return subprocess.Popen(program, cwd=self._folder, env=environment, stdout=log, stderr=log)


def last_acts(leases: Sequence[float], nestings: Sequence[int], faults: Sequence[str], trials: int) -> Figures:
    """The least milliseconds between a last act and a successor: for each kind, and overall."""
    figures: Figures = {}
    least: list[float] = []
    for lease in leases:
        with _group(lease) as group:
            for fault in faults:
                for nesting in nestings:
                    found = _found(group, nesting, fault, trials)
                    cell = f"{fault},nesting={nesting},lease={lease:g}s"
                    figures[f"last_act_before_successor_ms_min@{cell}"] = 1e3 * min(found) if found else None
                    figures[f"trials@{cell}"] = len(found)
                    least += found
                    print(f"{cell}: {1e3 * min(found or [0]):.1f} ms, {len(found)} trials", file=sys.stderr, flush=True)
    return {
        "last_act_before_successor_ms_min": 1e3 * min(least) if least else None,
        "late_acts": sum(one <= 0 for one in least),
        "last_act_trials": len(least),
        **figures,
    }


def _found(group: _Group, nesting: int, fault: str, trials: int) -> list[float]:
    found: list[float] = []
    for _ in range(ATTEMPTS * trials):
        if (one := group.trial(nesting, fault)) is not None:
            found.append(one)
        if len(found) == trials:
            break
    return found


@contextmanager
def _group(lease: float) -> Iterator[_Group]:
    with TemporaryDirectory(prefix="neli-run-") as name:
        group = _Group(Path(name), lease)
        try:
            yield group
        finally:
            group.close()


def _until(ready: Callable[[], bool]) -> bool:
    give_up_at = time.monotonic() + PATIENCE
    while not ready():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.001)
    return True
