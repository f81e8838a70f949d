"""The landing: what the table holds at the end and how it got there, judged against the ticks that went in.

    rows of the table ---> each instrument's ticks, by sequence numbers: 0 1 2 [3 4 5] [5 6] . [8 9]
                                                                                  doubled ^  ^ missing
                      '--> bars, put together --equal?--> bars made of the input by other code
    log of the table ----> every commit: when, which partitions, under which terms, from where to where

A row records the first and the last tick of its instrument it was made from, and how many ticks these are. So the
ranges of one instrument must be adjacent: where two overlap, ticks landed twice, and where there is a gap, ticks are
missing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

import pyarrow as pa

__all__ = ["Count", "TableCommit", "bars_of", "commits_of", "counted", "same_bars", "taken_over", "whole_bars"]

KEYS = [("instrument", "ascending"), ("begins", "ascending")]


@dataclass(frozen=True, slots=True)
class Count:
    """Ticks, counted by how they landed."""

    made: int
    landed: int
    """At least once."""
    doubled: int
    """Landings beyond the first."""
    missing: int

    @property
    def is_exact(self) -> bool:
        return self.made == self.landed > 0 and not self.doubled and not self.missing


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One entry of the table's log that moved the fence."""

    version: int
    at: float
    """By the wall clock."""
    terms: Mapping[int, int]
    """Partition -> the committer's term."""
    batches: Mapping[int, int]
    """Partition -> the batch it reached; empty if the commit only raised terms."""


def counted(parts: pa.Table, ticks: Mapping[str, int]) -> Count:
    """`parts` are the rows of the table; `ticks` maps each instrument to the number of ticks made."""
    rows = parts.select(["instrument", "first_sequence", "last_sequence", "ticks"]).sort_by(
        [("instrument", "ascending"), ("first_sequence", "ascending")]
    )
    landed = doubled = 0
    reached: dict[str, int] = {}
    for name, first, last, count in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        upto = reached.get(name, 0)
        fresh = max(0, last + 1 - max(first, upto))
        # If a row's count differs from its range of numbers, it lost some ticks or has some twice.
        landed += min(fresh, count)
        doubled += count - min(fresh, count)
        reached[name] = max(upto, last + 1)
    made = sum(ticks.values())
    strange = sum(max(0, upto - ticks.get(name, 0)) for name, upto in reached.items())
    return Count(made, landed - strange, doubled + strange, made - (landed - strange))


def bars_of(ticks: pa.Table, seconds: int) -> pa.Table:
    """The bars of `ticks`, computed without Spark, ordered by instrument and time."""
    at = ticks["at"].cast(pa.int64()).to_numpy()
    parts = {
        "instrument": ticks["instrument"],
        "begins": pa.array(at - at % (seconds * 1_000_000)).cast(pa.timestamp("us", "UTC")),
        **dict.fromkeys(("open", "high", "low", "close"), ticks["price"]),
        "volume": ticks["size"],
        "bid": ticks["bid"],
        "ask": ticks["ask"],
        "last_at": ticks["at"],
        "ticks": pa.repeat(1, ticks.num_rows),
        **dict.fromkeys(("first_sequence", "last_sequence"), ticks["sequence"]),
    }
    return whole_bars(pa.table(parts))  # Each tick is a part of a bar.


def whole_bars(parts: pa.Table) -> pa.Table:
    """The rows of the table, with the parts of each bar merged, ordered by instrument and time."""
    ordered = parts.sort_by([("instrument", "ascending"), ("first_sequence", "ascending")])
    kinds = {
        "open": "first",
        "high": "max",
        "low": "min",
        "close": "last",
        "volume": "sum",
        "bid": "last",
        "ask": "last",
        "last_at": "last",
        "ticks": "sum",
        "first_sequence": "min",
        "last_sequence": "max",
    }
    made = ordered.group_by(["instrument", "begins"], use_threads=False).aggregate(list(kinds.items()))
    return made.rename_columns({f"{name}_{kind}": name for name, kind in kinds.items()}).sort_by(KEYS)


def same_bars(parts: pa.Table, ticks: pa.Table, seconds: int) -> bool:
    """Whether the rows of the table are the bars of `ticks`, to the last digit."""
    wanted, found = bars_of(ticks, seconds), whole_bars(parts)
    return all(wanted[name].equals(found[name]) for name in wanted.column_names)


def commits_of(table: Path) -> list[TableCommit]:
    """Every commit to the fenced table at that path, in order, from its log."""
    found = []
    for path in sorted((table / "_delta_log").glob("*.json")):
        at, numbers = 0.0, {"neli.term": dict[int, int](), "neli.batch": dict[int, int]()}
        for line in path.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "commitInfo" in action:
                at = action["commitInfo"]["timestamp"] / 1000
            if "txn" in action:
                kind, _, partition = action["txn"]["appId"].partition("/")
                numbers[kind][int(partition)] = action["txn"]["version"]
        if numbers["neli.term"] or numbers["neli.batch"]:
            found.append(TableCommit(int(path.stem), at, numbers["neli.term"], numbers["neli.batch"]))
    return found


def taken_over(commits: Sequence[TableCommit], took: Mapping[int, int]) -> tuple[float, float]:
    """When the last partition in `took` was fenced under a higher term than its term there, and when the last one was
    landed under a higher term; inf if one never was."""
    fenced, landed = dict.fromkeys(took, inf), dict.fromkeys(took, inf)
    for commit in commits:
        for partition in took.keys() & commit.terms.keys():
            if commit.terms[partition] > took[partition]:
                fenced[partition] = min(fenced[partition], commit.at)
                if partition in commit.batches:
                    landed[partition] = min(landed[partition], commit.at)
    return max(fenced.values(), default=inf), max(landed.values(), default=inf)
