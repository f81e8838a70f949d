"""APScheduler: every process has a scheduler, only the leader's runs, and the next leader continues its schedule.

    NELI_LEDGER=sqlite:jobs.db JOBS=sqlite:///schedule.db python apscheduler_jobs.py

The jobs and their next times are in a database that all processes share. APScheduler allows one scheduler for each such
database: the lease makes sure of that. A job that came due between two leaders runs once, late.

    waiting --led--> scheduler runs --to be handed over, or SIGTERM--> it ends its jobs --> another leads
                             '-- lease lost: no job starts any more, and `lease.check()` raises in those that run
"""

import os
from contextlib import suppress
from datetime import datetime
from typing import Any

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler

from neli_router import Config, Lease, Member, run
from neli_router.errors import LeaseLost

EVERY = 60.0

lease: Lease
"""That of this process's latest scheduler."""


def report() -> None:
    lease.check()  # At each step, because another process may have taken over. A write carries `lease.term`.
    print("report under term", lease.term)


class LeaderStore(SQLAlchemyJobStore):
    """A scheduler that wakes up without its lease finds no job that is due, and changes no job's next time."""

    def get_due_jobs(self, now: datetime) -> list[Any]:
        return super().get_due_jobs(now) if lease.holds() else []

    def update_job(self, job: Any) -> None:
        if lease.holds():
            super().update_job(job)


def main() -> None:
    global lease
    config = Config(os.environ["NELI_LEDGER"], lease=float(os.environ.get("NELI_LEASE", "1")))
    with Member(config) as member:
        while True:
            with suppress(LeaseLost), member.leading("scheduler") as lease:
                work()


def work() -> None:
    scheduler = BackgroundScheduler(
        jobstores={"default": LeaderStore(os.environ["JOBS"])},
        job_defaults={"coalesce": True, "misfire_grace_time": None},
    )
    scheduler.start(paused=True)
    try:
        if scheduler.get_job("report") is None:  # Otherwise its next time stays.
            scheduler.add_job(report, "interval", seconds=EVERY, id="report")
        scheduler.resume()
        lease.revoked.wait()
    finally:
        scheduler.shutdown()  # Waits for the jobs that run.


if __name__ == "__main__":
    run(main)
