"""What keeps a fenced table good for years, next to any number of live writers.

sweep       what killed programs left behind is removed, once the fence proves that it can never land
maintain    a checkpoint, and the removal of files that were replaced long ago
"""

import shutil

from neli_router.fence.delta.log import LoggedTable
from neli_router.fence.delta.staging import abandoned, clear

__all__ = ["KeptTable"]


class KeptTable(LoggedTable):
    """The part of a fenced table that keeps it good for years."""

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
