"""What keeps a fenced table good for years, next to any number of live writers.

sweep       what killed programs left behind is removed, once the fence proves that it can never land
maintain    a checkpoint, and the removal of files that were replaced long ago
"""

import shutil
from typing import Any

from deltalake.exceptions import DeltaError

from neli_router.fence.delta.log import LoggedTable
from neli_router.fence.delta.staging import abandoned, clear
from neli_router.fence.refusals import TableUnavailable

__all__ = ["KeptTable"]

TRIES_MAX = 100
"""Each failed try has met another commit. More tries only help in a table with commits all the time."""


class KeptTable(LoggedTable):
    """The part of a fenced table that keeps it good for years."""

    def add_columns(self, schema: Any) -> tuple[str, ...]:
        """Add the columns of `schema` that the table does not have; return the names of those that this call added.

        They are null in the rows that are there, and in the rows of writers that leave them out. Any number of callers
        may add columns at the same time, next to any number of writers: no attempt is lost. Raises TableMismatch if the
        table has such a column with another type, and TableUnavailable.
        """
        failure: DeltaError | OSError | None = None
        added: tuple[str, ...] = ()
        for _ in range(TRIES_MAX):
            with self._lock:
                self._look(sure=True)
                if not (fresh := self.made.lacks(schema)):
                    return added
                try:
                    # Not on our own handle: it would skip what others commit meanwhile, and forget their terms.
                    self._opened().alter.add_columns(fresh)
                    added = tuple(field.name for field in fresh)
                except (DeltaError, OSError) as error:  # Perhaps another program has changed the columns: look again.
                    failure = error
        raise TableUnavailable(
            f"columns were to be added to the table at {self.path}",
            f"each of {TRIES_MAX} tries failed ({type(failure).__name__})",
            "look at the disk and the rights to write, and add them again",
        ) from failure

    def sweep(self) -> int:
        """Remove what killed programs left behind; return how many of their files no log entry named.

        Safe at any time, with any number of live writers: an attempt is removed only if the fence proves that it can
        never land. Its age does not matter.
        """
        found, strays = abandoned(self.path)  # First the attempts, then the log: so the log covers all of them.
        orphans = 0
        with self._lock:
            self._look(sure=True)
            for folder, step in found:
                if self._is_dead(step):
                    orphans += clear(self.path, folder, step, self._added_since(step.version))
        for folder in strays:
            shutil.rmtree(folder, ignore_errors=True)
        return orphans

    def maintain(self) -> None:
        """Write a checkpoint, and remove files that other programs' compaction replaced longer than a week ago.

        Commits also write checkpoints automatically now and then. Call this and `sweep` daily, from any one program.
        """
        with self._lock:
            self._look(sure=True)
            self._handle.create_checkpoint()
            if self._handle.vacuum():  # Lite: only files that the log itself lists as removed. See `staging`.
                self._handle.vacuum(dry_run=False)
