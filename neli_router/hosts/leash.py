"""The leash: a process that ends with the one which started it, whatever ends that one.

    parent --starts--> child: end_with_parent()                            a child of this program's own code
       |    '--------> child: python leash.py --becomes--> COMMAND         leashed(COMMAND): any other
       '--ends, also by SIGKILL--> the kernel --SIGKILL, or another signal--> child

A pipe whose end the child reads does the same only while the child runs and reads, and while no third process has a
copy of it. The kernel's word (PR_SET_PDEATHSIG) also ends one that is stopped, or that hangs. It has limits:

- only Linux has it. Elsewhere these functions do nothing, and the child needs a pipe, too
- the kernel means the *thread* that started the child: so start it on one that lives as long as its process
- a child of the child has no leash, and a set-user-ID program loses it
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["end_with_parent", "leashed"]

_PDEATHSIG = 1  # linux/prctl.h, which never changes.


def end_with_parent(parent: int | None = None, *, by: int = signal.SIGKILL) -> None:
    """This process gets the signal `by` when the thread that started it ends.

    A parent that ended before this call is not told of. With its number, `parent`, this process then ends at once;
    without, it must have another sign of that.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, int(by), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(128 + by)


def leashed(command: Sequence[str], *, by: int = signal.SIGKILL) -> list[str]:
    """The command line that runs `command` so, as a child of this process."""
    # The file and not the module: the package would take longer to import than all the rest.
    return [sys.executable, "-P", __file__, str(os.getpid()), str(int(by)), *command]


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]), by=int(sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])  # noqa: S606 - to become the command is what this program is for.
