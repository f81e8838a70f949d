"""The screens: the story live in a terminal, or as plain lines anywhere else; and the outcome of the checks.

    a terminal           LiveScreen: one frame, redrawn in place; the last one stays
    a pipe, a file, ...  PlainScreen: one line for each event, in a constant format, as it happens
                         --> the checks, a line each

    NELI Router demo ...                                  a frame: the title, and the time
    member  process  state          leads   lease         one line for each member
    0  AAAAAAABBBBBBBBCCCCC...                            every partition: the letter of who may act for it now
    look-ups ...                                          the traffic
    3.002 s  kill  bravo  ...                             the last events, as many as there is room for

The screen shows which partitions are *led*, by the processes' own notes, not what the table says: so a dead member's
leases visibly run out. Every colour comes with a letter, so that nothing depends on colours alone. A letter always has
a background of its own, so that it is readable on dark and on light terminals. `NO_COLOR` turns off the colours of the
live view; a terminal that cannot draw (`TERM=dumb`) gets plain lines.
"""

import sys
import textwrap
from collections.abc import Sequence
from typing import Protocol

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from neli_router.core.clock import host_clock
from neli_router.core.closing import Closing
from neli_router.lab.demo.checks import Check
from neli_router.lab.demo.scene import Run, StoryEvent
from neli_router.lab.referee import Life, LifePhase

__all__ = ["MEMBER_STYLES", "Draw", "LiveScreen", "PlainScreen", "frame", "spelled", "summary", "wants_live"]

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
"""Okabe and Ito's colours, which people with any kind of colour vision can distinguish."""

CLASH_STYLE = "bold white on red"

ROW = 64
"""Partitions in a row: a power of two that leaves room for their numbers in 80 columns."""

ROWS_MAX = 8
"""More rows would leave no room for anything else; partitions beyond them are only counted."""

_STATES = {
    LifePhase.STARTING: "starting",
    LifePhase.STOPPED: "stopped (SIGSTOP)",
    LifePhase.KILLED: "dead (kill -9)",
    LifePhase.LEAVING: "leaving",
    LifePhase.LEFT: "left",
    LifePhase.FAILED: "failed",
}

FRAMES_PER_SECOND = 10
"""More frames would show nothing an eye could follow, and would take processor time from the members."""

EVENTS_MAX = 200
"""More than the lines of any terminal."""

HEADING = "Measured and checked:"

NAME_WIDTH = 16
"""The longest name of a check."""


def wants_live() -> bool:
    """Whether standard output is a terminal that can draw."""
    return sys.stdout.isatty() and not Console().is_dumb_terminal


class Draw(Protocol):
    """Makes a frame: see `frame`."""

    def __call__(self, events: Sequence[StoryEvent], *, now: float, width: int, height: int) -> RenderableType: ...


class PlainScreen(Closing):
    """One line for each event."""

    def __init__(self, title: str) -> None:
        _print(title)

    def tell(self, event: StoryEvent) -> None:
        _print(*spelled(event))

    def refresh(self) -> None:
        """Plain lines do not show the passing of time."""

    def close(self) -> None:
        """Nothing was opened."""

    def show(self, checks: Sequence[Check]) -> None:
        _print("", HEADING, *(f"{_verdict(check)}  {check.name:<{NAME_WIDTH}} {check.text}" for check in checks))
        _print(summary(checks))


class LiveScreen(Closing):
    """The frame."""

    def __init__(self, draw: Draw) -> None:
        self._draw_frame = draw
        self._events: list[StoryEvent] = []
        self._console = Console(highlight=False, force_terminal=True)
        self._live = Live(console=self._console, auto_refresh=False)
        self._drawn_at = -1.0
        self._live.start()

    def tell(self, event: StoryEvent) -> None:
        self._events = [*self._events, event][-EVENTS_MAX:]
        self._draw()

    def refresh(self) -> None:
        if host_clock() - self._drawn_at >= 1 / FRAMES_PER_SECOND:
            self._draw()

    def close(self) -> None:
        self._live.stop()

    def show(self, checks: Sequence[Check]) -> None:
        table = Table.grid(padding=(0, 2, 0, 0))
        for check in checks:
            style = "bold" if check.held else "bold white on red"
            table.add_row(Text(_verdict(check), style=style), Text(check.name), Text(check.text))
        self._console.print(f"\n{HEADING}")
        self._console.print(table)
        self._console.print(Text(summary(checks), style="bold"))

    def _draw(self) -> None:
        now, (width, height) = host_clock(), self._console.size
        # One line is left for the cursor, or the terminal would scroll with each frame.
        view = self._draw_frame(self._events, now=now, width=width, height=height - 1)
        self._live.update(view, refresh=True)
        self._drawn_at = now


def summary(checks: Sequence[Check]) -> str:
    """The last line."""
    failed = [check.name for check in checks if not check.held]
    if failed:
        return f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}"
    return f"all {len(checks)} checks held"


def _verdict(check: Check) -> str:
    return "PASS" if check.held else "FAIL"


def _print(*lines: str) -> None:
    # The reader of a pipe wants each line as it happens.
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


# One frame


def frame(run: Run, events: Sequence[StoryEvent], *, title: str, now: float, width: int, height: int) -> RenderableType:
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
    # Each of these takes exactly one line: the tables fit into 80 columns, and everything else is cropped.
    taken = len(above) + len(_latest(run))
    latest = sorted(events, key=lambda event: event.at)[-height:]  # Notes may arrive out of order.
    lines = [line for event in latest for line in spelled(event, width)]
    room = max(0, height - taken)
    shown = lines[-room:] if room else []
    return Group(*above, *(Text(line, no_wrap=True, overflow="crop") for line in shown))


def spelled(event: StoryEvent, width: int | None = None) -> list[str]:
    """An event as a line; or, within `width` columns, as several."""
    start = f"{event.at:9.3f} s  {event.kind:<6} {event.who:<8} "
    if width is None:
        return [start + event.text]
    return textwrap.wrap(start + event.text, width, subsequent_indent=" " * len(start)) or [start]


def _title(title: str, time: str, width: int) -> Text:
    return Text(f"{title:<{width - len(time) - 1}.{width - len(time) - 1}} {time}", style="bold", no_wrap=True)


def _latest(run: Run) -> list[Life]:
    """The current life of each member, in the order of their names."""
    return sorted({life.name: life for life in run.lives}.values(), key=lambda life: life.name)


def _styles(run: Run) -> dict[str, str]:
    return {life.name: style for life, style in zip(_latest(run), MEMBER_STYLES, strict=False)}


def _members(run: Run, now: float) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    widths = {"member": 12, "process": 8, "state": 18, "leads": 5, "heartbeat": 11, "lease": 11}
    for column, width in widths.items():
        justify: JustifyMethod = "left" if column in ("member", "state") else "right"
        table.add_column(column, width=width, justify=justify, no_wrap=True)
    styles = _styles(run)
    for life in _latest(run):
        left = life.until - now
        name = Text.assemble((f" {_letter(life)} ", styles[life.name]), f" {life.name}")
        ran = bool(life.spans)
        table.add_row(
            name,
            str(life.pid),
            _state(life),
            str(sum(span.since <= now < span.until for span in life.held.values())),
            f"{now - (life.until - run.lease):.2f} s ago" if ran else "none yet",
            (f"{left:.2f} s left" if left > 0 else "over") if ran else "none yet",
        )
    return table


def _state(life: Life) -> str:
    if life.phase is LifePhase.MEMBER:
        return "leads" if life.held else "reads along"
    return _STATES[life.phase]


def _letter(life: Life) -> str:
    """The member's letter: a capital if its process runs."""
    letter = life.name[0].upper()
    return letter.lower() if life.phase in (LifePhase.KILLED, LifePhase.STOPPED) else letter


def _cells(run: Run, now: float) -> tuple[list[Text], int]:
    """Rows of partitions, and how many partitions do not fit into them."""
    styles = _styles(run)
    leaders: list[list[Life]] = [[] for _ in range(run.partitions)]
    for life in run.lives:
        for span in life.held.values():
            if span.since <= now < span.until:
                leaders[span.partition].append(life)
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
    text = f"       A may act  a dead or stopped, lease not over  . none  ! two leaders{more}"
    return Text(text, no_wrap=True, overflow="crop", style="dim")


def _traffic(run: Run) -> list[Text]:
    routed = run.routed
    answers = ", ".join(f"{name} {count:,}" for name, count in sorted(dict(routed.answers).items()))
    samples = ", ".join(f"{key} -> {name}" for key, name in dict(routed.samples).items())
    first = "look-ups  none yet"
    if routed.lookups:
        each = routed.seconds / routed.lookups * 1e6
        first = f"look-ups  {routed.lookups:,}, {each:.2f} microseconds each; {routed.unanswered:,} without an answer"
    lines = (first, f"answers   {answers or 'none yet'}", f"now       {samples or 'none yet'}")
    return [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]
