"""The pictures of one run: a self-contained page of HTML, which any browser shows and any mail can carry.

    partitions x time    each partition is a row; a mark is a commit that landed rows, in the colour of its host
    freshness            each commit is a dot: how old its newest interval was when it landed

Everything is drawn from the table's log and from the group's ledger, which records the owner of each term. The page
follows the reader's light or dark theme, needs no script and no network, and says in words what the colours say.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neli_router.lab.demo.checks import Check
from neli_router.lab.demo.screen import summary
from neli_router.lab.pipeline.landing import TableCommit

__all__ = ["Picture", "page"]

WIDTH, LEFT, RIGHT = 960, 60, 20
ROW = 14
AGE_HEIGHT = 160
MARK = 3
ABOVE = 18

AGES = (
    "Each dot is a commit: how old its newest interval was when it landed. "
    "A ring is a host's first step, in which Spark also compiles the job."
)

COLOURS = ("#0072b2", "#e69f00", "#009e73")
"""Okabe and Ito's, as in the demo: people with any kind of colour vision can distinguish them."""

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --dim: #6b6b6b; --line: #d8d8d8; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececec; --dim: #a0a0a0; --line: #444; --paper: #161616; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 1000px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.35rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
svg { width: 100%; height: auto; } text { fill: var(--ink); font: 11px system-ui, sans-serif; }
.dim { fill: var(--dim); color: var(--dim); } .line { stroke: var(--line); }
.kill { stroke: #d00000; stroke-width: 1.5; stroke-dasharray: 4 3; } .killed { fill: #d00000; font-weight: bold; }
table { border-collapse: collapse; } td { padding: .25rem .9rem .25rem 0; vertical-align: top; }
td:not(:last-child) { white-space: nowrap; } .keys { margin-left: -1em; }
.verdict { font-weight: bold; } .fail { color: #fff; background: #d00000; padding: 0 .4rem; }
.host { white-space: nowrap; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .35em 0 1em; border-radius: 2px; }
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """The data to draw. Times are wall-clock times."""

    hosts: Sequence[str]
    intervals: Sequence[float]
    """When each interval came."""
    partitions: int
    commits: Sequence[TableCommit]
    owners: Mapping[tuple[int, int], str]
    """(partition, term) -> the host that had it."""
    killed: str
    killed_at: float
    """0 if the run ended before the kill."""


def page(title: str, picture: Picture, checks: Sequence[Check]) -> str:
    """The whole page."""
    told = html.escape(title)
    body = [f"<h1>{told}</h1>", f'<p class="verdict">{html.escape(summary(checks))}</p>', _table(checks)]
    times = [*picture.intervals, *(commit.at for commit in picture.commits)]
    if times:
        words = (
            "Each row is a partition, each mark a commit that landed an interval or more, and each ring a raised fence."
        )
        scale = _Scale(min(times), max(times))
        keys = "".join(
            f'<span class="host"><span class="key" style="background:{colour}"></span>{html.escape(host)}</span> '
            for host, colour in zip(picture.hosts, COLOURS, strict=True)
        )
        body += [
            "<h2>Who published which partition, and when</h2>",
            f'<p>{words}</p><p class="keys">{keys}</p>',
            _map(picture, scale),
            "<h2>Freshness</h2>",
            f"<p>{AGES}</p>",
            _freshness(picture, scale),
        ]
    head = f'<meta charset="utf-8"><title>{told}</title><meta name="viewport" content="width=device-width">'
    return (
        f"<!doctype html><html lang=en><head>{head}<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


class _Scale:
    """Maps times to x positions."""

    def __init__(self, since: float, until: float) -> None:
        self.since, self.seconds = since, max(1.0, until - since)

    def x(self, at: float) -> float:
        return LEFT + (at - self.since) / self.seconds * (WIDTH - LEFT - RIGHT)

    def axis(self, y: float) -> str:
        step = next((it for it in (1, 2, 5, 10, 15, 30, 60, 120, 300, 3600) if self.seconds / it <= 14), 86_400)
        marks = []
        for second in range(0, int(self.seconds) + 1, step):
            x = self.x(self.since + second)
            marks.append(
                f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{y}"/>'
                f'<text class="dim" x="{x:.1f}" y="{y + 14}" text-anchor="middle">{second} s</text>'
            )
        return "".join(marks)


def _table(checks: Sequence[Check]) -> str:
    rows = "".join(
        f'<tr><td><span class="{"pass" if it.held else "fail"}">{"PASS" if it.held else "FAIL"}</span></td>'
        f"<td>{html.escape(it.name)}</td><td>{html.escape(it.text)}</td></tr>"
        for it in checks
    )
    return f"<table>{rows}</table>"


def _map(picture: Picture, scale: _Scale) -> str:
    height = ROW * picture.partitions
    colours = dict(zip(picture.hosts, COLOURS, strict=True))
    parts = [scale.axis(height)]
    terms: dict[int, int] = {}
    since: dict[int, float] = {}
    spans: list[tuple[int, str, float, float]] = []
    marks = []

    def end(partition: int, at: float) -> None:
        if partition in terms:
            spans.append((partition, picture.owners.get((partition, terms[partition]), ""), since[partition], at))

    for commit in picture.commits:
        for partition, term in commit.terms.items():
            if terms.get(partition) == term:
                continue
            end(partition, commit.at)
            terms[partition], since[partition] = term, commit.at
            marks.append(
                _mark(scale, partition, commit.at, colours, picture.owners.get((partition, term), ""), ring=True)
            )
        for partition in commit.batches:
            owner = picture.owners.get((partition, terms.get(partition, 0)), "")
            marks.append(_mark(scale, partition, commit.at, colours, owner, ring=False))
    for partition in terms:
        end(partition, scale.since + scale.seconds)
    for partition, owner, begin, until in spans:
        y, x = ROW * partition + 2, scale.x(begin)
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{scale.x(until) - x:.1f}" height="{ROW - 4}" '
            f'fill="{colours.get(owner, "#888")}" opacity=".22">'
            f"<title>partition {partition}: {html.escape(owner)}</title></rect>"
        )
    every = max(1, picture.partitions // 24)
    parts += [
        f'<text class="dim" x="{LEFT - 8}" y="{ROW * it + ROW - 3}" text-anchor="end">{it}</text>'
        for it in range(0, picture.partitions, every)
    ]
    parts += [*marks, _kill(picture, scale, height)]
    return _svg(height + 24, "".join(parts), "Partitions over time: which host landed which of them")


def _mark(scale: _Scale, partition: int, at: float, colours: Mapping[str, str], owner: str, *, ring: bool) -> str:
    x, y, colour = scale.x(at), ROW * partition + ROW / 2, colours.get(owner, "#888")
    if ring:
        return f'<circle cx="{x:.1f}" cy="{y}" r="{MARK + 1}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
    return f'<rect x="{x - 1.2:.1f}" y="{y - MARK}" width="2.4" height="{2 * MARK}" fill="{colour}"/>'


def _freshness(picture: Picture, scale: _Scale) -> str:
    colours = dict(zip(picture.hosts, COLOURS, strict=True))
    terms: dict[int, int] = {}
    landed: list[tuple[float, float, str]] = []  # When, how long after its interval, and by which host.
    for commit in picture.commits:
        terms.update(commit.terms)
        for partition, upto in commit.batches.items():
            owner = picture.owners.get((partition, terms.get(partition, 0)), "")
            landed.append((commit.at, commit.at - picture.intervals[upto - 1], owner))
    top = max(1.0, *(age for _, age, _ in landed))
    parts, warm = [scale.axis(AGE_HEIGHT)], set[str]()
    for at, age, owner in sorted(set(landed)):
        x, y, colour = scale.x(at), AGE_HEIGHT - max(0.0, age) / top * (AGE_HEIGHT - 10), colours.get(owner, "#888")
        fill = colour if owner in warm else "none"
        warm.add(owner)
        title = f"<title>{html.escape(owner)}: {age:.1f} s</title>"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{MARK}" fill="{fill}" stroke="{colour}" stroke-width="1.5">'
            f"{title}</circle>"
        )
    parts += [
        f'<text class="dim" x="{LEFT - 8}" y="{y}" text-anchor="end">{age:.1f} s</text>'
        for y, age in ((14, top), (AGE_HEIGHT // 2 + 9, top / 2), (AGE_HEIGHT + 4, 0))
    ]
    parts.append(_kill(picture, scale, AGE_HEIGHT))
    return _svg(AGE_HEIGHT + 24, "".join(parts), "Freshness: how old each interval was when it landed")


def _kill(picture: Picture, scale: _Scale, height: float) -> str:
    if not picture.killed_at:
        return ""
    x = scale.x(picture.killed_at)
    return (
        f'<line class="kill" x1="{x:.1f}" x2="{x:.1f}" y1="-2" y2="{height}"/>'
        f'<text class="killed" x="{x:.1f}" y="-5" text-anchor="middle">{html.escape(picture.killed)} is killed</text>'
    )


def _svg(height: float, inside: str, words: str) -> str:
    return (
        f'<svg viewBox="0 -{ABOVE} {WIDTH} {height + ABOVE:g}" role="img" aria-label="{html.escape(words)}" '
        f'xmlns="http://www.w3.org/2000/svg">{inside}</svg>'
    )
