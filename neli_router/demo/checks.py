"""The checks: what a run measured, and whether it kept the promises.

    tenures (as the workers noted them, on the host's clock) --> one at a time, terms grew, shares, takeovers
    the ledger (read once more, through the fold) -------------> the same terms, no needless move
    look-ups --------------------------------------------------> every one was answered

The referee of "one at a time" knows nothing of the protocol: it has intervals of time and looks for two that intersect.
What is counted against a limit are leases, and generously: a busy host makes a demo slow, not wrong. A check that found
nothing to judge has failed, or a demo in which nothing happened would pass.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from neli_router.clock import NARROW_NS
from neli_router.demo.record import Deed, DeedKind, Life, Run, Tenure
from neli_router.induction.fold import State, fold

__all__ = ["TAKEOVER_LEASES", "Finding", "findings", "moves", "overlaps", "takeover"]

TAKEOVER_LEASES = 5
"""In how many leases everything must be led again. The protocol needs one, and a busy host more. Raising this forgives
a slower host; lowering it blames members for having had no processor."""

CLOCK_ERROR = NARROW_NS / 1e9
"""How far apart two processes may read the host's clock. An overlap below that is none that anybody saw."""


class Finding(NamedTuple):
    """What one check found, in words for the user."""

    name: str
    held: bool
    text: str


def findings(run: Run) -> list[Finding]:
    """Every check's."""
    unfinished = Finding("the story", held=False, text=f"did not come to its end: {run.unfinished}")
    if run.unfinished and not run.pauses:
        return [unfinished]  # It did not even begin, and there is nothing else to say.
    found = [
        _one_at_a_time(run),
        _terms(run),
        *(_takeover(run, kind) for kind in (DeedKind.KILL, DeedKind.STOP, DeedKind.LEAVE)),
        _fenced(run),
        _shared(run),
        _moved(run),
        _in_the_ledger(run),
        _routed(run),
    ]
    return [unfinished, *found] if run.unfinished else found


# One at a time


def overlaps(run: Run) -> list[tuple[Life, Life, Tenure]]:
    """Wherever two processes might act for one partition at once: who, who else, and the second one's tenure."""
    found = []
    for tenures in _by_partition(run).values():
        before: list[tuple[Life, Tenure]] = []
        for life, tenure in tenures:
            before = [(other, former) for other, former in before if former.end - tenure.start > CLOCK_ERROR]
            found += [(other, life, tenure) for other, _ in before if other is not life]
            before.append((life, tenure))
    return found


def _one_at_a_time(run: Run) -> Finding:
    count = sum(len(life.tenures) for life in run.lives)
    what = f"{count} tenures of {run.partitions} partitions by {len(run.lives)} processes"
    if found := overlaps(run):
        first, second, tenure = found[0]
        at = tenure.start - run.started_at
        text = (
            f"{len(found)} overlaps in {what}, the first at {at:.3f} s: process {first.pid} ({first.name}) and "
            f"process {second.pid} ({second.name}) both for partition {tenure.partition}"
        )
    else:
        text = f"0 overlaps in {what}: no two could act for one at the same time"
    return Finding("one at a time", count > 0 and not found, text)


# Terms


def _terms(run: Run) -> Finding:
    lowered, changes = 0, 0
    for tenures in _by_partition(run).values():
        for (life, tenure), (successor, later) in pairwise(tenures):
            changes += 1
            # The same process may go on under the same term, after an outage in which nobody took its place.
            lowered += later.term < tenure.term or (later.term == tenure.term and successor is not life)
    lowered += run.routed.terms_lowered
    text = f"{changes} times a partition passed on, each time to a higher term"
    if lowered:
        text = f"{lowered} times a term did not grow"
    return Finding("terms only grew", changes > 0 and lowered == 0, text)


# Takeovers


def takeover(run: Run, deed: Deed) -> float:
    """Seconds from `deed` until the last of the partitions that it took was led by another; `inf` if one never was."""
    return max((_led_again(run, deed, partition) for partition in deed.took), default=inf) - deed.at


def _led_again(run: Run, deed: Deed, partition: int) -> float:
    starts = (
        tenure.start
        for life in run.lives
        if life is not deed.life
        for tenure in life.tenures
        if tenure.partition == partition and tenure.start >= deed.at
    )
    return min(starts, default=inf)


_NOT_REACHED = "it did not come to that"

_TOLD = {DeedKind.KILL: "kill -9", DeedKind.STOP: "SIGSTOP", DeedKind.LEAVE: "SIGTERM"}


def _takeover(run: Run, kind: DeedKind) -> Finding:
    # Of those who leave at the very end, nobody is left to take anything over.
    deed = next((deed for deed in run.deeds if deed.kind is kind), None)
    if deed is None:
        return Finding(_TOLD[kind], held=False, text=_NOT_REACHED)
    seconds = takeover(run, deed)
    leases = seconds / run.lease
    text = (
        f"{seconds * 1000:.0f} ms until the last of {deed.life.name}'s {len(deed.took)} partitions was led by another: "
        f"{leases:.2f} x the lease (at most {TAKEOVER_LEASES})"
    )
    if seconds == inf:
        text = f"not all of {deed.life.name}'s {len(deed.took)} partitions were ever led by others"
    return Finding(_TOLD[kind], leases <= TAKEOVER_LEASES, text)


def _fenced(run: Run) -> Finding:
    name = "SIGCONT"
    wake = next((deed for deed in run.deeds if deed.kind is DeedKind.WAKE), None)
    if wake is None:
        return Finding(name, held=False, text=_NOT_REACHED)
    stop = next(deed for deed in run.deeds if deed.kind is DeedKind.STOP and deed.life is wake.life)
    life, away = wake.life, wake.at - stop.at
    left_over = [tenure for tenure in life.tenures if tenure.start < wake.at < tenure.end]
    refused = any(note.at >= wake.at and note.refusal for note in life.woke)
    fenced = sum(note.partitions for note in life.fenced if note.at >= wake.at)
    problems = [
        sentence
        for is_so, sentence in (
            (away <= run.lease, f"it was stopped for {away:.2f} s only, which is no longer than a lease"),
            (bool(left_over), f"it could still act for {len(left_over)} partitions"),
            (not refused, "no lease refused it"),
            (fenced < len(stop.took), f"it was told to stop for {fenced} of its {len(stop.took)} partitions"),
        )
        if is_so
    ]
    text = "; ".join(problems) or (
        f"{life.name}, woken after {away:.2f} s, was refused by its lease and fenced for all {fenced} partitions"
    )
    return Finding(name, not problems, text)


# Shares and moves


def _shared(run: Run) -> Finding:
    name, spread = "shares", 0
    for pause in run.pauses:
        counts = Counter(dict.fromkeys(pause.sharing, 0))
        for life in run.lives:
            if life.name in counts:
                counts[life.name] += sum(tenure.start <= pause.at < tenure.end for tenure in life.tenures)
        if (led := counts.total()) != run.partitions:
            at = pause.at - run.started_at
            return Finding(name, held=False, text=f"at {at:.3f} s, {led} of {run.partitions} partitions were led")
        spread = max(spread, max(counts.values()) - min(counts.values()))
    text = f"at {len(run.pauses)} moments of rest, all were led, and the members' shares differed by at most {spread}"
    return Finding(name, bool(run.pauses) and spread <= 1, text)


def moves(run: Run) -> tuple[int, int]:
    """How often a partition went to another member, and how often that was more than the changes of members called for.

    A change of members calls for as many moves as it takes from what each then has to equal shares.
    """
    made = needless = 0
    since = allowed = 0
    for before, after in _replayed(run):
        if after.seats is not before.seats:
            needless += max(0, since - allowed)
            since, allowed = 0, _needed(before, after)
        pairs = zip(_names(before), _names(after), strict=False)  # Before its genesis, a group has no partitions.
        moved = sum(was != now and was is not None and now is not None for was, now in pairs)
        made, since = made + moved, since + moved
    return made, needless + max(0, since - allowed)


def _needed(before: State, after: State) -> int:
    """The fewest moves from what the members of `after` had before to shares that differ by at most one."""
    if not after.seats:
        return 0
    kept = Counter(name for name in _names(before) if name is not None)
    owned = [kept[seat.name] for seat in after.seats.values()]
    share, larger = divmod(sum(kept.values()), len(owned))
    staying = sum(min(count, share) for count in owned)
    return sum(kept.values()) - staying - min(larger, sum(count > share for count in owned))


def _moved(run: Run) -> Finding:
    made, needless = moves(run)
    text = f"{made} partitions moved, {needless or 'none'} of them more than the changes of members called for"
    return Finding("no needless move", made > 0 and needless == 0, text)


def _names(state: State) -> list[str | None]:
    return [None if owner is None else state.seats[owner].name for owner in state.owners]


def _replayed(run: Run) -> Iterator[tuple[State, State]]:
    """The state before and after each record of the ledger that changed members or owners."""
    state = State()
    for offset, record in run.ledger:
        before, state = state, fold(state, offset, record)
        if state.seats is not before.seats or state.terms is not before.terms:
            yield before, state


# The ledger and the look-ups


def _in_the_ledger(run: Run) -> Finding:
    name, granted = "the ledger", dict[tuple[int, int], str]()
    for before, after in _replayed(run):
        changed = zip(before.terms or (0,) * run.partitions, after.terms, _names(after), strict=True)
        granted.update({(i, term): owner for i, (was, term, owner) in enumerate(changed) if owner and term != was})
    noted = [(life, tenure) for life in run.lives for tenure in life.tenures]
    strange = [1 for life, tenure in noted if granted.get((tenure.partition, tenure.term)) != life.name]
    text = f"{len(run.ledger)} records, read once more, give the very terms of all {len(noted)} tenures"
    if strange:
        text = f"{len(strange)} of {len(noted)} tenures were under terms that its {len(run.ledger)} records do not give"
    return Finding(name, bool(noted) and not strange, text)


def _routed(run: Run) -> Finding:
    name, routed = "look-ups", run.routed
    if not routed.lookups:
        return Finding(name, held=False, text="none was made")
    text = f"{routed.lookups:,} made, {routed.seconds / routed.lookups * 1e6:.2f} microseconds each; "
    if routed.unanswered:
        text += f"{routed.unanswered:,} were not answered, the last because: {routed.why_unanswered}"
    else:
        text += (
            f"all answered; {routed.outdated:,} named a member that was dead or stopped and not yet missed, "
            f"for {routed.outdated_for * 1000:.0f} ms at most"
        )
    held = routed.unanswered == 0 and routed.outdated_for <= TAKEOVER_LEASES * run.lease
    return Finding(name, held, text)


def _by_partition(run: Run) -> dict[int, Sequence[tuple[Life, Tenure]]]:
    """Each partition's tenures, in the order of their beginning."""
    found: defaultdict[int, list[tuple[Life, Tenure]]] = defaultdict(list)
    for life in run.lives:
        for tenure in life.tenures:
            found[tenure.partition].append((life, tenure))
    return {i: sorted(tenures, key=lambda one: one[1].start) for i, tenures in found.items()}
