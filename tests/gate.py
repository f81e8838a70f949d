"""The gate: every test that this machine can run, scheduled so that no core is ever idle, and one table at the end.

    fetch      prepares what tests need and `make test` does not fetch: an archive of Spark's classes
    sample     some proofs, repeated and compared with tests/proofs.lock
    core       needs no server, no browser and no other process: mostly waits
    servers    real processes, Kafka, Redis, PostgreSQL, a browser
    spark      all tests that start Spark: each worker has one JVM for all its tests
    airflow    all tests that import Airflow, or start installations of it

    core -----------------.
    fetch ----> airflow --'--> servers ------>
       '------> spark ------------------->         niced: a lease lost for lack of a core means work done twice
    sample ------------->                          niced, too, until only these two are left

A stage begins when the stages before it have ended. Its output is printed when it ends or is stopped; until then, a
line every SAY_EVERY seconds shows the progress of each stage. `python -m tests.gate core` runs only the core; any
options after the names go to every pytest. Every test belongs to exactly one stage, by its markers and folder. The exit
code is 0 if every stage ended with 0.

Each worker starts each server that its tests request only once; all workers of `servers` share one Kafka. The tests of
one file share a worker, so that their shared fixtures are created only once.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from neli_router.hosts.descendants import become_subreaper, children
from neli_router.hosts.leash import leashed
from tests.support.servers.kafka import SHORT_GROUPS, Kafka, missing

__all__ = ["STAGES", "Stage", "main"]

FOLDERS = (Path("tests"), Path("benchmarks/tests"))

KINDS = ("process", "kafka", "redis", "browser", "postgresql")
SERVERS = " or ".join(KINDS)
NAMED = re.compile(rf"\bmark\.({'|'.join(KINDS)})\b")
"""A file without this text has no test of these kinds. `conftest.py` checks that."""

WITHOUT_SPARK = ("--ignore=tests/provider", "--ignore=tests/spark")
"""For the other stages: a test deselected by a marker is still imported, and with it Airflow, which takes seconds."""

BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
"""Keeps the order of `conftest.py`: xdist's own begins with the files that have the most tests, not the slowest."""

CORES = os.cpu_count() or 1

SILENCE_MAX = 3600.0
"""Seconds without a line or a dot. Most tests have a limit of their own; this one covers all the rest."""

BEHIND = 5
"""The niceness of the stages that compute most. Airflow and the servers wait in real time, so they go first."""

SAY_EVERY = 30.0

PROGRESS = re.compile(r"^([.sxXFE]+) +\[ *(\d+)%\]$", re.MULTILINE)
"""A progress line of `pytest -q`."""

GRACE = 30.0
"""Seconds that processes started by a stage have to end, once the stage is stopped or has ended. An interrupted pytest
gives its workers ten, and only then shows which tests have failed."""


@dataclass(frozen=True)
class Stage:
    """A part of the tests, and how to run it."""

    name: str
    tests: tuple[str, ...] = ()
    """Options for pytest; empty for a stage with another command."""
    workers: int = 0
    other: tuple[str, ...] = ()
    niced: int = 0
    after: tuple[str, ...] = ()
    """The stages that must end before this one begins."""
    of_servers: bool = False
    """Whether its workers share one Kafka, and collect only files with servers: to import all takes ten seconds."""

    def command(self, report: Path, options: Sequence[str]) -> list[str]:
        if self.other:
            return list(self.other)
        pytest = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", f"--numprocesses={self.workers}"]
        return [*pytest, *(with_servers() if self.of_servers else ()), *self.tests, *options]


def with_servers() -> list[str]:
    """The files whose text names one of KINDS, except for those of other stages."""
    every = sorted(path for folder in FOLDERS for path in folder.rglob("test_*.py"))
    ours = [path for path in every if f"--ignore={path.parent}" not in WITHOUT_SPARK]
    return [str(path) for path in ours if NAMED.search(path.read_text(encoding="utf-8"))]


STAGES = (
    Stage("fetch", other=("make", "--no-print-directory", "fetch")),
    Stage("sample", other=(sys.executable, "-m", "tests.proofs", "--sample"), niced=BEHIND),
    Stage(
        "core",
        ("-m", f"not spark and not airflow and not ({SERVERS})", "--dist", "worksteal", *WITHOUT_SPARK),
        workers=CORES + 2,
    ),
    Stage(
        "spark",
        # A stage that stands back may get almost no time while others run: a slow test is shown, and not ended.
        ("tests/spark", *BY_FILE, "--timeout=0", "-o", "faulthandler_timeout=1200"),
        workers=CORES + 1,
        niced=BEHIND,
        after=("fetch",),
    ),
    Stage("airflow", ("tests/provider", "-m", "airflow", *BY_FILE), workers=CORES + 1, after=("fetch",)),
    Stage(
        "servers",
        ("-m", f"not spark and not airflow and ({SERVERS})", *BY_FILE),
        workers=CORES + 2,
        after=("core", "airflow"),
        of_servers=True,
    ),
)
"""Most of these tests wait more than they compute, so there are more workers than cores, but not many more."""


class Run:
    """One running stage, which puts itself into `ended` when it ends."""

    def __init__(
        self, stage: Stage, folder: Path, options: Sequence[str], ended: SimpleQueue["Run"], *, alone: bool
    ) -> None:
        self.stage, self._began_at = stage, time.monotonic()
        self._report, self._said = folder / f"{stage.name}.xml", folder / f"{stage.name}.log"
        self.code: int | None = None
        self.seconds = self.processor = 0.0
        """How long it took, and how much processor time it and everything that it started used."""
        # A killed gate takes its stages with it, and they take their workers and servers.
        tests = stage.command(self._report, options)
        command = leashed([sys.executable, "-m", "tests.gate", "--reap", stage.name, *tests])
        with self._said.open("wb") as said:
            # In a session of its own, so that it can be ended together with everything that it started.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=None if alone else said,
                stderr=None if alone else subprocess.STDOUT,
                start_new_session=True,
            )
        threading.Thread(target=self._await_end, args=(ended,), daemon=True).start()

    def silent_for(self) -> float:
        return time.time() - self._said.stat().st_mtime

    def progress(self) -> str:
        lines: list[tuple[str, str]] = PROGRESS.findall(self._said.read_text(encoding="utf-8", errors="replace"))
        if not lines:
            return self.stage.name
        failed = sum(marks.count("F") + marks.count("E") for marks, _ in lines)
        return f"{self.stage.name} {lines[-1][1]} %" + (f" ({failed} failed)" if failed else "")

    def show(self) -> None:
        sys.stdout.write(self._said.read_text(encoding="utf-8", errors="replace"))
        sys.stdout.flush()

    def hurry(self) -> None:
        """Stand back for nothing any more. Otherwise, other programs of a busy machine get most of the time."""
        with suppress(OSError):
            Path("/proc", str(self._process.pid), "autogroup").write_text("0", encoding="ascii")

    def send(self, how: signal.Signals) -> None:
        """Send this to it and to everything that it started, if it is still running."""
        with suppress(ProcessLookupError):
            if self.code is None:
                os.killpg(self._process.pid, how)

    def _await_end(self, ended: SimpleQueue["Run"]) -> None:
        # The kernel reports a process's usage only to a wait for it, and `subprocess` does not ask for that.
        _, status, used = os.wait4(self._process.pid, 0)
        self.seconds = time.monotonic() - self._began_at
        self.processor = used.ru_utime + used.ru_stime
        self.code = self._process.returncode = os.waitstatus_to_exitcode(status)
        ended.put(self)

    def counts(self) -> tuple[int, int, int]:
        """How many tests passed, failed and were skipped, according to pytest's own report."""
        total = Counter[str]()
        if self._report.exists():
            for suite in ET.parse(self._report).iter("testsuite"):  # noqa: S314 - pytest has just written it.
                total.update({kind: int(suite.get(kind, 0)) for kind in ("tests", "failures", "errors", "skipped")})
        failed, skipped = total["failures"] + total["errors"], total["skipped"]
        return total["tests"] - failed - skipped, failed, skipped


def reap(stage: Stage, command: Sequence[str]) -> int:
    """Run the command of a stage, niced, as the new parent of all orphans, and return its exit code.

    Otherwise, the time of a Java whose Python was killed would be missing, and a server that never ends would be
    overlooked.
    """
    os.nice(stage.niced)
    # Linux first divides its cores among sessions, and considers niceness only within one: so the session is niced,
    # too. Other systems do not have this file.
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(stage.niced), encoding="ascii")
    become_subreaper()
    with one_kafka() if stage.of_servers else nullcontext():
        process = subprocess.Popen(leashed(command))
        # SIGINT goes to the whole group, and the command handles it. Only now: a command would inherit the ignored
        # signal.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while process.returncode is None:
            pid, status = os.wait()
            if pid == process.pid:
                process.returncode = os.waitstatus_to_exitcode(status)
    give_up_at = time.monotonic() + GRACE
    while left := orphans():
        if time.monotonic() > give_up_at:
            for pid, said in left.items():
                say(f"gate: process {pid} was left behind, and is killed: {said[:200]}")
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    return process.returncode or 0


@contextmanager
def one_kafka() -> Iterator[None]:
    """The Kafka of the fixture `kafka`: otherwise, each worker starts its own.

    The variable's name does not begin with NELI_: programs that tests start would refuse it.
    """
    if missing() or "GATE_KAFKA" in os.environ:
        yield
        return
    with Kafka.started(settings=SHORT_GROUPS) as kafka:
        os.environ["GATE_KAFKA"] = kafka.bootstrap
        yield


def orphans() -> dict[int, str]:
    """The living children of this process, with their commands; the others are reaped."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    commands = {pid: Path("/proc", str(pid), "cmdline").read_text(errors="replace") for pid in children(os.getpid())}
    return {pid: command.replace("\0", " ") for pid, command in commands.items()}


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - people watch it.


def run(names: Sequence[str], options: Sequence[str]) -> list[Run]:
    """Run the stages with these names, or all if there are none; `options` go to every pytest."""
    waiting = [stage for stage in STAGES if stage.name in names or not names]
    alone = len(waiting) == 1
    under_way: list[Run] = []
    over: list[Run] = []
    ended: SimpleQueue[Run] = SimpleQueue()
    began_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="neli-gate-") as folder:
        try:
            while waiting or under_way:
                left = {stage.name for stage in waiting} | {it.stage.name for it in under_way}
                for stage in [one for one in waiting if left.isdisjoint(one.after)]:
                    say(f"gate: {stage.name} begins")
                    waiting.remove(stage)
                    under_way.append(Run(stage, Path(folder), options, ended, alone=alone))
                try:
                    it = ended.get(timeout=SAY_EVERY)
                except Empty:
                    if not alone:
                        progress = ", ".join(it.progress() for it in under_way)
                        say(f"gate: {time.monotonic() - began_at:.0f} s: {progress}")
                    if hanging := [it.stage.name for it in under_way if it.silent_for() > SILENCE_MAX]:
                        raise TimeoutError(f"{', '.join(hanging)} said nothing for {SILENCE_MAX:g} s") from None
                else:
                    under_way.remove(it)
                    over.append(it)
                    if not waiting and all(one.stage.niced for one in under_way):
                        for last in under_way:
                            last.hurry()
                    if not alone:
                        say(f"gate: {it.stage.name} has ended after {it.seconds:.0f} s")
                        it.show()
        finally:
            for how in (signal.SIGINT, signal.SIGKILL):
                give_up_at = time.monotonic() + GRACE
                for it in under_way:
                    it.send(how)
                while any(it.code is None for it in under_way) and time.monotonic() < give_up_at:
                    time.sleep(0.1)
            for it in under_way:
                if not alone:
                    it.show()
        summarize(over)
    return over


def summarize(runs: Sequence[Run]) -> None:
    say(f"{'gate':<10}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}{'processor':>11}{'exit':>6}")
    for it in runs:
        passed, failed, skipped = it.counts()
        say(f"{it.stage.name:<10}{passed:>8}{failed:>8}{skipped:>9}{it.seconds:>9.0f}{it.processor:>11.0f}{it.code:>6}")
    least = sum(it.processor for it in runs) / CORES
    say(f"{'all cores':<10}{'':>8}{'':>8}{'':>9}{least:>9.0f}   if none were ever idle")


def main(arguments: Sequence[str]) -> int:
    names = [argument for argument in arguments if not argument.startswith("-")]
    known = [stage.name for stage in STAGES]
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"unknown stage {', '.join(unknown)}; known stages: {', '.join(known)}")
    # A requested end leaves no stage behind, either. A shell that starts this in the background makes it ignore SIGINT.
    for end in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(end, signal.default_int_handler)
    began_at = time.monotonic()
    runs = run(names, [argument for argument in arguments if argument.startswith("-")])
    failed = [it.stage.name for it in runs if it.code != 0]
    seconds = f"in {time.monotonic() - began_at:.0f} s"
    say(f"gate: {', '.join(failed)} FAILED {seconds}" if failed else f"gate: all passed {seconds}")
    return 1 if failed or len(runs) < len(names or known) else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--reap"]:
        (its,) = (one for one in STAGES if one.name == sys.argv[2])
        sys.exit(reap(its, sys.argv[3:]))
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("gate: interrupted")
