"""The show of `neli pipeline`: three hosts' Spark jobs over one table, one host killed, and every tick landed once.

    market --an interval, at a steady pace--> folder of ticks
                                              |
    host alpha, bravo, charlie (see `hosts`) -'--> one fenced table
          ^ kill -9, in the middle                    |
          |                                           '--> progress, on the screen --> checks, and a page of pictures
          story

The story begins when all three jobs have raised their terms: a JVM takes some seconds to start. It ends when the table
has all intervals and the surviving jobs have ended on their own. It is judged only by the table and by the logs of the
table and of the group: nothing that a job reports about itself counts.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import dataset
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.core.exit_codes import EXIT_BROKEN, EXIT_INTERRUPTED, EXIT_LOST, EXIT_USAGE
from neli_router.errors import ConfigError, NeliError
from neli_router.fence import TableMismatch
from neli_router.fence.delta import FencedTable
from neli_router.lab.demo.checks import Check
from neli_router.lab.demo.place import a_folder, ending_in_order, records_of
from neli_router.lab.demo.scene import StoryEvent, Unfinished
from neli_router.lab.demo.screen import MEMBER_STYLES, LiveScreen, PlainScreen, spelled, wants_live
from neli_router.lab.moves import history_of
from neli_router.lab.pipeline.hosts import HostProcesses
from neli_router.lab.pipeline.landing import TableCommit, commits_of, counted, same_bars, taken_over
from neli_router.lab.pipeline.picture import Picture, page
from neli_router.lab.pipeline.ticks import Market
from neli_router.spark.feeds import NumberedFiles

__all__ = ["SETTINGS", "Board", "core_share", "frame", "run", "submitted"]

NAMES = ("alpha", "bravo", "charlie")
VICTIM = "bravo"
KILL_AT = 0.4
"""The victim is killed when this fraction of the intervals has landed."""

LEASE = 2.0
"""Seconds. Three JVMs on two cores keep an agent from its core for longer than a short lease tolerates."""

SECONDS = 60
"""Length of a bar, and of an interval."""

START_MAX, STEP_MAX = 90.0, 60.0
"""How long all jobs may take to start, and how long the table may stand still, in core seconds: a process that gets a
tenth of a core may take ten times as long by the clock. After that, the show has failed."""

LOOK_EVERY = 0.1
SAY_EVERY = 10.0
"""Seconds without progress after which the show says what it waits for."""

QUARTERS = 4
"""How many times progress is logged: enough to see in a log that the run goes on."""

RECORDS_MAX = 1_000_000
"""Records between snapshots: high enough that there are none. At the end, the ledger is read from its first record."""

JOB = Path("dags", "jobs", "publish_prices.py")

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    # For hundreds of small jobs, the C2 compiler would cost more than it gains.
    JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@dataclass(slots=True)
class Board:
    """The progress so far, for the screen."""

    intervals: int
    sizes: list[int]
    """Ticks of each interval."""
    started_at: float
    states: dict[str, str] = field(default_factory=dict)
    tip: int = 0
    landed: list[int] = field(default_factory=list)
    """Intervals landed, for each partition."""
    owners: list[str] = field(default_factory=list)
    """The member under whose term each partition last landed; empty if it has not."""

    @property
    def whole(self) -> int:
        """How many intervals have landed in every partition."""
        return min(self.landed, default=0)


def run(
    *,
    ticks: int = 1_000_000,
    intervals: int = 40,
    partitions: int = 24,
    pace: float = 1.0,
    seed: int = 1,
    report: Path = Path("neli-pipeline.html"),
    live: bool | None = None,
    keep: Path | None = None,
) -> int:
    """Run it on this process's main thread. Returns the exit code: 0 only if every check held.

    The code is 1 if a check or a process failed, 2 if it cannot run with these options, and 130 if it was interrupted.
    `pace` is the number of seconds from one interval to the next.
    """
    try:
        job = _job(ticks, intervals, partitions, pace)
        with a_folder(keep, "neli-pipeline-") as folder, ending_in_order():
            market = list(Market(seed=seed, seconds=SECONDS).split(ticks, intervals))
            board = Board(intervals, [part.num_rows for part in market], host_clock())
            title = f"NELI Router pipeline: {ticks:,} ticks, {partitions} partitions, {len(NAMES)} hosts, seed {seed}"
            draw = partial(frame, board, title=title)
            with LiveScreen(draw) if (wants_live() if live is None else live) else PlainScreen(title) as screen:
                show = _Show(folder, job, market, board, screen, partitions, pace)
                with show.hosts:
                    try:
                        show.tell_story()
                    except (Unfinished, NeliError) as error:
                        show.unfinished = str(error)
                        show.tell("end", "all", "the story ends early, and all processes with it")
            checks, picture = show.judged()
            report.write_text(page(title, picture, checks), encoding="utf-8")
            screen.show(checks)
            sys.stdout.write(f"the pictures are in {report}\n")
            return 0 if all(check.held for check in checks) else EXIT_BROKEN
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; every process was ended\n")
        return EXIT_INTERRUPTED


def _job(ticks: int, intervals: int, partitions: int, pace: float) -> Path:
    """The path of the job. Raises ConfigError if the options cannot be used."""
    problems = [
        f"{name}={value:g} must be at least {least}"
        for name, value, least in (
            ("ticks", ticks, 1),
            ("intervals", intervals, 4),
            ("partitions", partitions, len(NAMES)),
            ("pace", pace, 0),
        )
        if value < least
    ]
    places = [Path(__file__).parents[3] / JOB, Path.cwd() / JOB]
    found = next((place for place in places if place.exists()), None)
    if found is None:
        problems.append(f"the job {JOB} is not here: run this in a clone of the project")
    if problems:
        raise ConfigError(problems)
    assert found is not None
    return found


class _Show:
    """One run of the show."""

    def __init__(
        self,
        folder: Path,
        job: Path,
        market: list[pa.Table],
        board: Board,
        screen: LiveScreen | PlainScreen,
        partitions: int,
        pace: float,
    ) -> None:
        self.hosts = ExitStack()
        self.unfinished = ""
        self._folder, self._job, self._market, self._pace = folder, job, market, pace
        self._board, self._screen, self._partitions = board, screen, partitions
        self._feed = NumberedFiles(folder / "ticks")
        self._path = folder / "table"
        self._table: FencedTable | None = None
        self._running: dict[str, HostProcesses] = {}
        self._next_at = inf
        self._moved_at, self._still = host_clock(), 0.0
        """When something last moved, and for how many core seconds nothing has moved since."""
        self._killed_at = 0.0
        self._fed_at: list[float] = []
        self._terms: dict[int, int] = {}
        self._took: dict[int, int] = {}
        """Partition -> the victim's term when it was killed."""
        self._reached: dict[int, int] = {}
        """How far those partitions had landed then."""
        self._owners: dict[tuple[int, int], str] = {}
        """(partition, term) -> the host that had it."""
        self._codes: dict[str, int] = {}
        options: dict[str, Any] = {"lease": LEASE, "snapshot_every": RECORDS_MAX}
        self._config = Config.of(
            {"ledger": f"sqlite://{folder / 'ledger.db'}", "layout": {"partitions": partitions}, **options}
        )

    def tell(self, kind: str, who: str, text: str) -> None:
        self._screen.tell(StoryEvent(host_clock() - self._board.started_at, kind, who, text))

    # The story

    def tell_story(self) -> None:
        """Play the story. Raises Unfinished, and whatever opening the table raises."""
        for name in NAMES:
            self._start(name)
        self._await(self._is_shared, START_MAX, "all jobs were to raise their terms")
        shares = Counter(self._names().values())
        self.tell("share", "all", "every job has its share: " + ", ".join(f"{it} {shares[it]}" for it in NAMES))
        self._next_at = host_clock()
        self._await_landed(round(KILL_AT * self._board.intervals))
        self._kill(VICTIM)
        self._await(self._is_taken_over, STEP_MAX, f"{VICTIM}'s partitions were to be landed by others")
        self.tell("lead", "all", f"others have raised the fence and landed in all {len(self._took)} of its partitions")
        self._await_landed(self._board.intervals)
        self.tell("whole", "all", f"all {self._board.intervals} intervals are in the table")
        left = [name for name in NAMES if name != VICTIM]
        self._await(lambda: all(name in self._codes for name in left), STEP_MAX, "the other jobs were to end")

    def _start(self, name: str) -> None:
        ledger = ["--ledger", self._config.ledger, "--layout-partitions", str(self._partitions)]
        arguments = {
            "--ticks": self._feed.folder,
            "--table": self._path,
            "--seconds": SECONDS,
            "--until": self._board.intervals,
        }
        said = [str(word) for pair in arguments.items() for word in pair]
        # A killed driver cannot clean up, so everything it makes lies in the folder that we remove.
        temporary = self._folder / "temporary"
        java = f"{SETTINGS[JAVA_OPTIONS]} -Djava.io.tmpdir='{temporary}'"
        try:
            temporary.mkdir(exist_ok=True)
            host = HostProcesses(
                name,
                self._folder,
                agent=[*ledger, "--lease", str(LEASE), "--snapshot-every", str(RECORDS_MAX)],
                job=[str(self._job), "--master", "local[1]", *said],
                environment={
                    "PYSPARK_SUBMIT_ARGS": submitted(SETTINGS | {JAVA_OPTIONS: java}),
                    "SPARK_LOCAL_DIRS": str(self._folder / "spark"),
                    "TMPDIR": str(temporary),
                },
            )
        except OSError as error:
            raise Unfinished(f"no process could be started for host {name}: {error}") from error
        self.hosts.enter_context(host)
        self._running[name], self._board.states[name] = host, "starting"
        self.tell("start", name, f"an agent (process {host.agent.pid}) and a Spark job (process {host.driver.pid})")

    def _kill(self, name: str) -> None:
        landed = self._board.landed
        self._took = {it: self._terms[it] for it, owner in self._names().items() if owner == name}
        self._reached = {it: landed[it] for it in self._took}
        self._killed_at = time.time()
        self._running[name].kill()
        self._board.states[name] = "dead (kill -9)"
        self.tell("kill", name, f"kill -9: agent, driver and JVM were killed; it had {len(self._took)} partitions")

    # Waiting

    def _is_shared(self) -> bool:
        names = self._names()
        return len(names) == self._partitions and set(names.values()) == set(NAMES)

    def _is_taken_over(self) -> bool:
        landed = self._board.landed
        return all(self._terms[it] > term and landed[it] > self._reached[it] for it, term in self._took.items())

    def _await_landed(self, step: int) -> None:
        self._await(lambda: self._board.whole >= step, STEP_MAX, f"every partition was to come to interval {step}")

    def _await(self, awaited: Callable[[], bool], still_max: float, wanted: str) -> None:
        """Wait until it holds. Raises Unfinished if nothing moves for `still_max` core seconds, or if a job fails."""
        self._moved_at, self._still = host_clock(), 0.0
        said_at = self._moved_at
        while not awaited():
            looked_at = host_clock()
            seconds = looked_at - self._moved_at
            if self._still > still_max:
                raise Unfinished(f"{wanted}, but nothing moved for {seconds:.0f} s{self._last_words()}")
            if looked_at - max(said_at, self._moved_at) > SAY_EVERY:
                said_at = looked_at
                self.tell("wait", "all", f"{wanted}, and nothing has moved for {seconds:.0f} s")
            time.sleep(LOOK_EVERY)
            self._feed_on()
            self._look()
            self._screen.refresh()
            self._still += (host_clock() - looked_at) * core_share()

    def _feed_on(self) -> None:
        if host_clock() >= self._next_at and self._board.tip < self._board.intervals:
            self._feed.append(self._market[self._board.tip])
            self._fed_at.append(time.time())
            self._board.tip += 1
            self._next_at += self._pace

    def _look(self) -> None:
        """Check how far the table is, and which jobs have ended."""
        for name, host in self._running.items():
            if host.agent.poll() is not None and not (name == VICTIM and self._took):
                raise Unfinished(f"the agent of {name} has ended{_last_line(name, host.agent_log)}")
            code = host.driver.poll()
            if code is None or name in self._codes or (name == VICTIM and self._took):
                continue
            if code == EXIT_LOST:  # Restart it, like a supervisor. On a busy machine an agent may lose its lease.
                host.start_job()
                self.tell("start", name, f"its job has lost its lease, and starts again (process {host.driver.pid})")
                continue
            self._codes[name], self._board.states[name] = code, f"ended with {code}"
            self.tell("end", name, f"its job has ended with exit code {code}")
            if code:
                raise Unfinished(f"the job of {name} failed{self._last_words(name)}")
        if self._table is None:
            with suppress(TableMismatch):  # It is not there yet.
                self._table = FencedTable(self._path)
        if self._table is None:
            return
        progress = self._table.progress()
        landed = [progress[partition].batch for partition in range(self._partitions)]
        if landed != self._board.landed:
            self._moved_at, self._still = host_clock(), 0.0
        before = self._board.whole
        self._terms = {it: at.term for it, at in progress.items() if at.term is not None}
        names = self._names()
        self._board.landed = landed
        whole, intervals = self._board.whole, self._board.intervals
        if before * QUARTERS // intervals < whole * QUARTERS // intervals and whole < intervals:
            self.tell("land", "all", f"{whole} of {intervals} intervals have landed in every partition")
        self._board.owners = [names.get(partition, "") for partition in range(self._partitions)]
        for name in set(names.values()):
            if self._board.states[name] == "starting":
                self._board.states[name] = "publishes"

    def _names(self) -> dict[int, str]:
        """Partition -> the host whose term the table has."""
        if any(place not in self._owners for place in self._terms.items()):
            self._owners = history_of(records_of(self._config)).owners
        return {it: self._owners[it, term] for it, term in self._terms.items() if (it, term) in self._owners}

    def _last_words(self, *names: str) -> str:
        return "".join(_last_line(name, self._running[name].log) for name in names or self._running)

    # The judgement

    def judged(self) -> tuple[list[Check], Picture]:
        """The result, judged by the table, its log and the group's ledger."""
        commits = commits_of(self._path)
        self._owners = history_of(records_of(self._config)).owners
        picture = Picture(
            hosts=NAMES,
            intervals=self._fed_at,
            partitions=self._partitions,
            commits=commits,
            owners=self._owners,
            killed=VICTIM,
            killed_at=self._killed_at,
        )
        if self.unfinished:  # All that is missing has this one cause. A tick that landed twice has another.
            story = Check("the story", held=False, text=f"did not finish: {self.unfinished}")
            return [story, *([self._once(), _terms_grew(commits)] if self._terms else [])], picture
        checks = [self._once(), self._equal(), _terms_grew(commits), self._taken_over(commits), self._ended()]
        return checks, picture

    def _rows(self) -> pa.Table:
        """The table's rows, read without Spark, as any engine can read them."""
        if self._table is None:
            raise TableMismatch("the table was wanted", "no job has made it", "see to the logs of the jobs")
        return dataset.dataset(self._table.files(), format="parquet").to_table()

    def _once(self) -> Check:
        made = pa.concat_tables(self._market)["instrument"].value_counts().to_pylist()
        try:
            count = counted(self._rows(), {it["values"]: it["counts"] for it in made})
        except (NeliError, OSError, pa.ArrowException) as error:
            return Check("each tick once", held=False, text=str(error))
        text = f"{count.made:,} ticks in, {count.landed:,} landed, {count.doubled:,} twice, {count.missing:,} missing"
        return Check("each tick once", count.is_exact or (bool(self.unfinished) and not count.doubled), text)

    def _equal(self) -> Check:
        name = "the same bars"
        try:
            rows = self._rows()
            is_equal = same_bars(rows, pa.concat_tables(self._market), SECONDS)
        except (NeliError, OSError, pa.ArrowException) as error:
            return Check(name, held=False, text=str(error))
        not_ = "" if is_equal else "not "
        text = f"{rows.num_rows:,} rows are {not_}the bars that other code makes of the ticks, to the last digit"
        return Check(name, is_equal, text)

    def _taken_over(self, commits: list[TableCommit]) -> Check:
        name = "takeover"
        if not self._took:
            return Check(name, held=False, text="the story did not get that far")
        fenced, again = (at - self._killed_at for at in taken_over(commits, self._took))
        if again == inf:
            return Check(name, held=False, text=f"not all of {VICTIM}'s partitions were ever landed by others")
        text = (
            f"{VICTIM}'s {len(self._took)} partitions: all fenced by others {fenced:.1f} s after the kill "
            f"({fenced / LEASE:.1f} x the lease), and landed by them after {again:.1f} s"
        )
        return Check(name, held=True, text=text)

    def _ended(self) -> Check:
        left = [name for name in NAMES if name != VICTIM]
        held = all(self._codes.get(name) == 0 for name in left)
        said = ", ".join(f"{name} {self._codes.get(name, 'not at all')}" for name in left)
        return Check("the jobs", held, f"the others ended on their own, with exit codes {said}")


def _last_line(name: str, log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return f"; last in the log of {name}: {lines[-1]}" if lines else ""


def _terms_grew(commits: list[TableCommit]) -> Check:
    highest: dict[int, int] = {}
    raised = lowered = 0
    for commit in commits:
        for partition, term in commit.terms.items():
            raised += term > highest.get(partition, 0)
            lowered += term < highest.get(partition, 0)
            highest[partition] = max(term, highest.get(partition, 0))
    text = (
        f"in {len(commits)} commits, a fence was raised {raised} times, and "
        f"{f'lowered {lowered} times' if lowered else 'never lowered'}"
    )
    return Check("terms only grew", bool(highest) and not lowered, text)


def core_share() -> float:
    """The share of a core that a busy process gets here, by the load of the last minute; 1 where a core is free."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    return cores / max(cores, load)


def submitted(settings: Mapping[str, str]) -> str:
    """Spark's settings, in the form PySpark passes to spark-submit."""
    said = " ".join(f'--conf "{name}={value}"' for name, value in settings.items())
    return f"{said} pyspark-shell"


# One frame


def frame(
    board: Board, events: Sequence[StoryEvent], *, title: str, now: float, width: int, height: int
) -> RenderableType:
    """The view at `now` on the host's clock, in `width` columns and at most `height` lines."""
    clock = f"{now - board.started_at:.1f} s"
    room = width - len(clock) - 1
    above: list[RenderableType] = [
        Text(f"{title:<{room}.{room}} {clock}", style="bold", no_wrap=True),
        _host_table(board),
        Text(),
        *_progress(board, width),
        *_cells(board),
        Text(),
    ]
    taken = len(above) + len(board.states)
    lines = [line for event in events[-height:] for line in spelled(event, width)]
    left = max(0, height - taken)
    return Group(*above, *(Text(line, no_wrap=True, overflow="crop") for line in (lines[-left:] if left else [])))


def _host_table(board: Board) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column, wide in {"host": 12, "state": 18, "partitions": 10, "of which behind": 15}.items():
        table.add_column(column, width=wide, justify="left" if column in ("host", "state") else "right", no_wrap=True)
    for name, style in _styles(board).items():
        mine = [at for at, owner in zip(board.landed, board.owners, strict=False) if owner == name]
        host = Text.assemble((f" {name[0].upper()} ", style), f" {name}")
        table.add_row(host, board.states[name], str(len(mine)), str(sum(at < board.tip for at in mine)))
    return table


def _styles(board: Board) -> Mapping[str, str]:
    return dict(zip(board.states, MEMBER_STYLES, strict=False))


def _progress(board: Board, width: int) -> list[Text]:
    landed = sum(board.sizes[: board.whole])
    wide = max(10, min(64, width - 30))
    done, there = (round(wide * part / board.intervals) for part in (board.whole, board.tip))
    bar = Text.assemble(("#" * done, "bold"), "-" * (there - done), ("." * (wide - there), "dim"))
    return [
        Text.assemble("landed  ", bar, f"  {board.whole} of {board.intervals}"),
        Text(
            f"        {landed:,} ticks are in every partition; {board.tip} intervals have been published", style="dim"
        ),
    ]


def _cells(board: Board) -> list[Text]:
    """Each partition: who last landed it, and how many intervals it is behind."""
    styles = _styles(board)
    owners, behind = Text("owner   ", no_wrap=True), Text("behind  ", no_wrap=True)
    for owner, landed in zip(board.owners, board.landed, strict=True):
        lag = board.tip - landed
        owners.append(owner[0].upper() if owner else ".", style=styles.get(owner, ""))
        behind.append("." if lag <= 0 else str(lag) if lag < 10 else "+")
    legend = Text(
        "        A landed it last; behind: intervals that it lacks, + if ten or more", style="dim", no_wrap=True
    )
    return [owners, behind, legend]
