"""Who acts: at most one for each partition, at every moment, whatever the pumps are doing.

    a step of p --> what p may act for, now and at each later time at which that changes by itself --> claims of p
                                                                    |
        claims of all others  <-- compared whenever one begins -----'

A program acts by its clock and not by its pump, so asking at steps is not enough. After each step the machine is asked
for all times to come: its answer changes only where a lease or a wait ends, and those times are known. Until its next
step that answer stands. Two claims that overlap begin to do so where one of them begins. So it is enough to compare a
claim with all others when it begins, at the step that brings it or at the later time that it names.

What a program believes (the standing that was last published) must lie within its machine's claims at every one of
these times, so all that holds for claims holds for programs.

Over all tenures that were acted on, a partition's terms strictly grow. Only its owner under that term may take one up
again.
"""

from bisect import bisect_right
from math import inf
from typing import NamedTuple

from neli_router.induction.machine import Induction
from neli_router.sim.process import Process
from neli_router.sim.world import Violation, World

__all__ = ["Acting", "Claims"]

Terms = dict[int, int]


class Claims(NamedTuple):
    """What one process may act for from each time in `starts` on, if it takes no other step. The first is now."""

    starts: list[float]
    terms: list[Terms]

    def at(self, time: float) -> Terms:
        return self.terms[max(0, bisect_right(self.starts, time) - 1)]

    def just_before(self, time: float) -> Terms:
        """What was claimed up to `time`."""
        for start, terms in zip(reversed(self.starts), reversed(self.terms), strict=True):
            if start < time:
                return terms
        return {}


NOTHING = Claims([-inf], [{}])


class Acting:
    """The claims of all processes."""

    def __init__(self, world: World, *, exclusive: bool) -> None:
        self.lenient = not exclusive
        """Whether two may act for one partition: under `available`, and for a while after a ledger lost records."""
        self.claims: dict[Process, Claims] = {}
        self._world = world
        self._acted: dict[int, tuple[int, str]] = {}
        """Partition -> the highest term that anybody acted under, and whose that was."""

    def step(self, process: Process, machine: Induction) -> bool:
        """`process` took a step; returns whether it claims other partitions than before."""
        now = self._world.now
        before = self.claims.get(process, NOTHING).just_before(now)
        claims = self.claims[process] = self._claims(process, machine)
        if (terms := claims.terms[0]) != before:
            for partition, term in terms.items():
                if before.get(partition) != term:
                    self._begin(process, machine, partition, term)
        for start, former, later in zip(claims.starts[1:], claims.terms, claims.terms[1:], strict=False):
            if not later.items() <= former.items():
                self._world.at(start, self._rise, process, machine, claims)
        return terms != before

    def end(self, process: Process) -> None:
        """`process` is gone, and acts no more."""
        self.claims.pop(process, None)

    def forget(self) -> None:
        """The ledger lost records: it may give the same terms again."""
        self._acted.clear()

    def terms(self, process: Process) -> Terms:
        """What `process` may act for now."""
        claims = self.claims.get(process)
        return claims.at(self._world.now) if claims is not None else {}

    def who(self, partition: int) -> list[Process]:
        """Who may act for `partition` now."""
        now = self._world.now
        return [process for process, claims in self.claims.items() if partition in claims.at(now)]

    def _claims(self, process: Process, machine: Induction) -> Claims:
        tenure, standing, local = machine.tenure, process.standing, process.now
        ends = [tenure.sent + tenure.lasts, tenure.settled, standing.until, *tenure.busy.values()]
        ends += [linger.until for linger in tenure.lingering.values()]
        ends += standing.ends.values()
        turns = [local, *sorted({end for end in ends if local < end < inf})]
        starts = [self._world.now]
        terms = [machine.tenures(local)]
        self._require_belief(process, terms[0], local)
        for turn in turns[1:]:
            if (later := machine.tenures(turn)) != terms[-1]:
                starts.append(max(starts[-1], process.clock.when(turn)))
                terms.append(later)
            self._require_belief(process, later, turn)
        return Claims(starts, terms)

    def _require_belief(self, process: Process, may: Terms, local: float) -> None:
        standing = process.standing
        if local >= standing.until and not standing.ends:
            return
        for partition, term in standing.terms.items():
            if local < standing.end(partition, term) and may.get(partition) != term:
                raise Violation(
                    "belief_within_tenure",
                    f"the program of {process.label} believes that it acts for partition {partition} under {term} "
                    f"at {local:.6f} on its clock, where its machine may act for {may}",
                )

    def _rise(self, process: Process, machine: Induction, claims: Claims) -> None:
        """A claim begins by itself: a wait has ended, unless a step came first."""
        if self.claims.get(process) is claims:
            before, terms = claims.just_before(self._world.now), claims.at(self._world.now)
            for partition, term in terms.items():
                if before.get(partition) != term:
                    self._begin(process, machine, partition, term)

    def _begin(self, process: Process, machine: Induction, partition: int, term: int) -> None:
        if self.lenient:
            return
        for other in self.who(partition):
            if other is not process:
                theirs = self.claims[other].at(self._world.now)[partition]
                raise Violation(
                    "at_most_one_acts",
                    f"{process.label} (term {term}) and {other.label} (term {theirs}) both act for partition "
                    f"{partition}",
                )
        incarnation = machine.incarnation
        highest, holder = self._acted.get(partition, (-1, incarnation))
        if term < highest or (term == highest and holder != incarnation):
            raise Violation(
                "terms_grow",
                f"{process.label} acts for partition {partition} under {term}, after {highest} was acted under",
            )
        self._acted[partition] = (term, incarnation)
