"""The gate: every test that this machine can run, so that all its cores are busy, and one summary at the end.

    proofs     -m exhaustive: the explorer, the simulator, the mutants; computes       one worker a core, niced
    spark      all that starts Spark: each worker has one JVM for all its tests        one worker a core, niced
    core       needs no server, no browser and no other process: mostly waits          WORKERS at once
    servers    real processes, Kafka, Redis, PostgreSQL, a browser                     WORKERS at once, a file each
    airflow    all that imports Airflow, or starts installations of it                 one worker a core, a file each

    proofs  ------------------------------------------------>
    spark   ---------------------------->
    core  ------->  servers  ------->  airflow  ------------->

`python -m tests.gate` runs the proofs and Spark, whose tests wait for most of their time, in the background from the
beginning. It prints what a stage in the background said when that has ended. `python -m tests.gate core` runs only the
core. Every test belongs to exactly one stage, by its markers. The exit code is 0 if every stage ended with 0.

What runs in the background is niced, so that tests that wait for something in real time get a core first. Each worker
starts each server that its tests ask for once; the tests of one file share a worker, so that what they share is made
once.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["STAGES", "Stage", "main"]

SERVERS = "process or kafka or redis or browser or postgresql"

WITHOUT_AIRFLOW = "--ignore=tests/provider"
"""For the other stages: a test that a marker leaves out is imported all the same, and with it Airflow, for seconds."""

WORKERS = 4
"""On two cores: most of these tests wait more than they compute. With more, real-time tests wait for a core instead."""

STAGE_MAX = 3600.0
"""Seconds. Each test has its own bound; this one is for what happens between them."""

GRACE = 10.0
"""Seconds that a stage which is stopped has to end its servers and workers."""


@dataclass(frozen=True)
class Stage:
    """A part of all tests, by their markers, and how it is run."""

    name: str
    markers: str
    options: tuple[str, ...]
    niced: int | None = None
    """By how much, in the background of the stages after it; None is for a stage that the others wait for."""

    def command(self, report: Path, options: Sequence[str]) -> list[str]:
        pytest = [sys.executable, "-m", "pytest", "-q", "-m", self.markers, f"--junitxml={report}"]
        return [*pytest, *self.options, *options]


STAGES = (
    Stage(
        "proofs",
        "exhaustive and not spark and not airflow",
        ("-n", str(os.cpu_count() or 1), "--dist", "worksteal", WITHOUT_AIRFLOW),
        niced=19,
    ),
    Stage(
        "spark",
        "spark and not airflow",
        # Programs that start Spark wait for cores more than others do.
        (
            "-n",
            str(os.cpu_count() or 1),
            "--dist",
            "loadfile",
            "--no-loadscope-reorder",
            "--timeout=1200",
            WITHOUT_AIRFLOW,
        ),
        niced=5,
    ),
    Stage(
        "core",
        f"not exhaustive and not spark and not airflow and not ({SERVERS})",
        ("-n", str(WORKERS), "--dist", "worksteal", WITHOUT_AIRFLOW),
    ),
    Stage(
        "servers",
        f"not exhaustive and not spark and not airflow and ({SERVERS})",
        # In the order of their names: by default xdist begins with the files that have the most tests, and the few that
        # take longest would come last.
        ("-n", str(WORKERS), "--dist", "loadfile", "--no-loadscope-reorder", WITHOUT_AIRFLOW),
    ),
    # An installation is five processes and a gigabyte, and starts in half a minute. Each worker has one, and starts the
    # further ones that single tests ask for beside what the other worker does.
    Stage(
        "airflow",
        "airflow",
        ("-n", str(os.cpu_count() or 1), "--dist", "loadfile", "--no-loadscope-reorder"),
    ),
)


class Run:
    """One stage under way. In the background, what it says goes to a file until it has ended."""

    def __init__(self, stage: Stage, folder: Path, options: Sequence[str], *, niced: int | None) -> None:
        self.stage, self._began_at = stage, time.monotonic()
        self._report, self._said = folder / f"{stage.name}.xml", folder / f"{stage.name}.log"
        self.code: int | None = None
        self.seconds = self.processor = 0.0
        """How long it took, and how long processors worked for it and for all that it waited for."""
        command = stage.command(self._report, options)
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
        # One in the background ends while the others run, and that is when it is to be looked at.
        self._watch = threading.Thread(target=self._await_end, daemon=True)
        self._watch.start()

    def wait(self) -> None:
        """Until it has ended; at most STAGE_MAX."""
        self._watch.join(STAGE_MAX)
        if self._watch.is_alive():
            raise TimeoutError(f"{self.stage.name} did not end within {STAGE_MAX:g} s")
        sys.stdout.write(self._said.read_text(encoding="utf-8", errors="replace"))

    def end(self) -> None:
        """Stop it, if it still runs, with all that it started."""
        for how in (signal.SIGINT, signal.SIGKILL):
            with suppress(ProcessLookupError):
                if self._watch.is_alive():
                    os.killpg(self._process.pid, how)
            self._watch.join(GRACE)

    def _await_end(self) -> None:
        # The kernel's account of a process goes with the wait for it, and `subprocess` asks for none.
        _, status, used = os.wait4(self._process.pid, 0)
        self.seconds = time.monotonic() - self._began_at
        self.processor = used.ru_utime + used.ru_stime
        self.code = self._process.returncode = os.waitstatus_to_exitcode(status)

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


def tell(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - people watch it.


def run(names: Sequence[str], options: Sequence[str]) -> list[Run]:
    """Run the stages of these names, all if there are none; `options` are for every pytest."""
    runs: list[Run] = []
    stages = [stage for stage in STAGES if stage.name in names or not names]
    with tempfile.TemporaryDirectory(prefix="neli-gate-") as folder:
        try:
            for stage in stages:
                niced = None if stage is stages[-1] else stage.niced
                tell(f"gate: {stage.name} begin{'' if niced is None else ', in the background'}")
                runs.append(Run(stage, Path(folder), options, niced=niced))
                if niced is None:
                    runs[-1].wait()
            for under_way in (it for it in runs if it.stage.niced is not None and it is not runs[-1]):
                tell(f"gate: waiting for the {under_way.stage.name}")
                under_way.wait()
            summarize(runs)
        finally:
            for under_way in runs:
                under_way.end()
    return runs


def summarize(runs: Sequence[Run]) -> None:
    tell(f"{'gate':<10}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}{'processor':>11}{'exit':>6}")
    for it in runs:
        passed, failed, skipped = it.counts()
        tell(
            f"{it.stage.name:<10}{passed:>8}{failed:>8}{skipped:>9}{it.seconds:>9.0f}{it.processor:>11.0f}{it.code:>6}"
        )
    least = sum(it.processor for it in runs) / (os.cpu_count() or 1)
    tell(f"{'all cores':<10}{'':>8}{'':>8}{'':>9}{least:>9.0f}   if none were ever idle")


def main(arguments: Sequence[str]) -> int:
    names = [argument for argument in arguments if not argument.startswith("-")]
    known = [stage.name for stage in STAGES]
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"a stage was wanted, one of {', '.join(known)}, but {', '.join(unknown)} is none")
    # An end that is asked for is one like any other: what runs in the background must not stay behind. A shell script
    # that starts this in its background has it ignore SIGINT.
    for end in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(end, signal.default_int_handler)
    began_at = time.monotonic()
    runs = run(names, [argument for argument in arguments if argument.startswith("-")])
    failed = [it.stage.name for it in runs if it.code != 0]
    seconds = f"in {time.monotonic() - began_at:.0f} s"
    tell(f"gate: {', '.join(failed)} FAILED {seconds}" if failed else f"gate: all passed {seconds}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("gate: interrupted")
