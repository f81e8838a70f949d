"""The tables of an audit: its facts as rows, for further questions, written as Delta tables.

    Audit --tables_of--> tenures    a row per tenure: partition, term, member, when it began and ended, when it was led
                         moves      a row per partition that went from one member to another
                         members    a row per incarnation: joined, ended and how, Beats
                         takeovers  a row per member that died: partitions, from death to led again
                         findings   a row per finding, with its severity
          --write_tables--> FOLDER/tenures, FOLDER/moves, ...     replaced as a whole, atomically, each by one commit

Times are seconds on the audit's axis; `..._at` is the same on the wall clock, where that is known. Any engine that
reads Delta or Arrow can read them. No JVM is needed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import isfinite
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from neli_router.errors import NeliError
from neli_router.status.audit import Audit

__all__ = ["tables_of", "write_tables"]

WHOLE, SECONDS, TEXT, TIME = pa.int64(), pa.float64(), pa.string(), pa.timestamp("us", tz="UTC")

Columns = Mapping[str, tuple[pa.DataType, Callable[[Any], object]]]
"""Name -> type, and what it takes from a fact. A value is null if it does not exist yet or is not known."""


def tables_of(audit: Audit) -> dict[str, pa.Table]:
    """The tables by name."""

    def at(name: str) -> Callable[[Any], int | None]:
        """The time that is called `name`, on the wall clock."""

        def micros(it: Any) -> int | None:
            time = getattr(it, name)
            wall = None if time is None else audit.wall(time)
            return None if wall is None or not isfinite(wall) else round(wall * 1e6)

        return micros

    since_and_until: Columns = {"since_at": (TIME, at("since")), "until_at": (TIME, at("until"))}
    moves = (
        replace(it, partitions=(partition,))
        for it in audit.moves
        if it.source is not None and it.target is not None
        for partition in it.partitions
    )
    return {
        "tenures": _table(
            audit.tenures,
            {
                **_same(WHOLE, "partition", "term"),
                **_same(TEXT, "member", "incarnation"),
                "first_offset": (WHOLE, attrgetter("first")),
                "last_offset": (WHOLE, attrgetter("last")),
                "began_by": (TEXT, attrgetter("cause")),
                "ended_by": (TEXT, lambda it: it.ending or None),
                **_same(SECONDS, "since", "until"),
                "led_from": (SECONDS, lambda it: it.led_from if it.led_until > it.led_from else None),
                "led_until": (SECONDS, lambda it: it.led_until if it.led_until > it.led_from else None),
                **since_and_until,
            },
        ),
        "moves": _table(
            moves,
            {
                **_same(WHOLE, "offset"),
                "partition": (WHOLE, lambda it: it.partitions[0]),
                **_same(TEXT, "source", "target", "cause", "by"),
                "time": (SECONDS, attrgetter("read_at")),
                "moved_at": (TIME, at("read_at")),
            },
        ),
        "members": _table(
            audit.lives,
            {
                "member": (TEXT, attrgetter("name")),
                **_same(TEXT, "incarnation", "address"),
                "first_offset": (WHOLE, attrgetter("first")),
                "last_offset": (WHOLE, attrgetter("ended")),
                "ended_by": (TEXT, lambda it: it.ending or None),
                **_same(SECONDS, "since", "until"),
                **since_and_until,
                **_same(WHOLE, "beats"),
                "late_beats": (WHOLE, attrgetter("came_too_late")),
                "most_owned": (WHOLE, attrgetter("owned_max")),
            },
        ),
        "takeovers": _table(
            audit.takeovers,
            {
                **_same(WHOLE, "offset"),
                **_same(TEXT, "member", "incarnation"),
                **_same(WHOLE, "partitions"),
                **_same(SECONDS, "died"),
                "led": (SECONDS, lambda it: it.led if isfinite(it.led) else None),
                "seconds": (SECONDS, lambda it: it.seconds if isfinite(it.led) else None),
                **_same(SECONDS, "error"),
                "died_at": (TIME, at("died")),
            },
        ),
        "findings": _table(
            audit.findings,
            {
                **_same(TEXT, "severity", "kind", "text"),
                **_same(WHOLE, "offset"),
                **_same(SECONDS, "time"),
                "found_at": (TIME, at("time")),
            },
        ),
    }


def write_tables(tables: Mapping[str, pa.Table], folder: Path) -> None:
    """Write them below `folder`, each under its name, replacing any that are there. Raises NeliError."""
    try:
        for name, table in tables.items():
            place = folder / name
            place.mkdir(parents=True, exist_ok=True)
            write_deltalake(place, table, mode="overwrite", schema_mode="overwrite")
    except DeltaError as error:
        raise NeliError(
            f"a Delta table was to be written to {folder}", f"that failed ({error})", "name a folder of its own"
        ) from None


def _same(kind: pa.DataType, *names: str) -> Columns:
    """Columns that are called like the facts' own attributes."""
    return {name: (kind, attrgetter(name)) for name in names}


def _table(facts: Iterable[object], columns: Columns) -> pa.Table:
    facts = list(facts)
    return pa.table({name: pa.array([of(it) for it in facts], kind) for name, (kind, of) in columns.items()})
