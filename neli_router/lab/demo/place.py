"""The place of a demo: a folder of its own, its ledger, and signals that end it cleanly.

SIGTERM, SIGHUP --> SystemExit in the main thread --> every `with` block ends --> no process is left
keep=None       --> a temporary folder, deleted at the end
keep=FOLDER     --> that folder, which must be new or empty, and stays
"""

import signal
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType

from neli_router.config.config import Config
from neli_router.drivers.ledgers.base import Entry
from neli_router.drivers.open import open_ledger
from neli_router.errors import ConfigError, NeliError

__all__ = ["a_folder", "ending_in_order", "records_of"]

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def a_folder(keep: Path | None, prefix: str) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix=prefix) as folder:
            yield Path(folder)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        found = sorted(path.name for path in keep.iterdir())
    except OSError as error:
        raise ConfigError([f"keep={str(keep)!r} must be a folder that can be made or written to ({error})"]) from error
    if found:
        # The ledger would still hold the group of an earlier demo, with its own terms and members.
        raise ConfigError([f"keep={str(keep)!r} must be empty, and there is {found[0]!r} in it: name another folder"])
    yield keep.absolute()


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Run every `with` block on SIGTERM and SIGHUP, which by default kill us and leave the processes behind."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def records_of(config: Config) -> list[Entry]:
    """The whole ledger, from its first record; empty if it cannot be read, which then fails a check."""
    records: list[Entry] = []
    with suppress(NeliError), closing(open_ledger(config.common_ledger, create=False, patience=config.lease)) as ledger:
        while entries := ledger.read(0):
            records += entries
        return records
    return []
