"""The page docs/figures.md: one run of some benchmarks, committed, as plots and tables.

    RUNS --measured, `python -m benchmarks --publish`--> docs/figures/runs.json    commands, figures and the machine
                                                               |
         docs/figures/*.svg, and docs/figures.md <--published--'    what is between two comments; people write the rest

The plots and tables are a function of that file. A test publishes it again and compares, so no figure can be
changed by hand, and a changed drawing needs no new measurement.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import rounded
from benchmarks._plots import Range, ranges, short

__all__ = ["DOCS", "RUNS", "measure", "publish"]

DOCS = Path(__file__).parents[1] / "docs"

RUNS = {
    "witness": "failover --witness --peers --seconds 60 --trials 20",
    "lease": "failover --peers --seconds 60 --trials 20",
    "goneli": "protocols --sides induction,1 neli,1 fast-neli,1 goneli,1 --trials 10",
    "handover": "handover",
    "restart": "restart --witness --static",
    "lookup": "lookup",
}
"""Block of the page -> what `python -m benchmarks` measures for it."""

Shown = Mapping[str, Any]
"""Figures as the file has them."""

BLOCK = re.compile(r"(?<=<!-- figures: )(\w+) -->\n.*?(?=<!-- end -->)", re.DOTALL)

PEERS = {
    "zookeeper": ("ZooKeeper (kazoo)", "session {:g} s"),
    "etcd": ("etcd", "TTL {:g} s"),
    "redis_lock": ("a lock in Redis (redis-py)", "TTL {:g} s"),
}
LEDGERS = {"sqlite": "SQLite", "redis": "Redis", "kafka": "Kafka", "postgresql": "PostgreSQL"}
SIDES = {
    "induction": ("`induction`, the default", "lease 1 s"),
    "neli": ("`neli`, exclusive", "T 3 s, session 6 s"),
    "fast-neli": ("`fast-neli`", "heartbeat 5 s, session 15 s"),
    "goneli": ("goNELI", "heartbeat 5 s, session 15 s"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One contender: its name, its setting, and the least, the median and the greatest of its times in ms."""

    name: str
    setting: str
    spread: tuple[float, float, float]
    ours: bool = True


def measure(docs: Path = DOCS) -> None:
    """Run all of RUNS, one after another, and publish them. It takes 40 minutes, on a machine without a load."""
    measured: dict[str, Any] = {}
    for block, command in RUNS.items():
        said = subprocess.run(
            [sys.executable, "-m", "benchmarks", *shlex.split(command), "--json"], stdout=subprocess.PIPE, check=True
        )
        found = json.loads(said.stdout)
        found["figures"] = {name: rounded(it) for name, it in found["figures"].items()}
        measured[block] = {"command": command, **found, "at": f"{datetime.now(UTC):%Y-%m-%d}"}
    (docs / "figures").mkdir(exist_ok=True)
    (docs / "figures" / "runs.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    publish(docs)


def publish(docs: Path = DOCS) -> None:
    """Write the plots, and the blocks of the page."""
    measured = json.loads((docs / "figures" / "runs.json").read_text(encoding="utf-8"))
    page = docs / "figures.md"

    def block(found: re.Match[str]) -> str:
        name = found[1]
        lines = [*BLOCKS[name](measured[name]["figures"], docs / "figures" / f"{name}.svg"), "", _how(measured[name])]
        return "\n".join([f"{name} -->", *lines, ""])

    text = page.read_text(encoding="utf-8")
    assert [*RUNS] == BLOCK.findall(text), f"{page} was to have a place for each of {', '.join(RUNS)}"
    page.write_text(BLOCK.sub(block, text), encoding="utf-8")


def _how(run: Mapping[str, Any]) -> str:
    machine = run["machine"]
    return (
        f"`python -m benchmarks {run['command']}`, {run['at']}: {machine['cores']} cores, {machine['system']}, "
        f"{machine['implementation']} {machine['python']}; {run['took_s']:.0f} s."
    )


def _witness(figures: Shown, picture: Path) -> Iterator[str]:
    lease, there = f"lease {figures['lease_s']:g} s", [it for it in LEDGERS if f"takeover_ms_median@{it}" in figures]
    seen = [
        Row(f"NELI Router on {LEDGERS[it]}", f"{lease}, a witness", _spread(figures, "takeover", it)) for it in there
    ]
    alone = [Row(f"NELI Router on {LEDGERS[it]}", lease, _spread(figures, "lease_alone", it)) for it in there]
    rows = [*seen, *alone, *_peers(figures)]
    yield from _compared("From kill -9 until another leads, with a witness", rows, picture)
    yield ""
    yield (
        f"Each was killed {figures['trials'] // len(there)} times, in turn. A certificate ended "
        f"{figures['certified']} of {figures['trials']} witnessed processes. Two acted for one partition together "
        f"{figures['overlaps']} times."
    )


def _lease(figures: Shown, picture: Path) -> Iterator[str]:
    setting = f"lease {figures['ours_setting_s']:g} s"
    rows = [Row("NELI Router on SQLite", setting, _spread(figures, "ours")), *_peers(figures)]
    yield from _compared("From kill -9 until another leads, by time alone", rows, picture)


def _goneli(figures: Shown, picture: Path) -> Iterator[str]:
    rows = [
        Row(name, setting, _spread(figures, "takeover", f"{side},1"), ours=side != "goneli")
        for side, (name, setting) in SIDES.items()
    ]
    yield from _compared("From kill -9 until another leads, on one Kafka", rows, picture)
    yield ""
    columns = {
        "handover_ms_median": "handover, median ms",
        "leaderless_ms_median": "no leader meanwhile, median ms",
        "messages_per_second": "messages a second at rest",
        "commits_per_second": "commits a second",
    }
    yield from _by_kind(figures, columns, {f"{side},1": name for side, (name, _) in SIDES.items()})


def _handover(figures: Shown, _: Path) -> Iterator[str]:
    rows = [
        (what, short(figures[f"{name}_ms_median"]), short(figures[f"{name}_over_append_median"]))
        for name, what in (("sigterm", "SIGTERM to a member"), ("drain", "`neli drain`"))
    ]
    yield from _table(("", "median, ms", "in appends with their read"), rows)
    yield ""
    yield (
        f"An append and its read took {short(figures['append_to_read_ms_median'])} ms. Partitions of other members "
        f"that moved: {figures['moved_by_others']}."
    )


def _restart(figures: Shown, _: Path) -> Iterator[str]:
    columns = {
        "moves": "moved partitions",
        "lost_percent": "lost requests, %",
        "restart_s_median": "one restart, median s",
        "delay_ms_p99": "delay, 99th percentile, ms",
    }
    kinds = {
        "sigterm": "SIGTERM, NELI Router",
        "static-sigterm": "SIGTERM, Kafka's static membership",
        "kill": "kill -9, NELI Router with a witness",
        "static-kill": "kill -9, Kafka's static membership",
    }
    yield from _by_kind(figures, columns, kinds)


def _lookup(figures: Shown, _: Path) -> Iterator[str]:
    of = {
        "owner": "`router.owner(key)`",
        "tagged": "the same with hash tags",
        "owners": "`router.owners(keys)`, each key",
        "uhashring": "uhashring",
        "tooz": "tooz",
    }
    rows = [(what, short(figures[f"{name}_over_floor"])) for name, what in of.items()]
    yield from _table(("one look-up", "over `owners[mmh3.hash(key) % S]`"), rows)
    yield ""
    yield f"One core answers {short(figures['lookups_per_second'])} look-ups a second."


BLOCKS = {
    "witness": _witness,
    "lease": _lease,
    "goneli": _goneli,
    "handover": _handover,
    "restart": _restart,
    "lookup": _lookup,
}


def _peers(figures: Shown) -> list[Row]:
    return [
        Row(name, setting.format(figures[f"{peer}_setting_s"]), _spread(figures, peer), ours=False)
        for peer, (name, setting) in PEERS.items()
        if f"{peer}_setting_s" in figures
    ]


def _spread(figures: Shown, name: str, at: str = "") -> tuple[float, float, float]:
    least, middle, most = (figures[f"{name}_ms_{it}{at and f'@{at}'}"] for it in ("min", "median", "max"))
    return least, middle, most


def _compared(title: str, rows: Sequence[Row], picture: Path) -> Iterator[str]:
    """A picture of all rows, and their table. The first row is what others are compared with."""
    drawn = [Range(f"{row.name}, {row.setting}".replace("`", ""), *row.spread, ours=row.ours) for row in rows]
    picture.write_text(ranges(title, "ms", drawn), encoding="utf-8")
    yield f"![{title}, ms](figures/{picture.name})"
    yield ""
    _, first, _ = rows[0].spread
    cells = [(row.name, row.setting, *map(short, row.spread), short(row.spread[1] / first)) for row in rows]
    yield from _table(("", "setting", "least, ms", "median, ms", "most, ms", "median over the first"), cells)


def _by_kind(figures: Shown, columns: Mapping[str, str], kinds: Mapping[str, str]) -> Iterator[str]:
    """A row for each kind, of the figures that end with @ and it."""
    rows = [(what, *(short(figures[f"{name}@{kind}"]) for name in columns)) for kind, what in kinds.items()]
    yield from _table(("", *columns.values()), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join(['---'] + ['---:'] * (len(head) - 1))} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"
