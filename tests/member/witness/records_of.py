"""Shared by the tests of witnesses: waiting, and reading along a ledger that real processes write."""

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from neli_router.core.closing import Closing
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.open import open_ledger
from neli_router.errors import LedgerUnavailable
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.records import Certify, Record, decode, encode
from tests.support.waiting import PATIENCE, until

__all__ = ["LedgerRecords", "child_witness_of", "child_witnesses_of", "command_of", "open_files", "pages_of"]

Kind = TypeVar("Kind", bound=Record)


def command_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def child_witness_of(pid: int) -> int:
    """The process that watches this process. It starts when a member of it has joined."""
    return until(lambda: found[0] if len(found := child_witnesses_of(pid)) == 1 else 0)


def child_witnesses_of(pid: int) -> list[int]:
    """They are children of init, so they are known by what they watch. Each has received a page, too."""
    found = list[int]()
    for child in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
        if b"child_program" in command_of(child) and pages_of(child):
            with suppress(OSError):
                watched = [one.read_text() for one in Path(f"/proc/{child}/fdinfo").iterdir()]
                found += [child] * any(f"Pid:\t{pid}\n" in one for one in watched)
    return found


def pages_of(child: int) -> list[str]:
    """The pages of its members, as files."""
    with suppress(OSError):
        found = [one for one in Path(f"/proc/{child}/fd").iterdir() if "memfd:neli" in str(one.readlink())]
        return list({one.stat().st_ino: str(one) for one in found}.values())  # A mapping has a copy of each.
    return []


def open_files(pid: int) -> Iterator[str]:
    """The targets of its descriptors. Some may be closed meanwhile, or the process may have ended."""
    with suppress(FileNotFoundError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                yield str(link.readlink())


class LedgerRecords(Closing):
    """The records of a ledger that have arrived so far, and what they fold to."""

    def __init__(self, address: str) -> None:
        self.address, self._records, self._state, self._at = address, list[Record](), State(), 0

    def read(self) -> State:
        with suppress(LedgerUnavailable):
            tip = self._ledger.tip()
            while self._at < tip and (entries := self._ledger.read(1.0)):
                for entry in entries:
                    record, self._at = decode(entry.payload), entry.offset + 1
                    self._records += [] if record is None else [record]
                    self._state = fold(self._state, entry.offset, record)
        return self._state

    def of(self, kind: type[Kind]) -> list[Kind]:
        self.read()
        return [record for record in self._records if isinstance(record, kind)]

    def append(self, record: Record) -> None:
        self._ledger.append([encode(record)])

    @cached_property
    def _ledger(self) -> Ledger:
        """The ledger, opened once it exists."""
        return open_ledger(self.address, create=False, patience=PATIENCE)

    def close(self) -> None:
        self._ledger.close()

    def first_certificate(self) -> Certify:
        """Once there is one: a witness that is not sure repeats it."""
        until(lambda: self.of(Certify))
        return self.of(Certify)[0]
