"""Acting: at most one process acts for a partition at any moment, whatever the protocol.

    a step of p --> what p may act for, now and at each later time when that changes on its own --> claims of p
                                                                    |
        claims of all others  <-- compared whenever one begins -----'

A program acts by its clock, not by its pump, so asking only at steps is not enough. After each step, the machine is
asked about all times to come. Its answer changes only where a lease or a wait ends, and those times are known; until
its next step, the answer stands. When two claims overlap, the overlap begins where one of them begins. So it is enough
to compare a claim with all others when it begins: at the step that creates it, or at the later time that it names.

A program's belief (the standing that was last published) must lie within its machine's claims at each of these times,
so all that holds for claims holds for programs.

A process also keeps its word. If a program was last promised a partition until some time, no process begins to act for
it under another tenure before that time, unless the program had let go or its member was about to end. A machine may
lose a partition earlier and fence its program immediately. But clients of an agent act on the end that they know, and
learn of the loss later than the next leader does. There is one more excuse, for the moment at which a program is asked
to finish: if the drain ends before the end that was promised until then, that promise need not be kept.

Over all tenures that were acted on, a partition's terms strictly grow. Only the owner under the current term may resume
under it.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from math import inf
from typing import Generic, NamedTuple, Protocol, TypeVar

from neli_router.lab.sim.program import Program
from neli_router.lab.sim.world import LocalClock, Violation, World
from neli_router.protocols.protocol import NO_STANDING, Standing

__all__ = ["Acting", "Actor", "ActorMachine", "ProcessClaims"]

Terms = dict[int, int]


class ProcessClaims(NamedTuple):
    """The partitions one process may act for from each of `starts` on (the first is now), if it takes no other step."""

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
    """A process, as far as its claims are concerned."""

    label: str
    clock: LocalClock
    standing: Standing
    program: Program
    was_told_to_end: bool

    @property
    def now(self) -> float: ...


class ActorMachine(Protocol):
    """A machine of any protocol, as far as its claims are concerned."""

    @property
    def incarnation(self) -> str: ...
    def tenures(self, now: float) -> Terms: ...


ActorT = TypeVar("ActorT", bound=Actor)
MachineT = TypeVar("MachineT", bound=ActorMachine)


class Acting(Generic[ActorT, MachineT]):
    """The claims of all processes. `ends_of` gives the times, on its clock, when a machine's answer may change."""

    def __init__(self, world: World, *, exclusive: bool, ends_of: Callable[[MachineT], Iterable[float]]) -> None:
        self.lenient = not exclusive
        """Whether two may act for one partition: under `available`, and for a while after a ledger lost records."""
        self.claims: dict[ActorT, ProcessClaims] = {}
        self._world, self._ends_of = world, ends_of
        self._acted: dict[int, tuple[int, str]] = {}
        """Partition -> the highest term that was acted under, and the incarnation that acted."""
        self._told: dict[ActorT, tuple[Standing, frozenset[tuple[int, int]]]] = {}
        """The last standing each program got, and what it had been asked to finish by then."""
        self._words: dict[tuple[int, int], tuple[ActorT, float, bool]] = {}
        """Partition and term -> whose program lost it early, until when it had been promised, and whether the program
        had been asked to finish by the time of that promise."""

    def step(self, process: ActorT, machine: MachineT) -> bool:
        """`process` took a step; returns whether its claims changed to other partitions."""
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
        """`process` is gone, and no longer acts."""
        self.claims.pop(process, None)
        self._told.pop(process, None)

    def lend(self, process: ActorT) -> float:
        """`process` is gone, but its client still acts for what it led, as it could. Returns when that has ended."""
        now = self._world.now
        claims = self.claims.get(process, NOTHING)
        starts, terms = [now], [claims.at(now)]
        for start, later in zip(claims.starts, claims.terms, strict=True):
            if start > now:  # A client was given leases; it cannot begin to lead.
                starts.append(start)
                terms.append({i: term for i, term in later.items() if terms[-1].get(i) == term})
        ends_at = next((start for start, held in zip(starts, terms, strict=True) if not held), inf)
        assert ends_at < inf, "every lease ends by time alone"
        self.claims[process] = ProcessClaims(starts, terms)
        self._world.at(ends_at, self.end, process)
        return ends_at

    def forget(self) -> None:
        """The ledger lost records: it may assign the same terms again."""
        self._acted.clear()
        self._words.clear()

    def terms(self, process: ActorT) -> Terms:
        """The partitions that `process` may act for now."""
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
        """A claim begins on its own: a wait has ended, unless a step came first."""
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
        """Note what its program was promised for longer before this step than it is now."""
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
            # Whether it was asked in that step is only known now: its program hears of that after the step.
            excused = loser.program.let_go if was_asked else loser.program.asked
            if not (loser.was_told_to_end or (lost, under) in excused):
                raise Violation(
                    "keeps_its_word",
                    f"{process.label} acts for partition {partition}, for which {loser.label} was promised that it may "
                    f"act under {under} for {until - self._world.now:.6f} s more",
                )
