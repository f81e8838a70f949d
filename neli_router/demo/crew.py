"""The crew: the demo's worker processes, none of which outlives it.

    hire --> Worker --notes, one line each--> a thread --> the crew's queue --> whoever tells the story
    the crew's `with` block ends, for whatever reason --> asked to leave --GRACE_MAX--> killed

Every worker has a process group of its own, so that Ctrl-C in a terminal reaches the demo alone. Should the demo itself
be killed, its workers find out by themselves: see `worker.py`.
"""

import os
import signal
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from neli_router.demo.notes import Note, Order, read_note, written
from neli_router.ledgers.sqlite.file import SqliteFile

__all__ = ["Crew", "Worker", "send_at_rest"]

GRACE_MAX = 2.0
"""How long workers may take to leave when the demo ends early. A member that closes needs some milliseconds."""

LOCK_MAX = 1.0
"""How long `send_at_rest` may wait for the ledger. Nobody holds it for longer than one transaction."""

LOG_TAIL = 2000
"""Bytes of a worker's log in which its last words are looked for."""


def send_at_rest(process: "subprocess.Popen[bytes]", number: signal.Signals, ledger: Path | str) -> None:
    """Send a signal at a moment at which `process` is not writing to the SQLite `ledger`.

    Who is stopped in the middle of a transaction holds its lock, and with it everybody's appends, until it is woken
    up. That harms no promise, but whoever met this by chance would see an outage instead of a failover. So the signal
    is sent while we hold the lock.
    """
    with closing(SqliteFile(ledger, create=False, group="neli", busy_max=LOCK_MAX)) as file:
        file.write("sending a signal", lambda _: process.send_signal(number), lasting=False)


class Worker:
    """One process. `notes` gets each of its notes, and None after the last."""

    def __init__(self, order: Order, log: Path, notes: "SimpleQueue[tuple[Worker, Note | None]]") -> None:
        self.name = order.name
        self._log, self._notes, self._ledger = log, notes, order.ledger
        # As `multiprocessing` does: the worker shall find the same packages as we did, from wherever we were started.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, run by the interpreter that runs us.
                [sys.executable, "-P", "-m", "neli_router.demo.worker", written(order).decode()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                process_group=0,
            )
        self._reader = threading.Thread(target=self._read, name=f"demo-{order.name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The last line of its log: what an interpreter says that could not even run the module. Empty if it is."""
        lines = self._log.read_bytes()[-LOG_TAIL:].decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def kill(self) -> None:
        """SIGKILL, at whatever moment this may be."""
        self._process.kill()

    def wake(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGSTOP, at a moment at which the worker is not writing to the ledger."""
        send_at_rest(self._process, signal.SIGSTOP, self._ledger.partition(":")[2])

    def ask_to_end(self) -> None:
        """SIGTERM, upon which a worker closes its member."""
        self._process.send_signal(signal.SIGTERM)
        self._process.send_signal(signal.SIGCONT)  # It may be stopped, and then hears nothing.

    def end(self, patience: float) -> int:
        """Wait for its end, at most `patience` seconds; then kill it. The exit code, or the signal's number below 0."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
        return self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None, "it was asked for"
        for line in self._process.stdout:
            if (note := read_note(line)) is not None:
                self._notes.put((self, note))
        self._notes.put((self, None))


class Crew:
    """All workers of one demo. To be used as a context manager; `notes` is what they said."""

    def __init__(self, folder: Path) -> None:
        self.notes: SimpleQueue[tuple[Worker, Note | None]] = SimpleQueue()
        self._folder = folder
        self._workers: list[Worker] = []

    def hire(self, order: Order) -> Worker:
        """Start a worker. Called on the main thread, because a worker dies with the thread that started it."""
        worker = Worker(order, self._folder / f"{order.name}.log", self.notes)
        self._workers.append(worker)
        return worker

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        patience = GRACE_MAX
        for worker in self._workers:
            worker.ask_to_end()
        for worker in self._workers:
            try:
                worker.end(patience)
            except KeyboardInterrupt:  # A second Ctrl-C: no more patience, but still no orphan.
                patience = 0.0
                worker.end(patience)
