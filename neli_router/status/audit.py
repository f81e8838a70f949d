"""The audit: how a group kept its promises, according to the annals of its ledger and the notes of its members.

    annals  lives, tenures, plans, ends --.
                                           +--> leading times --> coverage, gaps, takeovers --> findings --> a verdict
    notes   acting times (optional) -------'--> overlaps -----------------------------------------'

**What a ledger proves.** Members, terms, tenures and moves are facts. So are the signs that something went wrong: a
ledger that lost records, a term that went down, a member that computed another table.

**What it cannot prove.** It does not show which process *acted*. An owner acts while its lease holds, and a process
that breaks the rule leaves no record of that. So overlaps can only be found in the members' notes (`status/notes.py`),
and the audit says which notes it had. Without the notes of all members, the times at which a partition was led follow
from the protocol's rules: an owner leads until it hands over, leaves or dies; a successor leads once it owns the
partition and has no wait left.

    dead member   Beat . Beat . Beat . x                  it died between its last record and when the next Beat was
    ledger                                  Expire        due: the audit takes the middle, off by half a beat at most
    successor     <---- wait, from the last Beat --->|=====  led again

**Clocks.** Notes are on their writers' clocks, just as Beats are. A term belongs to one incarnation, and so identifies
the clock of its notes. With one clock, even the shortest overlap counts. With several, an overlap that the clocks'
error could explain does not count.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, inf, isfinite, nextafter
from operator import itemgetter
from statistics import median

from neli_router.status.annals import Annals, Finding, MemberLife, Severity, TenureSpan
from neli_router.status.notes import Span
from neli_router.status.time_axis import TOLERANCE

__all__ = [
    "Audit",
    "Figures",
    "LeadingGap",
    "NotedOverlap",
    "Takeover",
    "figures",
    "lasting",
]

CLOCK_ERROR = 2e-5
"""How far two processes of one host may differ in reading its clock (`NARROW_NS` of clock.py). A shorter overlap cannot
be seen."""

FLAPS_MIN = 4
FLAP_LEASES = 60.0
"""A name that joins this often within this many leases flaps. A deployment that restarts a process twice does not."""

EXAMPLES_MAX = 5
"""Findings of one kind that are listed one by one. If there are more, one more line gives their number."""

_SEVERITIES: Sequence[Severity] = ("broken", "warning", "note")


@dataclass(frozen=True, slots=True)
class Takeover:
    """The partitions of a member that died, or was cut off, went to others."""

    offset: int
    member: str
    incarnation: str
    partitions: int
    died: float
    led: float
    """When the last of its partitions was led again; infinite if one never was."""
    error: float
    """How far `seconds` may be off at most, if the member died."""

    @property
    def seconds(self) -> float:
        return self.led - self.died


@dataclass(frozen=True, slots=True)
class LeadingGap:
    """No member led these partitions from `since` to `until`."""

    since: float
    until: float
    partitions: tuple[int, ...]

    @property
    def seconds(self) -> float:
        return self.until - self.since


@dataclass(frozen=True, slots=True)
class NotedOverlap:
    """Two spans in the notes that share `seconds` of time. `since` is on the audit's axis."""

    partition: int
    first: Span
    second: Span
    since: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Statistics of some durations, in seconds."""

    count: int
    median: float
    p90: float
    longest: float


def figures(seconds: Iterable[float]) -> Figures | None:
    """The statistics of `seconds`; None if that is empty."""
    ordered = sorted(seconds)
    if not ordered:
        return None
    return Figures(len(ordered), median(ordered), ordered[ceil(0.9 * len(ordered)) - 1], ordered[-1])


def lasting(seconds: float) -> str:
    """A duration, for people: "470 ms", "3.9 s", "10 min 2 s", "3 d 4 h"."""
    if seconds < 0.9995:
        return f"{1e3 * seconds:.0f} ms"
    if seconds < 99.5:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [f"{count} {unit}" for count, unit in ((days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")) if count]
    return " ".join(parts[:2])


class Audit:
    """The audit of everything that `annals` have read, which it uses up. `acts` are from the notes of processes.

    All attributes are results to look at. Times are in seconds on one axis, which `wall` converts to the wall clock.
    Raises LedgerUnusable if the annals are not a history.
    """

    def __init__(self, annals: Annals, acts: Iterable[Span] = ()) -> None:
        annals.require_history()
        genesis, first = annals.state.genesis, annals.first
        assert genesis is not None
        assert first is not None
        self._annals, self._axis, self._spans, self._find = annals, annals.axis, list(acts), annals.find
        self._owned = {(it.partition, it.term): it for past in annals.tenures.values() for it in past}
        self.genesis, self.state, self.first, self.records = genesis, annals.state, first, annals.records
        self.exclusive = genesis.guarantee == "exclusive"
        self.kinds, self.void = annals.kinds, annals.void
        self.error, self.beat, self.to_wall = annals.axis.error, annals.beat, annals.to_wall
        """`error` is how far a time may be off because the members have several clocks; 0 if there is only one."""
        self.lives = list(annals.lives.values())
        self.tenures = [it for partition in sorted(annals.tenures) for it in annals.tenures[partition]]
        """By partition, then in order."""
        self.until = annals.axis.now if isfinite(annals.axis.now) else 0.0
        # Each of these steps needs the results of those before it.
        self._tell_times()
        self.since = min((it.since for it in self.tenures), default=self.until)
        self.seconds = self.until - self.since
        self._compare_notes()
        self.noted = frozenset(span.process for span in self._spans)
        """The processes that left notes."""
        self.noted_whole = self._lead_by_notes()
        """Whether every incarnation that owned anything left notes, so that `led` is based on the notes."""
        self.overlaps = self._overlaps()
        self._judge_overlaps()
        self._judge_order()
        self._judge_lives()
        self._judge_axis()
        self.gaps, self.led, self.owned = self._coverage()
        """Also the fractions of all partitions' time in which they were led, and owned, since each was first owned."""
        self._judge_gaps()
        self.findings = self._told()
        self.moves = [replace(move, read_at=annals.time(move.offset)) for move in annals.moves]
        self.moved = sum(len(it.partitions) for it in self.moves if it.source is not None and it.target is not None)
        """How often a partition went from one member to another."""
        self.plans = annals.plans
        self.planned = sum(plan.planned for plan in self.plans)
        self.needless = sum(max(0, plan.moved - plan.planned) for plan in self.plans)
        """Moves beyond what the plans called for."""
        self.takeovers = list(self._takeovers())
        self.takeover_error = median([it.error for it in self.takeovers]) if self.takeovers else 0.0
        """The median of how far each of them may be off."""
        self.handovers = [max(0.0, annals.time(end) - annals.time(start)) for start, end in annals.handovers]
        """Seconds from a plan until the owner handed a partition over."""
        self.handover_error = median(self._handover_errors()) if annals.handovers else 0.0
        """The median of how far each of them may be off: both times lie between two Beats."""
        self.gap_times = figures(gap.seconds for gap in self.gaps)
        self.takeover_times = figures(it.seconds for it in self.takeovers if isfinite(it.led))
        """The figures of those that ended."""
        self.handover_times = figures(self.handovers)
        self.balance = [(annals.time(offset), ratio) for offset, ratio in annals.balance]
        """From each time on, the largest share over the fair one; 1 is even."""
        self.balance_worst = max((ratio for _, ratio in self.balance), default=1.0)

    @property
    def verdict(self) -> Severity:
        """The worst of the findings."""
        return self.findings[0].severity if self.findings else "note"

    @property
    def balance_mean(self) -> float:
        """The largest share over the fair one, on average over time."""
        ends = [*(since for since, _ in self.balance), self.until][1:]
        weights = [max(0.0, end - since) for (since, _), end in zip(self.balance, ends, strict=True)]
        whole = sum(weights)
        ratios = (ratio for _, ratio in self.balance)
        return sum(ratio * weight for ratio, weight in zip(ratios, weights, strict=True)) / whole if whole else 1.0

    def wall(self, time: float) -> float | None:
        """`time` as seconds since 1970, if that is known."""
        return None if self.to_wall is None else time + self.to_wall

    # Times

    def _tell_times(self) -> None:
        """Give lives and tenures their times, and work out by the rules when each tenure was led."""
        annals = self._annals
        for life in annals.lives.values():
            life.since = annals.time(life.first)
            life.until = self.until if life.ended is None else annals.time(life.ended)
            if life.heard is not None:
                earliest = max(life.since, life.seen)
                due = max(earliest, life.heard + self.beat)
                life.died = min((earliest + due) / 2, life.until)
                # A witness sees the end immediately. It waits only for leases that the dead member had lent to others.
                if life.ending == "certify" and life.until <= due:
                    life.died = life.until
            shift = self._axis.align(life.incarnation, 0.0)
            life.silences = [] if shift is None else [(low + shift, high + shift) for low, high in life.silences]
        for held in self._owned.values():
            life = annals.lives[held.incarnation]
            held.since = annals.time(held.first)
            held.until = self.until if held.last is None else annals.time(held.last)
            free_at = held.led_from
            if life.settled is not None:
                free_at = max(free_at, annals.time(life.settled) + annals.wait)
            held.led_from = max(held.since, free_at) if self.exclusive else held.since
            held.led_until = min(held.until, life.died)

    def _aligned(self, span: Span) -> tuple[float, float]:
        """When the span began and ended, on the axis.

        Notes say until when a process might act. A process that was certified dead no longer acted after that. But if
        it noted that it began after its certificate, it lived on, and its notes hold.
        """
        held = self._owned.get((span.partition, span.term))
        if held is None:
            return span.since, span.until
        shift = self._axis.align(held.incarnation, 0.0) or 0.0
        since, until = span.since + shift, span.until + shift
        life = self._annals.lives[held.incarnation]
        if life.ending == "certify" and life.ended is not None:
            low, high = self._axis.when(life.ended)
            until = min(until, max(since, low)) if since <= high else until
        return since, until

    # Notes

    def _compare_notes(self) -> None:
        """A process that acted must have owned the partition under that term, by the ledger, and must be one member."""
        oldest = self._annals.base + self.first
        members: defaultdict[str, set[str]] = defaultdict(set)
        actors: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
        for span in self._spans:
            held = self._owned.get((span.partition, span.term))
            if held is not None:
                members[span.process].add(held.member)
                actors[span.partition, span.term].add(span.process)
            elif span.term >= oldest:  # A lower term was given by a record from before these annals.
                self._find(
                    "broken",
                    "unowned",
                    f"partition {span.partition}: {span.process} acted under term {span.term}, which the ledger gave "
                    "to no member",
                )
            if span.again:
                self._find(
                    "broken",
                    "again",
                    f"partition {span.partition}: {span.process} acted again under term {span.term}, after it had "
                    "noted to be done with it",
                )
        for process, names in sorted(members.items()):
            if len(names) > 1:
                self._find("broken", "unowned", f"{process} acted under terms of {_listed(names)}: it is one member")
        for (partition, term), processes in sorted(actors.items()):
            if len(processes) > 1:
                text = f"partition {partition}: {_listed(processes)} acted under one term, {term}"
                self._find("broken", "unowned", text, self._owned[partition, term].first)

    def _lead_by_notes(self) -> bool:
        """If there are notes of all members that led, use them for when each tenure was led: they are more accurate
        than any rule."""
        noted: defaultdict[tuple[int, int], list[Span]] = defaultdict(list)
        for span in self._spans:
            noted[span.partition, span.term].append(span)
        heard = {held.incarnation for place, held in self._owned.items() if place in noted}
        # A member that owned only for a moment may never have acted, so its notes are not missed.
        missed = {
            it.incarnation for it in self._owned.values() if it.led_until > it.led_from + self.genesis.lease
        } - heard
        if not self._spans:
            self._find("note", "notes", "who acted is not in a ledger: without notes, overlaps cannot be looked for")
        elif missed:
            names = {self._annals.lives[it].name for it in missed}
            text = f"{len(missed)} incarnations of {_listed(names)} left no notes: leading times follow from the rules"
            self._find("note", "notes", text)
        if missed or not self._spans:
            return False
        aligned = {place: [self._aligned(span) for span in noted[place]] for place in self._owned}
        for place, held in self._owned.items():
            # A member that began to act was alive then and a moment longer, even if its next Beat was due earlier.
            # Without this, partitions that it took over in its last moment would seem to be led by no member.
            life = self._annals.lives[held.incarnation]
            alive = [nextafter(min(since, life.until), inf) for since, _ in aligned[place]]
            life.died = max([life.died, *alive])
        for place, held in self._owned.items():
            held.led_from = min((since for since, _ in aligned[place]), default=inf)
            last = max((until for _, until in aligned[place]), default=-inf)
            held.led_until = min(last, self._annals.lives[held.incarnation].died)
        return True

    def _overlaps(self) -> list[NotedOverlap]:
        tolerance = max(CLOCK_ERROR, 2 * self._axis.error)  # Each of two clocks may be off.
        by_partition: defaultdict[int, list[tuple[float, float, Span]]] = defaultdict(list)
        for span in self._spans:
            # With several clocks, a span from before these annals cannot be compared: its clock is not known.
            known = (span.partition, span.term) in self._owned or self._axis.error == 0
            if known and not span.again:
                by_partition[span.partition].append((*self._aligned(span), span))
        found: list[NotedOverlap] = []
        for partition, times in sorted(by_partition.items()):
            going_on: list[tuple[float, float, Span]] = []
            for since, until, span in sorted(times, key=lambda it: it[0]):
                going_on = [it for it in going_on if it[1] - since > tolerance]
                found += [
                    NotedOverlap(partition, other, span, since, min(end, until) - since)
                    for _, end, other in going_on
                    if (other.process, other.term) != (span.process, span.term) and until > since
                ]
                going_on.append((since, until, span))
        return found

    # Judgements

    def _judge_overlaps(self) -> None:
        for it in self.overlaps if self.exclusive else ():
            self._find(
                "broken",
                "overlap",
                f"partition {it.partition}: {it.first.process} under term {it.first.term} and {it.second.process} "
                f"under term {it.second.term} acted at the same time, {1e3 * it.seconds:.1f} ms",
            )
        if self.overlaps and not self.exclusive:
            longest = max(self.overlaps, key=lambda it: it.seconds)
            self._find(
                "note",
                "overlap",
                f"{_times(len(self.overlaps))} two processes acted for one partition at the same time, at most for "
                f"{1e3 * longest.seconds:.1f} ms (partition {longest.partition}): `available` allows that",
            )

    def _judge_order(self) -> None:
        """Along time, the terms that processes acted under may only rise."""
        highest: dict[int, Span] = {}
        for span in sorted(self._spans, key=lambda it: self._aligned(it)[0]):
            before = highest.get(span.partition)
            if before is None or span.term > before.term:
                highest[span.partition] = span
            # Under `available`, an owner continues for a while after its successor began; with several clocks, the
            # order in which they began is known only to within their error. Both cases were compared as overlaps
            # already.
            elif span.term < before.term and not span.again and self.exclusive and self._axis.error == 0:
                self._find(
                    "broken",
                    "term",
                    f"partition {span.partition}: {span.process} began to act under term {span.term} after "
                    f"{before.process} had under term {before.term}",
                )

    def _judge_lives(self) -> None:
        for life in self.lives:
            if life.came_too_late and life.ending == "expire":
                self._find(
                    "note",
                    "alive",
                    f"{life.name} was expired at offset {life.ended} and wrote on ({life.came_too_late} Beats): it was "
                    "stopped, cut off or too slow, not dead; fences refuse the terms that it had",
                    life.ended,
                )
            if (lived := self._outlived(life)) > 0:
                self._find(
                    "broken",
                    "certificate",
                    f"{life.name} was certified dead at offset {life.ended} and wrote a Beat {lasting(lived)} later: "
                    "its witness took another process for it, or its host's clock jumped",
                    life.ended,
                )
            if life.silences:
                longest = max(heard - quiet for quiet, heard in life.silences) + self.genesis.lease
                self._find(
                    "note",
                    "silence",
                    f"{life.name} stayed a member and {_times(len(life.silences))} did not beat for over a lease, "
                    f"{longest:.2f} s at most",
                    life.first,
                )
        for name, joins in sorted(self._annals.joins.items()):
            times = [self._annals.time(offset) for offset in joins]
            spans = [last - first for first, last in zip(times, times[FLAPS_MIN - 1 :], strict=False)]
            if spans and min(spans) <= FLAP_LEASES * self.genesis.lease:
                place = spans.index(min(spans))
                self._find(
                    "warning",
                    "flapping",
                    f"{name} flaps: it joined {len(joins)} times, {FLAPS_MIN} of them within {min(spans):.1f} s; look "
                    "at its log and its host",
                    joins[place],
                )

    def _outlived(self, life: MemberLife) -> float:
        """How long it wrote on, at least, after it was certified dead; 0 if everything may have been written before."""
        sent = self._axis.align(life.incarnation, life.late_reading)
        if life.ending != "certify" or life.ended is None or sent is None:
            return 0.0
        low, high = self._axis.when(life.ended)
        # If both are the same, no later Beat limits when the certificate was there at the latest.
        return max(0.0, sent - high - 2 * self._axis.error - TOLERANCE) if high > low else 0.0

    def _judge_axis(self) -> None:
        for offset in self._axis.breaks:
            text = f"no member lived through the time before offset {offset}, so its length is not known"
            self._find("note", "break", text, offset)
        for offset, incarnation in self._axis.jumps:
            name = self._annals.lives[incarnation].name
            self._find("note", "clock", f"the clock of {name} jumped before offset {offset}, or its host slept", offset)

    def _judge_gaps(self) -> None:
        for gap in self.gaps:
            if gap.until >= self.until and gap.seconds > self.beat:
                text = f"{len(gap.partitions)} partitions were led by no member at the end, for {gap.seconds:.2f} s"
                self._find("warning", "gap", text)

    def _told(self) -> list[Finding]:
        """The worst first, with their times; if there are many of one kind, a few and the number of others."""
        by_kind: defaultdict[tuple[int, str], list[Finding]] = defaultdict(list)
        for finding in self._annals.findings:
            by_kind[_SEVERITIES.index(finding.severity), finding.kind].append(finding)
        told: list[Finding] = []
        for (severity, kind), its in sorted(by_kind.items()):
            told += [replace(finding, time=self._when(finding.offset)) for finding in its[:EXAMPLES_MAX]]
            if len(its) > EXAMPLES_MAX:
                told.append(Finding(_SEVERITIES[severity], kind, f"and {len(its) - EXAMPLES_MAX} more of this kind"))
        return told

    def _when(self, offset: int | None) -> float | None:
        try:
            return None if offset is None else self._annals.time(offset)
        except KeyError:  # It changed nothing, so its time was not kept.
            return None

    def _coverage(self) -> tuple[list[LeadingGap], float, float]:
        """The gaps, and the fractions of all partitions' time in which they were led, and owned."""
        silences = {} if self.noted_whole else {life.incarnation: life.silences for life in self.lives}
        gaps: defaultdict[tuple[float, float], list[int]] = defaultdict(list)
        whole = unled = unowned = 0.0
        for partition, past in self._annals.tenures.items():
            covered = past[0].since
            whole += self.until - covered
            unowned += sum(max(0.0, later.since - former.until) for former, later in pairwise(past))
            unowned += 0.0 if past[-1].last is None else self.until - past[-1].until
            for low, high in [*_led(past, silences), (self.until, self.until)]:
                if low > covered:
                    gaps[covered, low].append(partition)
                    unled += low - covered
                covered = max(covered, min(high, self.until))
        found = [LeadingGap(since, end, tuple(its)) for (since, end), its in sorted(gaps.items())]
        if not self.state.seats:  # After the last member left, a partition without a leader does not count as a gap.
            found = [gap for gap in found if gap.until < self.until]
        return found, 1 - unled / whole if whole else 1.0, 1 - unowned / whole if whole else 1.0

    def _takeovers(self) -> Iterator[Takeover]:
        ended = [(it.ended, it) for it in self.lives if it.ended is not None and it.held]
        for offset, life in sorted(ended, key=itemgetter(0)):
            low, high = self._axis.when(offset)
            led = max(self._led_after(one) for one in life.held)
            doubt = (high - low) / 2 if led <= high else 0.0
            unsure = max(self.beat / 2, life.died - max(life.since, life.seen))
            error = unsure + self._axis.error + TOLERANCE + doubt
            yield Takeover(offset, life.name, life.incarnation, len(life.held), life.died, led, error)

    def _handover_errors(self) -> Iterator[float]:
        for offsets in self._annals.handovers:
            (first, by_first), (last, by_last) = (self._axis.when(offset) for offset in offsets)
            yield min((by_first - first + by_last - last) / 2, by_last - first)

    def _led_after(self, former: TenureSpan) -> float:
        """When the partition was led again after `former` ended."""
        past = self._annals.tenures[former.partition]
        later = past[bisect_left(past, former.term, key=lambda it: it.term) + 1 :]
        return next((it.led_from for it in later if it.led_until > it.led_from), inf)


def _led(
    past: Sequence[TenureSpan], silences: Mapping[str, Sequence[tuple[float, float]]]
) -> Iterator[tuple[float, float]]:
    """When one partition was led, in order."""
    pieces = []
    for held in past:
        low = held.led_from
        for quiet, heard in silences.get(held.incarnation, ()):
            if low < heard and quiet < held.led_until:
                pieces.append((low, min(quiet, held.led_until)))
                low = max(low, heard)
        pieces.append((low, held.led_until))
    return iter(sorted(piece for piece in pieces if piece[1] > piece[0]))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
