"""The frame: what the live view shows at one moment, as a function of the record.

    NELI Router demo ...                                  the title, and the time
    member  process  state          leads   lease         one line for each member
    0  AAAAAAABBBBBBBBCCCCC...                            every partition: the letter of who may act for it now
    look-ups ...                                          the traffic
    3.002 s  kill  bravo  ...                             the last events, as many as there is room for

The partitions are shown as they are *led*, by the workers' own notes, and not as the table says: so one sees a dead
member's leases run out. Every colour stands with a letter, so that nothing is told by colours alone; a letter always
stands on a background of its own, so that it can be read on dark and on light terminals.
"""

import textwrap
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from neli_router.demo.record import Life, Phase, Run
from neli_router.demo.stage import Event

__all__ = ["EVENT_COLUMNS", "MEMBER_STYLES", "frame", "spelled"]

MEMBER_STYLES = (
    "bold white on #0072b2",
    "bold black on #e69f00",
    "bold black on #009e73",
    "bold black on #cc79a7",
    "bold black on #56b4e9",
    "bold black on #d55e00",
    "bold black on #f0e442",
    "bold black on #b0b0b0",
)
"""Okabe and Ito's colours, which people with any kind of colour vision can tell apart."""

CLASH_STYLE = "bold white on red"

ROW = 64
"""Partitions in a row: a power of two that leaves room for their numbers in 80 columns."""

ROWS_MAX = 8
"""More rows would leave no room for anything else; what has no row is counted."""

EVENT_COLUMNS = (9, 6, 8)
"""The widths of time, kind and name. What happened follows."""

_STATES = {
    Phase.STARTING: "starting",
    Phase.STOPPED: "stopped (SIGSTOP)",
    Phase.KILLED: "dead (kill -9)",
    Phase.LEAVING: "leaving",
    Phase.LEFT: "left",
    Phase.FAILED: "failed",
}


def frame(run: Run, events: Sequence[Event], *, title: str, now: float, width: int, height: int) -> RenderableType:
    """The view at `now` on the host's clock, in `width` columns and at most `height` lines."""
    cells, rows_left_out = _cells(run, now)
    above: list[RenderableType] = [
        _title(title, f"{now - run.started_at:.1f} s", width),
        _members(run, now),
        Text(),
        *cells,
        _legend(rows_left_out),
        Text(),
        *_traffic(run),
        Text(),
    ]
    # Every line is one line: the tables are as narrow as 80 columns, and everything else is cropped.
    taken = len(above) + len(_latest(run))
    latest = sorted(events, key=lambda event: event.at)[-height:]  # Notes may arrive in another order.
    lines = [line for event in latest for line in spelled(event, width)]
    room = max(0, height - taken)
    shown = lines[-room:] if room else []
    return Group(*above, *(Text(line, no_wrap=True, overflow="crop") for line in shown))


def spelled(event: Event, width: int | None = None) -> list[str]:
    """An event as a line; or, within `width` columns, as several."""
    time, kind, who = EVENT_COLUMNS
    start = f"{event.at:{time}.3f} s  {event.kind:<{kind}} {event.who:<{who}} "
    if width is None:
        return [start + event.text]
    indent = " " * len(start)
    return textwrap.wrap(start + event.text, width, subsequent_indent=indent, drop_whitespace=True) or [start]


def _title(title: str, time: str, width: int) -> Text:
    return Text(f"{title:<{width - len(time) - 1}.{width - len(time) - 1}} {time}", style="bold", no_wrap=True)


def _latest(run: Run) -> list[Life]:
    """The present life of each member, in the order of their names."""
    return sorted({life.name: life for life in run.lives}.values(), key=lambda life: life.name)


def _styles(run: Run) -> dict[str, str]:
    return {life.name: style for life, style in zip(_latest(run), MEMBER_STYLES, strict=False)}


def _members(run: Run, now: float) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column, width, justify in (
        ("member", 12, "left"),
        ("process", 8, "right"),
        ("state", 18, "left"),
        ("leads", 5, "right"),
        ("heartbeat", 11, "right"),
        ("lease", 11, "right"),
    ):
        table.add_column(column, width=width, justify="right" if justify == "right" else "left", no_wrap=True)
    styles = _styles(run)
    for life in _latest(run):
        left = life.until - now
        name = Text.assemble((f" {_letter(life)} ", styles[life.name]), f" {life.name}")
        ran = bool(life.tenures)
        table.add_row(
            name,
            str(life.pid),
            _state(life),
            str(sum(tenure.start <= now < tenure.end for tenure in life.held.values())),
            f"{now - (life.until - run.lease):.2f} s ago" if ran else "none yet",
            (f"{left:.2f} s left" if left > 0 else "over") if ran else "none yet",
        )
    return table


def _state(life: Life) -> str:
    if life.phase is Phase.MEMBER:
        return "leads" if life.held else "reads along"
    return _STATES[life.phase]


def _letter(life: Life) -> str:
    """In capitals, if the process runs."""
    letter = life.name[0].upper()
    return letter.lower() if life.phase in (Phase.KILLED, Phase.STOPPED) else letter


def _cells(run: Run, now: float) -> tuple[list[Text], int]:
    """Rows of partitions, and how many partitions have none."""
    styles = _styles(run)
    leaders: list[list[Life]] = [[] for _ in range(run.partitions)]
    for life in run.lives:
        for tenure in life.held.values():
            if tenure.start <= now < tenure.end:
                leaders[tenure.partition].append(life)
    rows = []
    for first in range(0, min(run.partitions, ROW * ROWS_MAX), ROW):
        row = Text(f"{first:>5}  ", no_wrap=True, overflow="crop")
        for lives in leaders[first : first + ROW]:
            match lives:
                case []:
                    row.append(".")
                case [life]:
                    row.append(_letter(life), style=styles[life.name])
                case _:
                    row.append("!", style=CLASH_STYLE)
        rows.append(row)
    return rows, max(0, run.partitions - ROW * ROWS_MAX)


def _legend(left_out: int) -> Text:
    more = f"; {left_out} more are not shown" if left_out else ""
    text = f"       A may act  a dead or stopped, lease not over  . nobody  ! two at once{more}"
    return Text(text, no_wrap=True, overflow="crop", style="dim")


def _traffic(run: Run) -> list[Text]:
    routed = run.routed
    answers = ", ".join(f"{name} {count:,}" for name, count in sorted(dict(routed.answers).items()))
    samples = ", ".join(f"{key} -> {name}" for key, name in dict(routed.samples).items())
    first = "look-ups  none yet"
    if routed.lookups:
        each = routed.seconds / routed.lookups * 1e6
        first = f"look-ups  {routed.lookups:,}, {each:.2f} microseconds each; {routed.unanswered:,} without an answer"
    second = f"answers   {answers or 'none yet'}"
    third = f"now       {samples or 'none yet'}"
    return [Text(line, no_wrap=True, overflow="ellipsis") for line in (first, second, third)]
