"""The guardian: a process that starts the command of `neli run`, and does not let it outlive its lease.

    neli run --pipe--> guardian --fork, own session--> COMMAND --> its children, and theirs
                          |
                          |  kills all of it when it is told to, when the lease it was told of has run out,
                          '- and when `neli run` is gone, however that came: the pipe ends

    IDLE --start--> RUNNING --finish--> FINISHING (SIGTERM) --grace over--> KILLING (SIGKILL, again and again)
      ^                '------ kill, lease over, pipe ended -------------------^       |
      '-------------------------- nothing of it is left: `gone` -----------------------'

It is a process of its own because `neli run` may be killed or stopped like any other, and then could stop nothing. It
shares no thread, lock or connection with it: it was forked before there were any, and does nothing but this.

What is guaranteed. On any platform: the process group of the command is gone before `gone` is said. On Linux
also: whatever left the group, because the guardian is the one that orphans fall to (PR_SET_CHILD_SUBREAPER); and if
somebody kills the guardian itself, the command dies with it (PR_SET_PDEATHSIG, which a set-user-ID program resets)
and `neli run` kills its group. If somebody kills both at one moment, only the command's first process dies with them;
what that had started goes on, and only the term keeps out what it writes. What a process starts through a service that
runs elsewhere, such as systemd or a container engine, is not its child and is not stopped.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, NoReturn

from neli_router.clock import Clock, host_clock

__all__ = ["Guardian", "guardian"]

SWEEP = 0.005
"""Seconds between two rounds of killing. What forks as fast as it is killed loses, being killed group by group."""

SLEEP_MAX = 3600.0

_PDEATHSIG, _SUBREAPER = 1, 36  # linux/prctl.h, which never changes.
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class Guardian:
    """The hand of `neli run` on its guardian. One command at a time."""

    def __init__(self, line: socket.socket, pid: int) -> None:
        self._line, self._pid, self._rest = line, pid, b""
        self._group = 0

    def fileno(self) -> int:
        return self._line.fileno()

    def start(self, command: Sequence[str], environment: Mapping[str, str], *, until: float) -> None:
        """Start it; it is killed at `until`, on the host's clock, unless `extend` comes before."""
        self._say(start=list(command), environment=dict(environment), until=until)

    def extend(self, until: float) -> None:
        self._say(until=until)

    def finish(self, number: int, grace: float) -> None:
        """Send a signal to the group, and kill it `grace` seconds later."""
        self._say(finish=number, grace=grace)

    def kill(self) -> None:
        self._say(kill=True)

    def heard(self) -> list[dict[str, Any]]:
        """What it said: `started`, `failed`, `ended`, `gone`. Waits for that. Raises EOFError if it is gone itself."""
        piece = _received(self._line)
        if not piece:
            raise EOFError
        *whole, self._rest = (self._rest + piece).split(b"\n")
        said = [json.loads(line) for line in whole]
        for one in said:
            self._group = 0 if "gone" in one else one.get("started", self._group)
        return said

    def close(self) -> None:
        """Let it go, and with it whatever still runs."""
        self._line.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def avenge(self) -> None:
        """Somebody killed the guardian: what it guarded must not go on. Returns when the group is gone."""
        while self._group and _exists(self._group):
            _quietly(os.killpg, self._group, signal.SIGKILL)
            select.select([], [], [], SWEEP)

    def _say(self, **message: object) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # It is gone: `heard` says so.
            self._line.sendall(json.dumps(message).encode() + b"\n")


def guardian() -> Guardian:
    """Fork it. To be called before this process has any thread."""
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        theirs.close()
        return Guardian(ours, pid)
    try:
        ours.close()
        _Watch(theirs, host_clock).run()
    finally:
        os._exit(1)  # Not `exit`: what our parent registered for its end is not ours to do.


class _Watch:
    """The guardian's own side: one loop."""

    def __init__(self, line: socket.socket, clock: Clock) -> None:
        self._line, self._clock, self._rest = line, clock, b""
        self._process: subprocess.Popen[bytes] | None = None
        self._leader_lives = self._killing = False
        self._until = self._kill_at = inf

    def run(self) -> NoReturn:
        # Of its own session, so that what a terminal or a shell sends to `neli run` and its group is not for us.
        os.setsid()
        for number in _STOPPING:
            signal.signal(number, signal.SIG_IGN)
        waking, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        _prctl(_SUBREAPER, 1)
        while True:
            ready, _, _ = select.select([self._line.fileno(), waking], [], [], self._patience())
            if waking in ready:
                os.read(waking, 4096)
            if self._line.fileno() in ready:
                self._listen()
            self._turn()

    def _patience(self) -> float:
        if self._process is None:
            return SLEEP_MAX
        # While the leader is gone and the group is not, nobody tells us of its members' ends.
        soon = SWEEP if self._killing or not self._leader_lives else SLEEP_MAX
        return max(0.0, min(soon, self._until - self._clock(), self._kill_at - self._clock()))

    def _listen(self) -> None:
        piece = _received(self._line)
        if not piece:
            self._end()
        *whole, self._rest = (self._rest + piece).split(b"\n")
        for line in whole:
            message = json.loads(line)
            self._until = message.get("until", self._until)
            if "start" in message:
                self._start(message["start"], message["environment"])
            elif "finish" in message and self._process is not None:
                self._send(message["finish"])
                self._send(signal.SIGCONT)  # What was stopped hears of no other signal.
                self._kill_at = min(self._kill_at, self._clock() + message["grace"])
            elif "kill" in message:
                self._killing = True

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        if self._clock() >= self._until:
            # `neli run` was stopped before it could say so, and the role may be another's by now.
            self._say(ended=-signal.SIGKILL, killed=True)
            self._say(gone=True)
            return
        parent = os.getpid()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - to run it is what we were asked for.
                command,
                env=environment,
                start_new_session=True,
                preexec_fn=lambda: _prepare(parent),  # noqa: PLW1509 - this process has one thread.
            )
        except OSError as error:
            self._say(failed=error.errno, why=error.strerror)
            return
        except (ValueError, subprocess.SubprocessError) as error:
            self._say(failed=0, why=str(error))
            return
        self._leader_lives, self._killing, self._kill_at = True, False, inf
        self._say(started=self._process.pid)

    def _turn(self) -> None:
        if self._process is None:
            return
        now = self._clock()
        self._killing = self._killing or now >= self._until or now >= self._kill_at
        if self._killing:
            self._send(signal.SIGKILL)
            for child in _children():
                if child != self._process.pid:
                    _quietly(os.kill, child, signal.SIGKILL)
        self._reap(self._process)
        if not self._leader_lives and not _exists(self._process.pid) and not _children():
            self._process = None
            self._until = self._kill_at = inf
            self._say(gone=True)

    def _reap(self, process: "subprocess.Popen[bytes]") -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == process.pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                self._leader_lives = False
                self._say(ended=process.returncode, killed=self._killing)
                # What it left behind may go on working for a role that is about to be another's.
                self._killing = True

    def _send(self, number: int) -> None:
        if self._process is not None:
            _quietly(os.killpg, self._process.pid, number)

    def _say(self, **message: object) -> None:
        with contextlib.suppress(OSError):  # `neli run` is gone: the next reading finds out.
            self._line.sendall(json.dumps(message).encode() + b"\n")

    def _end(self) -> NoReturn:
        """`neli run` is gone, in whatever way."""
        self._killing = True
        while self._process is not None:
            self._turn()
            select.select([], [], [], SWEEP)
        os._exit(0)


def _received(line: socket.socket) -> bytes:
    """What came; nothing if the other side is gone."""
    try:
        return line.recv(65536)
    except ConnectionResetError:
        return b""  # It is gone, and left something of ours unread: that must not look like a defect of this side.


def _prepare(parent: int) -> None:
    """In the command's process, before it becomes the command."""
    _prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)  # The guardian was gone before it could be said that this matters.
    for number in _STOPPING:
        signal.signal(number, signal.SIG_DFL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _children() -> list[int]:
    """Of this process, among them what was orphaned beneath it; empty where nobody can say."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_bytes().split()]
    except OSError:
        return []


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _quietly(send: Callable[[int, int], None], target: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(target, number)
