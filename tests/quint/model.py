"""Running the model: Quint on Node, as installed by `make quint`."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.proofs.mutation import MUTANTS, mutate
from tests.quint.traces import Trace
from tests.support.servers.quint import PACKAGE

__all__ = ["Verdict", "mutant_traces", "replay", "simulate"]

FOLDER = Path(__file__).parent
MODEL = FOLDER / "induction.qnt"

STEPS = 30
"""Steps in each world that is drawn."""


class Verdict(NamedTuple):
    """Whether the model allowed a trace, and the number of events until it objected."""

    name: str
    events: int
    of: int
    objection: str


def replay(traces: Iterable[tuple[str, Trace]]) -> list[Verdict]:
    """The model's verdict on each trace, all in one process, because Quint takes seconds to start."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as lines:
        for trace in traces:
            lines.write(json.dumps(trace) + "\n")
        lines.seek(0)
        done = _run([str(FOLDER / "replay.cjs"), str(PACKAGE), str(FOLDER / "replay.qnt")], lines.fileno())
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return [Verdict(**json.loads(line)) for line in done.stdout.splitlines()]


def simulate(*, samples: int, seed: int | None, without: str) -> tuple[bool, str]:
    """Draw worlds of the model until a promise is broken: whether all were kept, and what Quint says.

    `without` is a text that is left out of the model: a rule.
    """
    text = MODEL.read_text(encoding="utf-8")
    if without and text.count(without) != 1:
        raise ValueError(f"the model was to have {without!r} once, and has it {text.count(without)} times")
    options = ["--main=induction", "--invariant=kept", f"--max-samples={samples}", f"--max-steps={STEPS}"]
    # The other backend is a program that Quint would download.
    options += ["--backend=typescript", "--verbosity=1", *([] if seed is None else [f"--seed={seed}"])]
    with tempfile.TemporaryDirectory(prefix="neli-quint-") as folder:
        (model := Path(folder, MODEL.name)).write_text(text.replace(without, ""), encoding="utf-8")
        done = _run([str(PACKAGE / "dist" / "src" / "cli.js"), "run", str(model), *options], subprocess.DEVNULL)
    output = done.stdout + done.stderr
    if ("[ok]" in output) == ("[violation]" in output):
        raise RuntimeError(output)
    return "[ok]" in output, output


def mutant_traces(name: str, seeds: Sequence[int]) -> Iterator[tuple[str, Trace]]:
    """The traces of `seeds` where the package is broken by the mutant called `name`."""
    with tempfile.TemporaryDirectory(prefix="neli-quint-") as folder:
        mutate(MUTANTS / f"{name}.patch", Path(folder))
        (Path(folder) / "tests").symlink_to(FOLDER.parent)
        recorded = subprocess.run(
            [sys.executable, "-m", "tests.quint", "--record", f"--start={seeds[0]}", f"--seeds={len(seeds)}"],
            cwd=folder,  # Its package comes before the one that is installed.
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    for line in recorded.splitlines():
        trace, events = json.loads(line)
        yield f"{name}, {trace}", events


def _run(arguments: Sequence[str], stdin: int) -> "subprocess.CompletedProcess[str]":
    node = shutil.which("node")
    assert node is not None, "callers ask whether Quint is installed"
    return subprocess.run([node, *arguments], stdin=stdin, capture_output=True, text=True, check=False)
