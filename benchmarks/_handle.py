"""A handle of a ledger that passes every call on: a benchmark overrides those that it wants to observe or change."""

from collections.abc import Sequence

from neli_router.drivers.ledgers.base import Entry, Ledger, Promise

__all__ = ["Handle"]


class Handle:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def promises(self) -> frozenset[Promise]:
        return self._ledger.promises

    @property
    def doubts(self) -> tuple[str, ...]:
        return self._ledger.doubts

    @property
    def address(self) -> str:
        return self._ledger.address

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        self._ledger.append(payloads, lasting=lasting)

    def acknowledged(self) -> list[int]:
        return self._ledger.acknowledged()

    def read(self, timeout: float) -> list[Entry]:
        return self._ledger.read(timeout)

    def age(self) -> float:
        return self._ledger.age()

    def seek(self, offset: int) -> None:
        self._ledger.seek(offset)

    def start(self) -> int:
        return self._ledger.start()

    def tip(self) -> int:
        return self._ledger.tip()

    def trim(self, before: int) -> None:
        self._ledger.trim(before)

    def wake(self) -> None:
        self._ledger.wake()

    def close(self) -> None:
        self._ledger.close()
