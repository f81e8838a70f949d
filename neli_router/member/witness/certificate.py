"""The certificate of a child witness: said until the ledger has it, by a process that is no member.

    open --away--> pause, twice as long each time --> open again --GIVE_UP_AFTER--> never mind: the lease ends by time
      '--> append --> acknowledged, or read back --> confirmed
      '--the ledger is gone, another's, or damaged--> never mind

To say it twice does no harm: the dead stay dead, and to the fold the second one is void. So a try that was perhaps in
vain is made again as a whole.
"""

import time
from collections.abc import Sequence

from neli_router.drivers.ledgers.addresses import open_ledger
from neli_router.drivers.ledgers.base import Ledger
from neli_router.errors import LedgerTrimmed, LedgerUnavailable, NeliError
from neli_router.protocols.induction.records import Certify, encode

__all__ = ["GIVE_UP_AFTER", "certify"]

GIVE_UP_AFTER = 600.0
"""Seconds, awake. After an outage of the ledger nobody is suspected for a lease, which a certificate then saves. Longer
would keep a process, with an address that may hold a password, for the sake of that."""

PAUSE_MIN, PAUSE_MAX = 0.05, 5.0

CONFIRMED_WITHIN = 5.0
"""Seconds that a ledger may take to confirm, before the certificate is said again."""

READ_FOR = 0.05
"""Seconds between two questions whether it is confirmed, where it is not read."""


def certify(address: str, incarnations: Sequence[str], *, by: str, patience: float) -> bool:
    """Say in the ledger at `address` that the process of `incarnations` has ended; whether it is confirmed.

    `patience` is as for `open_ledger`. Waits, at most GIVE_UP_AFTER seconds.
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
    ledger.seek(ledger.tip())  # Before it is appended, so that it is read back.
    ledger.append(payloads)
    missing, acknowledged = set(payloads), len(ledger.acknowledged())
    give_up_at = time.monotonic() + CONFIRMED_WITHIN
    while missing and acknowledged < len(payloads):
        if time.monotonic() >= give_up_at:
            return False
        missing -= {entry.payload for entry in ledger.read(READ_FOR)}
        acknowledged += len(ledger.acknowledged())
    return True
