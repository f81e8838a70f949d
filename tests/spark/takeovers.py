"""Three hosts' jobs over one table of ticks, and the faults that must not cost a tick: for the test and the benchmark.

    charlie   driver, kills itself (-9) right after its commit was made          its job is started again
    alpha     whole host, stopped just before its commit, for longer than a lease, and woken: the zombie; then it leaves
    bravo     whole host, killed -9 in mid-run                                   charlie does the rest

The hosts are those of `neli pipeline`; `aimed_job` holds the weapons. The play takes as long as it takes: each act
waits for what the table shows. The ticks come interval by interval until both weapons have gone off, and an interval
comes once all hosts lead a share: a host that leads all would leave the others nothing to commit.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path

import pyarrow as pa
from pyarrow import dataset

from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.core.exit_codes import EXIT_LOST
from neli_router.core.keyspace import Layout
from neli_router.fence.delta import FencedTable
from neli_router.lab.demo.place import records_of
from neli_router.lab.moves import history_of
from neli_router.lab.pipeline.hosts import HostProcesses
from neli_router.lab.pipeline.landing import Count, commits_of, counted, same_bars, taken_over
from neli_router.lab.pipeline.show import SETTINGS, submitted
from neli_router.lab.pipeline.ticks import Market
from neli_router.spark.feeds import NumberedFiles
from tests.spark.published import BARS, LEASE

__all__ = ["LEASE", "TICKS", "Outcome", "play"]

AIMED = Path(__file__).with_name("aimed_job.py")
PARTITIONS, INTERVALS, SECONDS = 12, 8, 60
TICKS = int(os.environ.get("NELI_TEST_TICKS", "60000"))
"""The tests write this many ticks. A million takes some seconds more; `python -m benchmarks pipeline` writes a
million."""

ELSEWHERE = {"spark.hadoop.fs.defaultFS": "hdfs://nowhere.invalid:8020"}
"""Like on a cluster, where a path without a scheme is not on this host."""

LOOK_EVERY = 0.05
PATIENCE = 1800.0
"""Seconds from one commit or started job to the next. Where cores are few, three JVMs have taken over ten minutes to
start."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the play."""

    count: Count
    has_same_bars: bool
    code: int
    """The exit code of the last job."""
    seconds: float
    log: str
    """The log of the zombie's job, from when it woke up."""
    killed_at_commit: bool
    """The driver that was killed in its commit had made it: the table has its files."""
    zombie_code: int
    zombie_files: list[str]
    """The files in the table that the zombie was about to commit."""
    takeovers: dict[str, float]
    """Seconds from the act until others had landed in all partitions of that host."""


def play(folder: Path, ticks: int) -> Outcome:
    """Play all acts, with `ticks` ticks."""
    market = list(Market(instruments=200, seconds=SECONDS).split(ticks, INTERVALS))
    with ExitStack() as stack:
        play = _Play(folder, stack, market)
        play.act()
        return play.outcome()


class _Play:
    def __init__(self, folder: Path, stack: ExitStack, market: list[pa.Table]) -> None:
        self._folder, self._stack, self._market = folder, stack, market
        self._feed, self._began_at = NumberedFiles(folder / "ticks"), host_clock()
        self._ledger = f"sqlite://{folder / 'ledger.db'}"
        self.table = FencedTable.create(folder / "table", BARS, Layout(partitions=PARTITIONS), first_batch=1)
        self.hosts: dict[str, HostProcesses] = {}
        self.took: dict[str, tuple[dict[int, int], float]] = {}
        """Host -> its partitions with their terms, and when it was stopped or killed, by the wall clock."""
        self.code, self.zombie_code, self.zombie_log = 0, 0, ""
        self._fed = 0
        self._jobs_started, self._came_to, self._progress_at = 0, (0, 0), host_clock()

    def act(self) -> None:
        for name, aim in (("alpha", "stop:3"), ("bravo", ""), ("charlie", "kill:2")):
            self._start(name, aim)
        # A job that is starting can lose its lease where cores are few, and then starts again, with its aim.
        self._await(lambda: bool(self.aimed_at("charlie")) and self._ended("charlie") == -signal.SIGKILL, "the kill")
        self._start_job("charlie", AIMED_AT="")

        self._await(lambda: "alpha" in self.took, "the stop")
        self._await(lambda: self._is_taken("alpha"), "others in the place of the one that was stopped")
        log = self.hosts["alpha"].log
        before = log.stat().st_size
        self.hosts["alpha"].resume()
        self._await(lambda: self._ended("alpha") is not None, "the end of the zombie's job")
        self.zombie_code = self.hosts["alpha"].driver.wait()
        self.zombie_log = log.read_text(errors="replace")[before:]
        self.hosts.pop("alpha").close()

        self._await(lambda: self._has_come_to(self._fed), "all ticks so far")
        first = self._fed
        while self._fed < INTERVALS - 1:  # Without the last one, no host can reach the end.
            self._feed_one()
        self._await(lambda: self._is_past(first, "bravo"), "a step of the second part")
        self._take("bravo")
        self.hosts["bravo"].kill()
        self._feed_one()
        self._await(lambda: self._has_come_to(INTERVALS), "all ticks")
        self._await(lambda: self._ended("charlie") is not None, "the end of the job")
        self.code = self.hosts["charlie"].driver.wait()

    def outcome(self) -> Outcome:
        seconds, made = host_clock() - self._began_at, pa.concat_tables(self._market)
        ticks = {it["values"]: it["counts"] for it in made["instrument"].value_counts().to_pylist()}
        rows = dataset.dataset(self.table.files(), format="parquet").to_table()
        commits, names = commits_of(self.table.path), {Path(path).name for path in self.table.files()}
        return Outcome(
            counted(rows, ticks),
            same_bars(rows, made, SECONDS),
            self.code,
            seconds,
            log=self.zombie_log,
            killed_at_commit=set(self.aimed_at("charlie")) <= names,
            zombie_code=self.zombie_code,
            zombie_files=[name for name in self.aimed_at("alpha") if name in names],
            takeovers={name: taken_over(commits, took)[1] - at for name, (took, at) in self.took.items()},
        )

    def aimed_at(self, name: str) -> list[str]:
        """The files of the commit in which this host's weapon went off; none before that."""
        note = self._folder / f"{name}.note"
        return [Path(path).name for path in note.read_text().split()] if note.exists() else []

    def _start(self, name: str, aim: str) -> None:
        options = ["--ledger", self._ledger, "--layout-partitions", str(PARTITIONS), "--lease", str(LEASE)]
        options += ["--snapshot-every", "1000000"]  # So no snapshot: the whole ledger is read again.
        job = ["--ticks", self._folder / "ticks", "--table", self._folder / "table", "--seconds", SECONDS]
        self.hosts[name] = self._stack.enter_context(
            HostProcesses(
                name,
                self._folder,
                agent=options,
                job=[str(AIMED), "--master", "local[1]", "--until", str(INTERVALS), *map(str, job)],
                environment={
                    "AIMED_AT": aim,
                    "AIMED_LEDGER": self._ledger.removeprefix("sqlite://"),
                    "AIMED_NOTE": str(self._folder / f"{name}.note"),
                    "PYSPARK_SUBMIT_ARGS": submitted({**SETTINGS, **ELSEWHERE}),
                },
            )
        )
        self._jobs_started += 1

    def _start_job(self, name: str, **environment: str) -> None:
        """Start a job again after it has ended."""
        self.hosts[name].start_job(**environment)
        self._jobs_started += 1

    def _ended(self, name: str) -> int | None:
        """The job's exit code. A job that lost its lease in between is started again, like a supervisor would."""
        host = self.hosts[name]
        code = host.driver.poll()
        if code == EXIT_LOST and (name != "alpha" or not self.aimed_at(name)):
            self._start_job(name, **({"AIMED_AT": ""} if self.aimed_at(name) else {}))
            return None
        if code not in (None, 0, EXIT_LOST, -signal.SIGKILL):
            raise RuntimeError(f"the job of {name} ended with {code}:\n{host.log.read_text(errors='replace')[-4000:]}")
        return code

    def _take(self, name: str) -> None:
        """Note what is being taken from this host, and when."""
        self.took[name] = (self._terms(name), time.time())

    def _terms(self, name: str) -> dict[int, int]:
        """Partition -> term, for the partitions that this host last landed in or raised the fence of."""
        owners = history_of(records_of(Config(self._ledger))).owners
        terms = {it: at.term for it, at in self.table.progress().items() if at.term is not None}
        return {it: term for it, term in terms.items() if owners.get((it, term)) == name}

    def _feed_one(self) -> None:
        self._feed.append(self._market[self._fed])
        self._fed += 1

    def _feed_where_due(self) -> None:
        """Append the next interval while a weapon waits for it."""
        waits = not self.aimed_at("charlie") or "alpha" not in self.took
        if waits and self._fed < INTERVALS - 2 and self._has_come_to(self._fed) and self._all_lead():
            self._feed_one()

    def _all_lead(self) -> bool:
        state = history_of(records_of(Config(self._ledger))).state
        return self.hosts.keys() == {state.seats[owner].name for owner in state.owners if owner is not None}

    def _is_past(self, step: int, name: str) -> bool:
        return any(at.batch > step for at in self.table.progress(self._terms(name)).values())

    def _is_taken(self, name: str) -> bool:
        return taken_over(commits_of(self.table.path), self.took[name][0])[1] < inf

    def _has_come_to(self, step: int) -> bool:
        return all(at.batch >= step for at in self.table.progress().values())

    def _await(self, awaited: Callable[[], bool], what: str) -> None:
        self._progress_at = host_clock()  # The test's own action counts as progress, too.
        while not awaited():
            commits = len(list((self.table.path / "_delta_log").glob("*.json")))
            if self._came_to != (came_to := (commits, self._jobs_started)):
                self._came_to, self._progress_at = came_to, host_clock()
            if host_clock() > self._progress_at + PATIENCE:
                said = "\n".join(
                    f"{it.name}:\n{it.log.read_text(errors='replace')[-3000:]}" for it in self.hosts.values()
                )
                raise TimeoutError(f"{what} did not come, nor anything else within {PATIENCE:g} s\n{said}")
            time.sleep(LOOK_EVERY)
            for name in self.hosts:
                self._ended(name)
            # Noted when it comes, even before charlie's end: from then on, others take over.
            if "alpha" not in self.took and self.aimed_at("alpha"):
                self._take("alpha")
            self._feed_where_due()
