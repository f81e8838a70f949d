"""The benchmarks: how to run one, and how to add one.

    python -m benchmarks                          the list: each name, with the first line of its module
    python -m benchmarks NAME [options]           one table of figures
    python -m benchmarks NAME [options] --json    one JSON object: benchmark, figures, machine, took_s
    python -m benchmarks --all                    each in its own process, one after the other
    python -m benchmarks --publish                some of them, and docs/figures.md, which shows their figures

A benchmark is a module of this package whose name has no leading underscore. Its first line says what it measures,
its `Options` say what can be chosen, and its one function measures it:

    class Options(BenchmarkOptions):
        trials: int = 10
        records: int = option(300_000, "to read and fold; 0 leaves that out")

    def run(options: Options) -> Figures: ...

The command line has an option for each field, and parses its value by the field's type: a tuple takes several values,
and a `bool` is a switch. A field without a text has one of `TEXTS`, so that the same option reads the same everywhere.
`__post_init__` refuses options that make no sense together: it raises a ValueError, and the command exits with 2.

`run` returns named figures: plain numbers, booleans and words, with the unit or the kind of statistic at the end of the
name (`import_ms_median`). Figures to be compared are timed in the same run, because two runs on a busy machine differ
by more than most effects worth measuring.

Benchmarks use servers and other helpers of `tests`. Only their own tests import them, in `benchmarks/tests`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, dataclass_transform

__all__ = ["TEXTS", "BenchmarkOptions", "Figure", "Figures", "option", "rounded", "spread", "switch"]

Figure = float | int | str | bool | None
Figures = dict[str, Figure]

TEXTS = {
    "keys": "how many keys",
    "lease": "the lease in seconds",
    "ledger": "the kind of ledger",
    "members": "members of the group",
    "partitions": "partitions of the group",
    "rounds": "ratios to take the median of",
    "seed": "the same seed draws the same random choices",
    "trials": "how often each case is tried",
}


@dataclass_transform(frozen_default=True, kw_only_default=True)
class BenchmarkOptions:
    """Each subclass is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


def option(default: Any, text: str = "", **more: Any) -> Any:
    """A field with its text; `more` goes to argparse, like `choices`."""
    return field(default=default, metadata={**more, "help": text})


def switch(text: str) -> Any:
    return option(default=False, text=text)


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """The least, the median and the greatest, in milliseconds."""
    return {name: 1e3 * of(seconds) for name, of in (("min", min), ("median", median), ("max", max))}


def rounded(value: Figure) -> Figure:
    """A figure as the files of a page keep it: four digits."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
