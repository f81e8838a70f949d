"""The log of a fenced Delta table, read up to the version of one handle.

    version 41 <--handle--  look  --> version 44: what the entries 42, 43 and 44 say is remembered, too

Terms and batches are remembered between looks: an entry of the log never changes, so the numbers at a later version are
those of the earlier version and the entries in between. Asking the library for each of 512 numbers takes a quarter of a
second. A commit is made on the same handle: see `table`.
"""

import json
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from neli_router.core.keyspace import Layout
from neli_router.fence.delta.layouts import Format, format_of, local_path
from neli_router.fence.delta.staging import Staging, flush
from neli_router.fence.refusals import TableMismatch, TableUnavailable
from neli_router.fence.tables import AnyFencedTable, Progress

__all__ = ["BATCH", "LOG", "TERM", "LoggedTable"]

TERM, BATCH = "neli.term", "neli.batch"

LOG = "_delta_log"


class LoggedTable(AnyFencedTable[Staging]):
    """The part of a fenced table that reads its log. It writes nothing."""

    format: Format

    failures = (DeltaError,)

    def __init__(self, path: str | PathLike[str], *, layout: Layout | None = None) -> None:
        """Open it. Raises TableMismatch if it does not exist, is not a fenced table, or has another layout."""
        super().__init__()
        self.path = local_path(path)
        self.name, self.place, self.base = self.path.name, str(self.path), self.path
        self._log = self.path / LOG
        self._open()
        if layout is not None:
            self.require_layout(layout)

    def _opened(self, version: int | None = None) -> DeltaTable:
        wanted = f"a fenced table was wanted at {self.path}"
        try:
            return DeltaTable(str(self.path), version=version)
        except TableNotFoundError as error:
            remedy = "make it with FencedTable.create, or correct the path"
            raise TableMismatch(wanted, "there is no Delta table", remedy) from error
        except DeltaError as error:
            if version is not None:
                remedy = "name one from the table's history; old ones are forgotten"
                raise TableMismatch(f"{wanted}, at version {version}", "it has no such version", remedy) from error
            raise TableUnavailable(
                wanted, f"its log cannot be read ({error})", "see that it is a folder which this user may read"
            ) from error

    def _open(self) -> None:
        handle = self._opened()
        made = format_of(handle, self.path)
        if hasattr(self, "format"):
            self._require_same(made.identity)
        self._handle, self.format, self._known = handle, made, dict[str, int | None]()
        self._inode = self._log.stat().st_ino

    def _look(self, name: str = "", *, sure: bool = False) -> int | None:
        """Bring the handle, and all that is remembered about it, to the newest version. Returns the version that the
        attempt `name` made, if it is among the new ones.

        Without `sure`, it only checks whether the next entry exists, which needs no list of the whole log. On a shared
        file system the answer may be outdated, and then the next commit fails.
        """
        found, before = None, self._handle.version()
        try:
            if self._log.stat().st_ino != self._inode:
                raise FileNotFoundError(self._log)
            if not sure and not self._path_of(before + 1).exists():
                return None
            self._handle.update_incremental()
            for version in range(before + 1, self._handle.version() + 1):
                for action in self._entry(version):
                    match action:
                        case {"txn": {"appId": str(number), "version": int(value)}} if number in self._known:
                            self._known[number] = value
                        case {"commitInfo": {"neli": {"attempt": str(attempt)}}} if attempt == name:
                            found = version
                        case {"metaData": _} | {"protocol": _}:
                            self.format = format_of(self._handle, self.path)
        except (FileNotFoundError, DeltaError):
            self._open()  # The entries in between were removed because of their age: begin with the newest version.
        return found

    def _harden(self, version: int) -> None:
        flush(self._path_of(version))
        flush(self._log)

    def _version(self) -> int:
        return self._handle.version()

    def _path_of(self, version: int) -> Path:
        return self._log / f"{version:020}.json"

    def _entry(self, version: int) -> list[dict[str, Any]]:
        text = self._path_of(version).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines() if line]

    def _added_since(self, version: int) -> set[str] | None:
        """Every file that the log has named after `version`; None if the log does not reach back that far."""
        return self._named_since(version, "add")

    def _named_since(self, version: int, action: str) -> set[str] | None:
        try:
            return {
                unquote(one[action]["path"])
                for later in range(version + 1, self._handle.version() + 1)
                for one in self._entry(later)
                if action in one
            }
        except FileNotFoundError:
            return None

    def _progress(self, partition: int) -> Progress:
        batch = self._number(f"{BATCH}/{partition}")
        return Progress(self._number(f"{TERM}/{partition}"), self.format.start if batch is None else batch)

    def _number(self, name: str) -> int | None:
        if name not in self._known:
            self._known[name] = self._handle.transaction_version(name)
        return self._known[name]
