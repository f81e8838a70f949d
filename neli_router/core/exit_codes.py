"""Exit codes of `neli`, and of jobs run by Spark. Scripts can rely on their meaning.

    0 done   1 something is broken   2 not usable   3 no owner   4 no agent   5 refused
    69 not led in time   75 lost meanwhile   77 lost, and not ended

They are part of the interface, like the names of commands: a code never changes its meaning.
"""

import os
import sys
import threading
import traceback
from contextlib import suppress
from typing import NoReturn

__all__ = [
    "EXIT_BROKEN",
    "EXIT_CANNOT_START",
    "EXIT_DONE",
    "EXIT_INTERRUPTED",
    "EXIT_LOST",
    "EXIT_NOT_ENDED",
    "EXIT_NOT_EXECUTABLE",
    "EXIT_NOT_LED",
    "EXIT_NO_AGENT",
    "EXIT_NO_OWNER",
    "EXIT_REFUSED",
    "EXIT_USAGE",
    "end_now",
]

EXIT_DONE = 0

EXIT_BROKEN = 1
"""A promise was broken, or a check failed; the output shows how."""

EXIT_USAGE = 2
"""The command line or the configuration is not usable. This is Click's own code."""

EXIT_NO_OWNER = 3
"""The key has no owner now, or it is not led here."""

EXIT_NO_AGENT = 4
"""No agent answered at the address."""

EXIT_REFUSED = 5
"""The agent, or the ledger, refused."""

EXIT_NOT_LED = 69
"""`neli run`: this host did not become the role's leader in time, and the command was not started. EX_UNAVAILABLE in
sysexits; not 3, because the command itself may exit with 3."""

EXIT_LOST = 75
"""The role, or a part of a share, was lost while the command or job ran, so it was stopped. EX_TEMPFAIL in sysexits:
run it again."""

EXIT_NOT_ENDED = 77
"""`neli run`: the role was lost, but processes of the command still run, because they belong to another user. EX_NOPERM
in sysexits: only that user or root can end them, and until then the command must not be run again."""

EXIT_NOT_EXECUTABLE = 126
"""`neli run`: the command exists but cannot be executed; the same code as in a shell."""

EXIT_CANNOT_START = 127
"""`neli run`: the command cannot be started; the same code as in a shell."""

EXIT_INTERRUPTED = 130
"""Ctrl-C: 128 plus the number of SIGINT, as in a shell."""

SAY_MAX = 1.0
"""Seconds to wait, before the process ends, until standard error has taken the reason."""


def end_now(late: str, *, lost: object = "", hanging: int | None = None) -> NoReturn:
    """The last resort against work that goes on without its lease: write why, and where the thread `hanging` is, and
    end the process with EXIT_LOST. Not `sys.exit`: that would wait for the thread that hangs, or end only its own."""
    frame = sys._current_frames().get(hanging or 0)  # noqa: SLF001 - only this says where it hangs.
    stack = "".join(traceback.format_stack(frame)) if frame is not None else ""
    text = f"{lost}\n{stack}neli: {late}\n" if lost else f"neli: {late}\n"
    # In another thread, because this very write may be what hangs: a full pipe may have no reader.
    saying = threading.Thread(target=_say, args=(text,), daemon=True)
    saying.start()
    saying.join(SAY_MAX)
    os._exit(EXIT_LOST)


def _say(text: str) -> None:
    with suppress(OSError, ValueError):  # Standard error may be closed.
        sys.stderr.write(text)
        sys.stderr.flush()
        sys.stdout.flush()
