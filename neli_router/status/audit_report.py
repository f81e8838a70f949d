"""The report of an audit: one HTML file with pictures, for a person to read at a glance.

    Audit --> verdict, facts, findings
         '--> pictures over time: who owned each partition | the members' shares | how even they were
         '--> takeovers, as a histogram; the members

It needs no other file and no network, so it can be mailed and kept. The pictures are SVG in the document; a script adds
tooltips and zooming. The report looks like the status page and includes its style sheet, in light and dark.

**A colour stays with a name**: names get their looks in the order in which they first joined. Names come from the
ledger, and so from anything that may write there: they are text everywhere, never markup. The document's own policy
forbids every script except the one whose hash it names.

**Bounds.** A history may have millions of tenures, but a screen has about two thousand columns. So of each partition's
tenures that begin in one column, only the longest is drawn; and the more partitions there are, the fewer columns.
"""

import base64
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from itertools import islice, zip_longest
from math import isfinite
from string import Template
from typing import Any, get_args

from neli_router.errors import plain
from neli_router.protocols.protocol import Cause
from neli_router.status.annals import Ending, TenureSpan
from neli_router.status.audit import Audit, figures, lasting

__all__ = ["html_of"]

WIDTH = 100_000
"""Units of the time axis in all pictures. Zoomed in fifty times, two thousand of them are still in view."""

COLUMNS_MAX = 3000
TENURES_MAX = 300_000
"""The most tenures that are drawn; that is about 15 MB. More would be slow to open, and could not be distinguished."""

HUES, TINTS = 8, 5

SHARE_COLUMNS = 700
GAPS_MAX, OVERLAPS_MAX = 100_000, 4000
"""The most leaderless times, each for one partition, and the most overlaps that are drawn: always the longest."""

NAMES_MAX = 200
"""The most names in the legend and the table: those that were members for longest. No one would read a longer list."""

BARS = 40

CAUSES: Sequence[str] = get_args(Cause)
ENDINGS: Sequence[str] = get_args(Ending)

VERDICTS = {
    "broken": "A promise was broken",
    "warning": "No promise was broken, and there is something to look at",
    "note": "No promise was broken",
}

SIGNS = {
    "broken": '<path d="M12 3 22 20H2Z"/><path d="M12 9v5M12 17v.2"/>',
    "warning": '<circle cx="12" cy="12" r="9.5"/><path d="M12 7v6M12 16.6v.2"/>',
    "note": '<circle cx="12" cy="12" r="9.5"/><path d="m7.5 12.5 3 3 6-6.5"/>',
}

ENDED = {"expire": "expired", "certify": "certified dead", "replaced": "replaced", "leave": "left"}


def html_of(audit: Audit, address: str) -> str:
    """The whole document. `address` says where the ledger is, without secrets."""
    drawing = _Drawing(audit)
    script, told = _asset("report/report.js"), drawing.told()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; base-uri 'none'"
    )
    genesis = audit.genesis
    return Template(_asset("report/report.html")).substitute(
        policy=policy,
        address=_text(address),
        page_style=_asset("page/page.css"),
        report_style=_asset("report/report.css"),
        settings=f"{genesis.guarantee}, lease {genesis.lease:g} s, {genesis.layout.partitions} partitions",
        period=_period(audit),
        verdict=_verdict(audit),
        facts=_facts(audit),
        times=drawing.times(),
        members=drawing.members(),
        findings=_findings(audit),
        takeovers=_takeovers(audit),
        plainly=_plainly(audit),
        told=told,
        script=script,
    )


class _Drawing:
    """The pictures over time, which share one scale."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._partitions, self._base = audit.genesis.layout.partitions, audit.genesis.base
        self._seconds = max(audit.seconds, 1e-9)
        self._names = list(dict.fromkeys(life.name for life in audit.lives))
        self._place = {name: place for place, name in enumerate(self._names)}
        present: defaultdict[str, float] = defaultdict(float)
        for life in audit.lives:
            present[life.name] += life.until - life.since
        longest = set(sorted(self._names, key=present.__getitem__, reverse=True)[:NAMES_MAX])
        self._told_names = [name for name in self._names if name in longest]
        by_partition: defaultdict[int, list[TenureSpan]] = defaultdict(list)
        for tenure in audit.tenures:
            by_partition[tenure.partition].append(tenure)
        columns = min(COLUMNS_MAX, max(1, TENURES_MAX // self._partitions))
        self._column = self._seconds / columns
        self._drawn = {partition: _visible(its, WIDTH // columns, self._x) for partition, its in by_partition.items()}

    def _x(self, time: float) -> int:
        return round(min(max((time - self._audit.since) / self._seconds, 0.0), 1.0) * WIDTH)

    def look(self, name: str) -> str:
        """The classes that page.css draws."""
        place = self._place[name]
        return f"hue-{place % HUES} tint-{place // HUES % TINTS}"

    def told(self) -> str:
        """The data for the script, encoded so that no name can end the element that contains it."""
        rows = [[self._row(it) for it in self._drawn.get(partition, ())] for partition in range(self._partitions)]
        told = {
            "width": WIDTH,
            "seconds": self._seconds,
            "began": self._audit.wall(self._audit.since),
            "partitions": self._partitions,
            "base": self._base,
            "names": [plain(name) for name in self._names],
            "looks": [self.look(name) for name in self._names],
            "causes": CAUSES,
            "endings": ENDINGS,
            "tenures": rows,
        }
        return json.dumps(told, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")

    def _row(self, tenure: TenureSpan) -> list[float | None]:
        return [
            self._x(tenure.since),
            None if tenure.last is None else self._x(tenure.until),
            self._place[tenure.member],
            tenure.term - self._base,
            CAUSES.index(tenure.cause),
            ENDINGS.index(tenure.ending),
            round(tenure.led_from - tenure.since, 3) if tenure.led_until > tenure.led_from else None,
        ]

    def times(self) -> str:
        """All pictures over time, stacked vertically."""
        tall = min(620, max(150, round(2.4 * self._partitions)))
        rows = [0, self._partitions // 4, self._partitions // 2, 3 * self._partitions // 4, self._partitions]
        labels = "".join(
            f'<span style="top:{100 * row / self._partitions:.2f}%">{row}</span>' for row in sorted({*rows})
        )
        names = "".join(
            f'<li><button type="button" aria-pressed="false" data-name="{self._place[name]}">'
            f'<span class="cell sample {self.look(name)}"></span><bdi>{_text(name)}</bdi></button></li>'
            for name in self._told_names
        )
        unled = "light: not led &middot; " if self._audit.gaps else ""
        overlaps = "red: two acted at the same time &middot; " if self._audit.overlaps else ""
        top = max(2.0, self._audit.balance_worst) * 1.05
        events = _picture("strip-events", "Joins and ends of members", 1, self._events())
        owners = _picture("owners", "Owners of partitions over time", self._partitions, self._owners())
        shares = _picture("shares", "Partitions of each member over time", self._partitions, self._shares())
        ratio = _picture("ratio", "How even the shares were, over time", top, self._ratio(top))
        even, twice = (f"{100 * (1 - at / top):.1f}%" for at in (1, 2))
        return f"""<section class="panel partitions" aria-labelledby="owners-title">
<div class="title"><h2 id="owners-title">Who owned each partition, when</h2>
<span class="note">{unled}{overlaps}drag to zoom
<button type="button" id="whole" class="quiet small" hidden>All of it</button></span></div>
<div class="times" style="--tall:{tall}px">
<div class="y"></div>{events}
<div class="y">{labels}</div>{owners}
<p class="caption">Partitions of each member</p>
<div class="y"><span style="top:4%">{self._partitions}</span><span style="top:96%">0</span></div>{shares}
<p class="caption">The largest share over the fair one: {self._audit.balance_mean:.2f} on average,
{self._audit.balance_worst:.2f} at most</p>
<div class="y"><span style="top:{even}">1</span><span style="top:{twice}">2</span></div>{ratio}
<div class="y"></div>
<div class="ticks" aria-hidden="true"></div>
<div class="cursor" hidden></div><div class="choice" hidden></div>
</div>
<ul class="names" aria-label="Members">{names}</ul>
</section>"""

    def _events(self) -> str:
        kinds: defaultdict[str, set[int]] = defaultdict(set)
        for life in self._audit.lives:
            kinds["join"].add(self._x(life.since))
            if life.ended is not None:
                kinds["leave" if life.ending == "leave" else "end"].add(self._x(life.until))
        return "".join(
            f'<path class="{kind}" d="{"".join(f"M{x} 0V1" for x in sorted(kinds[kind]))}"/>'
            for kind in ("join", "leave", "end")
            if kinds[kind]
        )

    def _owners(self) -> str:
        boxes: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for partition, tenures in self._drawn.items():
            for tenure, later in zip_longest(tenures, tenures[1:]):
                start, end = self._x(tenure.since), self._x(tenure.until)
                if later is not None and tenure.until >= later.since - self._column:
                    end = self._x(later.since)  # Tenures in between that are not drawn leave no hole.
                boxes[tenure.member].append((start, end, partition))
        drawn = "".join(
            f'<path class="{self.look(name)}" data-name="{self._place[name]}" d="{_boxes(boxes[name])}"/>'
            for name in self._names
            if boxes[name]
        )
        longest = sorted(self._audit.gaps, key=lambda it: it.seconds, reverse=True)
        boxes_of_gaps = ((self._x(it.since), self._x(it.until), row) for it in longest for row in it.partitions)
        gaps = list(islice(boxes_of_gaps, GAPS_MAX))
        if gaps:
            drawn += f'<path class="unled" d="{_boxes(gaps)}"/>'
        if self._audit.overlaps:
            overlaps = sorted(self._audit.overlaps, key=lambda it: it.seconds, reverse=True)[:OVERLAPS_MAX]
            spans = [(self._x(it.since), self._x(it.since + it.seconds), it.partition) for it in overlaps]
            drawn += f'<path class="overlaps" d="{_boxes(spans)}"/>'
        return drawn

    def _shares(self) -> str:
        """Steps, stacked; each column shows the state at its end."""
        changes: list[tuple[int, int, int]] = []
        for tenure in self._audit.tenures:
            place = self._place[tenure.member]
            changes.append((self._x(tenure.since), place, 1))
            if tenure.last is not None:
                changes.append((self._x(tenure.until), place, -1))
        changes.sort()
        counts, columns, at = [0] * len(self._names), [], 0
        for column in range(SHARE_COLUMNS):
            edge = (column + 1) * WIDTH // SHARE_COLUMNS
            # At the very end the members leave, and there would be nothing to see.
            while at < len(changes) and changes[at][0] < edge:
                _, place, step = changes[at]
                counts[place] += step
                at += 1
            columns.append(tuple(counts))
        below = [0] * SHARE_COLUMNS
        drawn = ""
        for place, name in enumerate(self._names):
            boxes = []
            start = 0
            for column in range(SHARE_COLUMNS):
                is_last = column + 1 == SHARE_COLUMNS
                here = below[column], columns[column][place]
                if not is_last and here == (below[column + 1], columns[column + 1][place]):
                    continue
                if here[1]:
                    x, end = start * WIDTH // SHARE_COLUMNS, (column + 1) * WIDTH // SHARE_COLUMNS
                    boxes.append(f"M{x} {self._partitions - here[0]}H{end}v{-here[1]}H{x}z")
                start = column + 1
            below = [low + columns[column][place] for column, low in enumerate(below)]
            if boxes:
                drawn += f'<path class="{self.look(name)}" data-name="{place}" d="{"".join(boxes)}"/>'
        return drawn

    def _ratio(self, top: float) -> str:
        step = WIDTH // SHARE_COLUMNS
        columns: dict[int, list[float]] = {}
        for time, ratio in self._audit.balance:
            columns.setdefault(self._x(time) // step, []).append(ratio)
        # Draw each column up to its worst value, then back to its last.
        path = "".join(
            f"{'H' if place else 'M'}{column * step}{'' if not place else 'V'}"
            f"{'' if place else ' '}{top - max(ratios):.3f}V{top - ratios[-1]:.3f}"
            for place, (column, ratios) in enumerate(sorted(columns.items()))
        )
        lines = "".join(f'<line x1="0" x2="{WIDTH}" y1="{top - at:.3f}" y2="{top - at:.3f}"/>' for at in (1, 2))
        return f'{lines}<path d="{path}H{WIDTH}"/>' if path else lines

    def members(self) -> str:
        """A row for each name."""
        lives = defaultdict(list)
        for life in self._audit.lives:
            lives[life.name].append(life)
        longest: defaultdict[str, list[float]] = defaultdict(list)
        for takeover in self._audit.takeovers:
            if isfinite(takeover.led):
                longest[takeover.member].append(takeover.seconds)
        rows = []
        for name in self._told_names:
            its = lives[name]
            ends = {kind: sum(life.ending == kind for life in its) for kind in ENDED}
            present = sum(life.until - life.since for life in its) / self._seconds
            took = figures(longest[name])
            cells = [
                len(its),
                *ends.values(),
                f"{min(present, 1.0):.1%}",
                max(life.owned_max for life in its),
                f"{sum(life.beats for life in its):,}",
                "&ndash;" if took is None else f"{lasting(took.median)} / {lasting(took.longest)}",
            ]
            numbers = "".join(f'<td class="number">{cell}</td>' for cell in cells)
            rows.append(
                f'<tr><th scope="row"><span class="named"><span class="cell sample {self.look(name)}"></span>'
                f"<bdi>{_text(name)}</bdi></span></th>{numbers}</tr>"
            )
        left_out = len(self._names) - len(self._told_names)
        more = f"; {left_out:,} names that were members for shorter are left out" if left_out else ""
        heads = ("joined", *ENDED.values(), "present", "most owned", "Beats", "taken over in, median / longest")
        head = "".join(f'<th scope="col" class="number note">{name}</th>' for name in heads)
        return f"""<section class="panel members" aria-labelledby="members-title">
<div class="title"><h2 id="members-title">Members</h2>
<span class="note">by name; each time that one joined is a new incarnation{more}</span></div>
<div class="scroll"><table><thead><tr><th scope="col" class="note">name</th>{head}</tr></thead>
<tbody>{"".join(rows)}</tbody></table></div></section>"""


def _visible(tenures: Iterable[TenureSpan], step: int, x: Any) -> list[TenureSpan]:
    """The longest of the tenures that begin in one column of `step` units, for each column."""
    found: list[TenureSpan] = []
    for tenure in tenures:
        if found and x(tenure.since) // step == x(found[-1].since) // step:
            if tenure.until - tenure.since > found[-1].until - found[-1].since:
                found[-1] = tenure
        else:
            found.append(tenure)
    return found


def _boxes(boxes: Iterable[tuple[int, int, int]]) -> str:
    """A path of boxes (start, end, row); adjacent rows with the same times become one box."""
    by_time: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for start, end, row in boxes:
        by_time[start, max(end, start + 1)].append(row)
    drawn = []
    for (start, end), rows in sorted(by_time.items()):
        rows.sort()
        starts = [row for before, row in zip([None, *rows], rows, strict=False) if before is None or row > before + 1]
        ends = [row for row, after in zip_longest(rows, rows[1:]) if after is None or after > row + 1]
        for first, last in zip(starts, ends, strict=True):
            drawn.append(f"M{start} {first}h{end - start}v{last - first + 1}h{start - end}z")
    return "".join(drawn)


def _verdict(audit: Audit) -> str:
    said = {"broken": "broken", "warning": "to look at", "note": "to know"}
    counts = {name: sum(it.severity == name for it in audit.findings) for name in said}
    found = ", ".join(f"{count} {said[name]}" for name, count in counts.items() if count) or "nothing found"
    notes = (
        f"by the ledger and by the notes of {len(audit.noted)} processes"
        if audit.noted
        else "by the ledger alone, which does not say who acted"
    )
    return f"""<section class="verdict" data-is="{audit.verdict}" aria-label="Verdict">
<svg viewBox="0 0 24 24" aria-hidden="true">{SIGNS[audit.verdict]}</svg>
<div><strong>{VERDICTS[audit.verdict]}</strong><p>{found}; {notes}</p></div></section>"""


def _facts(audit: Audit) -> str:
    took, gaps, handed = audit.takeover_times, audit.gap_times, audit.handover_times
    facts = [
        ("led", f"{audit.led:.2%}", "of the time"),
        ("longest gap", lasting(gaps.longest) if gaps else "none", ""),
        ("takeovers", f"{took.count:,}" if took else "none", ""),
        ("median takeover", lasting(took.median), f"&plusmn; {lasting(audit.takeover_error)}")
        if took
        else ("median takeover", "&ndash;", ""),
        ("handovers", f"{handed.count:,}", f"median {lasting(handed.median)}") if handed else ("handovers", "none", ""),
        ("moves", f"{audit.moved:,}", f"of {audit.planned:,} planned"),
        ("balance", f"{audit.balance_mean:.2f}", "max / fair, mean"),
        ("overlaps", f"{len(audit.overlaps):,}" if audit.noted else "not known", ""),
        ("tenures", f"{len(audit.tenures):,}", ""),
        ("records", f"{audit.records:,}", f"{sum(audit.void.values()):,} void"),
    ]
    alarms = {"moves": audit.needless, "overlaps": audit.overlaps and audit.exclusive}
    cells = "".join(
        f"<div{' class=alarms' if alarms.get(name) else ''}><dt>{name}</dt><dd>{value} <small>{more}</small></dd></div>"
        for name, value, more in facts
    )
    return f'<dl class="facts" aria-label="The history at a glance">{cells}</dl>'


def _findings(audit: Audit) -> str:
    items = []
    for it in audit.findings:
        wall = None if it.time is None else audit.wall(it.time)
        place = [it.kind, *([f"offset {it.offset:,}"] if it.offset is not None else [])]
        if it.time is not None:
            place.append(_clock(wall) if wall is not None else f"after {it.time - audit.since:.1f} s")
        items.append(
            f'<li><span class="sign" data-is="{it.severity}" role="img" aria-label="{it.severity}"></span>'
            f'<span>{_text(it.text)}</span><span class="note">{" &middot; ".join(place)}</span></li>'
        )
    listed = "".join(items) or '<li><span class="sign"></span><span>Nothing was found.</span></li>'
    return _panel("findings", "Findings", "", f'<ul class="findings-list scrolled">{listed}</ul>')


def _takeovers(audit: Audit) -> str:
    """A histogram of the takeovers that ended."""
    times = sorted(it.seconds for it in audit.takeovers if isfinite(it.led))
    never = len(audit.takeovers) - len(times)
    took = audit.takeover_times
    if took is None:
        return _panel("takeovers", "Takeovers", "", '<p class="note">No member died or was cut off.</p>')
    lease = audit.genesis.lease
    step = _step(max(took.longest, lease) / BARS * 2)
    high = max(step * (int(took.longest / step) + 1), lease * 1.2)
    bars: defaultdict[int, int] = defaultdict(int)
    for time in times:
        bars[int(max(0.0, time) / step)] += 1
    most = max(bars.values())

    def x(time: float) -> float:
        return 300 * time / high

    drawn = "".join(
        f'<rect x="{x(bar * step) + 0.4:.2f}" y="{118 - 100 * count / most:.2f}" width="{max(1.0, x(step) - 0.8):.2f}" '
        f'height="{100 * count / most:.2f}" rx="1">'
        f"<title>{lasting(bar * step)} to {lasting((bar + 1) * step)}: {count}</title></rect>"
        for bar, count in sorted(bars.items())
    )
    side = "end" if x(took.median) > 150 else "start"
    shift = -5 if side == "end" else 5
    apart = _step(high / 5)
    marks = "".join(
        f'<text x="{x(at):.1f}" y="134" text-anchor="middle">{lasting(at) if at else "0"}</text>'
        for at in (apart * place for place in range(int(high * 0.97 / apart) + 1))
    )
    unled = f", {never} never led again" if never else ""
    middle = x(took.median)
    said = (
        f'<text class="said" x="{middle + shift:.1f}" y="11" text-anchor="{side}">median {lasting(took.median)}</text>'
    )
    body = f"""<svg class="bars" viewBox="0 0 300 138" role="img" aria-label="Takeovers by how long they took">
<line x1="0" x2="300" y1="118.5" y2="118.5"/>{drawn}{marks}
<line class="middle" x1="{middle:.1f}" x2="{middle:.1f}" y1="4" y2="118"/>{said}</svg>
<p class="note">p90 {lasting(took.p90)}, longest {lasting(took.longest)}; the lease is {lasting(lease)}.
A member dies somewhere between two Beats, {lasting(audit.beat)} apart: the middle is taken.</p>"""
    return _panel("takeovers", "Takeovers", f"from death to led again{unled}", body)


def _plainly(audit: Audit) -> str:
    clocks = (
        "All members are on one clock."
        if audit.error == 0
        else f"The members have several clocks, which their Beats align to within {lasting(audit.error)}."
    )
    led = (
        "When partitions were led is by the members' own notes."
        if audit.noted_whole
        else "When partitions were led follows from the rules: an owner leads until it hands over, leaves or dies; a "
        "successor leads once it owns the partition and owes no wait."
    )
    overlaps = (
        "Overlaps are by the members' notes of when they acted."
        if audit.noted
        else "A ledger does not say who acted. Overlaps cannot be found without the members' notes."
    )
    facts = (
        f"Members, terms, tenures and moves are facts: every reader of the ledger, from offset {audit.first:,} to "
        f"{audit.state.at:,}, comes to the same. Their times come from the members' Beats. {clocks}"
    )
    said = "".join(f"<p>{text}</p>" for text in (facts, led, overlaps))
    return _panel("plainly", "How this is known", "", f'<div class="said-plainly">{said}</div>')


def _panel(name: str, title: str, note: str, body: str) -> str:
    aside = f'<span class="note">{note}</span>' if note else ""
    return f"""<section class="panel" aria-labelledby="{name}-title">
<div class="title"><h2 id="{name}-title">{title}</h2>{aside}</div>
{body}</section>"""


def _picture(kind: str, label: str, height: float, drawn: str) -> str:
    box = f'viewBox="0 0 {WIDTH} {height:.4g}" preserveAspectRatio="none"'
    return f'<svg class="{kind}" {box} role="img" aria-label="{label}">{drawn}</svg>'


def _period(audit: Audit) -> str:
    start, end = audit.wall(audit.since), audit.wall(audit.until)
    if start is None or end is None:
        return lasting(audit.seconds)
    first, last = _clock(start, day=True), _clock(end, day=True)
    last = last[11:] if first[:10] == last[:10] else last
    return f"{first} to {last} UTC, {lasting(audit.seconds)}"


def _clock(wall: float, *, day: bool = False) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M:%S" if day else "%H:%M:%S UTC")


def _step(least: float) -> float:
    """A round number of at least `least`."""
    unit = 10.0 ** int(f"{least:e}".partition("e")[2])
    return next(unit * times for times in (1, 2, 5, 10) if unit * times >= least)


def _text(text: str) -> str:
    return escape(plain(text))


def _asset(name: str) -> str:
    return resources.files("neli_router.status").joinpath(name).read_text(encoding="utf-8")
