"""The agent's end of its door: it starts the process that serves the port, and restarts it when it dies.

    open: start --settings--> serving --its control socket ends--> log, pause, start again
             ^                   |                                              |
             |                   '--close: we close our side--> it says farewell, and ends
             '---------------- PAUSE_MIN, twice as long each time, at most PAUSE_MAX <--'

The listening socket stays with the agent. Without a door, clients wait in the kernel's queue, and no other process can
take the port. Leases of programs that came over TCP end with their connections, just as if the network had failed.

A door that is stopped, or gets no processor time, keeps its control socket open and answers no one. While it runs it
sends a sign of life now and then, so its silence is logged. It is not killed for silence: on a busy machine, another
start is the last thing that helps.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import msgspec

from neli_router.agent.server.connections import FAREWELL_MAX
from neli_router.agent.server.door import DoorSettings
from neli_router.core import logs

__all__ = ["KNOWN_MAX", "DoorProcess"]

KNOWN_MAX = 1024
"""Connections with the token. Each occupies one of the agent's streams, of which there are four times as many."""

PAUSE_MIN, PAUSE_MAX = 0.1, 30.0
"""Seconds before it is started again. After a door that lived for PAUSE_MAX, the pause starts from PAUSE_MIN again."""

HANDED_MAX = 64
"""Connections that are taken from the door before other work gets its turn."""

SILENT_AFTER = 10.0
"""Seconds. A door sends something each second, and a busy machine may delay that by a few."""

LINE_MAX = 1000
"""Characters of its standard error that go into one log line."""


class DoorProcess:
    """The door of one agent, on its loop. It is sent `settings`, and `admit` gets each connection that it makes."""

    def __init__(
        self, listener: socket.socket, settings: Callable[[], DoorSettings], admit: Callable[[socket.socket], None]
    ) -> None:
        self._listener, self._settings, self._admit = listener, settings, admit
        self._loop = asyncio.get_running_loop()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._gone = asyncio.Event()
        self._is_ending = self._was_heard = False
        self._keeping: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Its process ID, while there is a process."""
        return None if self._process is None else self._process.pid

    def open(self) -> None:
        """Keep a door running from now on, until `close`."""
        self._keeping = asyncio.create_task(self._keep())

    def tell(self) -> None:
        """Send the current settings."""
        if self._control is None:
            return
        try:
            self._control.send(msgspec.json.encode(self._settings()) + b"\n")
        except OSError:
            self._kill()  # It does not listen. The next door starts with these settings.

    async def close(self) -> None:
        """Let it say farewell to its clients, with as much time as an agent gives its own, and end."""
        assert self._keeping is not None
        self._is_ending = True
        if self._control is None:
            self._keeping.cancel()
            return
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), FAREWELL_MAX + 1)
        self._kill()
        await self._keeping

    async def _keep(self) -> None:
        """Keep a door running, until `close`."""
        log, pause = logs.logger(), PAUSE_MIN
        while True:
            began = self._loop.time()
            try:
                self._start()
            except OSError as error:
                why = error.strerror
            else:
                await self._watch()
                why = f"exit code {await self._reap()}"
            if self._is_ending:
                return
            pause = PAUSE_MIN if self._loop.time() - began > PAUSE_MAX else pause
            log.warning("agent.door_ended", why=why, again_in=f"{pause:g} s", lost="connections over TCP")
            await asyncio.sleep(pause)
            pause = min(PAUSE_MAX, 2 * pause)

    async def _watch(self) -> None:
        """Until it is gone, log when it falls silent and when it is heard again."""
        was_silent = False
        while True:
            self._was_heard = False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), SILENT_AFTER)
            if self._gone.is_set():
                return
            if self._was_heard and was_silent:
                logs.logger().warning("agent.door_heard", pid=self.pid)
            elif not (self._was_heard or was_silent):
                logs.logger().warning(
                    "agent.door_silent",
                    pid=self.pid,
                    silent_for=f"{SILENT_AFTER:g} s",
                    lost="answers over TCP, and not those over the own socket",
                    remedy="see whether that process was stopped, or the machine has no time for it",
                )
            was_silent = not self._was_heard

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        program = [sys.executable, "-P", "-m", "neli_router.agent.server.door"]
        passed = theirs.fileno(), self._listener.fileno()
        # It imports what we import, but gets none of our options: its environment has neither a token nor a ledger.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("NELI_")}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own program, by the same interpreter.
                    [*program, *map(str, passed)],
                    stdin=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=passed,
                    env=environment,
                )
            except OSError:
                ours.close()
                raise
        ours.settimeout(0)
        self._gone.clear()
        self._control = ours
        self._loop.add_reader(ours, self._hear)
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        self._loop.add_reader(self._process.stderr.fileno(), self._log)
        self.tell()

    def _hear(self) -> None:
        assert self._control is not None
        for _ in range(HANDED_MAX):
            try:
                said, handed, _, _ = socket.recv_fds(self._control, 1, 1)
            except BlockingIOError:
                return
            except OSError:
                said, handed = b"", []
            self._was_heard = True
            for descriptor in handed:
                self._admit(socket.socket(fileno=descriptor))
            if not said:
                self._loop.remove_reader(self._control)
                self._gone.set()
                return

    def _log(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        try:
            said = os.read(self._process.stderr.fileno(), 65536)
        except BlockingIOError:
            return
        if not said:
            self._loop.remove_reader(self._process.stderr.fileno())
            return
        for line in said.decode("utf-8", "backslashreplace").splitlines():
            logs.logger().error("agent.door_said", line=line[:LINE_MAX])

    async def _reap(self) -> int:
        """Clean up after a door that has ended, or is about to."""
        process, control = self._process, self._control
        assert process is not None
        assert process.stderr is not None
        assert control is not None
        try:
            code = await asyncio.to_thread(process.wait, FAREWELL_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            code = await asyncio.to_thread(process.wait)
        self._log()
        self._loop.remove_reader(process.stderr.fileno())
        process.stderr.close()
        control.close()
        self._control = self._process = None
        return code

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
