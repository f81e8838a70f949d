"""Python programs forked from one process that has already imported everything: they start in milliseconds.

    test --code, folder, variables--> fork server --fork--> the program, with pipes of its own

A program is a real process, like `python -c CODE ARGUMENT ...`. It must not rely on a fresh interpreter.
"""

import io
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self
from unittest import mock

__all__ = ["Program", "lives", "state_of", "without_neli"]

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        *(__name__, "encodings.idna", "stringprep", "httpcore", "uvicorn.protocols.http.h11_impl"),
        *("neli_router.agent.client.client", "neli_router.agent.server.server", "neli_router.commands.cli"),
        *("neli_router.commands.configuration", "neli_router.hosts.guardian", "neli_router.commands.run"),
        *(
            "neli_router.member.witness.registration",
            "neli_router.lab.demo",
            "neli_router.drivers.ledgers.sqlite.ledger",
            "neli_router.member.member",
        ),
    ]
)


def without_neli() -> dict[str, str]:
    """The environment of this process, without the variables that configure NELI Router."""
    return {name: value for name, value in os.environ.items() if not name.startswith("NELI_")}


def state_of(pid: int) -> str:
    """The state of its first thread, as the kernel shows it: R, S, T, t, Z ..., or X for a process that is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[0]
    return "X"


def lives(pid: int) -> bool:
    """Whether the process is alive. A zombie is not: its reaper may be a container's init, which never reaps it."""
    return state_of(pid) not in "ZX"


class Program:
    """Like `subprocess.Popen`: a process with text pipes, or with its standard error written to the file `log`."""

    def __init__(
        self,
        code: str,
        *arguments: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        own_group: bool = False,
    ) -> None:
        if log is not None:
            log.touch()
        pipes = [_SERVER.Pipe(duplex=False) for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
        order = (theirs, str(folder), dict(environment or os.environ), str(log or ""), own_group, code, arguments)
        self._process = _SERVER.Process(target=_be, args=order, daemon=True)
        with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):  # For what the server preloads.
            forkserver.ensure_running()
        self._process.start()
        self.stdin, self.stdout, self.stderr = (
            os.fdopen(os.dup(pipe.fileno()), mode, encoding="utf-8")
            for pipe, mode in zip(ours, ("w", "r", "r"), strict=True)
        )
        for pipe in (*theirs, *ours):
            pipe.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises TimeoutError if it has not ended by then."""
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise TimeoutError(f"process {self.pid} goes on")
        return code

    def communicate(self, said: str = "") -> tuple[str, str]:
        """Send this text, and return all of its output and errors once it has ended."""
        if not self.stdin.closed:
            self.stdin.write(said)
            self.stdin.close()
        out = "" if self.stdout.closed else self.stdout.read()
        error = "" if self.stderr.closed else self.stderr.read()
        self.close()
        return out, error

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # The fork server took its exit code, and has not reported it yet.
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Wait for its end."""
        for file in (self.stdin, self.stdout, self.stderr):
            file.close()
        self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.close()


def _be(
    pipes: list[Connection],
    folder: str,
    environment: dict[str, str],
    log: str,
    own_group: bool,
    code: str,
    arguments: tuple[str, ...],
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if own_group:
        os.setpgid(0, 0)
    for number, pipe in enumerate(pipes):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    if log:
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)  # As in a terminal, so that each program need not flush what it prints.
    sys.stdin, sys.argv = open(0, encoding="utf-8", closefd=False), ["-c", *arguments]  # noqa: SIM115
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})  # noqa: S102 - a test's own.
