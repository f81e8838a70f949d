"""Celery: every host runs a beat, only the leader's beat sends tasks, and the next leader continues its schedule.

    celery --app celery_beat beat --scheduler celery_beat:LeaderScheduler

Before a beat sends a task, it writes the time into a table that all beats share, under the fence: a beat that woke up
too late is refused, and sends nothing. A new leader first raises the fence, then reads the table, so it sends what came
due between two leaders, and repeats nothing.

    due --lease? fence? the time is written--> task sent, with the term of its beat in the header `neli_term`
                              '-- killed here: this run is skipped. Send before you write, and it is sent twice instead.

SQLite serves the beats of one host. For several hosts, use PostgreSQL for the ledger and for the table.
"""

import os
import sqlite3
import time
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from celery.beat import ScheduleEntry, Scheduler

from neli_router import Config, Lease, Member, fence
from neli_router.errors import LeaseLost

ROLE = "celery-beat"
LOOK_EVERY = 0.1
"""Seconds between two looks of a beat that does not lead."""

app = Celery("shop", broker=os.environ.get("BROKER", "redis://localhost"))
app.conf.beat_schedule = {"report": {"task": "shop.report", "schedule": 60.0}}


@app.task(name="shop.report", bind=True)
def report(self: Any) -> None:
    print("report under term", self.request.headers["neli_term"])


class LeaderScheduler(Scheduler):
    lease: Lease | None = None

    def __init__(self, *arguments: Any, lazy: bool = False, **options: Any) -> None:
        super().__init__(*arguments, lazy=lazy, **options)
        if not lazy:  # Beat makes a lazy one, too, just to show it.
            self.runs = sqlite3.connect(os.environ.get("BEAT_RUNS", "beat.db"), timeout=60, isolation_level=None)
            self.runs.execute("CREATE TABLE IF NOT EXISTS runs (name TEXT PRIMARY KEY, at REAL NOT NULL)")
            fence.install(self.runs)
            ledger, lease = os.environ.get("NELI_LEDGER", "sqlite:jobs.db"), os.environ.get("NELI_LEASE", "1")
            self.member = Member(Config(ledger, lease=float(lease)))

    def tick(self, *arguments: Any, **options: Any) -> Any:
        lease = self.member.lease(ROLE)
        if lease is None:
            self.lease = None
            return LOOK_EVERY
        try:
            if self.lease is None or self.lease.term != lease.term:
                self.take_over(lease)
            return super().tick(*arguments, **options)
        except (fence.Refused, LeaseLost):  # Another beat sends it.
            self.lease = None
            return LOOK_EVERY

    def take_over(self, lease: Lease) -> None:
        with self.runs:
            self.runs.execute("BEGIN IMMEDIATE")
            fence.admit(self.runs, ROLE, lease)
            new = [(name, time.time()) for name in self.schedule]
            self.runs.executemany("INSERT OR IGNORE INTO runs VALUES (?, ?)", new)
        for name, at in self.runs.execute("SELECT name, at FROM runs"):
            if name in self.schedule:
                self.schedule[name].last_run_at = datetime.fromtimestamp(at, UTC)
        self.populate_heap()
        self.lease = lease

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        assert self.lease is not None
        with self.runs:
            self.runs.execute("BEGIN IMMEDIATE")
            fence.admit(self.runs, ROLE, self.lease)
            self.runs.execute("UPDATE runs SET at = ? WHERE name = ?", (time.time(), entry.name))
        entry.options["headers"] = {**entry.options.get("headers", {}), "neli_term": self.lease.term}
        super().apply_entry(entry, producer=producer)

    def close(self) -> None:  # On SIGTERM, too.
        super().close()
        self.member.close()
