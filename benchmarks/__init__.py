"""The benchmarks: how to run one, and how to add one.

    python -m benchmarks                          the list: each name, with the first line of its module
    python -m benchmarks NAME [options]           one table of figures
    python -m benchmarks NAME [options] --json    one JSON object: benchmark, figures, machine, took_s
    python -m benchmarks --all                    each in its own process, one after the other

A benchmark is a module of this package whose name has no leading underscore. Its first line says what it measures,
and its one function measures it:

    def run(options: Sequence[str]) -> Figures: ...

It parses its own options with argparse and returns named figures: plain numbers, booleans and words, with the unit or
the kind of statistic at the end of the name (`import_ms_median`). Figures to be compared are timed in the same run,
because two runs on a busy machine differ by more than most effects worth measuring.

Benchmarks use servers and other helpers of `tests`. Only their own tests import them, in `benchmarks/tests`.
"""

__all__ = ["Figure", "Figures"]

Figure = float | int | str | bool | None
Figures = dict[str, Figure]
