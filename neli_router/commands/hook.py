"""The hook: a command that runs at each change, for instance to notify people.

    change --put--> [ change | change | ... ] --one at a time--> COMMAND: the change as JSON on standard input,
                       at most QUEUE_MAX                                  and its parts as NELI_CHANGE_... variables
                                                                    |
                              a code that is not 0, or too long ----'--> reported on standard error; the next follows

The command is split into words as a shell would split it, but is started without a shell. The parts of a change, such
as the name of a member, are only data: they never appear in a command line, so no name can become a command. A command
that needs a shell starts one itself (`sh -c '...'`); it then finds the parts in variables, which it must quote.

The watch goes on whatever the command does: one thread reads the stream, and another starts the commands. The agent's
token is not among the variables.
"""

import os
import shlex
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

import click

from neli_router.commands.conventions import Seconds, options
from neli_router.errors import plain

__all__ = ["QUEUE_MAX", "ChangeHook", "hook_options"]

QUEUE_MAX = 10_000
"""Changes that may wait for the command: a few whole tables. Beyond that the oldest are dropped, and reported."""

TIMEOUT = 30.0

STANDARD_ERROR = 2
"""Where the command's output goes: standard output has a line for each change, and nothing else."""


hook_options = options(
    click.option(
        "--exec",
        "hook",
        metavar="COMMAND",
        help="Run COMMAND at each change, one at a time. The change is on its standard input, as JSON.",
    ),
    click.option(
        "--exec-timeout",
        type=Seconds(min=0.1, max=3600.0),
        default=TIMEOUT,
        show_default=True,
        metavar="SECONDS",
        help="How long the command may take before it is killed.",
    ),
)


class ChangeHook:
    """Runs `command` for each change that is `put` inside the `with` block; does nothing if `command` is None.

    The end of the block waits for pending changes, at most as long as one command may take. An interruption does not
    wait.
    """

    def __init__(self, command: str | None, timeout: float) -> None:
        try:
            self._words = [] if command is None else shlex.split(command)
        except ValueError as error:
            raise click.UsageError(f"--exec: a command was wanted, but this is none ({error}): quote it") from None
        if command is not None and not self._words:
            raise click.UsageError("--exec: a command was wanted, but it is empty: is a variable of the shell not set?")
        self._timeout = timeout
        self._queue: deque[tuple[bytes, Mapping[str, object]]] = deque()
        self._changed = threading.Condition()
        self._dropped = 0
        self._is_over = self._is_cut = self._is_telling = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="neli-hook", daemon=True)

    def __enter__(self) -> Self:
        if self._words:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not self._words:
            return
        # A lost agent ends the watch with SystemExit, and may be the very news that the command should get.
        was_broken_off = kind is not None and not isinstance(error, SystemExit)
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join(0.0 if was_broken_off else self._timeout)
        with self._changed:
            self._is_cut = True
            process = self._process
            left = len(self._queue) + self._is_telling
        if process is not None:
            _kill(process)
        self._thread.join()
        if left:
            _say(f"this ended before {left} of them were handled")

    def put(self, line: bytes, **parts: object) -> None:
        """Run the command for a change: `line` as its standard input, `parts` as its variables. Never waits."""
        if not self._words:
            return
        with self._changed:
            self._queue.append((line, parts))
            if len(self._queue) > QUEUE_MAX:
                self._queue.popleft()
                self._dropped += 1
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_over)
                if self._is_cut or not self._queue:
                    return
                dropped, self._dropped = self._dropped, 0
                (line, parts), self._is_telling = self._queue.popleft(), True
            if dropped:
                _say(f"it is slower than the changes: {dropped} were dropped")
            self._tell(line, parts)
            with self._changed:
                self._is_telling, self._process = False, None

    def _tell(self, line: bytes, parts: Mapping[str, object]) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "NELI_TOKEN"}
        environment |= {f"NELI_CHANGE_{name.upper()}": plain(str(value)) for name, value in parts.items()}
        try:
            process = subprocess.Popen(  # noqa: S603 - the operator's own command, without a shell.
                self._words,
                stdin=subprocess.PIPE,
                stdout=STANDARD_ERROR,
                stderr=STANDARD_ERROR,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            _say(f"it cannot be started: {error.strerror}")
            return
        with self._changed:
            self._process = process
            is_cut = self._is_cut
        if is_cut:
            _kill(process)
        try:
            process.communicate(line, timeout=self._timeout)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.communicate()
            _say(f"it took longer than {self._timeout:g} s and was killed")
        else:
            if process.returncode != 0 and not self._is_cut:
                _say(f"it ended with {process.returncode}")


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the command with its process group, unless it has ended: its number may have been reused by now."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _say(what: str) -> None:
    click.echo(f"Error: the command of --exec was to handle a change, but {what}", err=True)
