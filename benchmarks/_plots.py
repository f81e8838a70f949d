"""Plots: panels of curves, or a row for each range, in one SVG, which follows the reader's light or dark theme.

    Panel: the label of its x axis, and curves    --drawn(title, unit, panels)-->    one picture with one y axis
    Range: a name, and three numbers              --ranges(title, unit, rows)-->     one picture with one x axis

All x axes are logarithmic, and marked at the sizes that were measured. The y axis is logarithmic if the values span
more than a decade, and begins at zero otherwise. A dashed curve with hollow marks is a simulated one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Literal

__all__ = ["Curve", "Panel", "Range", "drawn", "ranges", "short"]

WIDTH, HEIGHT, GAP, LEFT, TOP = 330, 190, 34, 82, 62
BELOW = 46
MARK = 3.5
ROW = 24

STYLE = """
svg { --ink: #1b1b1b; --dim: #5f5f5f; --line: #d8d8d8; --paper: #fff; --first: #0072b2; --second: #d55e00; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #ececec; --dim: #a8a8a8; --line: #444; --paper: #161616; --first: #56b4e9; --second: #e69f00; }
}
text { fill: var(--ink); font: 11px system-ui, sans-serif; } .title { font-size: 13px; font-weight: bold; }
.dim { fill: var(--dim); } .line { stroke: var(--line); } .paper { fill: var(--paper); }
polyline, circle { fill: none; stroke-width: 2; } .dashed { stroke-dasharray: 5 4; }
.first { stroke: var(--first); } circle.first { fill: var(--first); }
.second { stroke: var(--second); } circle.second { fill: var(--second); } circle.hollow { fill: var(--paper); }
"""
"""Okabe and Ito's colours, as in the demo: people with any kind of colour vision can distinguish them."""


@dataclass(frozen=True, slots=True)
class Curve:
    name: str
    points: Sequence[tuple[float, float]]
    colour: Literal["first", "second"] = "first"
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    label: str
    curves: Sequence[Curve]


@dataclass(frozen=True, slots=True)
class Range:
    """From `least` to `most`, with a mark at `middle`."""

    name: str
    least: float
    middle: float
    most: float
    ours: bool = True


def short(value: float) -> str:
    """A number as an axis or a table shows it: three digits, and thousands with a comma."""
    if value == 0:
        return "0"
    digits = max(0, 2 - floor(log10(abs(value)) + 1e-9))
    text = f"{round(value, 2 - floor(log10(abs(value)) + 1e-9)):,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def drawn(title: str, unit: str, panels: Sequence[Panel]) -> str:
    """The picture, as the text of an SVG file."""
    values = [y for panel in panels for curve in panel.curves for _, y in curve.points]
    y_axis = _Axis(min(values), max(values), TOP + HEIGHT, TOP)
    width, height = LEFT + len(panels) * (WIDTH + GAP), TOP + HEIGHT + BELOW
    parts = [
        *_opened(title, unit, width, height),
        *_legend({curve.name: curve for panel in panels for curve in panel.curves}),
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, LEFT + number * (WIDTH + GAP), y_axis, labelled=number == 0)
    return "\n".join([*parts, "</svg>", ""])


def ranges(title: str, unit: str, rows: Sequence[Range]) -> str:
    """The picture, as the text of an SVG file: a row for each range, with its middle in numbers."""
    left, bottom = 24 + 6.2 * max(len(row.name) for row in rows), 48 + ROW * len(rows)
    x_axis = _Axis(min(row.least for row in rows), max(row.most for row in rows), left, left + WIDTH)
    parts = _opened(title, unit, ceil(left + WIDTH + 60), bottom + 34)
    for tick in x_axis.ticks:
        x = x_axis.at(tick)
        parts += [
            f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="38" y2="{bottom}"/>',
            f'<text class="dim" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{short(tick)}</text>',
        ]
    for number, row in enumerate(rows):
        y, colour = 48 + ROW * (number + 0.5), "first" if row.ours else "second"
        least, middle, most = (x_axis.at(it) for it in (row.least, row.middle, row.most))
        parts += [
            f'<text x="{left - 10:.0f}" y="{y + 4:.0f}" text-anchor="end">{escape(row.name)}</text>',
            f'<polyline class="{colour}" points="{least:.1f},{y:.1f} {most:.1f},{y:.1f}"/>',
            f'<circle class="{colour}" cx="{middle:.1f}" cy="{y:.1f}" r="{MARK + 1}"/>',
            f'<text class="dim" x="{most + 8:.1f}" y="{y + 4:.0f}">{short(row.middle)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _opened(title: str, unit: str, width: int, height: int) -> list[str]:
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        f"<title>{escape(title)}, {escape(unit)}</title><style>{STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
        f'<text class="title" x="{LEFT}" y="20">{escape(title)}, {escape(unit)}</text>',
    ]


class _Axis:
    """Maps values to positions, and has ticks."""

    def __init__(self, low: float, high: float, start: float, end: float, *, ticks: Sequence[float] = ()) -> None:
        self.is_log = bool(ticks) or (low > 0 and high / low > 10)
        self.ticks = list(ticks) or (self._decades(low, high) if self.is_log else self._steps(high))
        self._low, self._high = (min(self.ticks), max(self.ticks)) if not ticks else (low, high)
        self._start, self._end = start, end

    @staticmethod
    def _decades(low: float, high: float) -> list[float]:
        return [10.0**power for power in range(floor(log10(low)), ceil(log10(high)) + 1)]

    @staticmethod
    def _steps(high: float) -> list[float]:
        size = 10 ** floor(log10(high))
        step = next(it * size for it in (0.1, 0.2, 0.5, 1, 2) if high / (it * size) <= 6)
        return [step * number for number in range(ceil(high / step) + 1)]

    def at(self, value: float) -> float:
        low, high = (log10(self._low), log10(self._high)) if self.is_log else (self._low, self._high)
        share = ((log10(value) if self.is_log else value) - low) / ((high - low) or 1)
        return self._start + share * (self._end - self._start)


def _legend(curves: dict[str, Curve]) -> Iterator[str]:
    x = float(LEFT)
    for name, curve in curves.items():
        yield _mark(x + 6, 37, curve) + f'<text class="dim" x="{x + 16:.0f}" y="41">{escape(name)}</text>'
        x += 34 + 6.2 * len(name)


def _panel(panel: Panel, left: float, y_axis: _Axis, *, labelled: bool) -> Iterator[str]:
    sizes = sorted({x for curve in panel.curves for x, _ in curve.points})
    x_axis = _Axis(sizes[0], sizes[-1], left + 14, left + WIDTH - 14, ticks=sizes)
    for tick in y_axis.ticks:
        y = y_axis.at(tick)
        yield f'<line class="line" x1="{left:.0f}" x2="{left + WIDTH:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        if labelled:
            yield f'<text class="dim" x="{left - 8:.0f}" y="{y + 4:.1f}" text-anchor="end">{short(tick)}</text>'
    for tick in sizes:
        x = x_axis.at(tick)
        yield f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP + HEIGHT}" y2="{TOP + HEIGHT + 5}"/>'
        yield f'<text class="dim" x="{x:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{tick:,.0f}</text>'
    middle = left + WIDTH / 2
    yield f'<text x="{middle:.0f}" y="{TOP + HEIGHT + 36}" text-anchor="middle">{escape(panel.label)}</text>'
    for curve in panel.curves:
        places = [(x_axis.at(x), y_axis.at(y)) for x, y in sorted(curve.points)]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dashed = " dashed" if curve.simulated else ""
        yield f'<polyline class="{curve.colour}{dashed}" points="{line}"/>'
        yield from (_mark(x, y, curve) for x, y in places)


def _mark(x: float, y: float, curve: Curve) -> str:
    hollow = " hollow" if curve.simulated else ""
    return f'<circle class="{curve.colour}{hollow}" cx="{x:.1f}" cy="{y:.1f}" r="{MARK}"/>'
