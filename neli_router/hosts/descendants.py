"""Descendants: all processes beneath this one, and how to end them together.

    this process --> COMMAND --> its children --> theirs, in groups and sessions of their own
          ^------ orphans, if this process is a subreaper (Linux) ------'

    CGROUP  one write kills everything in COMMAND's own cgroup
    FREEZE  from the top down: stop a process before reading its children; repeat until no new one is found
    KILL    from the bottom up
    AGAIN   until none is left, or only those that this process may not signal, because other users own them

Killing alone is too slow: while it moves from one level to the next, the leaves keep running, and act in the time of
the successor. A stopped process starts no other, so one walk freezes the whole tree. It is killed from the bottom all
the same: when a parent ends, the kernel wakes those of its stopped children that are in groups of their own (SIGHUP and
SIGCONT), and they would act once more.

A version 2 cgroup does it in one step, even for a fork in progress, and for processes of other users. Root can create
one, as can a service with `Delegate=yes`. COMMAND may leave the cgroup, if it is allowed to, and is still a descendant.

A process ID may be reused, but not while the parent is stopped: a parent has to collect its child first. A parent with
several threads may go on for a moment after it was stopped. So a descriptor of the process comes first; if the ID then
is of a process of another parent, it is left alone.
"""

import logging
import os
import pwd
import signal
from collections.abc import Callable, Container, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from neli_router.errors import Unsupported
from neli_router.hosts.leash import prctl
from neli_router.hosts.process import HostProcess, ProcessStat

__all__ = ["Cgroup", "Descendants", "LeftProcess", "become_subreaper", "children", "send_signal", "told_left"]

_SUBREAPER = 36  # linux/prctl.h, which never changes.

NAMED_MAX = 8
"""How many processes one sentence names."""

_logger = logging.getLogger("neli_router.descendants")


class LeftProcess(NamedTuple):
    """A process that could not be killed."""

    pid: int
    name: str
    user: str


class Cgroup:
    """A version 2 cgroup, for one command at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def make(cls, name: str) -> "Cgroup | None":
        """Create one below that of this process; None where this is not possible."""
        try:
            folder = _own_cgroup() / name
            folder.mkdir()
        except OSError as error:
            _logger.debug("COMMAND has no cgroup of its own: %s", error)
            return None
        cgroup = cls(folder)
        if not all(os.access(folder / name, os.W_OK) for name in ("cgroup.kill", "cgroup.procs")):
            _logger.debug("COMMAND has no cgroup of its own: the kernel is older than 5.14, or %s is not ours", folder)
            cgroup.remove()
            return None
        return cgroup

    def enter(self) -> None:
        """Move this process into it, and with it everything that it starts from now on."""
        with suppress(OSError):  # A threaded cgroup does not accept it: the process stays where it is.
            (self.folder / "cgroup.procs").write_bytes(b"0")

    def kill(self) -> None:
        with suppress(OSError):
            (self.folder / "cgroup.kill").write_bytes(b"1")

    def remove(self) -> None:
        """The cgroup must be empty. COMMAND may have created others in it. Safe to call twice."""
        with suppress(OSError):
            for folder, *_ in os.walk(self.folder, topdown=False):
                Path(folder).rmdir()


def _own_cgroup() -> Path:
    """Where the cgroup of this process is mounted. Raises OSError if it is not mounted."""
    own = next((line[3:] for line in _lines("/proc/self/cgroup") if line.startswith("0::")), "")
    for line in _lines("/proc/self/mountinfo"):
        fields, _, rest = line.partition(" - ")
        root, mounted_at = fields.split()[3:5]
        if rest.startswith("cgroup2 ") and Path(own).is_relative_to(root):
            return Path(mounted_at) / Path(own).relative_to(root)
    raise FileNotFoundError("no hierarchy of version 2 is mounted")


def _lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines()


class Descendants:
    """The descendants of this process. It should be a subreaper, and have no children but the command and its
    orphans."""

    def __init__(self, cgroup: Cgroup | None) -> None:
        self._cgroup = cgroup
        self._refused: set[int] = set()

    def kill(self, group: int) -> None:
        """One round of killing. `group` is the process group of a leader that was not waited for yet, or 0."""
        if self._cgroup is not None:
            self._cgroup.kill()
        if group:
            send_signal(os.killpg, group, signal.SIGSTOP)  # In one call: even a program that forks fast is stopped.
        found: dict[int, None] = {}
        while _freeze(found):
            pass
        self._refused = {pid for pid in reversed(found) if not send_signal(os.kill, pid, signal.SIGKILL)}
        if group:
            send_signal(os.killpg, group, signal.SIGKILL)

    def left(self) -> list[LeftProcess]:
        """Those that refused the signal, if nothing else is left after the last round."""
        if not self._refused:
            return []
        living = [pid for pid in _walk(os.getpid()) if not _is_zombie(pid)]
        return [_described(pid) for pid in living] if self._refused.issuperset(living) else []

    def living(self) -> list[str]:
        """All of them in words: at most NAMED_MAX, and how many more there are."""
        living = [pid for pid in _walk(os.getpid()) if not _is_zombie(pid)]
        more = [f"and {len(living) - NAMED_MAX} more"] if len(living) > NAMED_MAX else []
        return [f"{pid} {_described(pid).name}" for pid in living[:NAMED_MAX]] + more


def become_subreaper() -> None:
    """From now on, orphans beneath this process become its children."""
    prctl(_SUBREAPER, 1)


def children(pid: int) -> list[int]:
    """The children of all threads of a process; empty if it is gone, or where the system does not list them."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - as below.
            with suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123 - a third of the time.
                found += map(int, file.read().split())
    return found


def told_left(left: list[LeftProcess]) -> str:
    """In words; names at most NAMED_MAX of them."""
    names = [f"{one.pid} ({one.name}, of the user {one.user})" for one in left[:NAMED_MAX]]
    more = f" and {len(left) - NAMED_MAX} more" if len(left) > NAMED_MAX else ""
    noun = "PROCESS" if len(left) == 1 else "PROCESSES"
    return f"{noun} {', '.join(names)}{more} CANNOT BE ENDED from here, because only root and that user may do so"


def _freeze(found: dict[int, None]) -> bool:
    """Stop every process that is not in `found` yet, and add it. Returns whether there was any."""
    count, ours = len(found), os.getpid()
    for pid in _walk(ours, lambda pid: pid in found or _stop(pid, found)):
        found[pid] = None
    return len(found) > count


def _stop(pid: int, found: Container[int]) -> bool:
    """Stop it. Returns False if it has ended, and its ID may be another's, whose parent is not one of `found`."""
    try:
        with closing(HostProcess.of(pid)) as process:
            with suppress(ProcessLookupError):  # /proc may hide those of other users, which may not be stopped, either.
                if (parent := ProcessStat.of(pid).parent) != os.getpid() and parent not in found:
                    return False
            process.send(signal.SIGSTOP)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    except Unsupported:  # The kernel is too old, or no descriptor is free.
        send_signal(os.kill, pid, signal.SIGSTOP)
    return True


def _walk(top: int, visit: Callable[[int], bool] = lambda _: True) -> Iterator[int]:
    """All processes beneath `top`, parents before children. Each is visited before its children are listed, and is left
    out if the visit says so."""
    waiting = children(top)
    while waiting:
        pid = waiting.pop()
        if visit(pid):
            yield pid
            waiting += children(pid)


def send_signal(send: Callable[[int, int], None], target: int, number: int) -> bool:
    """By `os.kill` or `os.killpg`. False if that is not allowed. A process that is gone needs no signal."""
    try:
        send(target, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    return True


def _is_zombie(pid: int) -> bool:
    try:
        return ProcessStat.of(pid).state in b"ZX"
    except ProcessLookupError:
        return True


def _described(pid: int) -> LeftProcess:
    name, user = "?", "?"
    with suppress(OSError, KeyError):
        status = dict(line.split(":\t", 1) for line in _lines(f"/proc/{pid}/status") if ":\t" in line)
        name, user = ascii(status["Name"])[1:-1], status["Uid"].split()[1]
        user = pwd.getpwuid(int(user)).pw_name
    return LeftProcess(pid, name, user)
