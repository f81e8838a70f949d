"""The checks: a run's figures, and whether it kept the promises.

    spans (as the processes noted them, on the host's clock) --> the referee --> one at a time, terms grew
                                                             '-> shares, takeovers
    the ledger (read once more, through the fold) -------------> the same terms, no needless move
    look-ups --------------------------------------------------> every one was answered

Limits are counted in leases, and are generous: a busy host makes a demo slow, not wrong. A check that found nothing to
judge fails. Otherwise a demo in which nothing happened would pass.
"""

from collections import Counter
from math import inf
from typing import NamedTuple

from neli_router.lab.demo.scene import Action, ActionKind, Run
from neli_router.lab.moves import History, history_of
from neli_router.lab.processes.group import led_elsewhere
from neli_router.lab.referee import Verdict, judged

__all__ = ["TAKEOVER_LEASES", "Check", "checked", "takeover"]

TAKEOVER_LEASES = 5
"""Within how many leases everything must be led again. The protocol needs one, and a busy host needs more. Raising this
tolerates a slower host; lowering it blames members that had no processor."""


class Check(NamedTuple):
    """One check, and what it found, in words for the user."""

    name: str
    held: bool
    text: str


def checked(run: Run) -> list[Check]:
    """The result of every check."""
    unfinished = Check("the story", held=False, text=f"did not finish: {run.unfinished}")
    if run.unfinished and not run.pauses:
        return [unfinished]  # It did not even begin: there is nothing to check.
    verdict, history = judged(run.lives), history_of(run.ledger)
    found = [
        _one_at_a_time(run, verdict),
        _terms(run, verdict),
        *(_takeover(run, kind) for kind in _SIGNALS),
        _fenced(run),
        _shared(run),
        _moved(history),
        _in_the_ledger(run, history),
        _routed(run),
    ]
    return [unfinished, *found] if run.unfinished else found


# One at a time


def _one_at_a_time(run: Run, verdict: Verdict) -> Check:
    count = sum(len(life.spans) for life in run.lives)
    what = f"{count} tenures of {run.partitions} partitions by {len(run.lives)} processes"
    text = f"0 overlaps in {what}: no two could act for one at the same time"
    if found := verdict.overlaps:
        processes = {life.label: f"process {life.pid} ({life.name})" for life in run.lives}
        first, second = found[0].first, found[0].second
        text = (
            f"{len(found)} overlaps in {what}, the first at {second.since - run.started_at:.3f} s: "
            f"{processes[first.process]} and {processes[second.process]} both for partition {second.partition}"
        )
    return Check("one at a time", count > 0 and not found, text)


def _terms(run: Run, verdict: Verdict) -> Check:
    lowered = len(verdict.regressions) + len(verdict.relapses) + run.routed.terms_lowered
    changes = verdict.handovers + verdict.takeovers
    text = f"{changes} times a partition passed on, each time to a higher term"
    if lowered:
        text = f"{lowered} times a term did not grow"
    return Check("terms only grew", changes > 0 and lowered == 0, text)


# Takeovers


def takeover(run: Run, action: Action) -> float:
    """Seconds from `action` until another member led the last of the partitions it took; `inf` if one is not led."""
    return led_elsewhere(run.lives, action.life, action.took, action.at) - action.at


_NOT_REACHED = "the story did not get that far"

_SIGNALS = {ActionKind.KILL: "kill -9", ActionKind.STOP: "SIGSTOP", ActionKind.LEAVE: "SIGTERM"}


def _takeover(run: Run, kind: ActionKind) -> Check:
    # The first one: when the last members leave at the very end, no process is left to take anything over.
    action = next((action for action in run.actions if action.kind is kind), None)
    if action is None:
        return Check(_SIGNALS[kind], held=False, text=_NOT_REACHED)
    seconds = takeover(run, action)
    leases = seconds / run.lease
    text = (
        f"{seconds * 1000:.0f} ms until the last of {action.life.name}'s {len(action.took)} partitions was led by "
        f"another: {leases:.2f} x the lease (at most {TAKEOVER_LEASES})"
    )
    if seconds == inf:
        text = f"not all of {action.life.name}'s {len(action.took)} partitions were ever led by others"
    return Check(_SIGNALS[kind], leases <= TAKEOVER_LEASES, text)


def _fenced(run: Run) -> Check:
    name = "SIGCONT"
    wake = next((action for action in run.actions if action.kind is ActionKind.WAKE), None)
    if wake is None:
        return Check(name, held=False, text=_NOT_REACHED)
    stop = next(action for action in run.actions if action.kind is ActionKind.STOP and action.life is wake.life)
    life, away = wake.life, wake.at - stop.at
    left_over = [span for span in life.spans if span.since < wake.at < span.until]
    refused = any(note.at >= wake.at and note.refusal for note in life.woke)
    fenced = sum(note.partitions for note in life.halted if note.at >= wake.at)
    problems = [
        sentence
        for is_so, sentence in (
            (away <= run.lease, f"it was stopped for {away:.2f} s only, which is no longer than a lease"),
            (bool(left_over), f"it could still act for {len(left_over)} partitions"),
            (not refused, "no lease refused it"),
            (fenced < len(stop.took), f"it was fenced for only {fenced} of its {len(stop.took)} partitions"),
        )
        if is_so
    ]
    text = "; ".join(problems) or (
        f"{life.name}, woken after {away:.2f} s, was refused by its lease and fenced for all {fenced} partitions"
    )
    return Check(name, not problems, text)


# Shares and moves


def _shared(run: Run) -> Check:
    name, spread = "shares", 0
    for pause in run.pauses:
        counts = Counter(dict.fromkeys(pause.sharing, 0))
        for life in run.lives:
            if life.name in counts:
                counts[life.name] += sum(span.since <= pause.at < span.until for span in life.spans)
        if (led := counts.total()) != run.partitions:
            at = pause.at - run.started_at
            return Check(name, held=False, text=f"at {at:.3f} s, {led} of {run.partitions} partitions were led")
        spread = max(spread, max(counts.values()) - min(counts.values()))
    text = f"at {len(run.pauses)} moments of rest, all were led, and the members' shares differed by at most {spread}"
    return Check(name, bool(run.pauses) and spread <= 1, text)


def _moved(history: History) -> Check:
    made, needless = history.moves, history.needless
    text = f"{made} partitions moved, {needless or 'none'} of them more than the changes of members called for"
    return Check("no needless move", made > 0 and needless == 0, text)


# The ledger and the look-ups


def _in_the_ledger(run: Run, history: History) -> Check:
    noted = [(life, span) for life in run.lives for span in life.spans]
    strange = [span for life, span in noted if history.owners.get((span.partition, span.term)) != life.name]
    text = f"{len(run.ledger)} records, read once more, give the very terms of all {len(noted)} tenures"
    if strange:
        text = f"{len(strange)} of {len(noted)} tenures were under terms that its {len(run.ledger)} records do not give"
    return Check("the ledger", bool(noted) and not strange, text)


def _routed(run: Run) -> Check:
    name, routed = "look-ups", run.routed
    if not routed.lookups:
        return Check(name, held=False, text="none was made")
    text = f"{routed.lookups:,} made, {routed.seconds / routed.lookups * 1e6:.2f} microseconds each; "
    if routed.unanswered:
        text += f"{routed.unanswered:,} were not answered, the last because: {routed.why_unanswered}"
    else:
        text += (
            f"all answered; {routed.outdated:,} named a member that was dead or stopped and not yet missed, "
            f"for {routed.outdated_for * 1000:.0f} ms at most"
        )
    held = routed.unanswered == 0 and routed.outdated_for <= TAKEOVER_LEASES * run.lease
    return Check(name, held, text)
