"""One process that wants a role from one of the peers, holds it as long as it can, and notes when.

    campaign --waits--> holds --renewed, and renewed--> holds ...
        ^                 '---- told that it expired --> lost --.
        '--------------------------------------------------------'

It ends with its parent: when its standard input does.
"""

import json
import os
import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks._peers.notes import Notebook

__all__ = ["main"]


def main(order: dict[str, Any]) -> None:
    """Contend for ever, as `order` says: the `rival`, its `address`, the `setting` in seconds, a `name`, `notes`."""
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    rival = import_module(f"benchmarks._peers.{order['rival']}")
    rival.contend(order["address"], order["setting"], order["name"], Notebook(Path(order["notes"])))


def _end_with_the_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
