"""Acting: at most one process acts for a partition at any moment; under `available` at least one, and two not for long.

    a step of p --> what p may act for, now and at each later time at which that changes by itself --> claims of p
                                                                    |
        claims of all others  <-- compared whenever one begins -----'

    owner dead or none --a live one owns it--> OWED --a process acts--> COVERED --none acts--> a broken promise
                                                |
                                                '---- D passes --> a broken promise

A program acts by its clock and not by its pump, so asking at steps is not enough. After each step the machine is asked
for all times to come: its answer changes only where a lease or a wait ends, and those times are known. Until its next
step that answer stands. Two claims that overlap begin to do so where one of them begins. So it is enough to compare a
claim with all others when it begins, at the step that brings it or at the later time that it names.

A program's belief (the standing that was last published) must lie within its machine's claims at every one of these
times, so all that holds for claims holds for programs.

And a word is kept: nobody comes to act for a partition before the end that another tenure's program was last told for
it, unless that program had let go, or its member was to end. A machine may lose a partition earlier and fence its
program at once; but clients of an agent act on the end that they know, and hear of the loss later than the next leader
does. One excuse more is for the moment at which a program is asked to finish: if the drain ends before the end that was
told until then, that one is not kept.

Over all tenures that were acted on, a partition's terms strictly grow. Only its owner under that term may take one up
again.

Coverage is promised under `available`, and only while each record is read within D of its sending, so it is judged only
in fair weather. There, a partition may be without an acting process from when its owner (or a process that still stood
in for the owner) died until the next owner has read that it owns, and that takes D at most. From then on it must not be
left for an instant, whichever process joins, leaves or hands over, as long as none dies. Two act for it at once for at
most hold - suspicion, stretched by the drift of the clock that it is counted on.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from math import inf
from typing import Generic, NamedTuple, Protocol, TypeVar

from neli_router.induction.fold import State
from neli_router.induction.machine import Induction
from neli_router.protocol import NO_STANDING, Standing
from neli_router.sim.options import RunOptions
from neli_router.sim.process import Process
from neli_router.sim.program import Program
from neli_router.sim.world import LocalClock, Violation, World

__all__ = ["Acting", "Actor", "ActorMachine", "Coverage", "ProcessClaims", "ends_of_tenure"]

SLACK = 0.01
"""In leases: the time that the turns of pumps take, which D leaves out."""

Terms = dict[int, int]


class ProcessClaims(NamedTuple):
    """The partitions that one process may act for from each of `starts` on (the first is now), with no other step."""

    starts: list[float]
    terms: list[Terms]

    def at(self, time: float) -> Terms:
        return self.terms[max(0, bisect_right(self.starts, time) - 1)]

    def just_before(self, time: float) -> Terms:
        """The claims that held up to `time`."""
        for start, terms in zip(reversed(self.starts), reversed(self.terms), strict=True):
            if start < time:
                return terms
        return {}


NOTHING = ProcessClaims([-inf], [{}])


class Actor(Protocol):
    """A process, as far as its claims go."""

    label: str
    clock: LocalClock
    standing: Standing
    program: Program
    was_told_to_end: bool

    @property
    def now(self) -> float: ...


class ActorMachine(Protocol):
    """A machine of any protocol, as far as its claims go."""

    @property
    def incarnation(self) -> str: ...
    def tenures(self, now: float) -> Terms: ...


ActorT = TypeVar("ActorT", bound=Actor)
MachineT = TypeVar("MachineT", bound=ActorMachine)


class Acting(Generic[ActorT, MachineT]):
    """The claims of all processes. `ends_of` gives the times, on its clock, at which a machine's answer may change."""

    def __init__(self, world: World, *, exclusive: bool, ends_of: Callable[[MachineT], Iterable[float]]) -> None:
        self.lenient = not exclusive
        """Whether two may act for one partition: under `available`, and for a while after a ledger lost records."""
        self.claims: dict[ActorT, ProcessClaims] = {}
        self._world, self._ends_of = world, ends_of
        self._acted: dict[int, tuple[int, str]] = {}
        """Partition -> the highest term that was acted under, and by which incarnation."""
        self._told: dict[ActorT, tuple[Standing, frozenset[tuple[int, int]]]] = {}
        """What each program was told last, and what it had been asked to finish by then."""
        self._words: dict[tuple[int, int], tuple[ActorT, float, bool]] = {}
        """Partition and term -> whose program lost it early, until when it had been told to have it, and whether it had
        been asked to finish when it was told so."""

    def step(self, process: ActorT, machine: MachineT) -> bool:
        """`process` took a step; returns whether it claims other partitions than before."""
        now = self._world.now
        before = self.claims.get(process, NOTHING).just_before(now)
        claims = self.claims[process] = self._claims(process, machine)
        self._note_words(process)
        if (terms := claims.terms[0]) != before:
            for partition, term in terms.items():
                if before.get(partition) != term:
                    self._begin(process, machine, partition, term)
        for start, former, later in zip(claims.starts[1:], claims.terms, claims.terms[1:], strict=False):
            if not later.items() <= former.items():
                self._world.at(start, self._rise, process, machine, claims)
        return terms != before

    def end(self, process: ActorT) -> None:
        """`process` is gone, and acts no more."""
        self.claims.pop(process, None)
        self._told.pop(process, None)

    def lend(self, process: ActorT) -> float:
        """`process` is gone, and its client acts on as it could have, for what it led. Returns when that has ended."""
        now = self._world.now
        claims = self.claims.get(process, NOTHING)
        starts, terms = [now], [claims.at(now)]
        for start, later in zip(claims.starts, claims.terms, strict=True):
            if start > now:  # A client was given leases; it does not come to lead.
                starts.append(start)
                terms.append({i: term for i, term in later.items() if terms[-1].get(i) == term})
        ends_at = next((start for start, held in zip(starts, terms, strict=True) if not held), inf)
        assert ends_at < inf, "every lease ends by time alone"
        self.claims[process] = ProcessClaims(starts, terms)
        self._world.at(ends_at, self.end, process)
        return ends_at

    def forget(self) -> None:
        """The ledger lost records: it may give the same terms again."""
        self._acted.clear()
        self._words.clear()

    def terms(self, process: ActorT) -> Terms:
        """What `process` may act for now."""
        claims = self.claims.get(process)
        return claims.at(self._world.now) if claims is not None else {}

    def who(self, partition: int) -> list[ActorT]:
        """The processes that may act for `partition` now."""
        now = self._world.now
        return [process for process, claims in self.claims.items() if partition in claims.at(now)]

    def _claims(self, process: ActorT, machine: MachineT) -> ProcessClaims:
        standing, local = process.standing, process.now
        ends = [standing.until, *standing.ends.values(), *self._ends_of(machine)]
        turns = [local, *sorted({end for end in ends if local < end < inf})]
        starts = [self._world.now]
        terms = [machine.tenures(local)]
        self._require_belief(process, terms[0], local)
        for turn in turns[1:]:
            if (later := machine.tenures(turn)) != terms[-1]:
                starts.append(max(starts[-1], process.clock.when(turn)))
                terms.append(later)
            self._require_belief(process, later, turn)
        return ProcessClaims(starts, terms)

    def _require_belief(self, process: ActorT, may: Terms, local: float) -> None:
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

    def _rise(self, process: ActorT, machine: MachineT, claims: ProcessClaims) -> None:
        """A claim begins by itself: a wait has ended, unless a step came first."""
        if self.claims.get(process) is claims:
            before, terms = claims.just_before(self._world.now), claims.at(self._world.now)
            for partition, term in terms.items():
                if before.get(partition) != term:
                    self._begin(process, machine, partition, term)

    def _begin(self, process: ActorT, machine: MachineT, partition: int, term: int) -> None:
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
        self._require_words(process, partition, term)
        incarnation = machine.incarnation
        highest, holder = self._acted.get(partition, (-1, incarnation))
        if term < highest or (term == highest and holder != incarnation):
            raise Violation(
                "terms_grow",
                f"{process.label} acts for partition {partition} under {term}, after {highest} was acted under",
            )
        self._acted[partition] = (term, incarnation)

    def _note_words(self, process: ActorT) -> None:
        """Note what its program had for a longer time before this step than it has now."""
        told, asked = self._told.get(process, (NO_STANDING, frozenset()))
        if told is process.standing:
            return
        self._told[process] = process.standing, frozenset(process.standing.terms.items() & process.program.asked)
        for place in told.terms.items():
            if process.standing.end(*place) < (end := told.end(*place)):
                self._words[place] = process, process.clock.when(end), place in asked

    def _require_words(self, process: ActorT, partition: int, term: int) -> None:
        self._words = {place: word for place, word in self._words.items() if word[1] > self._world.now}
        for (lost, under), (loser, until, was_asked) in self._words.items():
            if lost != partition or (loser is process and under == term):
                continue
            # Only now is it known whether it was asked in that step: its program hears of that after it.
            excused = loser.program.let_go if was_asked else loser.program.asked
            if not (loser.was_told_to_end or (lost, under) in excused):
                raise Violation(
                    "keeps_its_word",
                    f"{process.label} acts for partition {partition}, for which {loser.label} was told that it may act "
                    f"under {under} for {until - self._world.now:.6f} s more",
                )


def ends_of_tenure(machine: Induction) -> list[float]:
    """The times at which leases and waits of `induction` end."""
    tenure = machine.tenure
    lingering = (linger.until for linger in tenure.lingering.values())
    return [tenure.sent + tenure.lasts, tenure.settled, *tenure.busy.values(), *lingering]


class Coverage:
    """`owner_of` finds the live process of an incarnation, if there is one."""

    def __init__(
        self,
        world: World,
        options: RunOptions,
        acting: Acting[Process, Induction],
        owner_of: Callable[[str], Process | None],
    ) -> None:
        settings = options.settings("any")
        stretch = (1 + options.drift) / (1 - options.drift)
        self._world, self._acting, self._owner_of = world, acting, owner_of
        self._grace = (settings.delay + SLACK * options.lease) * stretch
        self._overlap_max = (settings.hold - settings.lease + SLACK * options.lease) * stretch
        self._owed_since = [inf] * options.partitions
        self._covered = [False] * options.partitions
        self._together: dict[tuple[int, Process, Process], float] = {}
        self.gap_max = self.overlap_longest = 0.0

    def on_change(self, state: State) -> None:
        """Owners or members changed, in the ledger."""
        for partition, owner in enumerate(state.owners):
            alive = owner is not None and self._owner_of(owner) is not None
            if not alive:
                self._owed_since[partition] = inf
            elif self._owed_since[partition] == inf:
                self._owed_since[partition], self._covered[partition] = self._world.now, False

    def on_death(self, process: Process, acted: dict[int, int], state: State) -> None:
        """`process` died, which acted for these. If it stood in for an owner that does not act yet, there is a gap."""
        for partition in acted:
            self._owed_since[partition], self._covered[partition] = self._world.now, False
        self.on_change(state)

    def look(self) -> None:
        """Other processes may act than before: judge them."""
        now = self._world.now
        together: dict[tuple[int, Process, Process], float] = {}
        for partition in range(len(self._owed_since)):
            who = self._acting.who(partition)
            for at, one in enumerate(who):
                for other in who[:at]:
                    since = self._together.get((partition, other, one), now)
                    together[partition, other, one] = since
                    self._require_brief(partition, one, other, since)
            if who:
                self._covered[partition] = True
            else:
                self._require_excuse(partition)
        for (partition, one, other), since in self._together.items():
            self._require_brief(partition, one, other, since)
        self._together = together

    def _require_excuse(self, partition: int) -> None:
        owed_for = self._world.now - self._owed_since[partition]
        if owed_for < 0:
            return  # Its owner is dead, or it has none.
        if self._covered[partition]:
            raise Violation("at_least_one_acts", f"partition {partition} was left by everybody, and its owner lives")
        if owed_for > self._grace:
            raise Violation(
                "at_least_one_acts", f"partition {partition} waits for {owed_for:.6f} s, and its owner lives"
            )
        self.gap_max = max(self.gap_max, owed_for)

    def _require_brief(self, partition: int, one: Process, other: Process, since: float) -> None:
        lasted = self._world.now - since
        self.overlap_longest = max(self.overlap_longest, lasted)
        if lasted > self._overlap_max:
            raise Violation(
                "brief_overlap",
                f"{one.label} and {other.label} act for partition {partition} for {lasted:.6f} s, "
                f"where {self._overlap_max:.6f} s are allowed",
            )
