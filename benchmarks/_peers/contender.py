"""One process that wants a role from a rival, holds it as long as it can, and notes when.

    campaign --waits--> holds --renewed, and renewed--> holds ...
        ^                 '---- it expired ------------> lost --.
        '--------------------------------------------------------'

It notes one line for each, which survives kill -9, by its own reading of the host's clock:

    waits 12.031        it is waiting for the role
    holds 12.488        it has the role
    lost 13.350         its session, lease or lock has expired, although it is alive

It ends with its parent, when its standard input ends.
"""

import json
import os
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from neli_router.core.clock import host_clock

__all__ = ["Kind", "Note", "NoteReader", "Notebook", "main"]

Kind = Literal["waits", "holds", "lost"]


class Note(NamedTuple):
    kind: str
    at: float


class Notebook:
    """A process writes its notes here. May be shared between threads."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, kind: Kind) -> None:
        os.write(self._file, f"{kind} {host_clock()!r}\n".encode())


class NoteReader:
    """Follows the notes of one process."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    def fresh(self) -> list[Note]:
        """The notes since the last call. An unfinished line is left for the next call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            lines = file.read().rpartition(b"\n")[0]
        self._position += len(lines) + bool(lines)
        words = (line.split() for line in lines.decode().splitlines())
        return [Note(kind, float(at)) for kind, at in words]


def main(order: dict[str, Any]) -> None:
    """Contend forever, as `order` says: the `rival`, its `address`, the `setting` in seconds, a `name`, `notes`."""
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    rival = import_module(f"benchmarks._peers.{order['rival']}")
    rival.contend(order["address"], order["setting"], order["name"], Notebook(Path(order["notes"])))


def _end_with_the_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
