"""The guardian: a process that starts the command of `neli run`, and does not let it outlive its lease.

    neli run --socket--> guardian --fork, own session--> COMMAND --> its children, and theirs
                            |
                            |  kills all of it on request, and a margin before its lease ends, and
                            '- when `neli run` is gone, however that happened: the socket ends

    IDLE --start--> RUNNING --finish--> FINISHING (SIGTERM) --grace over--> KILLING (see `descendants`)
      ^                '------ kill, lease almost over, socket ended -----------^  |  |
      '-------------------------- nothing of it is left: `gone` -----------------' |
                     only processes that it may not signal are left: `left`, or its own end without `neli run`

It is a separate process because `neli run` may be killed or stopped like any other, and then could not stop anything.
It is forked before there is any thread or lock. It has a copy of the connection on which the agent holds the role
(`keep`). So if `neli run` is killed, the agent still holds the role until the guardian has ended everything and is
gone, too.

**The margin.** Finding, stopping and killing processes takes time, above all on a busy machine, and a successor may act
from the moment that the lease ends. So the guardian starts a fraction of the lease earlier. When it wakes up, every
millisecond counts: it runs with real-time scheduling (SCHED_FIFO) where it may. The command runs with the scheduling of
`neli run`.

**The promise.** On Linux, nothing of the command is left when the guardian sends `gone`: orphans become the guardian's
children (PR_SET_CHILD_SUBREAPER). Elsewhere that is true for the command's process group. Processes of other users
refuse its signals. So the command gets no new privileges (PR_SET_NO_NEW_PRIVS: set-user-ID programs run without theirs)
unless the user asks for them. Where a cgroup could be created, it ends such processes all the same.

**What its end proves.** Unless processes are left that the guardian may not signal, nothing of the command is left when
both it and `neli run` have ended. So `neli run` names the guardian to the agent, and if the agent itself dies, its
death can be certified without a wait for this lease.

**The fuse.** A quarter of the margin before the lease ends, a timer of the kernel kills the guardian unless it has
begun to kill (`_Fuse`), and its end kills the command's first process. No process has to run for that. So it also
works if everything is stopped together, or frozen with its cgroup (`docker pause`), or if the host slept.

**If the guardian itself fails**, `neli run` takes its place: it is a subreaper, too, so it inherits the guardian's
children.

    the guardian is killed           the command's first process dies at that moment (PR_SET_PDEATHSIG, which a
                                     set-user-ID program resets), and `neli run` ends everything else
    it is stopped, or does not run   `neli run` kills it and ends everything, if it has not started half a margin
                                     before the lease ends, or half a margin after it was asked to start
    `neli run` is killed or stopped  the guardian ends everything
    both are killed at one moment,   the command's first process dies: when the guardian is killed, or by the fuse. Its
    stopped or frozen                children go on, until one of the two runs again, and only the term keeps out their
                                     writes. The same holds if one is killed while the other is stopped

A `neli run` that already had children when it started, because a shell became it by `exec`, is not a subreaper: it
could not distinguish those children from the command's. It then ends the command's cgroup and process group. A process
started through a service, such as systemd or a container engine, is not a child of the command and is not ended.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, NoReturn

from neli_router.core.clock import host_clock
from neli_router.hosts.descendants import (
    Cgroup,
    Descendants,
    LeftProcess,
    become_subreaper,
    children,
    send_signal,
    told_left,
)
from neli_router.hosts.leash import end_with_parent, prctl, rename
from neli_router.hosts.process import hurry

__all__ = ["MARGIN_MAX", "MARGIN_MIN", "MARGIN_PART", "Guardian", "guardian", "margin_of"]

SWEEP = 0.005
"""Seconds between two rounds of killing. After the first one, everything that was found has ended or is about to."""

MARGIN_PART = 0.15
"""The fraction of the lease that is left when killing starts. More gives a busy machine more time. Less tolerates a
later renewal: one is due after at most half of the lease."""

MARGIN_MIN = 0.03
"""Seconds. It takes 5 ms to end 50 nested sessions on an idle machine, and the guardian must first get the CPU."""

MARGIN_MAX = 1.0
"""Seconds. A machine that needs longer has worse problems than being busy."""

MARGIN_PART_MAX = 0.25
"""The limit for a lease so short that MARGIN_MIN would leave nothing of it."""

LEFT_EVERY = 60.0
"""Seconds between two reports of processes that cannot be ended. `neli run` shows each report to a person."""

LEFT_SWEEP = 0.5
"""Seconds between two rounds while only such processes are left."""

SLEEP_MAX = 3600.0

FUSE_PART = 0.25
"""The fraction of the margin that is left when the fuse burns through. `neli run` has replaced the guardian by then."""

NAME = "guardian"
"""A name that `pkill neli` and `pkill -f 'neli run'` do not match: with one of the two killed, the other acts."""

_CLOCK_BOOTTIME = 7  # linux/time.h, which never changes.
_SIGNAL_EVENT, _TIME = struct.Struct("@Pii48x"), struct.Struct("@4l")  # struct sigevent, struct itimerspec.
_NO_NEW_PRIVS = 38  # linux/prctl.h, which never changes.
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def margin_of(lease: float) -> float:
    """How many seconds before the end of a lease of `lease` seconds killing starts."""
    return min(MARGIN_MAX, max(MARGIN_PART * lease, min(MARGIN_MIN, MARGIN_PART_MAX * lease)))


class _Messages:
    """One end of the connection between the two: JSON objects, one per line. A message may carry a connection."""

    def __init__(self, line: socket.socket) -> None:
        self._line, self._rest = line, b""
        self.fileno, self.close = line.fileno, line.close
        self.given: list[int] = []
        """Descriptors of the connections that arrived."""

    def say(self, *, given: Sequence[int] = (), **message: object) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # The other side is gone: `heard` reports it.
            text = json.dumps(message).encode() + b"\n"
            self._line.sendall(text[socket.send_fds(self._line, [text], given) :] if given else text)

    def heard(self) -> list[dict[str, Any]]:
        """Wait for a piece. Returns the messages that it completes. Raises EOFError if the other side is gone."""
        try:
            piece, given, *_ = socket.recv_fds(self._line, 65536, 1)
        except ConnectionResetError:
            piece, given = b"", []  # It is gone, and left a message of ours unread; this side is not at fault.
        self.given += given
        if not piece:
            raise EOFError
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return [json.loads(line) for line in whole]


class Guardian:
    """The handle by which `neli run` controls its guardian. One command at a time."""

    def __init__(self, line: socket.socket, pid: int, cgroup: Cgroup | None, *, adopts: bool) -> None:
        self._messages, self._group = _Messages(line), 0
        self._cgroup, self._adopts = cgroup, adopts
        self._say, self.fileno = self._messages.say, self._messages.fileno
        self.number = pid
        """The guardian's process ID. When it and `neli run` have ended, everything of the command has ended."""
        self.margin = 0.0
        """Seconds before the end of the lease at which killing starts."""
        self.is_gone = self._is_killing = False
        self.overdue_at = inf
        """If it has not sent by then that it kills, it is not doing its work: `avenge`."""

    def patience(self) -> float:
        """Seconds for which its owner may sleep, unless it sends something; at 0, call `avenge`."""
        return max(0.0, min(SLEEP_MAX, self.overdue_at - host_clock()))

    def keep(self, connection: int) -> None:
        """Keep this connection open, instead of the previous one, until everything of the command is gone."""
        with contextlib.suppress(OSError):  # It has just broken, and there will be a new one.
            self._say(given=[connection], keep=True)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        until: float,
        allow_new_privileges: bool = False,
    ) -> None:
        """Start `command`; it is killed before `until`, on the host's clock, unless `extend` is called first."""
        self.margin, self._is_killing = 0.0, False
        self._say(
            start=list(command),
            environment=dict(environment),
            allow_new_privileges=allow_new_privileges,
            ends=self._ends(until),
        )

    def extend(self, until: float) -> None:
        self._say(ends=self._ends(until))

    def finish(self, number: int, grace: float) -> None:
        """Send a signal to the group, and kill it `grace` seconds later."""
        self._say(finish=number, grace=grace)

    def kill(self) -> None:
        if not self._is_killing:
            self.overdue_at = min(self.overdue_at, host_clock() + self.margin / 2)
        self._say(kill=True)

    def heard(self) -> list[dict[str, Any]]:
        """Its messages: `started`, `failed`, `killing`, `ended`, `left`, `gone`. Raises EOFError if it is gone."""
        said = self._messages.heard()
        for one in said:
            self._group = 0 if "gone" in one or "failed" in one else one.get("started", self._group)
            self._is_killing = self._is_killing or "killing" in one
            if self._is_killing or "gone" in one or "failed" in one:
                self.overdue_at = inf  # It does its work. On a busy machine, a killed process takes a while to die.
            if "left" in one:
                one["left"] = [LeftProcess(*each) for each in one["left"]]
        return said

    def close(self) -> None:
        """Let it go, and with it everything that still runs."""
        self._messages.close()
        if not self.is_gone:
            os.kill(self.number, signal.SIGCONT)  # It may have been stopped.
            os.waitpid(self.number, 0)
            self.is_gone = True

    def avenge(self) -> list[LeftProcess]:
        """The guardian was killed, or does not do its work: end it, and everything of the command. Returns when all of
        it is gone, or only processes that this one may not signal are left, and returns those."""
        self.overdue_at = inf
        os.kill(self.number, signal.SIGKILL)
        os.waitpid(self.number, 0)
        self.is_gone = True
        left = list[LeftProcess]()
        if self._adopts:
            descendants = Descendants(self._cgroup)
            while not _reap() and not left:
                descendants.kill(0)
                left = descendants.left()
                select.select([], [], [], SWEEP)
        else:
            while self._group and _exists(self._group):
                if self._cgroup is not None:
                    self._cgroup.kill()
                send_signal(os.killpg, self._group, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(-self._group, os.WNOHANG)  # Someone else may have made this process a subreaper.
                select.select([], [], [], SWEEP)
        if self._cgroup is not None:
            self._cgroup.remove()
        return left

    def _ends(self, until: float) -> tuple[float, float]:
        """When killing starts, and when the fuse has burnt through."""
        # The first end may arrive late, and the time left on a lease is never more than the lease.
        self.margin = max(self.margin, margin_of(until - host_clock()))
        if not self._is_killing:
            # A guardian that hears only now that the lease is over, or almost, gets the time that `kill` gives it.
            # Otherwise it would be killed before it could end anything; and its owner may be killed just then.
            self.overdue_at = max(until - self.margin / 2, host_clock() + self.margin / 2)
        return until - self.margin, until - FUSE_PART * self.margin


def guardian() -> Guardian:
    """Fork the guardian. Call this before this process has any thread."""
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    adopts = sys.platform == "linux" and not children(os.getpid())
    if adopts:
        become_subreaper()
    cgroup = Cgroup.make(f"neli-run-{os.getpid()}")
    pid = os.fork()
    if pid:
        theirs.close()
        return Guardian(ours, pid, cgroup, adopts=adopts)
    try:
        ours.close()
        _GuardianLoop(theirs, cgroup).run()
    finally:
        os._exit(1)  # Not `exit`: that would run the exit handlers that our parent registered for itself.


class _GuardianLoop:
    """The guardian's own side: one loop."""

    def __init__(self, line: socket.socket, cgroup: Cgroup | None) -> None:
        self._messages, self._cgroup = _Messages(line), cgroup
        self._say = self._messages.say
        self._descendants, self._timer = Descendants(cgroup), _Fuse()
        self._process: subprocess.Popen[bytes] | None = None
        self._leader_lives = self._killing = self._has_begun = self._is_stuck = False
        self._until = self._kill_at = self._fuse = inf
        self._tell_at = -inf

    def run(self) -> NoReturn:
        # A session of its own, so that no signal from a terminal or a shell to the group of `neli run` reaches us.
        os.setsid()
        rename(NAME)
        self._ignored = {number for number in _STOPPING if signal.getsignal(number) is signal.SIG_IGN}
        for number in _STOPPING:
            signal.signal(number, signal.SIG_IGN)
        waking, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        become_subreaper()
        self._ordinary = hurry()
        while True:
            ready, _, _ = select.select([self._messages.fileno(), waking], [], [], self._patience())
            if waking in ready:
                os.read(waking, 4096)
            if self._messages.fileno() in ready:
                self._listen()
            self._turn()
            self._timer.light(inf if self._process is None or self._killing else self._fuse)

    def _patience(self) -> float:
        if self._process is None:
            return SLEEP_MAX
        if self._is_stuck:
            return LEFT_SWEEP
        if self._killing or not self._leader_lives:
            # While the leader is gone but the group is not, no signal shows when its processes end. They also need the
            # processor to end: with real-time scheduling, a loop without a pause would keep it from them.
            return SWEEP
        return max(0.0, min(SLEEP_MAX, self._until - host_clock(), self._kill_at - host_clock()))

    def _listen(self) -> None:
        try:
            messages = self._messages.heard()
        except EOFError:
            self._end()
        for message in messages:
            self._until, self._fuse = message.get("ends", (self._until, self._fuse))
            if "start" in message:
                self._start(message)
            elif "keep" in message:
                while len(self._messages.given) > 1:
                    os.close(self._messages.given.pop(0))
            elif "finish" in message and self._process is not None:
                for number in (message["finish"], signal.SIGCONT):  # A stopped process handles no other signal.
                    send_signal(os.killpg, self._process.pid, number)
                self._kill_at = min(self._kill_at, host_clock() + message["grace"])
            elif "kill" in message:
                self._killing = True

    def _start(self, asked: Mapping[str, Any]) -> None:
        if host_clock() >= self._until:
            # `neli run` was stopped in between, and another host may have the role by now.
            self._say(ended=-signal.SIGKILL, killed=True)
            self._say(gone=True)
            return
        parent, allowed = os.getpid(), asked["allow_new_privileges"]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - to run it is what we were asked for.
                asked["start"],
                env=asked["environment"],
                start_new_session=True,
                preexec_fn=lambda: self._begin(parent, allowed),  # noqa: PLW1509 - this process has one thread.
            )
        except OSError as error:
            self._say(failed=error.errno, why=error.strerror)
            return
        except (ValueError, subprocess.SubprocessError) as error:
            self._say(failed=0, why=str(error))
            return
        self._leader_lives, self._killing, self._has_begun, self._is_stuck = True, False, False, False
        self._kill_at, self._tell_at = inf, -inf

    def _begin(self, parent: int, allow_new_privileges: bool) -> None:
        """Runs in the command's process, before it becomes the command."""
        end_with_parent(parent)
        if self._cgroup is not None:
            self._cgroup.enter()
        if self._ordinary is not None:
            os.sched_setscheduler(0, *self._ordinary)
        if not allow_new_privileges:
            prctl(_NO_NEW_PRIVS, 1)
        for number in _STOPPING:
            if number not in self._ignored:
                signal.signal(number, signal.SIG_DFL)
        # Sent from here, because the guardian may be killed before it runs again, and `neli run` must know the group.
        self._say(started=os.getpid())

    def _turn(self) -> None:
        if self._process is None:
            return
        now = host_clock()
        self._killing = self._killing or now >= self._until or now >= self._kill_at
        if self._killing:
            # Once it was waited for, its ID may belong to another process; all of the group are descendants anyway.
            self._descendants.kill(self._process.pid if self._leader_lives or sys.platform != "linux" else 0)
            if not self._has_begun:
                self._has_begun = True
                self._say(killing=True)
        if _reap(self._process.pid, self._leader_ended) and not (
            sys.platform != "linux" and _exists(self._process.pid)
        ):
            self._process, self._is_stuck = None, False
            self._until = self._kill_at = inf
            self._say(gone=True)
        elif self._killing:
            self._tell(now)

    def _tell(self, now: float) -> None:
        """Report which processes are left and cannot be ended, if there is nothing else."""
        left = self._descendants.left()
        self._is_stuck = bool(left)
        if left and now >= self._tell_at:
            self._tell_at = now + LEFT_EVERY
            self._say(left=left)

    def _leader_ended(self, status: int) -> None:
        assert self._process is not None, "it was started"
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._leader_lives = False
        # Only for a command that was not asked to end. After such a request, its processes end in any order.
        behind = [] if self._killing or self._kill_at < inf else self._descendants.living()
        said: dict[str, Any] = {"behind": behind} if behind else {}
        self._say(ended=self._process.returncode, killed=self._killing, **said)
        # Its children may go on working for a role that another host is about to have.
        self._killing = True

    def _end(self) -> NoReturn:
        """`neli run` is gone, one way or another."""
        self._killing, was_told = True, self._is_stuck
        while self._process is not None:
            self._turn()
            if self._is_stuck:
                if not was_told:
                    with contextlib.suppress(OSError):
                        os.write(2, f"neli: {told_left(self._descendants.left())}\n".encode())
                break
            select.select([], [], [], SWEEP)
        if self._cgroup is not None:
            self._cgroup.remove()
        os._exit(0)


class _Fuse:
    """A timer of the kernel that kills this process, even while it is stopped or frozen. It counts suspended time."""

    def __init__(self) -> None:
        self._at, self._timer = inf, ctypes.c_void_p()
        self._libc = ctypes.CDLL(None)
        asked = _SIGNAL_EVENT.pack(0, signal.SIGKILL, 0)
        self._exists = sys.platform == "linux" and hasattr(self._libc, "timer_create")
        self._exists = self._exists and not self._libc.timer_create(_CLOCK_BOOTTIME, asked, ctypes.byref(self._timer))

    def light(self, at: float) -> None:
        """Let it burn through at `at`, on the host's clock; `inf` puts it out."""
        if at == self._at or not self._exists:
            return
        self._at, left = at, 0 if at == inf else max(1, int(1e9 * (at - host_clock())))
        self._libc.timer_settime(self._timer, 0, _TIME.pack(0, 0, *divmod(left, 10**9)), None)


def _reap(leader: int = 0, ended: Callable[[int], None] = lambda _: None) -> bool:
    """Wait for all children that have ended. Returns whether none is left. `ended` gets the leader's status."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return False
        if pid == leader:
            ended(status)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
