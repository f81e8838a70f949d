"""The leash: makes a process end with the one that started it, whatever ends that one.

    parent --starts--> child: end_with_parent()                            a child with this program's own code
       |    '--------> child: python leash.py --becomes--> COMMAND         leashed(COMMAND): any other child
       '--ends, even by SIGKILL--> the kernel --SIGKILL, or another signal--> child

A pipe that the child reads does the same, but only while the child runs and reads, and while no third process has a
copy of the pipe. The kernel's mechanism (PR_SET_PDEATHSIG) also ends a child that is stopped or hangs. It has limits:

- only Linux has it; elsewhere these functions do nothing, and the child needs a pipe, too
- it is bound to the *thread* that started the child, so start the child on a thread that lives as long as its process
- a child of the child has no leash, and a set-user-ID program loses it
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["end_with_parent", "leashed", "prctl", "rename"]

_PDEATHSIG, _SET_NAME = 1, 15  # linux/prctl.h, which never changes.
_ARGUMENTS = slice(45, 47)  # Fields of /proc/self/stat, counted from after the name: the command line's begin and end.


def end_with_parent(parent: int | None = None, *, by: int = signal.SIGKILL) -> None:
    """This process gets the signal `by` when the thread that started it ends.

    The kernel sends no signal for a parent that ended before this call. If `parent` gives the parent's process ID, this
    process then ends immediately; otherwise it needs another way to notice.
    """
    prctl(_PDEATHSIG, int(by))
    if parent is not None and os.getppid() != parent:
        os._exit(128 + by)


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process, if this is Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def rename(name: str) -> None:
    """Show this process under `name`, instead of the command line that it was started with, in `ps` and to `pkill`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_NAME, name.encode())
        begin, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_ARGUMENTS])
        if begin:  # 0 if the kernel does not show it.
            ctypes.memmove(begin, name.encode()[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)


def leashed(command: Sequence[str], *, by: int = signal.SIGKILL) -> list[str]:
    """The command line that runs `command` on a leash, as a child of this process."""
    # Run the file and not the module: importing the package would take longer than everything else.
    return [sys.executable, "-P", __file__, str(os.getpid()), str(int(by)), *command]


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]), by=int(sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])  # noqa: S606 - to become the command is what this program is for.
