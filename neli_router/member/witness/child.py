"""The child witness: a small process of the member's own, which outlives it only to write the certificate.

    member --a page of shared memory, and its own pidfd--> child (`child_program`) --Certify--> ledger
       |           incarnation, `until`                      |
       |--looks now and then: it has ended --> another <-----'
       '--closes --> kills it

It needs no thread in the member, and while the member lives it writes no record and does not read the ledger: a step
stores nothing. It is started with `exec`, so it shares none of the program's threads and locks. But it is a process:
it costs some megabytes, and a program that waits for all of its children has one more. So it exists only on request.

If a whole container is ended, the child ends with it, and then the lease ends by time.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path

from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.hosts.process import HostProcess, ProcessMark
from neli_router.member.witness import child_program
from neli_router.member.witness.base import Witness
from neli_router.member.witness.child_program import SharedPage
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Certify
from neli_router.protocols.protocol import NAME_MAX, Notice

__all__ = ["AGAIN_AFTER", "LOOK_EVERY", "ChildWitness"]

LOOK_EVERY = 1.0
"""Seconds between two checks whether the child is alive. A check is a system call, so not every step makes one."""

AGAIN_AFTER = 10.0
"""The minimum number of seconds between replacements: where no child can live, few are started without effect."""

KILL_MAX = 1.0
"""Seconds to wait for a killed child to end. It takes a millisecond."""

PROGRAM = Path(child_program.__file__)


class ChildWitness(Witness):
    """Raises Unsupported where the kernel cannot report the end of a process."""

    name = "child"

    def __init__(self, config: Config, name: str, tell: Callable[[Notice], None]) -> None:
        self._own = HostProcess.of(os.getpid())
        said = {
            "ledger": config.ledger,
            "lease": config.lease,
            "by": f"witness of {name}"[:NAME_MAX],
            # The child finds the modules that we found, no matter where we were started.
            "path": [entry or str(Path.cwd()) for entry in sys.path],
            "package": str(PROGRAM.parents[2]),
        }
        self._page = SharedPage.of(json.dumps(said))
        self._tell = tell
        self._lock = threading.Lock()
        """Guards what is pledged: several threads may pledge."""
        self._incarnation = self._told = ""
        self._look_at = self._again_at = -inf
        self._process: subprocess.Popen[bytes] | None = None
        self._begin()

    def look(self, state: State, incarnation: str, now: float) -> Sequence[Certify]:
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._page.begin(incarnation)
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            self._look_after(now)
        return ()

    def pledge(self, until: float, processes: Sequence[ProcessMark] = ()) -> None:
        with self._lock:
            if not (processes and self._page.lend(until, processes, host_clock())):
                self._page.until = max(self._page.until, until)

    def close(self) -> None:
        process, self._process, self._look_at = self._process, None, inf
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILL_MAX)
        self._own.close()
        self._page.close()

    def _look_after(self, now: float) -> None:
        process = self._process
        if now < self._again_at:
            return
        if process is not None and process.poll() is None:
            self._told = ""
            return
        self._again_at = now + AGAIN_AFTER
        if process is not None:
            self._process = None
            self._complain(f"it ended unexpectedly, with {process.returncode}")
        self._begin()

    def _begin(self) -> None:
        if not sys.executable:
            self._complain("this program does not say which Python it runs in")
            return
        passed = self._page.descriptor, self._own.fileno()
        # -S and not -I: the environment's settings for where Python itself lives must apply to the child, too.
        command = [sys.executable, "-S", "-P", str(PROGRAM), *map(str, passed)]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, by the same interpreter.
                command,
                # A program that reads the member's output until it ends must not have to wait for the child.
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=passed,
                start_new_session=True,
            )
        except OSError as error:
            self._complain(f"it cannot be started: {error}")

    def _complain(self, why: str) -> None:
        if why != self._told:  # Log it only once where no child can live.
            self._told = why
            self._tell(Notice("witness.missing", {"witness": self.name, "why": why, "until_then": "the lease"}))
