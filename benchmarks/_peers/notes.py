"""What a contender notes, one line each, before anybody could ask: it outlives kill -9.

waits 12.031        it stands in line for the role
holds 12.488        it has the role, by its own reading of the host's clock
lost 13.350         it was told that its session, lease or lock had expired, although it lives
"""

import os
from pathlib import Path
from typing import Literal, NamedTuple

from neli_router.clock import host_clock

__all__ = ["Kind", "Note", "Notebook", "Reader"]

Kind = Literal["waits", "holds", "lost"]


class Note(NamedTuple):
    kind: str
    at: float


class Notebook:
    """Where one process writes. May be shared between threads."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, kind: Kind) -> None:
        os.write(self._file, f"{kind} {host_clock()!r}\n".encode())


class Reader:
    """Reads along what one process notes."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    def fresh(self) -> list[Note]:
        """What was noted since the last call. A line that is not finished yet is left for the next."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            lines = file.read().rpartition(b"\n")[0]
        self._position += len(lines) + bool(lines)
        words = (line.split() for line in lines.decode().splitlines())
        return [Note(kind, float(at)) for kind, at in words]
