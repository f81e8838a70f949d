"""The figures of docs/scale.md: the curves of the benchmark `scale`, as a file of numbers, plots and tables.

    points --publish--> docs/scale/figures.json     the numbers
                        docs/scale/*.svg            one picture a figure: over members, and over partitions
                        docs/scale.md               what is between the two comments; people write the rest

A figure of a point is None where only the machine was measured: a group has at most MEMBERS_MAX members.
"""

import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import rounded
from benchmarks._crowd import settings_of
from benchmarks._plots import Curve, Panel, drawn, short
from neli_router.protocols.induction.beats import interval
from neli_router.protocols.induction.fold import MEMBERS_MAX

__all__ = ["DOCS", "Point", "publish"]

DOCS = Path(__file__).parents[1] / "docs"

GENERATED = re.compile(r"(?<=<!-- python -m benchmarks scale --curves -->\n).*(?=<!-- end -->)", re.DOTALL)

LEASES = (0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of a group of one size."""

    members: int
    partitions: int
    records_per_second: float
    """Beats and snapshots of the whole group."""
    bytes_per_second: float
    snapshot_bytes: int
    machine_core_percent: float
    """Processor time of one member for reading, of one core: of the machine and the codec, without a driver."""
    machine_start_ms: float
    """Processor time for reading a snapshot."""
    machine_takeover_leases: float
    """On a clock that is a number."""
    core_percent: float | None = None
    """The same for a whole process with an SQLite file."""
    start_ms: float | None = None
    takeover_leases: float | None = None


PROCESS, MACHINE = "a process, on SQLite", "its machine alone (simulated)"
COUNTED, LIFTED = "counted", "simulated: no group is so large"


def publish(points: Sequence[Point], docs: Path, *, lease: float, seconds: float, fixed: tuple[int, int]) -> None:
    """Write everything; `fixed` are the members and the partitions of groups in which the other of the two varies."""
    folder = docs / "scale"
    folder.mkdir(exist_ok=True)
    kept = [{name: rounded(it) for name, it in asdict(point).items()} for point in points]
    lines = ",\n".join(json.dumps(point) for point in kept)
    about = json.dumps({"lease": lease, "seconds": seconds, "measured": _measured()})
    (folder / "figures.json").write_text(f'{{"about": {about}, "points": [\n{lines}\n]}}\n', encoding="utf-8")
    for name, (title, unit, of_process, of_machine) in FIGURES.items():
        members, partitions = fixed
        panels = [
            _panel(f"members, of {partitions:,} partitions", "members", of_process, of_machine, points, 1, partitions),
            _panel(f"partitions, of {members:,} members", "partitions", of_process, of_machine, points, 0, members),
        ]
        (folder / f"{name}.svg").write_text(drawn(title, unit, panels), encoding="utf-8")
    page = docs / "scale.md"
    text, count = GENERATED.subn(lambda _: _generated(points, lease, seconds), page.read_text(encoding="utf-8"))
    assert count == 1, f"{page} was to have one place for the figures"
    page.write_text(text, encoding="utf-8")


FIGURES: dict[str, tuple[str, str, str, str]] = {
    "records": ("Records that a group writes", "a second", "", "records_per_second"),
    "bytes": ("Bytes that a group writes, and each member reads", "a second", "", "bytes_per_second"),
    "processor": ("Processor time of a member", "% of one core", "core_percent", "machine_core_percent"),
    "takeover": ("Takeover of a silent member's partitions", "leases", "takeover_leases", "machine_takeover_leases"),
    "start": ("Processor time of a start", "ms", "start_ms", "machine_start_ms"),
    "snapshot": ("The snapshot that a newcomer reads", "bytes", "", "snapshot_bytes"),
}
"""File -> title, unit, and the fields of a process, if any, and of its machine."""


def _panel(
    label: str, over: str, of_process: str, of_machine: str, points: Sequence[Point], place: int, fixed: int
) -> Panel:
    there = [it for it in points if (it.members, it.partitions)[place] == fixed]

    def values(field: str, chosen: Sequence[Point]) -> list[tuple[float, float]]:
        return [(getattr(it, over), getattr(it, field)) for it in chosen if getattr(it, field) is not None]

    if of_process:
        simulated = Curve(MACHINE, values(of_machine, there), "second", simulated=True)
        return Panel(label, [Curve(PROCESS, values(of_process, there)), simulated])
    small = [it for it in there if it.members <= MEMBERS_MAX]
    large = [it for it in there if it.members > MEMBERS_MAX]
    beyond = [Curve(LIFTED, values(of_machine, [small[-1], *large]), simulated=True)] if large else []
    # Drawn last, over the first mark of the other.
    return Panel(label, [*beyond, Curve(COUNTED, values(of_machine, small))])


def _generated(points: Sequence[Point], lease: float, seconds: float) -> str:
    pictures = [f"![{title}, {unit}](scale/{name}.svg)" for name, (title, unit, *_) in FIGURES.items()]
    how = (
        f"Measured with `python -m benchmarks scale --curves` on {_measured()}: lease {lease:g} s, each process for "
        f"{seconds:g} s. Figures with * are simulated."
    )
    head = "members | partitions | records/s | kB/s | % of a core | takeover, leases | start, ms | snapshot, kB"
    sizes = sorted({it.members for it in points})
    rows = [
        f"| {it.members:,} | {it.partitions:,} | {short(it.records_per_second)} | {short(it.bytes_per_second / 1e3)} | "
        f"{_either(it.core_percent, it.machine_core_percent)} | "
        f"{_either(it.takeover_leases, it.machine_takeover_leases)} | {_either(it.start_ms, it.machine_start_ms)} | "
        f"{short(it.snapshot_bytes / 1e3)} |"
        for it in points
    ]
    leases = " | ".join(f"lease {it:g} s" for it in LEASES)
    weights = {it.members: it.bytes_per_second / it.records_per_second for it in points}
    rates = [" | ".join([f"{size:,}", *(_rates(size, it, weights[size]) for it in LEASES)]) for size in sizes]
    return "\n".join(
        [
            *pictures,
            "",
            how,
            "",
            f"| {head} |",
            "| " + " | ".join(["---:"] * 8) + " |",
            *rows,
            "",
            "Heartbeats a second of a whole group, and the MB/s that its server sends, because each member reads all:",
            "",
            f"| members | {leases} |",
            "| " + " | ".join(["---:"] * (1 + len(LEASES))) + " |",
            *(f"| {line} |" for line in rates),
            "",
        ]
    )


def _rates(members: int, lease: float, record_bytes: float) -> str:
    beats = members / interval(settings_of(1, 1, lease)[0], members)
    return f"{short(beats)}, {short(beats * record_bytes * members / 1e6)} MB/s"


def _either(of_process: float | None, of_machine: float) -> str:
    return short(of_process) if of_process is not None else f"{short(of_machine)}*"


def _measured() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores with Python {platform.python_version()}, {datetime.now(UTC):%B %Y}"
