"""The program of a child witness: it waits for its members' process to end, and then records that in the ledger.

    READY --the process has ended--> WAITING --none may act--> SAYING --confirmed, or gave up---> over
     | '-- a page arrives, a connection failed: connect           '--ledger away--> pause, and say it again
     '-- the last member leaves: "bye", or the end of the line --> over

It is run by its path, and imports only what the certificate needs. Its knowledge is in memory that both share:
`SharedPage`, one for each member of the process. As soon as a page arrives, it imports the ledger's driver and connects
(`open_appender`), because that takes a second on a busy host, and others wait for the certificate. If the prepared
connection fails at the end, it opens the whole ledger as a member does.

**None may act** on the leases that the member gave to other processes once `until` has passed; for leases given to
processes that the member could name, that is already so when those processes have ended.

**It waits for the kernel's word**, through a pidfd. The end of the line would not do: each child of the member has a
copy of it, and a program that becomes another (`exec`) ends it. So the end of the line counts only if no page names a
member.

**It outlives the member.** It has a session of its own, so signals to the member's group or terminal do not reach it,
and it ignores signals that ask a process to end: a service manager that stops the leftovers of a dead service must not
be quicker than the certificate. It always ends on its own, after GIVE_UP_AFTER at the latest. On a busy host it runs
before ordinary processes if it may (`hurry`).

**It may say it twice.** That does no harm: the dead stay dead, and the fold ignores the second certificate. So after an
attempt that may have failed, the whole attempt is repeated.
"""

import json
import mmap
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neli_router.drivers.ledgers.base import Appender, Ledger

__all__ = ["BYE", "SharedPage", "certify", "main"]

BYE = b"bye"
"""Sent when the last member has left."""

CONNECT_EVERY = 10.0
"""Seconds between two looks at the connections. Servers and firewalls end a connection that is idle for minutes."""

CLOCKS_APART = 0.002
"""Seconds. The host's clock may be a millisecond late in each of two processes: see `neli_router/core/clock.py`."""

SLEEP_MAX = 0.25
"""The longest sleep in seconds: `time.sleep` does not count time while the host sleeps, but the clock does."""

GIVE_UP_AFTER = 600.0
"""Seconds, counted while the host is awake. After an outage of the ledger, no member is suspected for the length of a
lease; a certificate saves that wait. A longer limit would keep a process alive, with an address that may hold a
password, for only that gain."""

PAUSE_MIN, PAUSE_MAX = 0.05, 5.0

CONFIRMED_WITHIN = 5.0
"""Seconds that a ledger may take to confirm before the certificate is written again."""

READ_FOR = 0.05
"""Seconds between two checks for an acknowledgement while nothing is read back."""

NAME = "neli-witness"

LENT_MAX, PROCESSES_MAX = 64, 2
"""How many clients may be known by their processes, and how many processes each may name. Any beyond that are waited
for by time alone."""

_NAMES, _NAME_SIZE = 32, 32
_LENT, _ROW = 128, 1 + 2 * PROCESSES_MAX
_TEXT = _LENT + 8 * _ROW * LENT_MAX
"""The layout of a page: `until` first, then two names of 32 bytes. From byte 128 on, what is lent to known processes: a
row of numbers for each loan (until when; a process, when it began; another). After that, a text up to the end."""

_IGNORED = signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM


class SharedPage:
    """A member's notes for its witness. The page has no name in any file system, and vanishes with the last of the two.

    One thread writes the incarnations; `until` and what is lent are written by one thread at a time. A time is stored
    atomically, so a member that is killed during the write leaves either the old or the new value. A write of an
    incarnation may be torn; the result then is another incarnation of the same dead process, or none.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, 0)
        self._times = memoryview(self._memory)[:8].cast("d")
        self._lent = memoryview(self._memory)[_LENT:_TEXT].cast("d")

    @classmethod
    def of(cls, text: str) -> "SharedPage":
        """A new page with this text. Raises OSError."""
        said = text.encode()
        descriptor = os.memfd_create(NAME)
        os.truncate(descriptor, _TEXT + len(said))
        page = cls(descriptor)
        page._memory[_TEXT:] = said
        return page

    def close(self) -> None:
        """Stop passing it on; the mapping goes with this object. May be called more than once."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    @property
    def until(self) -> float:
        """Until when others may act on this member's leases, on the host's clock."""
        return self._times[0]

    @until.setter
    def until(self, at: float) -> None:
        self._times[0] = at

    def lend(self, until: float, processes: Iterable[tuple[int, int]], now: float) -> bool:
        """Others may act until then, while one of `processes` is alive: each a number, and when the process began.
        Returns False if the page is full. Only one thread at a time may call this."""
        said = [float(number) for process in processes for number in process]
        said += [0.0] * (_ROW - 1 - len(said))
        rows = range(0, len(self._lent), _ROW)
        if len(said) >= _ROW:
            return False
        row = next((row for row in rows if list(self._lent[row + 1 : row + _ROW]) == said), None)
        if row is None:
            if (row := next((row for row in rows if self._lent[row] < now), None)) is None:
                return False
            # The time comes last. Whatever is torn before that belongs to a time that has passed.
            for place, number in enumerate(said, start=row + 1):
                self._lent[place] = number
        self._lent[row] = max(self._lent[row], until)
        return True

    def lent(self) -> list[tuple[float, list[tuple[int, int]]]]:
        """All loans: until when, and the processes."""
        rows = (self._lent[row : row + _ROW].tolist() for row in range(0, len(self._lent), _ROW))
        return [
            (until, [(int(rest[at]), int(rest[at + 1])) for at in range(0, len(rest), 2) if rest[at]])
            for until, *rest in rows
            if until
        ]

    @property
    def incarnations(self) -> tuple[str, ...]:
        """The latest incarnation, and the one before it, which may still have a seat."""
        places = (_NAMES, _NAMES + _NAME_SIZE)
        names = (self._memory[at : at + _NAME_SIZE].rstrip(b"\0").decode() for at in places)
        return tuple(name for name in names if name)

    def begin(self, incarnation: str) -> None:
        """The member is `incarnation` from now on."""
        latest = self._memory[_NAMES : _NAMES + _NAME_SIZE]
        self._memory[_NAMES + _NAME_SIZE : _NAMES + 2 * _NAME_SIZE] = latest
        self._memory[_NAMES : _NAMES + _NAME_SIZE] = incarnation.encode().ljust(_NAME_SIZE, b"\0")

    def leave(self) -> None:
        """The member has left: its end is not to be reported."""
        self._memory[_NAMES : _NAMES + 2 * _NAME_SIZE] = bytes(2 * _NAME_SIZE)

    @property
    def text(self) -> str:
        """Everything else, as JSON."""
        return self._memory[_TEXT:].decode()


class _Member:
    """One member of the process, and the connection for its certificate."""

    def __init__(self, page: SharedPage) -> None:
        self.page, self._found = page, json.loads(page.text)
        self._appender: Appender | None = None
        if "neli_router" not in sys.modules:
            sys.path[:] = self._found["path"]
            # Not through the package's own `__init__`, which would import the whole package and take three times as
            # long.
            package = ModuleType("neli_router")
            package.__path__ = [self._found["package"]]
            sys.modules["neli_router"] = package

    def connect(self) -> None:
        """Have a connection, if the ledger can be reached."""
        from neli_router.drivers.open import open_appender, require_driver  # noqa: PLC0415 - it can only be found now.
        from neli_router.errors import NeliError  # noqa: PLC0415 - as above.
        from neli_router.hosts.process import hurry  # noqa: PLC0415 - as above.

        try:
            if self._appender is None:
                require_driver(self._found["ledger"])
                hurry()  # After the import, which can wait for others; the client's threads inherit it.
                self._appender = open_appender(self._found["ledger"], patience=self._found["lease"])
            else:
                self._appender.keep()
        except NeliError:
            self.disconnect()

    def disconnect(self) -> None:
        if self._appender is not None:
            self._appender.close()
            self._appender = None

    def certify(self) -> None:
        """Its process has ended."""
        from neli_router.errors import NeliError  # noqa: PLC0415 - as above.

        _await_lent(self.page)
        incarnations, by = self.page.incarnations, self._found["by"]
        try:
            if self._appender is not None and self._appender.append(_payloads(incarnations, by)):
                return
        except NeliError:
            pass
        certify(self._found["ledger"], incarnations, by=by, patience=self._found["lease"])


def main() -> None:
    """Be the witness of the process that started this one: `child_program.py LINE PIDFD`, which are descriptors."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    if os.fork():
        os._exit(0)  # The program's child ends, and init adopts this process: see `child.py`.
    line, pidfd = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    line.settimeout(0)  # The flags of `recv_fds` are ignored.
    poll, members, has_ended = select.poll(), list[_Member](), False
    poll.register(pidfd, select.POLLIN)
    poll.register(line, select.POLLIN)
    while not has_ended:
        has_ended = pidfd in {descriptor for descriptor, _ in poll.poll(CONNECT_EVERY * 1000)}
        for member in [member for member in members if not member.page.incarnations]:
            members.remove(member)
            member.disconnect()
            member.page.close()
        pages, is_over = _arrived(line)
        if is_over and not (members or pages):
            return
        if is_over and line.fileno() >= 0:
            poll.unregister(line)
            line.close()
        members += map(_Member, pages)
        # The line of a dying process ends before its last thread does. Connecting would then delay the certificate.
        for member in () if has_ended or is_over else members:
            member.connect()
    threads = [threading.Thread(target=member.certify) for member in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0)  # To take everything apart would take the processor from those that begin to lead.


def _arrived(line: socket.socket) -> tuple[list[SharedPage], bool]:
    """The pages of members that have joined, and whether the line is over."""
    pages = list[SharedPage]()
    while line.fileno() >= 0:
        try:
            _, descriptors, *_ = socket.recv_fds(line, 16, 1)
        except BlockingIOError:
            return pages, False
        except OSError:
            break
        if not descriptors:
            break
        pages += [page for page in map(SharedPage, descriptors) if page.incarnations]
    return pages, True


def _payloads(incarnations: Sequence[str], by: str) -> list[bytes]:
    from neli_router.protocols.induction.records import Certify, encode  # noqa: PLC0415 - as above.

    return [encode(Certify(by=by, incarnation=incarnation)) for incarnation in incarnations]


def _await_lent(page: SharedPage) -> None:
    """Wait until no other process may act on the member's leases: the time is over, or all their holders have ended."""
    from neli_router.core.clock import host_clock  # noqa: PLC0415 - as above.
    from neli_router.errors import Unsupported  # noqa: PLC0415 - as above.
    from neli_router.hosts.process import HostProcess, ProcessMark  # noqa: PLC0415 - as above.

    until, lent = page.until, list[tuple[float, HostProcess]]()
    for end, marks in page.lent():
        for mark in marks:
            try:
                lent.append((end, HostProcess.marked(ProcessMark(*mark))))
            except ProcessLookupError:
                pass  # It has ended.
            except Unsupported:  # Its state is unknown, for example for lack of a descriptor: assume that it is alive.
                until = max(until, end)
    while True:
        lent = [(end, process) for end, process in lent if not process.has_ended()]
        left = max([until, *(end for end, _ in lent)]) + CLOCKS_APART - host_clock()
        if left <= 0:
            return
        wait = lent[0][1].has_ended if lent else time.sleep
        wait(min(left, SLEEP_MAX))


def certify(address: str, incarnations: Sequence[str], *, by: str, patience: float) -> bool:
    """Record in the ledger at `address` that the process of `incarnations` has ended; return whether it is confirmed.

    `patience` has the same meaning as in `open_ledger`. Waits at most GIVE_UP_AFTER seconds.
    """
    from neli_router.drivers.open import open_ledger  # noqa: PLC0415 - as above.
    from neli_router.errors import LedgerTrimmed, LedgerUnavailable, NeliError  # noqa: PLC0415 - as above.

    payloads = _payloads(incarnations, by)
    give_up_at, pause = time.monotonic() + GIVE_UP_AFTER, PAUSE_MIN
    while time.monotonic() < give_up_at:
        try:
            with closing(open_ledger(address, create=False, patience=patience)) as ledger:
                if _said(ledger, payloads):
                    return True
        except (LedgerTrimmed, LedgerUnavailable):
            pass
        except NeliError:  # It is gone, another's, or damaged.
            return False
        time.sleep(pause)
        pause = min(PAUSE_MAX, 2 * pause)
    return False


def _said(ledger: "Ledger", payloads: Sequence[bytes]) -> bool:
    ledger.seek(ledger.tip())  # Before the append, so that the certificate is read back.
    ledger.append(payloads)
    missing, acknowledged = set(payloads), len(ledger.acknowledged())
    give_up_at = time.monotonic() + CONFIRMED_WITHIN
    while missing and acknowledged < len(payloads):
        if time.monotonic() >= give_up_at:
            return False
        missing -= {entry.payload for entry in ledger.read(READ_FOR)}
        acknowledged += len(ledger.acknowledged())
    return True


if __name__ == "__main__":
    main()
