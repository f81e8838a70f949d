"""The target of the jobs of `FencedRows.java`: a table behind a fence, and a witness of who wrote which row and when.

    driver, executor --GET begin, row, done--> hold? --> fence.admit(run, (term, counter)) --> INSERT --> COMMIT
                                                |           '--Refused--> 409, and the job ends
                 test --hold(step), release()---'

A request that is held has arrived, but it is not admitted before the test lets it go. So the write of a driver that
was killed in the middle may come at any later time. At the step `wrote`, the row is in the table, and only the answer
is held.

The witness does not trust the fence: the table accepts each row any number of times, and `Seen` counts the rows and
finds every driver that wrote after a later one. With `fenced=False` the sink admits everything, which shows that the
witness would see two writers.
"""

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

from neli_router import fence
from tests.support.waiting import PATIENCE

__all__ = ["HELD_ROW", "RowSink", "Seen"]

HELD_ROW = 5
"""The row at which the steps `row` and `wrote` hold the first job: in its second task."""

HELD_MAX = 5 * PATIENCE


class Seen(NamedTuple):
    rows: Counter[int]
    """How often each row is in the table."""
    writers: list[int]
    """The jobs that wrote, in the order of their writes: each once, unless two of them wrote by turns."""
    refused: int
    drivers: set[int]
    jobs: list[int]
    """All jobs that were admitted, in that order."""

    @property
    def overlaps(self) -> int:
        """How often a job wrote after a later one."""
        return sum(later < earlier for earlier, later in zip(self.writers, self.writers[1:], strict=False))


class RowSink:
    """One run at a time: `begin` names it."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"sink": self}))
        self._server.daemon_threads = True
        with closing(self._opened()) as connection, connection:
            connection.execute("CREATE TABLE rows (place INTEGER PRIMARY KEY, run TEXT, job INTEGER, row INTEGER)")
            fence.install(connection)
        self.begin("", "")

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[Self]:
        sink = cls(folder / "rows.db")
        thread = threading.Thread(target=sink._server.serve_forever)
        thread.start()
        try:
            yield sink
        finally:
            sink.release()
            sink._server.shutdown()
            thread.join()
            sink._server.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def begin(self, run: str, hold: str, *, fenced: bool = True) -> None:
        """From now on, hold the job of this run's first attempt at the step `hold`."""
        self.run, self._hold, self._fenced = run, hold, fenced
        self.held, self._released = threading.Event(), threading.Event()
        self._refused, self._drivers = 0, dict[int, int]()
        self._jobs, self.has_successor = list[int](), False
        """Whether the job of a later attempt has written, or found nothing left to write."""

    def release(self) -> None:
        self._released.set()

    @property
    def first_driver(self) -> int:
        return next(iter(self._drivers.values()))

    def seen(self) -> Seen:
        with closing(self._opened()) as connection:
            wrote = connection.execute("SELECT job, row FROM rows WHERE run = ? ORDER BY place", (self.run,)).fetchall()
        writers = [job for job, _ in groupby(wrote, lambda one: one[0])]
        return Seen(Counter(row for _, row in wrote), writers, self._refused, set(self._drivers.values()), self._jobs)

    def asked(self, step: str, told: dict[str, str]) -> str:
        """Answer a request, or raise Refused."""
        job, row = int(told["job"]), int(told["row"])
        with self._lock:
            self._require_its_run(told)
            self._drivers[job] = int(told["driver"])
        if step != "row" or row == HELD_ROW:
            self._pause(step, told)
        with self._lock:  # One transaction at a time: the order of the table is that of the commits.
            answer = self._written(step, told, job, row)
        if (step, row) == ("row", HELD_ROW):
            self._pause("wrote", told)
        return answer

    def _written(self, step: str, told: dict[str, str], job: int, row: int) -> str:
        self._require_its_run(told)
        with closing(self._opened()) as connection, connection:
            try:
                if self._fenced:
                    fence.admit(connection, self.run, (int(told["term"]), int(told["counter"])))
            except fence.Refused:
                self._refused += 1
                raise
            if step == "row":
                connection.execute("INSERT INTO rows (run, job, row) VALUES (?, ?, ?)", (self.run, job, row))
            if step == "begin":
                self._jobs.append(job)
            else:
                self.has_successor = self.has_successor or told["attempt"] != "1"
            known = "SELECT count(DISTINCT row) FROM rows WHERE run = ?"
            return str(connection.execute(known, (self.run,)).fetchone()[0])

    def _require_its_run(self, told: dict[str, str]) -> None:
        if told["run"] != self.run:  # Its driver outlived its run.
            raise fence.Refused.of(told["run"], 0, None)

    def _pause(self, step: str, told: dict[str, str]) -> None:
        if step == self._hold and told["attempt"] == "1":
            self.held.set()
            assert self._released.wait(HELD_MAX)

    def _opened(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=60)


class _Handler(BaseHTTPRequestHandler):
    sink: RowSink

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        try:
            code, answer = 200, self.sink.asked(url.path.strip("/"), dict(parse_qsl(url.query)))
        except fence.Refused as refused:
            code, answer = 409, str(refused)
        try:
            self.send_response(code)
            self.send_header("content-length", str(len(answer.encode())))
            self.end_headers()
            self.wfile.write(answer.encode())
        except ConnectionError:  # Its driver was killed.
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Nothing: the witness keeps what matters."""
