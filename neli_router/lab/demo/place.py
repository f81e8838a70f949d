"""The place of a demo: a folder that is its own, its ledger, and signals that end it in order.

SIGTERM, SIGHUP --> SystemExit in the main thread --> every `with` block ends --> no process is left
keep=None       --> a folder that is gone at the end
keep=FOLDER     --> that folder, which must be new or empty, and stays
"""

import signal
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType

from neli_router.config import config as configuration
from neli_router.config.config import Config
from neli_router.drivers.ledgers.base import Entry
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
        # The group of an earlier demo would still be in its ledger, with terms and members of its own.
        raise ConfigError([f"keep={str(keep)!r} must be empty, and there is {found[0]!r} in it: name another folder"])
    yield keep.absolute()


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Signals that would end us at once, and leave the processes to notice it, end the `with` blocks first."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def records_of(config: Config) -> list[Entry]:
    """The whole ledger, from its first record; nothing if it cannot be read, and then a check fails by that."""
    records: list[Entry] = []
    with suppress(NeliError), closing(configuration.open(config, create=False)) as ledger:
        while entries := ledger.read(0):
            records += entries
        return records
    return []
