"""Run one benchmark or all of them, or list them.

    names on disk --listing--> first lines, read without importing: a missing peer must not hide the list
         |
         '--NAME--> import, Options, run(options) --> table, or one JSON object
         '--all---> the same in a process each, so that no benchmark measures another's leftovers
    --publish------> some of them, and docs/figures.md

Exit codes: 0 success, 1 a benchmark of `--all` failed, 2 invalid command line.
"""

import argparse
import ast
import importlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from difflib import get_close_matches
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any, Protocol, cast, get_args, get_origin, get_type_hints

from benchmarks import TEXTS, Figure, Figures
from benchmarks._figures_page import measure

__all__ = ["main"]

COLUMN = 9
"""Characters of a column: a number with four significant digits, its sign and its commas."""

EVERY_DIGIT = 1000
"""From here on, all digits before the point are printed: an exponent is hard to read."""

EXIT_FAILED = 1
EXIT_USAGE = 2


class Benchmark(Protocol):
    """The module of a benchmark."""

    Options: type[Any]

    def run(self, options: Any) -> Figures:
        """Measure, and return the figures by name."""


def main(arguments: Sequence[str] | None = None, *, package: str = "benchmarks") -> int:
    """Run the command line with the benchmarks of `package`; return the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    given = [argument for argument in given if argument != "--json"]
    if given and not given[0].startswith("-"):
        return _run_one(package, given[0], given[1:], as_json)  # A benchmark has its own options, including `--help`.
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "%(prog)s [--json] [--all | --publish | NAME [OPTIONS]]"
    parser.add_argument("--all", action="store_true", help="run every benchmark, each in its own process")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each benchmark")
    parser.add_argument("--publish", action="store_true", help="measure docs/figures.md again, which takes 40 minutes")
    chosen = parser.parse_args(given)
    if chosen.publish:
        measure()
        return 0
    if chosen.all:
        return _run_all(package, ["--json"] if as_json else [])
    return _list(package, as_json)


def _list(package: str, as_json: bool) -> int:
    lines = {name: _first_line(path) for name, path in _known(package).items()}
    if as_json:
        print(json.dumps(lines, indent=2))
        return 0
    width = max(map(len, lines), default=0)
    for name, line in lines.items():
        print(f"{name:{width}}  {line}")
    return 0


def _run_one(package: str, name: str, options: Sequence[str], as_json: bool) -> int:
    known = _known(package)
    if name not in known:
        nearest = get_close_matches(name, known, n=1, cutoff=0)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "there is none yet"
        print(f"wanted the name of a benchmark, found {name!r}: {hint}", file=sys.stderr)
        print(f"`python -m {package}` lists them all", file=sys.stderr)
        return EXIT_USAGE
    benchmark = cast("Benchmark", importlib.import_module(f"{package}.{name}"))
    chosen = _parsed(benchmark, options, f"python -m {package} {name}")
    started = time.perf_counter()
    figures = benchmark.run(chosen)
    took = round(time.perf_counter() - started, 3)
    if as_json:
        print(json.dumps({"benchmark": name, "figures": figures, "machine": _machine(), "took_s": took}))
    else:
        print(_table(name, figures, took))
    return 0


def _parsed(benchmark: Benchmark, options: Sequence[str], program: str) -> Any:
    """The benchmark's options, as the command line sets them; `Options` itself has the defaults."""
    parser = argparse.ArgumentParser(prog=program, description=benchmark.__doc__, argument_default=argparse.SUPPRESS)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    kinds = get_type_hints(benchmark.Options)
    for each in fields(benchmark.Options):
        kind, default, text = kinds[each.name], each.default, each.metadata.get("help") or TEXTS[each.name]
        if default:
            text += f" (default: {' '.join(map(str, default)) if isinstance(default, tuple) else default})"
        how = {"action": "store_true"} if kind is bool else {"type": next(iter(get_args(kind)), kind)}
        several = {"nargs": "+"} if get_origin(kind) is tuple else {}
        parser.add_argument(f"--{each.name.replace('_', '-')}", **{**how, **several, **each.metadata, "help": text})
    chosen = vars(parser.parse_args(options)).items()
    try:
        return benchmark.Options(**{name: tuple(it) if isinstance(it, list) else it for name, it in chosen})
    except ValueError as error:
        parser.error(str(error))


def _run_all(package: str, options: Sequence[str]) -> int:
    failed = [
        name
        for name in _known(package)
        if subprocess.run([sys.executable, "-m", package, name, *options], check=False).returncode != 0
    ]
    if failed:
        print(f"wanted figures from every benchmark, found failures: {', '.join(failed)}", file=sys.stderr)
    return EXIT_FAILED if failed else 0


def _known(package: str) -> dict[str, Path]:
    found = importlib.util.find_spec(package)
    assert found is not None, f"{package} was importable a moment ago"
    folders = [Path(folder) for folder in found.submodule_search_locations or []]
    paths = sorted(path for folder in folders for path in folder.glob("*.py"))
    return {path.stem: path for path in paths if not path.stem.startswith("_")}


def _first_line(path: Path) -> str:
    essay = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "(says nothing about itself)"
    return essay.splitlines()[0]


def _machine() -> dict[str, Figure]:
    return {
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def _table(name: str, figures: Figures, took: float) -> str:
    """A line for each figure. Figures named FIGURE@SIDE,SIZE stand in grids below."""
    compared = {figure: value for figure, value in figures.items() if "," in figure.partition("@")[2]}
    alone = {figure: value for figure, value in figures.items() if figure not in compared}
    width = max(map(len, alone), default=0)
    rows = [f"  {figure:{width}}  {_spelled(value)}" for figure, value in alone.items()]
    machine = ", ".join(f"{fact} {value}" for fact, value in _machine().items())
    return "\n".join([f"{name} ({took} s; {machine})", *rows, *_grids(compared)])


def _grids(figures: Figures) -> Iterator[str]:
    """A column for each side, and a line for each figure and size. Sides that share no line get grids of their own."""
    lines: dict[str, dict[str, Figures]] = {}
    for name, value in figures.items():
        figure, side, size = re.split("[@,]", name, maxsplit=2)
        lines.setdefault(figure, {}).setdefault(size, {})[side] = value
    grids: list[Sequence[str]] = []
    for line in (line for sizes in lines.values() for line in sizes.values()):
        joined = [grid for grid in grids if not line.keys().isdisjoint(grid)]
        grids = [grid for grid in grids if grid not in joined] + [list(dict.fromkeys(chain(*joined, line)))]
    width, size_width = (
        max(map(len, lines), default=0),
        max((len(size) for it in lines.values() for size in it), default=0),
    )
    for sides in grids:
        yield f"\n  {'':{width}}  {'':{size_width}}" + "".join(f"  {side:>{COLUMN}}" for side in sides)
        for figure, sizes in lines.items():
            shown = figure
            for size, line in sizes.items():
                if not line.keys().isdisjoint(sides):
                    told = (_spelled(line[side]) if side in line else "" for side in sides)
                    cells = (f"  {text:>{max(COLUMN, len(side))}}" for text, side in zip(told, sides, strict=True))
                    yield f"  {shown:{width}}  {size:>{size_width}}{''.join(cells)}".rstrip()
                    shown = ""


def _spelled(value: Figure) -> str:
    if isinstance(value, float) and abs(value) < inf:
        return f"{value:,.0f}" if abs(value) >= EVERY_DIGIT else f"{value:.4g}"
    return f"{value}"


if __name__ == "__main__":
    raise SystemExit(main())
