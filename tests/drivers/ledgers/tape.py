"""A ledger that a test can write on, cut off and break, and a machine that answers what the test specifies."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from neli_router.drivers.ledgers.base import READ_MAX, Entry, Promise
from neli_router.errors import LedgerError, LedgerTrimmed
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Record, encode
from neli_router.protocols.protocol import NO_STANDING, Standing

__all__ = ["Scripted", "Tape", "failure"]


def failure(kind: type[LedgerError]) -> LedgerError:
    return kind("a good ledger was wanted", "it is not", "mend it")


class Tape:
    """A ledger whose whole state is visible. The first record stands at offset 1."""

    promises: frozenset[Promise] = frozenset()
    doubts: tuple[str, ...] = ()
    address = "tape"

    def __init__(self, *records: Record | None, first: int = 1) -> None:
        self.first = self.position = first
        self.payloads = [b"junk" if record is None else encode(record) for record in records]
        self.fails: dict[str, LedgerError] = {}
        self.log: list[Any] = []
        """All calls to it, in order."""
        self.reads = 0
        self.confirmed: list[int] = []
        self.all = False
        self.meanwhile: Callable[[], None] = lambda: None
        """Called while a read waits."""

    def _fail(self, what: str) -> None:
        if what in self.fails:
            raise self.fails[what]

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        self._fail("append")
        self.payloads += payloads
        self.log.append(("append", payloads, lasting))

    def acknowledged(self) -> list[int]:
        confirmed, self.confirmed = self.confirmed, []
        return confirmed

    def read(self, timeout: float) -> list[Entry]:
        self.log.append(("wait", timeout))
        self.meanwhile()
        self._fail("read")
        if self.position < self.first:
            raise failure(LedgerTrimmed)
        entries = [
            Entry(offset, self.payloads[offset - self.first])
            for offset in range(self.position, min(self.tip(), self.position + READ_MAX))
        ]
        self.reads += len(entries)
        self.position += len(entries)
        self.all = len(entries) < READ_MAX
        return entries

    def age(self) -> float:
        return 0.0 if self.all else inf

    def seek(self, offset: int) -> None:
        self.position = offset if offset > 0 or self.first > 1 else self.first

    def start(self) -> int:
        self._fail("start")
        return self.first

    def tip(self) -> int:
        return self.first + len(self.payloads)

    def trim(self, before: int) -> None:
        self._fail("trim")
        self.log.append(("trim", before))

    def drop(self, before: int) -> None:
        """Drop records like retention does."""
        del self.payloads[: before - self.first]
        self.first = before

    def wake(self) -> None:
        self.log.append(("wake",))

    def close(self) -> None:
        pass


class Scripted:
    """A machine that logs the time and the input of each step, and gives each of its `answers` once."""

    standing: Standing = NO_STANDING
    state = State()
    incarnation, caught_up, error = "", True, None

    def __init__(self, log: list[Any]) -> None:
        self._log = log
        self.deadline = 0.0
        self.answers: dict[type, list[Any]] = {}
        self.on_step: Callable[[], None] = lambda: None

    def step(self, event: Any, now: float) -> list[Any]:
        self._log.append((now, event))
        self.on_step()
        return self.answers.pop(type(event), [])

    def tenures(self, now: float) -> dict[int, int]:
        return {}
