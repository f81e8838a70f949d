"""The screens: the story live in a terminal, or as plain lines anywhere else; and what came of it.

    a terminal           Live: one frame, drawn again and again where it stands; the last one stays
    a pipe, a file, ...  Plain: one line for each event, in a constant format, at once
                         --> the findings, a line each

`NO_COLOR` takes the colours out of the live view, which needs none; a terminal that can do nothing (`TERM=dumb`) gets
plain lines.
"""

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from neli_router.clock import host_clock
from neli_router.demo.checks import Finding
from neli_router.demo.frame import frame, spelled
from neli_router.demo.record import Run
from neli_router.demo.stage import Event

__all__ = ["LiveScreen", "PlainScreen", "summary", "wants_live"]

FRAMES_PER_SECOND = 10
"""More would show nothing that an eye could follow, and take the processor from the members."""

EVENTS_MAX = 200
"""More than any terminal has lines."""

HEADING = "Measured and checked:"

NAME_WIDTH = 16
"""The longest name of a check."""


def wants_live() -> bool:
    """Whether the standard output is a terminal that can draw."""
    return sys.stdout.isatty() and not Console().is_dumb_terminal


class PlainScreen:
    """One line for each event."""

    def __init__(self, title: str) -> None:
        _print(title)

    def tell(self, event: Event) -> None:
        _print(*spelled(event))

    def refresh(self) -> None:
        """Plain lines say nothing about the passing of time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def show(self, findings: Sequence[Finding]) -> None:
        _print(
            "", HEADING, *(f"{_verdict(finding)}  {finding.name:<{NAME_WIDTH}} {finding.text}" for finding in findings)
        )
        _print(summary(findings))


class LiveScreen:
    """The frame."""

    def __init__(self, title: str, run: Run) -> None:
        self._title, self._run = title, run
        self._events: list[Event] = []
        self._console = Console(highlight=False, force_terminal=True)
        self._live = Live(console=self._console, auto_refresh=False)
        self._drawn_at = -1.0

    def tell(self, event: Event) -> None:
        self._events = [*self._events, event][-EVENTS_MAX:]
        self._draw()

    def refresh(self) -> None:
        if host_clock() - self._drawn_at >= 1 / FRAMES_PER_SECOND:
            self._draw()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, findings: Sequence[Finding]) -> None:
        table = Table.grid(padding=(0, 2, 0, 0))
        for finding in findings:
            style = "bold" if finding.held else "bold white on red"
            table.add_row(Text(_verdict(finding), style=style), Text(finding.name), Text(finding.text))
        self._console.print(f"\n{HEADING}")
        self._console.print(table)
        self._console.print(Text(summary(findings), style="bold"))

    def _draw(self) -> None:
        now, (width, height) = host_clock(), self._console.size
        # A line is left for the cursor, or the terminal would scroll with each frame.
        view = frame(self._run, self._events, title=self._title, now=now, width=width, height=height - 1)
        self._live.update(view, refresh=True)
        self._drawn_at = now


def summary(findings: Sequence[Finding]) -> str:
    """The last line."""
    failed = [finding.name for finding in findings if not finding.held]
    if failed:
        return f"{len(failed)} of {len(findings)} checks failed: {', '.join(failed)}"
    return f"all {len(findings)} checks held"


def _verdict(finding: Finding) -> str:
    return "PASS" if finding.held else "FAIL"


def _print(*lines: str) -> None:
    # Whoever reads a pipe wants each line when it happens.
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
