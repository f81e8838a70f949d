"""The child witness: a small process next to the member's own, which outlives it only to write the certificate.

    member --a page of shared memory: incarnation, `until`--.
    member --another page--> one line for all of them ------+--> child (`child_program`) --Certify--> ledger
                                                            |      watches the process of all these members
       looks now and then: it has ended --> another <-------'
       the last member leaves: "bye" --> it ends

A process has one child for all of its members. While a member lives, its child writes no record and does not read the
ledger: a step stores nothing. It is started with `exec`, so it shares none of the program's threads and locks. It is
ready in advance: it has imported the ledger's driver and holds a connection, because both take a second on a busy host.
That costs memory (docs/fencing.md), so it starts only once a member has joined.

**No program meets it.** It forks once and its first process ends, so init adopts it. A program that waits for all of
its children does not wait for this one. Its standard streams are empty, and its session is its own.

**A member that left is never certified.** It wipes its names off its page before anything else is closed.

If a whole container is ended, the child ends with it, and then the lease ends by time.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path

from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.errors import Unsupported
from neli_router.hosts.process import HostProcess, ProcessMark
from neli_router.member.witness import child_program
from neli_router.member.witness.base import Witness
from neli_router.member.witness.child_program import BYE, SharedPage
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Certify
from neli_router.protocols.protocol import NAME_MAX, Notice

__all__ = ["AGAIN_AFTER", "LOOK_EVERY", "ChildWitness"]

LOOK_EVERY = 1.0
"""Seconds between two checks whether the child is alive. A check is a system call, so not every step makes one."""

AGAIN_AFTER = 10.0
"""The minimum number of seconds between replacements: where no child can live, few are started without effect."""

START_MAX = 1.0
"""Seconds to wait for a child that has just been started to leave its first process. It takes some milliseconds."""

PROGRAM = Path(child_program.__file__)


class ChildWitness(Witness):
    """Raises Unsupported where the kernel cannot report the end of a process, or this program is not run by Python."""

    name = "child"

    def __init__(self, config: Config, name: str, tell: Callable[[Notice], None]) -> None:
        HostProcess.of(os.getpid()).close()
        # A program that embeds Python, or was frozen, names itself there: it would be started a second time.
        if "python" not in Path(sys.executable or "").name or getattr(sys, "frozen", False):
            raise Unsupported("a Python for the child was wanted", f"this is {sys.executable!r}", "use an agent")
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
        self._look_at = -inf

    def look(self, state: State, incarnation: str, now: float) -> Sequence[Certify]:
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._page.begin(incarnation)
        if now >= self._look_at and incarnation in state.seats:
            self._look_at = now + LOOK_EVERY
            why = _child.look(self._page, now)
            if why and why != self._told:  # Log it only once where no child can live.
                self._tell(Notice("witness.missing", {"witness": self.name, "why": why, "until_then": "the lease"}))
            self._told = why
        return ()

    def pledge(self, until: float, processes: Sequence[ProcessMark] = ()) -> None:
        with self._lock:
            if not (processes and self._page.lend(until, processes, host_clock())):
                self._page.until = max(self._page.until, until)

    def close(self) -> None:
        if self._look_at < inf:
            self._look_at = inf
            _child.leave(self._page)


class _Child:
    """The child of this process. May be used by several threads."""

    def __init__(self) -> None:
        self.guard, self._process = threading.RLock(), os.getpid()
        self._pages: dict[SharedPage, bool] = {}
        """Whether the child has it."""
        self._line: socket.socket | None = None
        self._starter: subprocess.Popen[bytes] | None = None
        self._again_at, self._why = -inf, ""

    def look(self, page: SharedPage, now: float) -> str:
        """Let the child know `page`, and start another child if it has ended. Returns what is wrong."""
        with self.guard:
            self._pages.setdefault(page, False)
            if self._starter is not None:
                self._starter.poll()  # Collects it: it has ended by now.
            if self._line is not None and self._has_ended(self._line):
                self._line.close()
                self._line, self._why = None, "it ended unexpectedly"
                self._pages = dict.fromkeys(self._pages, False)
            elif self._line is not None and now >= self._again_at:
                self._why = ""
            if self._line is None and now >= self._again_at:
                self._again_at = now + AGAIN_AFTER
                self._begin()
            if self._line is not None:
                for other in [page for page, is_sent in self._pages.items() if not is_sent]:
                    with suppress(OSError):  # The line is full, or broken: at the next look.
                        socket.send_fds(self._line, [b"page"], [other.descriptor])
                        self._pages[other] = True
            return self._why

    def leave(self, page: SharedPage) -> None:
        """The member of `page` has left. The last one takes the child along."""
        if os.getpid() != self._process:
            return  # In a fork, whose parent's members go on.
        page.leave()
        with self.guard:
            self._pages.pop(page, None)
            if not self._pages and self._line is not None:
                with suppress(OSError):
                    self._line.send(BYE)
                self._line.close()
                self._line, self._again_at = None, -inf
                if self._starter is not None:
                    with suppress(subprocess.TimeoutExpired):
                        self._starter.wait(START_MAX)
        page.close()

    def forget(self) -> None:
        """In a fork: its parent's child is not its own."""
        if self._line is not None:
            self._line.close()
        for page in self._pages:
            page.close()

    def _has_ended(self, line: socket.socket) -> bool:
        try:
            return not line.recv(1)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _begin(self) -> None:
        own = HostProcess.of(os.getpid())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(0)  # Nothing here may wait. The flags of `send_fds` are ignored.
        passed = theirs.fileno(), own.fileno()
        try:
            self._starter = subprocess.Popen(  # noqa: S603 - our own program, by the same interpreter.
                # -S and not -I: the environment's settings for where Python itself lives must apply to the child, too.
                [sys.executable, "-S", "-P", str(PROGRAM), *map(str, passed)],
                # A program that reads the member's output until it ends must not have to wait for the child.
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=passed,
                start_new_session=True,
            )
            self._line = ours
        except OSError as error:
            ours.close()
            self._why = f"it cannot be started: {error}"
        finally:
            own.close()
            theirs.close()


_child = _Child()


def _before_fork() -> None:
    """Wait until no child is being started. A fork at that moment would inherit the pipe at whose end the start waits,
    and then the start, with the member's thread, would wait for as long as that fork lives."""
    _child.guard.acquire()


def _after_fork_in_parent() -> None:
    _child.guard.release()


def _after_fork_in_child() -> None:
    global _child  # noqa: PLW0603 - a lock that a fork left locked can only be replaced.
    _child.forget()
    _child = _Child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
