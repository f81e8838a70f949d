"""The report: a storm's faults and their outcome as text, for its users and for failed tests.

fault      times   shortest   longest   whom
kill          12      0.31 s    3.90 s   m1 m2 ...
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median

from neli_router.lab.referee import Verdict
from tests.support.processes.storm import Injected

__all__ = ["seen", "table"]


def table(injected: Sequence[Injected]) -> str:
    """One line for each kind of fault."""
    by_kind: dict[str, list[Injected]] = defaultdict(list)
    for fault in injected:
        by_kind[fault.kind].append(fault)
    lines = [f"{'fault':10}{'times':>6}{'shortest':>11}{'longest':>11}   whom"]
    for kind, faults in sorted(by_kind.items()):
        lengths = [fault.seconds for fault in faults]
        names = ", ".join(f"{name} x{times}" for name, times in Counter(fault.whom for fault in faults).most_common(4))
        lines.append(f"{kind:10}{len(faults):6}{min(lengths):9.2f} s{max(lengths):9.2f} s   {names}")
    return "\n".join([*lines, f"{'all':10}{len(injected):6}"])


def seen(verdict: Verdict) -> str:
    """The referee's verdict, in two lines."""
    gaps = sorted(time.until - time.since for time in verdict.unled)
    waited = f"{len(gaps)} gaps, median {median(gaps):.3f} s, longest {gaps[-1]:.3f} s" if gaps else "no gaps"
    return (
        f"{verdict.acts} acts, {verdict.takeovers} takeovers, {verdict.handovers} handovers, {waited}\n"
        f"{len(verdict.overlaps)} overlaps, {len(verdict.regressions)} terms that went back"
    )
