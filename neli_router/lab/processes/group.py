"""A group of real member processes: start them, signal them, read their notes.

    start --> process "m2.3": the third process of member m2; its notes in `m2.3.notes`, its log in `m2.log`
                | kill                at any moment, without a word
                | stop ... resume     the whole process stands still, and wakes up with its old beliefs
                | ask_to_leave        it leaves gracefully
                '-- notes --> its `Life` --> the referee's verdict

Two processes of one member may run at the same time: the older one notices and ends. Each has its own process group, so
Ctrl-C in a terminal reaches only the parent. None outlives the `with` block of its group; if the parent is killed, each
process notices that and ends (see `worker`).
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from math import inf
from pathlib import Path
from typing import Any

from neli_router.core.clock import host_clock
from neli_router.core.closing import Closing
from neli_router.drivers.ledgers.sqlite.file import SqliteFile
from neli_router.lab.referee import Life, LifePhase, Verdict, in_true_time, judged
from neli_router.status.notes import Note, NoteReader

__all__ = ["PATIENCE", "MemberProcess", "ProcessGroup", "led_elsewhere", "send", "send_at_rest", "shared_by"]

PATIENCE = 180.0
"""Seconds to wait before giving up on something that must happen. It takes two or three; more on a busy machine."""

LOOK_EVERY = 0.01
"""Seconds between two looks at notes. They carry their own times, so looking more often would only slow down the
processes."""


def send(number: int, pid: int) -> None:
    """Send a signal to a process, or to a process group if `pid` is negative, and wait until SIGSTOP has stopped it.

    SIGSTOP wakes one thread, which then stops the others. On a busy machine they go on until it gets its turn. Raises
    TimeoutError if they still do after PATIENCE.
    """
    os.kill(pid, number)
    give_up_at = host_clock() + PATIENCE
    while number == signal.SIGSTOP and not _stands_still(pid):
        if host_clock() > give_up_at:
            raise TimeoutError(f"process {pid} was to stand still, but after {PATIENCE:g} s it still runs")
        time.sleep(LOOK_EVERY / 10)  # A ledger may wait for us.


def send_at_rest(number: int, pid: int, ledger: Path | str) -> None:
    """Send a signal while no process is writing to the SQLite `ledger`.

    A process that is stopped in the middle of a transaction keeps its lock, so every other append waits until it is
    woken up. That breaks no promise, but it is an outage, not a failover. So we hold the lock meanwhile.
    """
    with closing(SqliteFile(ledger, create=False, busy_max=PATIENCE)) as file:
        file.write("sending a signal", lambda _: send(number, pid), lasting=False)


def _stands_still(pid: int) -> bool:
    """Whether all threads are stopped or gone, as far as this system shows them."""
    for thread in Path("/proc").glob(f"{pid if pid > 0 else '[0-9]*'}/task/*/stat"):
        with suppress(OSError):  # It has ended.
            state, _, group = thread.read_bytes().rpartition(b")")[2].split()[:3]
            if state not in b"TZX" and (pid > 0 or int(group) == -pid):
                return False
    return True


class MemberProcess:
    """One process, from its start to its end.

    Start it on the main thread: the kernel ends a worker when the thread that started it ends.
    """

    def __init__(self, folder: Path, label: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.life = Life(label, started_at=host_clock())
        self.has_ended = False
        """The process has ended, and all its notes are read."""
        self.clock_rate = 1.0
        """How fast its clock runs relative to ours. A test that changes it sets this, too."""
        self._reader, self._log = NoteReader(folder / f"{label}.notes"), folder / f"{self.life.name}.log"
        # Like `multiprocessing`: the worker must find the same packages as we did, wherever we were started.
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        with self._log.open("ab") as log:
            self._said_before = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - our own module, run by the interpreter that runs us.
                command,
                env={**os.environ, "PYTHONPATH": path, **environment},
                stdin=subprocess.PIPE,
                stderr=log,
                process_group=0,
            )
        self.life.pid = self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended; a stopped process counts as running."""
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """Its standard error."""
        return self._log.read_bytes()[self._said_before :].decode(errors="replace")

    def kill(self) -> float:
        """End it with kill -9; returns the time just before that."""
        self.life.phase, self.life.killed_at = LifePhase.KILLED, host_clock()
        self._process.kill()
        self._process.wait()
        return self.life.killed_at

    def stop(self, *, at_rest: Path | None = None) -> float:
        """Stop it; returns the time just after that. With `at_rest`, not while it writes to that ledger."""
        self.life.phase = LifePhase.STOPPED
        if self.is_running and at_rest is not None:
            send_at_rest(signal.SIGSTOP, self.life.pid, at_rest)
        elif self.is_running:
            send(signal.SIGSTOP, self.life.pid)
        return host_clock()

    def resume(self) -> float:
        """Continue it; returns the time just before that."""
        self.life.phase, at = LifePhase.MEMBER, host_clock()
        self._process.send_signal(signal.SIGCONT)
        return at

    def ask_to_leave(self) -> float:
        """Send it SIGTERM, like a container's supervisor; returns the time just before that."""
        self.life.phase, at = LifePhase.LEAVING, host_clock()
        self._process.send_signal(signal.SIGTERM)
        self._process.send_signal(signal.SIGCONT)  # A stopped process would not see the SIGTERM.
        return at

    def exit_code(self) -> int:
        """Wait at most PATIENCE for its end; returns its exit code."""
        return self._process.wait(PATIENCE)

    def fresh_notes(self) -> list[Note]:
        """Its notes since the last call."""
        if self.has_ended:
            return []
        has_ended = not self.is_running  # Asked before reading, or its last notes could be missed.
        notes = [in_true_time(note, self.clock_rate) for note in self._reader.fresh()]
        for note in notes:
            self.life.hear(note)
        self.has_ended = has_ended
        return notes

    def end(self, patience: float) -> None:
        """Wait at most `patience` seconds for its end; then kill it."""
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()


class ProcessGroup(Closing):
    """All processes on one ledger, by default a file in `folder`; `options` are the members' configuration.

    They check their leases every `pause` seconds. `program` is the module that they run, with its arguments, and
    `environment` overrides this process's own. At the end of the block, processes that still run are asked to leave
    within `leave_within` seconds, and then killed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        partitions: int,
        pause: float,
        ledger: str = "",
        program: Sequence[str] = ("neli_router.lab.processes.worker",),
        environment: Mapping[str, str] | None = None,
        leave_within: float = 0.0,
        **options: Any,
    ) -> None:
        self.ledger = ledger or f"sqlite://{folder / 'ledger.db'}"
        self.processes: list[MemberProcess] = []
        self.partitions = partitions
        self._folder, self._program, self._leave_within, self._pause = folder, program, leave_within, pause
        self._environment = dict(environment or {})
        self._config = {"ledger": self.ledger, "layout": {"partitions": partitions}, **options}
        self._started: Counter[str] = Counter()

    def start(
        self,
        name: str,
        *,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        replace: bool = False,
        ledger: str = "",
        **options: Any,
    ) -> MemberProcess:
        """Start a process of member `name`. A `prefix` goes before its command, and must become it by `exec`.

        With `replace`, it takes the name from a process that still runs. `ledger` is this member's address of the
        group's ledger, if each member has its own. `options` are those of this member alone.
        """
        self._started[name] += 1
        label = f"{name}.{self._started[name]}"
        of_member = {"name": name, "ledger": ledger or self.ledger, **({"replace": True} if replace else {}), **options}
        process = self._begin(label, prefix, environment or {}, **of_member)
        self.processes.append(process)
        return process

    def _begin(
        self, label: str, prefix: Sequence[str], environment: Mapping[str, str], **of_member: Any
    ) -> MemberProcess:
        notes = str(self._folder / f"{label}.notes")
        order = {"config": {**self._config, **of_member}, "notes": notes, "pause": self._pause}
        command = [*prefix, sys.executable, "-P", "-m", *self._program, json.dumps(order)]
        return MemberProcess(self._folder, label, command, {**self._environment, **environment})

    @property
    def lives(self) -> list[Life]:
        return [process.life for process in self.processes]

    @property
    def running(self) -> dict[str, MemberProcess]:
        """The newest running process of each name."""
        return {process.life.name: process for process in self.processes if process.is_running}

    def read_notes(self) -> list[tuple[MemberProcess, Note]]:
        """The notes of every process since the last call."""
        return [(process, note) for process in self.processes for note in process.fresh_notes()]

    def verdict(self) -> Verdict:
        """The referee's verdict on all notes read so far."""
        return judged(self.lives)

    def wait_until(self, ready: Callable[[], bool], wanted: str) -> None:
        """Read notes until `ready`; raises TimeoutError if that takes longer than PATIENCE."""
        give_up_at = host_clock() + PATIENCE
        self.read_notes()
        while not ready():
            if host_clock() >= give_up_at:
                # The log of a process that ended on its own says most: the others may wait for it.
                said = "\n".join(
                    f"{it.life.label}, which {'runs' if it.is_running else 'has ended'}:\n{it.log}"
                    for it in self.processes
                    if it.life.phase is not LifePhase.KILLED
                )
                raise TimeoutError(f"{wanted} within {PATIENCE:g} s. The logs of those that were not killed:\n{said}")
            time.sleep(LOOK_EVERY)
            self.read_notes()

    def settle(self) -> None:
        """Wait until all running members share everything evenly."""

        def is_settled() -> bool:
            return shared_by([it.life for it in self.processes if it.is_running], self.partitions)

        self.wait_until(is_settled, "the group was to share everything evenly")

    def leave(self) -> None:
        """Let all running members leave gracefully, and read their last notes."""
        leaving = [process for process in self.processes if process.is_running]
        for process in leaving:
            process.ask_to_leave()
        for process in leaving:
            if (code := process.exit_code()) != 0:
                raise RuntimeError(f"{process.life.label} was to leave, and ended with {code}:\n{process.log}")
        self.read_notes()

    def close(self) -> None:
        patience = self._leave_within
        if patience:
            for process in self.processes:
                process.ask_to_leave()
        for process in self.processes:
            try:
                process.end(patience)
            except KeyboardInterrupt:  # A second Ctrl-C: stop waiting, but still leave no orphan.
                patience = 0.0
                process.end(patience)


def shared_by(lives: Collection[Life], partitions: int) -> bool:
    """Whether these members together hold all partitions, in equal shares."""
    shares = [len(life.held) for life in lives]
    held = set[int]().union(*(life.held for life in lives))
    return sum(shares) == len(held) == partitions and min(shares) > 0 and max(shares) - min(shares) <= 1


def led_elsewhere(lives: Iterable[Life], victim: Life, partitions: Iterable[int], since: float) -> float:
    """When the last of `partitions` was taken over by others than `victim`, after `since`; inf until then."""
    began = dict.fromkeys(partitions, inf)
    for life in lives:
        if life is not victim:
            for span in life.spans:
                if span.partition in began and span.since >= since:
                    began[span.partition] = min(began[span.partition], span.since)
    return max(began.values(), default=inf)
