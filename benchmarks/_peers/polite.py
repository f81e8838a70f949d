"""A worker that leaves the group in good order when it is told to end by SIGTERM, as every container's program is.

    SIGTERM, or the end of our standard input --> the end of the worker's --> it closes its member

It stands before a worker's command (`Life`'s `prefix`), and becomes that worker. The signal is awaited by a thread of
its own: a handler would run on the main thread, in the middle of whatever that holds a lock for.
"""

import json
import os
import signal
import sys
import threading

from benchmarks._processes import worker

__all__ = ["PREFIX", "main"]

PREFIX = (sys.executable, "-m", "benchmarks._peers.polite")


def main(arguments: list[str]) -> int:
    """Be the worker whose command `arguments` are; the last one is its order."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # Before there is any other thread, so for all.
    parents = os.dup(0)
    reading, writing = os.pipe()
    os.dup2(reading, 0)

    def until_told() -> None:
        signal.sigwait({signal.SIGTERM})
        os.close(writing)

    def until_alone() -> None:
        os.read(parents, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    for wait in (until_told, until_alone):
        threading.Thread(target=wait, daemon=True).start()
    return worker.main(json.loads(arguments[-1]))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))
