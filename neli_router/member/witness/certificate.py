"""The certificate of a child witness: a process that is not a member repeats it until the ledger has it.

    open --away--> pause, twice as long each time --> open again --GIVE_UP_AFTER--> give up: the lease ends by time
      '--> append --> acknowledged, or read back --> confirmed
      '--the ledger is gone, another's, or damaged--> give up

Writing it twice does no harm: the dead stay dead, and the fold ignores the second certificate. So after an attempt that
may have failed, the whole attempt is repeated.
"""

import time
from collections.abc import Sequence

from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.open import open_ledger
from neli_router.errors import LedgerTrimmed, LedgerUnavailable, NeliError
from neli_router.protocols.induction.records import Certify, encode

__all__ = ["GIVE_UP_AFTER", "certify"]

GIVE_UP_AFTER = 600.0
"""Seconds, counted while the host is awake. After an outage of the ledger, no member is suspected for the length of a
lease; a certificate saves that wait. A longer limit would keep a process alive, with an address that may hold a
password, for only that gain."""

PAUSE_MIN, PAUSE_MAX = 0.05, 5.0

CONFIRMED_WITHIN = 5.0
"""Seconds that a ledger may take to confirm before the certificate is written again."""

READ_FOR = 0.05
"""Seconds between two checks for an acknowledgement while nothing is read back."""


def certify(address: str, incarnations: Sequence[str], *, by: str, patience: float) -> bool:
    """Record in the ledger at `address` that the process of `incarnations` has ended; return whether it is confirmed.

    `patience` has the same meaning as in `open_ledger`. Waits at most GIVE_UP_AFTER seconds.
    """
    payloads = [encode(Certify(by=by, incarnation=incarnation)) for incarnation in incarnations]
    give_up_at, pause = time.monotonic() + GIVE_UP_AFTER, PAUSE_MIN
    while time.monotonic() < give_up_at:
        try:
            ledger = open_ledger(address, create=False, patience=patience)
            try:
                if _said(ledger, payloads):
                    return True
            finally:
                ledger.close()
        except (LedgerTrimmed, LedgerUnavailable):
            pass
        except NeliError:
            return False
        time.sleep(pause)
        pause = min(PAUSE_MAX, 2 * pause)
    return False


def _said(ledger: Ledger, payloads: Sequence[bytes]) -> bool:
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
