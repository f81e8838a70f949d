"""Evidence: are the records that this reader read still there, at their offsets, with the same bytes?

    read --remember--> the last EVIDENCE_MAX offsets, each with a hash of its bytes
                            |
    a sign that the ledger lost records --begin--> read them once more --check--> all there: go on after them
                                                                          '-----> one is not: LedgerRewound

A record may say that the ledger lost others: a Beat whose writer had read further than the ledger goes, a second
Genesis, a digest. But any writer can append such a line, and if one line could stop every reader, that would be a cheap
way to stop a group. The ledger itself cannot be forged that way. So a reader that meets such a sign goes back, reads
again what it had read, and compares. If everything is there, this reader has read nothing that was lost, and goes on.

Checking only the last record would not be enough: a reader of lost records may have read new ones after them, before it
met the first sign. So it remembers as many records as it keeps digests: it could not interpret an older sign anyway.
The hash guards against accidents: replacing the bytes of a record takes more than the right to write to the ledger.
"""

from collections import deque
from collections.abc import Sequence

import mmh3

from neli_router.errors import LedgerRewound
from neli_router.protocols.induction.trust import REMEDY, RING_MAX

__all__ = ["EVIDENCE_MAX", "Evidence"]

EVIDENCE_MAX = RING_MAX
"""Records remembered. Fewer would not cover every offset that a digest may refer to; more take longer to read again."""

Entry = tuple[int, bytes]
"""An offset, and the bytes read there."""


class Evidence:
    """One reader's memory of what it read."""

    def __init__(self) -> None:
        self._remembered: deque[tuple[int, int]] = deque(maxlen=EVIDENCE_MAX)
        self._checked: int | None = None

    def is_checking(self) -> bool:
        """Whether the records that come next were read before."""
        return self._checked is not None

    def remember(self, entries: Sequence[Entry]) -> None:
        """`entries` were read."""
        self._remembered.extend((offset, _hash_of(payload)) for offset, payload in entries)

    def begin(self, start: int = 0) -> int | None:
        """The offset to read again from; None if nothing was read. The ledger retains nothing below `start`."""
        if not self._remembered:
            return None
        behind = self._remembered[-1][0] + 1
        while self._remembered and self._remembered[0][0] < start:
            self._remembered.popleft()
        self._checked = 0 if self._remembered else None
        return self._remembered[0][0] if self._remembered else behind

    def check(self, entries: Sequence[Entry], *, at_tip: bool) -> tuple[int, LedgerRewound | None]:
        """How many of `entries` were read before, and the error if they are not what was read."""
        assert self._checked is not None, "a check was begun"
        known = 0
        for offset, payload in entries:
            if self._checked == len(self._remembered):
                break
            expected, hashed = self._remembered[self._checked]
            if (offset, _hash_of(payload)) != (expected, hashed):
                return known, _gone(expected)
            known, self._checked = known + 1, self._checked + 1
        if self._checked == len(self._remembered):
            self._checked = None
        elif at_tip:
            return known, _gone(self._remembered[self._checked][0])
        return known, None


def _hash_of(payload: bytes) -> int:
    return mmh3.mmh3_x64_128_uintdigest(payload) & 0xFFFF_FFFF_FFFF_FFFF


def _gone(offset: int) -> LedgerRewound:
    return LedgerRewound(f"the record that was read at offset {offset} was to be there", "it is not any more", REMEDY)
