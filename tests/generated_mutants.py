"""Mutants that a program makes: do the tests of the most dangerous rooms notice a changed operator, bound or statement?

    .make/dev/bin/python -m tests.generated_mutants [--seed N] [--each N] [--areas fence,peers]

    module --parse--> places that can change --draw--> one change --the area's tests, in a copy--> killed
                                                                                     '--> survived

Each mutant in `mutants/` was written by an engineer, and has its own test. These are drawn by chance. They take most of
an hour, so `make test` does not run them: run them after tests of these rooms were moved or deleted. The exit code is 0
if at least KILLED_MIN of them are killed. Read each survivor: it shows a missing test, or code that has no effect.
"""

import argparse
import ast
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from neli_router.hosts.leash import leashed

ROOT = Path(__file__).parents[1]

KILLED_MIN = 0.95

TEST_MAX = 900
"""Seconds that the tests of a mutant may take. One that hangs is killed, too."""

PATIENCE = "PATIENCE = 20.0"
"""Tests of mutants wait less long for what may never come."""

WORKERS = 4
"""Trees at a time: most of these tests wait."""


@dataclass(frozen=True)
class Area:
    """Some modules, and the tests that are to notice a change: the cheap ones first."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


QUICK, SLOW = "-m 'not process and not kafka and not redis'", "-m 'process or kafka or redis'"

AREAS = {
    "fence": Area(("fence/**/*.py",), ("tests/fence -m 'not process'", "tests/fence -m process")),
    "deaths": Area(
        ("member/witness/*.py", "hosts/process.py", "agent/server/lives.py"),
        ("tests/member/witness tests/hosts", "tests/member/test_leases.py tests/agent/test_client.py"),
    ),
    "lending": Area(
        ("agent/server/lender.py", "agent/client/leases.py", "agent/client/leading.py"),
        (f"tests/agent {QUICK}", f"tests/agent {SLOW}"),
    ),
    "peers": Area(("drivers/peers/*.py",), ("tests/drivers/peers",)),
    "subscriptions": Area(
        ("drivers/consumer_groups/*.py", "protocols/consumer_group/*.py"),
        (
            "tests/protocols/consumer_group tests/drivers/consumer_groups tests/drivers/test_pumps.py " + QUICK,
            "tests/drivers/consumer_groups " + SLOW,
        ),
    ),
}

OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip

CLOCK = re.compile(r"\b(now|age|\w*clock\(\)|monotonic\(\))")
OPPOSITE = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}
"""For a comparison with a real clock, which hardly ever reads the bound exactly: `<` and `<=` do the same."""

PURE = ROOT / "neli_router" / "protocols"
"""Time is an argument there, and tests meet the bounds."""

READS = {"recv", "recvfrom"}
"""They take the size of a buffer, and a larger one reads the same."""


@dataclass(frozen=True)
class Mutant:
    path: Path
    line: int
    what: str
    source: str

    def __str__(self) -> str:
        text = (ROOT / self.path).read_text().splitlines()[self.line - 1].strip()
        return f"{self.path}:{self.line}: {self.what}: {text}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    tree = ast.parse(path.read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    reads = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in READS]
    sizes = {one for call in reads for size in call.args for one in ast.walk(size)}
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]:
        for node in [] if function.name == "__repr__" else [one for body in function.body for one in ast.walk(body)]:
            for name, value in ast.iter_fields(node):
                for place, old in enumerate(value if isinstance(value, list) else [value]):
                    if (new := _changed(old, node)) is None or (isinstance(old, ast.Constant) and old in sizes):
                        continue
                    if type(old) in OPPOSITE and PURE not in path.parents and CLOCK.search(ast.unparse(node)):
                        new = OPPOSITE[type(old)]()
                    what = f"{_name(old)} became {_name(new)}"
                    setattr(node, name, [*value[:place], new, *value[place + 1 :]] if isinstance(value, list) else new)
                    line = getattr(old, "lineno", getattr(node, "lineno", function.lineno))
                    yield Mutant(path.relative_to(ROOT), line, what, ast.unparse(ast.fix_missing_locations(tree)))
                    setattr(node, name, value)


def _changed(old: object, node: ast.AST) -> ast.AST | None:
    """The replacement of `old`, a part of `node`; None if it stays."""
    match old:
        case ast.operator() if "f'" in ast.unparse(node) or '"' in ast.unparse(node):
            return None  # It joins texts.
        case ast.cmpop() | ast.boolop() | ast.operator():
            return OTHER[type(old)]() if type(old) in OTHER else None
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool()):
            return ast.Constant(not old.value)
        case ast.Constant(value=int() | float() as number):
            return ast.Constant(number + 1)
        case ast.Name(id="min" | "max"):
            return ast.Name("max" if old.id == "min" else "min")
        case ast.Expr(value=ast.Call() | ast.Await()) if "log" not in ast.unparse(old).partition("(")[0]:
            return ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return ast.Pass()
        case ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break():
            return ast.Pass()
    return None


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.stmt):
        return "the statement" if not isinstance(node, ast.Pass) else "nothing"
    return ast.unparse(node) or type(node).__name__


def drawn(area: Area, number: int, seed: int) -> list[Mutant]:
    paths = sorted({path for name in area.modules for path in (ROOT / "neli_router").glob(name)})
    found = [mutant for path in paths for mutant in mutants_of(path)]
    return sorted(random.Random(seed).sample(found, min(number, len(found))), key=str)


def survives(mutant: Mutant, area: Area, tree: Path) -> bool:
    """Whether the area's tests pass with `mutant` in `tree`, a copy of this one."""
    place = tree / mutant.path
    original = place.read_text()
    place.write_text(mutant.source)
    try:
        return all(_passes(words, tree) for words in area.tests)
    finally:
        place.write_text(original)


def _passes(words: str, tree: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *shlex.split(words)]
    process = subprocess.Popen(
        leashed(command), cwd=tree, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, process_group=0
    )
    try:
        return process.wait(TEST_MAX) in (0, 5)  # 5: none of the tests were selected.
    except subprocess.TimeoutExpired:
        return False
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> None:
    """Make the mutants, run the tests on each, and print those that survive."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--each", type=int, default=20, help="mutants of each area")
    options.add_argument("--areas", default=",".join(AREAS))
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        trees = SimpleQueue[Path]()
        for number in range(WORKERS):
            tree = Path(folder) / str(number)
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".git", ".make", ".*_cache", "__pycache__"))
            (tree / ".make").symlink_to(ROOT / ".make")
            waiting = tree / "tests" / "support" / "waiting.py"
            waiting.write_text(re.sub(r"^PATIENCE = .*$", PATIENCE, waiting.read_text(), flags=re.MULTILINE))
            trees.put(tree)

        def tried(mutant: Mutant, area: Area) -> bool:
            tree = trees.get()
            try:
                return survives(mutant, area, tree)
            finally:
                trees.put(tree)

        killed = total = 0
        for name in given.areas.split(","):
            area = AREAS[name]
            assert all(_passes(words, ROOT) for words in area.tests), f"the tests of {name} fail without any mutant"
            mutants = drawn(area, given.each, given.seed)
            tries = {pool.submit(tried, mutant, area): mutant for mutant in mutants}
            alive = 0
            for done in as_completed(tries):
                if done.result():
                    alive += 1
                    sys.stdout.write(f"survived: {tries[done]}\n")
                sys.stdout.flush()
            killed, total = killed + len(mutants) - alive, total + len(mutants)
            sys.stdout.write(f"{name}: {len(mutants) - alive} of {len(mutants)} killed\n")
    sys.stdout.write(f"all: {killed} of {total} killed\n")
    raise SystemExit(killed < KILLED_MIN * total)


if __name__ == "__main__":
    main()
