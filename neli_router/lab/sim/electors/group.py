"""A group without a broker: all peers, the network between them, their disks, and every checker, wired together.

    process --each step--> claims (see `acting`), terms, belief, the order of its program's events --> Violation
    faults --which peers, and when--> promptness and stickiness, in fair weather --> Violation

Rules for every weather: at most one process acts for a partition at any moment, by any clock; the terms that are acted
under grow, and each belongs to one leader; a program's events come in order, and no program believes more than its
machine. `term` has one more rule: a peer that leads under a term, acting or not, is the only one that ever does.

Judged in fair weather, where it is known which peers a fault touches:

    led_in_time  a partition is led once all that vote on it have been left alone for as long as an election takes
    sticks       a leader that a majority was able to hear and to answer all along is not unseated, unless an operator
                 named another, or a preferred peer is back

Two peers that do not hear each other while a majority hears the leader are not an excuse: scouting exists for that.
"""

from collections import Counter
from collections.abc import Iterable
from math import inf

from neli_router.errors import NeliError
from neli_router.lab.sim.acting import Acting
from neli_router.lab.sim.electors.insight import Insight
from neli_router.lab.sim.electors.network import Network
from neli_router.lab.sim.electors.options import ElectorOptions
from neli_router.lab.sim.electors.process import Disk, ElectorProcess
from neli_router.lab.sim.world import LocalClock, Violation, World, draw_clock
from neli_router.protocols.electors.machine import PeerMachine

__all__ = ["ElectorGroup"]

ABSENT = 0.3
"""How often one peer stays away after all faults, if all partitions can be led without it."""


class ElectorGroup:
    """The processes and their ElectorChecks. `insight` knows their machines, and makes them."""

    def __init__(self, world: World, options: ElectorOptions, insight: Insight) -> None:
        self.world, self.options, self.insight = world, options, insight
        self.counts: Counter[str] = Counter()
        self.measured: dict[str, float] = {"leaderless": 0.0}
        """The longest times in seconds; `leaderless` counts while an election should succeed, in fair weather."""
        self.network = Network(world, options, self.counts, deliver=self._deliver)
        self.acting: Acting[ElectorProcess, PeerMachine] = Acting(world, exclusive=True, ends_of=insight.turns)
        self.living: list[ElectorProcess] = []
        self._places: list[ElectorProcess | None] = [None] * options.size
        self._dead: list[ElectorProcess] = []
        self.calm = False
        """Whether nothing may change any more."""
        self._settles_at = inf
        """From then on, no past fault can cost a leader its majority."""
        self._births: Counter[str] = Counter()
        horizon = 3 * options.leases * options.lease
        self._clocks = [self._draw_clock(horizon) for _ in range(options.size)]
        self._disks = [Disk() for _ in range(options.size)]
        self._leaders: dict[tuple[int, int], int] = {}
        """Partition and term -> the place of the peer that led under it."""
        self._touched = [0.0] * options.size
        """Place -> until when a fault affected it; in the future while a fault lasts."""
        self._named_until = 0.0
        """Until then, an operator's request may move leaders."""
        self._dark_since = [0.0] * options.partitions
        """Partition -> since when no process acts for it; `inf` if one does."""
        if options.fair:
            self._watch()

    def _draw_clock(self, horizon: float) -> LocalClock:
        return draw_clock(self.world.random, drift=self.options.drift, stepping=True, horizon=horizon)

    # Processes

    def start(self, name: str) -> ElectorProcess:
        """`name` is m1 for the first peer of the list, and so on. A place has one process only: its link ensures it."""
        place = int(name[1:]) - 1
        if (living := self.at_place(place)) is not None:
            return living
        self._births[name] += 1
        if self.options.weather == "amnesiac":
            self._disks[place].memory = b""
        self.touch([place], self.world.now)
        process = ElectorProcess(
            self.world,
            self.options,
            self.network,
            self,
            label=f"{name}#{self._births[name]}",
            place=place,
            clock=self._clocks[place],
            disk=self._disks[place],
            build=self.insight.build,
        )
        self.living.append(process)
        self._places[place] = process
        if self._settles_at < inf:
            process.heal()
        return process

    def named(self, name: str) -> list[ElectorProcess]:
        return [process for process in self.living if process.label.partition("#")[0] == name]

    def remove(self, process: ElectorProcess) -> None:
        """Remove a process that is gone."""
        self.living.remove(process)
        self._places[process.place] = None

    def at_place(self, place: int) -> ElectorProcess | None:
        return self._places[place]

    def touch(self, places: Iterable[int], until: float) -> None:
        """A fault affects these places, until then."""
        for place in places:
            self._touched[place] = max(self._touched[place], until)

    def operator_speaks(self) -> None:
        """An operator names leaders, or prefers some: leaders may move for as long as that takes."""
        self._named_until = self.world.now + self.insight.moves_within
        self.touch(range(self.options.size), self.world.now)

    def heal(self) -> None:
        """End all faults, and bring every peer back, except one that is not needed."""
        self.world.note("world", "healed")
        self.network.heal()
        self._settles_at = self.world.now + self.insight.forgets_within
        for process in self.living:
            process.heal()
        absent = [place for place in range(self.options.size) if self.at_place(place) is None]
        if absent and self.world.random.random() < ABSENT and self._can_do_without(absent[0]):
            del absent[0]
        for place in absent:
            self.start(f"m{place + 1}")

    def _can_do_without(self, place: int) -> bool:
        return all(
            self.insight.is_majority([voter for voter in self.insight.voters(partition) if voter != place], partition)
            for partition in range(self.options.partitions)
        )

    def _deliver(self, to: int, sender: int, body: bytes, sent_at: float) -> None:
        process = self.at_place(to)
        if process is not None and process.started_at <= sent_at:
            process.hear(sender, body)

    # Whether all is well

    @property
    def converged(self) -> bool:
        """Whether one process acts for each partition, its program knows, and none of that is about to change."""
        if self.world.now < self._settles_at or any(process.was_told_to_end for process in self.living):
            return False
        return all(self._is_led(partition) for partition in range(self.options.partitions))

    def _is_led(self, partition: int) -> bool:
        who = self.acting.who(partition)
        if len(who) != 1:
            return False
        leader = who[0]
        standing, now = leader.standing, leader.now
        if now >= standing.end(partition, standing.terms.get(partition, -1)):
            return False
        return not self._preferred_to(leader, partition, self.living)

    def _preferred_to(self, leader: ElectorProcess, partition: int, among: Iterable[ElectorProcess]) -> bool:
        """Whether one of these is preferred to the current leader, so that it gives the partition away."""
        machines = {process.place: process.machine for process in among if not process.was_told_to_end}
        return self.insight.prefers(machines, leader.place, partition)

    @property
    def led(self) -> dict[int, int]:
        """Partition -> the place of the peer that acts for it."""
        return {i: who[0].place for i in range(self.options.partitions) if (who := self.acting.who(i))}

    def describe(self) -> str:
        """Why it has not converged, for people to read."""
        lines = [f"led {self.led}"]
        for process in self.living:
            standing = process.standing
            lines.append(
                f"{process.label} at {process.now:.6f} leads {dict(standing.terms)} until {dict(standing.ends)}, "
                f"{self.insight.tell(process.machine)}"
            )
        return "; ".join(lines)

    # From processes to the checkers

    def on_step(self, process: ElectorProcess) -> None:
        self.counts["steps"] += 1
        machine = process.machine
        before = self.acting.terms(process)
        changed = self.acting.step(process, machine)
        for partition, term in self.insight.led_by(machine):
            self._require_one_leader(process, partition, term)
        acts = self.acting.terms(process)
        for partition in acts:
            since, self._dark_since[partition] = self._dark_since[partition], inf
            if since < inf:
                self.measured["leaderless"] = max(self.measured["leaderless"], self.world.now - since)
        if changed:
            self.counts["tenures"] += sum(before.get(partition) != term for partition, term in acts.items())
            self._on_change(process, before, acts)

    def on_end(self, process: ElectorProcess, *, error: NeliError | None) -> None:
        self.remove(process)
        self._dead.append(process)
        self.touch([process.place], self.world.now)
        dark = [i for i in self.acting.terms(process) if self.acting.who(i) == [process]]
        if process.stopped is None:  # Killed: a client that it lent its leases to acts on.
            self.counts["lent"] += bool(dark)
            self.acting.lend(process)
        else:
            self.acting.end(process)
        self._dark_since = [self.world.now if i in dark else since for i, since in enumerate(self._dark_since)]
        if self._settles_at < inf:  # It was asked to leave before all faults ended.
            self._settles_at = self.world.now + self.insight.forgets_within
            self.world.at(self.world.now, self.start, process.label.partition("#")[0])
        if process.stopped is not None:
            self.counts["stopped"] += 1
            if error is not None or not process.was_told_to_end:
                raise Violation("stops_for_a_reason", f"{process.label} ended without cause: {error!r}")

    def _require_one_leader(self, process: ElectorProcess, partition: int, term: int) -> None:
        first = self._leaders.setdefault((partition, term), process.place)
        if first != process.place:
            raise Violation(
                "one_leader_a_term",
                f"{process.label} leads partition {partition} under {term}, as m{first + 1} did before",
            )

    def _on_change(self, process: ElectorProcess, before: dict[int, int], acts: dict[int, int]) -> None:
        if self.calm:
            raise Violation("stays", f"{process.label} acts for {acts}, and did for {before}")
        self._note_dark({i: term for i, term in before.items() if i not in acts})
        if self.options.fair:
            for partition in before.keys() - acts.keys():
                self._require_excuse(process, partition)

    def _note_dark(self, lost: dict[int, int]) -> None:
        for partition in lost:
            if not self.acting.who(partition):
                self._dark_since[partition] = self.world.now

    # Fair weather

    def _left_alone(self, places: Iterable[int], since: float) -> list[int]:
        """Places whose process lives, and that no fault has affected since then."""
        alive = {process.place for process in self.living if not process.was_told_to_end}
        return [place for place in places if place in alive and self._touched[place] <= since]

    def _require_excuse(self, process: ElectorProcess, partition: int) -> None:
        now, voters = self.world.now, self.insight.voters(partition)
        since = now - self.insight.forgets_within
        # The leader cannot know yet that a peer to which it cedes died a moment ago.
        among = [*(one for one in self._dead if self._touched[one.place] > since), *self.living]
        if process.was_told_to_end or now < self._named_until or self._preferred_to(process, partition, among):
            return
        supporters = [
            place
            for place in self._left_alone(voters, since)
            if place == process.place or self.network.open_since(place, process.place) <= since
        ]
        if self.insight.is_majority(supporters, partition):
            raise Violation(
                "sticks",
                f"{process.label} no longer leads partition {partition}, which m"
                f"{', m'.join(str(place + 1) for place in supporters)} were able to support",
            )

    def _watch(self) -> None:
        now = self.world.now
        for partition, dark_since in enumerate(self._dark_since):
            voters = self.insight.voters(partition)
            since = now - self.insight.takes_over_within
            alive = [process.place for process in self.living if process.place in voters]
            is_possible = self.insight.is_majority(alive, partition) and all(self._is_calm(v, since) for v in voters)
            if dark_since <= since and is_possible:
                raise Violation(
                    "led_in_time",
                    f"partition {partition} has had no leader for {now - dark_since:.6f} s: {self.describe()}",
                )
        self.world.at(now + self.options.lease / 4, self._watch)

    def _is_calm(self, place: int, since: float) -> bool:
        """Whether no fault has affected `place` since then, or any way from it or to it."""
        others = range(self.options.size)
        return self._touched[place] <= since and all(self.network.open_since(place, one) <= since for one in others)
