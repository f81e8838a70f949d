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

On any platform, the process group of the command is gone before the guardian says `gone`. On Linux the same is true of
processes that left the group, because orphans become the guardian's children (PR_SET_CHILD_SUBREAPER). If the guardian
itself is killed on Linux, the command dies with it (PR_SET_PDEATHSIG, which a set-user-ID program resets) and `neli
run` kills its group. If both are killed at one moment, only the command's first process dies with them; its children go
on, and only the term keeps out their writes. A process that was started through a service, such as systemd or a
container engine, is no child of the command and is not stopped.
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
"""Seconds between two rounds of killing. A program that forks fast loses all the same: it is killed group by group."""

SLEEP_MAX = 3600.0

_PDEATHSIG, _SUBREAPER = 1, 36  # linux/prctl.h, which never changes.
_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class _Messages:
    """One end of the connection between the two: JSON objects, one a line."""

    def __init__(self, line: socket.socket) -> None:
        self._line, self._rest = line, b""
        self.fileno, self.close = line.fileno, line.close

    def say(self, **message: object) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # It is gone: `heard` says so.
            self._line.sendall(json.dumps(message).encode() + b"\n")

    def heard(self) -> list[dict[str, Any]]:
        """Waits for a piece; the messages that it completes. Raises EOFError if the other side is gone."""
        try:
            piece = self._line.recv(65536)
        except ConnectionResetError:
            piece = b""  # It is gone, and left a message of ours unread: that is no defect of this side.
        if not piece:
            raise EOFError
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return [json.loads(line) for line in whole]


class Guardian:
    """The hand of `neli run` on its guardian. One command at a time."""

    def __init__(self, line: socket.socket, pid: int) -> None:
        self._messages, self._pid, self._group = _Messages(line), pid, 0
        self._say = self._messages.say

    def fileno(self) -> int:
        return self._messages.fileno()

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
        """Its messages: `started`, `failed`, `ended`, `gone`. Waits for one. Raises EOFError if it is gone."""
        said = self._messages.heard()
        for one in said:
            self._group = 0 if "gone" in one or "failed" in one else one.get("started", self._group)
        return said

    def close(self) -> None:
        """Let it go, and with it all that still runs."""
        self._messages.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def avenge(self) -> None:
        """The guardian was killed: the command must not go on. Returns when its group is gone."""
        while self._group and _exists(self._group):
            _quietly(os.killpg, self._group, signal.SIGKILL)
            select.select([], [], [], SWEEP)


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
        _GuardianLoop(theirs, host_clock).run()
    finally:
        os._exit(1)  # Not `exit`: that would run what our parent registered for its own end.


class _GuardianLoop:
    """The guardian's own side: one loop."""

    def __init__(self, line: socket.socket, clock: Clock) -> None:
        self._messages, self._clock = _Messages(line), clock
        self._say = self._messages.say
        self._process: subprocess.Popen[bytes] | None = None
        self._leader_lives = self._killing = False
        self._until = self._kill_at = inf

    def run(self) -> NoReturn:
        # Of its own session, so that a signal from a terminal or a shell to the group of `neli run` does not reach us.
        os.setsid()
        for number in _STOPPING:
            signal.signal(number, signal.SIG_IGN)
        waking, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        _prctl(_SUBREAPER, 1)
        while True:
            ready, _, _ = select.select([self._messages.fileno(), waking], [], [], self._patience())
            if waking in ready:
                os.read(waking, 4096)
            if self._messages.fileno() in ready:
                self._listen()
            self._turn()

    def _patience(self) -> float:
        if self._process is None:
            return SLEEP_MAX
        # While the leader is gone and the group is not, no signal tells us when its processes end.
        soon = SWEEP if self._killing or not self._leader_lives else SLEEP_MAX
        return max(0.0, min(soon, self._until - self._clock(), self._kill_at - self._clock()))

    def _listen(self) -> None:
        try:
            messages = self._messages.heard()
        except EOFError:
            self._end()
        for message in messages:
            self._until = message.get("until", self._until)
            if "start" in message:
                self._start(message["start"], message["environment"])
            elif "finish" in message and self._process is not None:
                self._send(message["finish"])
                self._send(signal.SIGCONT)  # A stopped process takes no other signal.
                self._kill_at = min(self._kill_at, self._clock() + message["grace"])
            elif "kill" in message:
                self._killing = True

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        if self._clock() >= self._until:
            # `neli run` was stopped in between, and the role may be another's by now.
            self._say(ended=-signal.SIGKILL, killed=True)
            self._say(gone=True)
            return
        parent = os.getpid()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - to run it is what we were asked for.
                command,
                env=environment,
                start_new_session=True,
                preexec_fn=lambda: self._begin(parent),  # noqa: PLW1509 - this process has one thread.
            )
        except OSError as error:
            self._say(failed=error.errno, why=error.strerror)
            return
        except (ValueError, subprocess.SubprocessError) as error:
            self._say(failed=0, why=str(error))
            return
        self._leader_lives, self._killing, self._kill_at = True, False, inf

    def _begin(self, parent: int) -> None:
        """In the command's process, before it becomes the command."""
        _prepare(parent)
        # Here, because the guardian may be killed before it runs again, and then `neli run` must know the group.
        self._say(started=os.getpid())

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
                # Its children may go on working for a role that is about to be another's.
                self._killing = True

    def _send(self, number: int) -> None:
        if self._process is not None:
            _quietly(os.killpg, self._process.pid, number)

    def _end(self) -> NoReturn:
        """`neli run` is gone, in one way or another."""
        self._killing = True
        while self._process is not None:
            self._turn()
            select.select([], [], [], SWEEP)
        os._exit(0)


def _prepare(parent: int) -> None:
    _prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)  # The guardian was gone before the line above took effect.
    for number in _STOPPING:
        signal.signal(number, signal.SIG_DFL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _children() -> list[int]:
    """Of this process, with the orphans beneath it; empty where the system does not tell."""
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
