"""The gate: every test that this machine can run, so that no core is ever idle, and one table at the end.

    fetch      brings the jars and programs that tests start; what needs none of them runs meanwhile
    spark      all that starts Spark: each worker has one JVM for all its tests
    sample     some proofs, repeated and compared with tests/proofs.lock
    core       needs no server, no browser and no other process: mostly waits
    airflow    all that imports Airflow, or starts installations of it
    servers    real processes, Kafka, Redis, PostgreSQL, a browser

    in front    core -----> airflow ------> servers -------->
    behind      fetch -> spark --------------------> sample ->

Two lanes run side by side. The lane behind is niced, so that tests that wait for something in real time get a core
first. It prints the output of a stage when the stage has ended. `python -m tests.gate core` runs only the core; any
option after the names goes to every pytest. Every test belongs to exactly one stage, by its markers and folder. The
exit code is 0 if every stage ended with 0.

Each worker starts each server that its tests ask for once. The tests of one file share a worker, so that what they
share is made once.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from neli_router.commands.descendants import become_subreaper, children
from neli_router.leash import leashed

__all__ = ["STAGES", "Stage", "main"]

SERVERS = "process or kafka or redis or browser or postgresql"

WITHOUT_AIRFLOW = ("--ignore=tests/provider",)
"""For the other stages: a test that a marker leaves out is imported all the same, and with it Airflow, for seconds."""

WITHOUT_SPARK = (*WITHOUT_AIRFLOW, "--ignore=tests/spark")

BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
"""In the order of `conftest.py`: by default xdist begins with the files that have the most tests, and the few that take
longest would come last."""

CORES = os.cpu_count() or 1

STAGE_MAX = 3600.0
"""Seconds. Each test has its own bound; this one is for what happens between them."""

GRACE = 10.0
"""Seconds that a stage has for what it started to end: when it is stopped, and when it has ended."""


@dataclass(frozen=True)
class Stage:
    """A part of all tests, and how it is run."""

    name: str
    tests: tuple[str, ...] = ()
    """Options of pytest; none for a stage that has another command."""
    workers: int = 0
    other: tuple[str, ...] = ()
    niced: int | None = None
    """By how much, in the lane behind. None means the lane in front."""
    needs: str = ""
    """The stage of the other lane that must have ended before."""

    def command(self, report: Path, options: Sequence[str]) -> list[str]:
        if self.other:
            return list(self.other)
        pytest = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", f"--numprocesses={self.workers}"]
        return [*pytest, *self.tests, *options]


STAGES = (
    Stage("fetch", other=("make", "--no-print-directory", "fetch"), niced=0),
    Stage(
        "spark",
        # Programs that start Spark wait for cores more than others do.
        ("tests/spark", "tests/test_docs.py", "-m", "spark or not airflow", *BY_FILE, "--timeout=1200"),
        workers=CORES,
        niced=5,
    ),
    Stage("sample", other=(sys.executable, "-m", "tests.proofs", "--sample"), niced=5),
    Stage(
        "core",
        ("-m", f"not spark and not airflow and not ({SERVERS})", "--dist", "worksteal", *WITHOUT_SPARK),
        workers=CORES + 2,
    ),
    Stage(
        "airflow",
        ("tests/provider", "tests/test_docs.py", "-m", "airflow", *BY_FILE),
        workers=CORES + 1,
        needs="fetch",
    ),
    Stage(
        "servers",
        ("-m", f"not spark and not airflow and ({SERVERS})", *BY_FILE, *WITHOUT_SPARK),
        workers=CORES + 2,
        needs="fetch",
    ),
)
"""Most of these tests wait more than they compute, so there are more workers than cores. With still more, they would
wait for a core instead."""


class Run:
    """One stage under way. The output of a stage behind goes to a file until the stage has ended."""

    def __init__(self, stage: Stage, folder: Path, options: Sequence[str], *, alone: bool) -> None:
        self.stage, self._began_at = stage, time.monotonic()
        self._report, self._said = folder / f"{stage.name}.xml", folder / f"{stage.name}.log"
        self.code: int | None = None
        self.seconds = self.processor = 0.0
        """How long it took, and how long processors worked for it and for all that it started."""
        niced = None if alone else stage.niced
        # A gate that is killed takes its stages with it, and they take their workers and servers.
        command = leashed([sys.executable, "-m", "tests.gate", "--reap", *stage.command(self._report, options)])
        with self._said.open("wb") as said:
            # In a session of its own, so that it can be ended with all that it started.
            self._process = subprocess.Popen(
                command if niced is None else ["nice", "-n", str(niced), *command],
                stdin=subprocess.DEVNULL,
                stdout=None if niced is None else said,
                stderr=None if niced is None else subprocess.STDOUT,
                start_new_session=True,
            )
        if niced is not None:
            # Linux shares its cores out to sessions first, and looks at niceness only within one: so the session is
            # niced, too. Where that is not so, there is no such file.
            with suppress(OSError):
                Path(f"/proc/{self._process.pid}/autogroup").write_text(str(niced), encoding="ascii")
        self._ended = threading.Event()
        threading.Thread(target=self._await_end, daemon=True).start()

    def wait(self) -> None:
        """Until it has ended; at most STAGE_MAX."""
        if not self._ended.wait(STAGE_MAX):
            raise TimeoutError(f"{self.stage.name} did not end within {STAGE_MAX:g} s")
        sys.stdout.write(self._said.read_text(encoding="utf-8", errors="replace"))
        sys.stdout.flush()

    def end(self) -> None:
        """Stop it, if it still runs, with all that it started."""
        for how in (signal.SIGINT, signal.SIGKILL):
            with suppress(ProcessLookupError):
                if not self._ended.is_set():
                    os.killpg(self._process.pid, how)
            self._ended.wait(GRACE)

    def _await_end(self) -> None:
        # The kernel's account of a process goes with the wait for it, and `subprocess` asks for none.
        _, status, used = os.wait4(self._process.pid, 0)
        self.seconds = time.monotonic() - self._began_at
        self.processor = used.ru_utime + used.ru_stime
        self.code = self._process.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set()

    def counts(self) -> tuple[int, int, int]:
        """How many passed, failed and were skipped, by pytest's own report."""
        if not self._report.exists():
            return (0, 0, 0)
        total = [0, 0, 0]
        for suite in ET.parse(self._report).iter("testsuite"):  # noqa: S314 - pytest has just written it.
            tests, failed, skipped = (
                int(suite.get("tests", 0)),
                int(suite.get("failures", 0)) + int(suite.get("errors", 0)),
                int(suite.get("skipped", 0)),
            )
            total = [total[0] + tests - failed - skipped, total[1] + failed, total[2] + skipped]
        return (total[0], total[1], total[2])


class Lane(threading.Thread):
    """Stages one after another."""

    def __init__(
        self,
        stages: Sequence[Stage],
        ended: Mapping[str, threading.Event],
        folder: Path,
        options: Sequence[str],
        *,
        alone: bool,
    ) -> None:
        super().__init__(daemon=True)
        self._left, self._ended, self._folder, self._options, self._alone = list(stages), ended, folder, options, alone
        self._stopped = False
        self.runs: list[Run] = []

    def run(self) -> None:
        while self._left and not self._stopped:
            stage = self._left.pop(0)
            if stage.needs in self._ended:
                self._ended[stage.needs].wait()
            say(f"gate: {stage.name} begins{'' if self._alone or stage.niced is None else ', behind'}")
            try:
                self.runs.append(Run(stage, self._folder, self._options, alone=self._alone))
                self.runs[-1].wait()
            finally:
                self._ended[stage.name].set()

    def end(self) -> None:
        self._stopped = True
        for run in self.runs:
            run.end()


def reap(command: Sequence[str]) -> int:
    """Run it, as the parent of all that loses its own, and return its exit code.

    Without that, the time of a Java whose Python was killed would be missing, and a server that never ends would be
    overlooked.
    """
    become_subreaper()
    process = subprocess.Popen(leashed(command))
    # SIGINT goes to the whole group, and the command answers it. Only now: a command would inherit that it is ignored.
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


def orphans() -> dict[int, str]:
    """The children of this process that live, with their commands; the others are reaped."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return {
        pid: Path("/proc", str(pid), "cmdline").read_text(errors="replace").replace("\0", " ")
        for pid in children(os.getpid())
    }


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - people watch it.


def run(names: Sequence[str], options: Sequence[str]) -> list[Run]:
    """Run the stages of these names, all if there are none; `options` are for every pytest."""
    stages = [stage for stage in STAGES if stage.name in names or not names]
    behind = [stage for stage in stages if stage.niced is not None]
    front = [stage for stage in stages if stage.niced is None]
    with tempfile.TemporaryDirectory(prefix="neli-gate-") as folder:
        # A lane that runs alone need not step aside.
        given = {stage.name: threading.Event() for stage in stages}, Path(folder), options
        lanes = [Lane(lane, *given, alone=not (front and behind)) for lane in (behind, front) if lane]
        try:
            for lane in lanes:
                lane.start()
            for lane in lanes:
                lane.join()
        finally:
            for lane in lanes:
                lane.end()
        runs = [run for lane in lanes for run in lane.runs]
        summarize(runs)
    return runs


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
    # An end that is asked for is one like any other: no stage may stay behind. A shell script that starts this in its
    # background has it ignore SIGINT.
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
        sys.exit(reap(sys.argv[2:]))
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("gate: interrupted")
