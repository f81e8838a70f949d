"""`make prove`: run the proofs whose sources have changed, and record what they show in `tests/proofs.lock`.

    python -m tests.proofs                  runs what is stale and rewrites those lines    `make prove`
    python -m tests.proofs --all            runs everything                                `make prove ALL=1`
    python -m tests.proofs --check          only says whether a line is stale, in seconds  `make test` begins with it
    python -m tests.proofs --sample         repeats some, and compares them with the lock  `make test` runs it alongside

A proof that fails loses its line, so `make test` stays red. Each line is written as soon as
its proof has ended, so an interrupted run loses nothing. All processors are used, the longest proofs first.

Where Quint cannot run, the proofs of the model are left out, and their lines stay unchanged. With CI=true that is a
failure.

The sample catches a line that was never run. The hash of the sources can be written by hand. The result cannot be
guessed, because it counts worlds and hashes traces.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from neli_router.hosts.leash import leashed
from tests.proofs.catalogue import Proof, proofs
from tests.proofs.lock import LOCK, Line, read, sample, stale, write
from tests.proofs.mutation import BEING_WRITTEN, PACKAGE, mutate
from tests.proofs.sources import sources_hash
from tests.support.servers.quint import missing

__all__ = ["Outcome", "main", "repeat", "run", "runnable"]

TESTS = Path(__file__).parents[1]

SAMPLE_SECONDS = 50.0
"""Per processor, on a machine like the one that wrote the lock. A longer sample catches a forged line sooner."""

PROGRAMS = {
    "neli": "import sys; from neli_router.commands.cli import main; sys.argv[0] = 'neli'; main()",
    # One failure is enough.
    "pytest": "import sys, pytest; sys.exit(pytest.main(['-q', '-x', '-p', 'no:cacheprovider', *sys.argv[1:]]))",
    "quint": "import sys; from tests.quint.__main__ import main; sys.exit(main())",
}

WITHOUT_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Importing the installed plugins takes three times as long as most of these tests, and none of them is needed."""

VERDICT = re.compile(
    r"^ *(?P<verdict>complete: .*|as far as it came: .*|a rule is broken: .*|simulate: .*), \d+ s$", re.MULTILINE
)
TRACES = re.compile(r"^ *(?P<traces>traces \w+)$", re.MULTILINE)
FAIL = re.compile(r"^(?P<fail>FAIL .*?)(?:; replay: .*)?$", re.MULTILINE)
MODEL = re.compile(r"^(?P<found>\d+ (?:traces|worlds) .*)$", re.MULTILINE)
FAILED = re.compile(r"^FAILED (?P<test>\S+)", re.MULTILINE)

CRASH = re.compile(r"^E +(?:Attribute|Import|ModuleNotFound|Name|Syntax|Type|UnboundLocal)Error\b.*", re.MULTILINE)
"""How pytest shows a mutant that does not run any longer: such a failure says nothing about the protocol."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one run. `result` is empty if the proof failed."""

    result: str
    seconds: float
    """Processor seconds."""
    output: str


def run(proof: Proof) -> Outcome:
    """Run it, on a copy of the package if there is a patch."""
    if proof.patch is None:
        code, output, seconds = _run(proof.command, PACKAGE.parent)
        said = _of_the_model(proof, code, output) if proof.is_of_the_model else _of_the_shipped(code, output)
        return Outcome(said, seconds, output)
    with tempfile.TemporaryDirectory(prefix="neli-mutant-") as folder:
        mutate(proof.patch, Path(folder))
        if proof.command.startswith("pytest "):
            shutil.copytree(TESTS, Path(folder) / "tests", ignore=BEING_WRITTEN)
        code, output, seconds = _run(proof.command, Path(folder))
    return Outcome(_of_a_mutant(code, output), seconds, output)


def _run(command: str, folder: Path) -> tuple[int, str, float]:
    """The exit code, the output, and the processor seconds used with all its children."""
    program, *arguments = shlex.split(command)
    if arguments[0] == "simulate":
        arguments += ["--jobs", "1"]  # Proofs run side by side already.
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            leashed([sys.executable, "-c", PROGRAMS[program], *arguments]),
            cwd=folder,
            env={**os.environ, **WITHOUT_PLUGINS, "PYTHONPATH": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
        # `subprocess` does not ask the kernel for a process's usage, and waiting again would find nothing.
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        return process.returncode, printed.read().decode(errors="replace"), used.ru_utime + used.ru_stime


def _of_the_shipped(code: int, output: str) -> str:
    verdict, traces = VERDICT.search(output), TRACES.search(output)
    if code != 0 or verdict is None:
        return ""
    return ", ".join(filter(None, [verdict["verdict"].removeprefix("simulate: "), traces and traces["traces"]]))


def _of_the_model(proof: Proof, code: int, output: str) -> str:
    found = MODEL.search(output)
    return found["found"] if found is not None and code == int(proof.must_be_rejected) else ""


def _of_a_mutant(code: int, output: str) -> str:
    fail, failed, verdict = FAIL.search(output), FAILED.search(output), VERDICT.search(output)
    if code != 1 or CRASH.search(output):
        return ""
    if failed is not None:
        return f"caught by {failed['test']}"
    if fail is None:
        return ""
    return ", ".join(filter(None, [f"caught: {fail['fail']}", verdict and verdict["verdict"].partition(": ")[2]]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proofs", description=(__doc__ or "").partition("\n")[0])
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--all", action="store_true", help="run every proof, stale or not")
    kind.add_argument("--check", action="store_true", help="run none; exit with 1 if a line is stale")
    kind.add_argument("--sample", action="store_true", help="repeat some, and compare them with the lock")
    asked = parser.parse_args(arguments)
    known, lines = proofs(), read()
    old = stale(known, lines)
    if asked.check:
        return _check(known, lines, old)
    if asked.sample:
        fresh = [proof for proof in known if proof not in old]
        drawn = sample(fresh, lines, _commit(), SAMPLE_SECONDS * _processors())
        able = runnable(drawn)
        return max(repeat(able, lines), os.environ.get("CI") == "true" and len(able) < len(drawn))
    chosen = known if asked.all else old
    able = runnable(chosen)
    return max(_prove(able, known, lines), len(able) < len(chosen))


def runnable(chosen: Sequence[Proof]) -> list[Proof]:
    """Those that this machine can run."""
    why = missing() if any(proof.is_of_the_model for proof in chosen) else ""
    able = [proof for proof in chosen if not (why and proof.is_of_the_model)]
    if why:
        _say(f"{len(chosen) - len(able)} proofs of the model are left out: {why}")
    return able


def _check(known: Sequence[Proof], lines: dict[str, Line], old: Sequence[Proof]) -> int:
    names = {proof.name for proof in known}
    without = [name for name in lines if name not in names]
    for proof in old:
        _say(f"stale: {proof.name}")
    for name in without:
        _say(f"no such proof any longer: {name}")
    if old or without:
        _say(f"{LOCK.name}: {len(old) + len(without)} of {len(known)} lines are stale: run `make prove`, and commit it")
        return 1
    _say(f"{LOCK.name}: all {len(known)} lines are of these sources")
    return 0


def _commit() -> str:
    """The text that draws the sample. Outside a git repository, the lock itself is that text."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=TESTS, capture_output=True, text=True, check=False)  # noqa: S607
    return asked.stdout.strip() or LOCK.read_text(encoding="utf-8")


def repeat(chosen: Sequence[Proof], lines: dict[str, Line]) -> int:
    wrong = 0
    for proof, outcome in _run_all(chosen, lines):
        if outcome.result != lines[proof.name].result:
            wrong += 1
            _say(f"FAIL {proof.name}\n  the lock says: {lines[proof.name].result}\n  this run says: {outcome.result}")
            _say(outcome.output[-3000:])
    _say(f"sample: {len(chosen)} proofs repeated, {wrong} differ from {LOCK.name}")
    if wrong:
        _say("run `make prove ALL=1`: a line was written without a run, or a result depends on chance")
    return 1 if wrong else 0


def _prove(chosen: Sequence[Proof], known: Sequence[Proof], lines: dict[str, Line]) -> int:
    names, began_at, failed = {proof.name for proof in known}, time.monotonic(), 0
    recorded = {name: line for name, line in lines.items() if name in names}
    if len(recorded) < len(lines):
        write(recorded.values())
    for proof, outcome in _run_all(chosen, lines):
        if outcome.result:
            recorded[proof.name] = Line(proof.name, sources_hash(proof), round(outcome.seconds), outcome.result)
        else:
            failed += 1
            recorded.pop(proof.name, None)
            _say(f"FAIL {proof.name}\n{outcome.output[-10_000:]}")
        write(recorded.values())
    seconds = time.monotonic() - began_at
    _say(f"prove: {len(chosen)} proofs run, {failed} FAILED, {len(known)} in {LOCK.name}, {seconds:.0f} s")
    return 1 if failed else 0


def _run_all(chosen: Sequence[Proof], lines: dict[str, Line]) -> Iterator[tuple[Proof, Outcome]]:
    """Each proof with its outcome, in the order in which they end."""
    began_at = time.monotonic()
    unknown = Line("", "", 1_000_000, "")
    ordered = sorted(chosen, key=lambda proof: lines.get(proof.name, unknown).seconds, reverse=True)
    with ThreadPoolExecutor(_processors()) as pool:
        under_way = {pool.submit(run, proof): proof for proof in ordered}
        try:
            for count, future in enumerate(as_completed(under_way), 1):
                proof, outcome = under_way[future], future.result()
                at = f"{time.monotonic() - began_at:5.0f} s  {count:3} of {len(chosen)}"
                _say(f"{at}  {outcome.seconds:5.1f} s  {proof.name}: {outcome.result or 'FAILED'}")
                yield proof, outcome
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - people watch it.


if __name__ == "__main__":
    sys.exit(main())
