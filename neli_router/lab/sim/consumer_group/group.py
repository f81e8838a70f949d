"""A borrowed group: all hosts, their processes, the broker, and every checker, wired together.

    broker --each giving, each message--> coverage, terms --> Violation
    process --each step--> claims (see `acting`), terms, belief, the order of its program's events

Rules for every weather: a program's events come in order, and no program believes more than its machine. Where the
run's assumptions allow it, at most one process acts for a partition at a time.

Terms grow over owners: a tenure under an earlier giving of a partition always has a lower term than one under a later
giving. So a fence can distinguish owners, even if two act at the same time: it lets the later owner through and refuses
the owner that the broker had forgotten.

Coverage is judged in fair weather:

    led_in_time   a partition that was given to a live process that is not cut off is led within the time that this
                  takes: the process learns of it, waits for T + e if it must, and receives a message
    stays_led     it is led from then on, as long as the broker leaves it there
    never_dry     `neli`: each partition gets a message every beat, as long as a living process reaches the broker
    brief_overlap under `available`, two act for a partition for at most T; if the first was silent for a session
                  before, for T minus a session; plus the times that beats and messages take
    at_least_one  under `available`, some process acts for each partition, from when it was first led until its leader
                  dies, as long as no second process falls silent
"""

from collections import Counter
from math import inf
from typing import NamedTuple

from neli_router.errors import GroupMismatch, NeliError
from neli_router.lab.sim.acting import Acting
from neli_router.lab.sim.consumer_group.broker import Broker, DayClock, draw_day_clock
from neli_router.lab.sim.consumer_group.options import ConsumerOptions
from neli_router.lab.sim.consumer_group.process import BorrowedMachine, ConsumerProcess
from neli_router.lab.sim.world import LocalClock, Violation, World, draw_clock
from neli_router.protocols.consumer_group.events import BrokerBroken, Message

__all__ = ["ConsumerGroup", "TermsOfGivings"]

SLACK = 0.01
"""In sessions: the time that processes' turns take, which no bound counts."""


MEASURES = ("led_after", "dark", "overlap", "overlap_after_silence")
"""From a giving until it is led; without a leader, since one died; and with two, by how the first one lost it."""


class TermsOfGivings:
    """Partition -> giving -> the lowest and the highest term that was acted under."""

    def __init__(self) -> None:
        self._acted: dict[int, dict[int, tuple[int, int]]] = {}

    def acted(self, label: str, partition: int, giving: int, term: int) -> None:
        """`label` acts for `partition` under `term`, having received it by `giving`."""
        known = self._acted.setdefault(partition, {})
        for other, (low, high) in known.items():
            if (other < giving and high >= term) or (other > giving and term >= low):
                raise Violation(
                    "terms_grow",
                    f"{label} acts for partition {partition} under {term} by giving {giving}, and by giving {other} "
                    f"it was acted for under {low} to {high}",
                )
        low, high = known.get(giving, (term, term))
        known[giving] = min(low, term), max(high, term)


def _turns(machine: BorrowedMachine) -> list[float]:
    """The ends of each tenure's grace and evidence: a standing does not name all of them before they begin."""
    tenures = machine._tenures  # noqa: SLF001 - private, because no program needs to know.
    return [turn for i in tenures for turn in (machine._begins(i), machine._ends(i))]  # noqa: SLF001


class _Tenure(NamedTuple):
    process: ConsumerProcess
    partition: int
    term: int


class ConsumerGroup:
    """The processes, and the ProcessChecks that each of them has."""

    def __init__(self, world: World, options: ConsumerOptions) -> None:
        self.world, self.options = world, options
        self.counts: Counter[str] = Counter()
        self.measured: dict[str, float] = dict.fromkeys(MEASURES, 0.0)
        """The longest times in seconds, by the names in MEASURES."""
        self.broker = Broker(
            world, options, on_given=self._on_given, on_taken=self._on_taken, on_append=self._on_append
        )
        self.acting: Acting[ConsumerProcess, BorrowedMachine] = Acting(
            world, exclusive=options.at_most_one, ends_of=_turns
        )
        self.terms = TermsOfGivings()
        self.living: list[ConsumerProcess] = []
        self.calm = False
        """Whether nothing may change any more."""
        self._healed_at = inf
        self._births: Counter[str] = Counter()
        self._broken: dict[str, NeliError] = {}
        self._given_at: dict[int, tuple[str, int, float]] = {}
        """Partition -> which process has it, by which giving, and since when."""
        self._silent: set[int] = set()
        """The givings that ended because their holder was silent for a session."""
        self._led: set[int] = set()
        """The givings that were led."""
        self._troubles: list[tuple[float, float]] = []
        self._covered: set[int] = set()
        """The partitions that some process acts for."""
        self._orphaned: set[int] = set()
        """The partitions whose leader died and that no process has begun to lead since."""
        self._dark_since: dict[int, float] = {}
        """Partition -> since when its last leader is dead and it has no leader."""
        self._appended_at = [world.now] * options.partitions
        self._together: dict[tuple[_Tenure, _Tenure], float] = {}
        self._clocks: dict[str, tuple[LocalClock, DayClock]] = {}
        if options.fair and options.protocol == "neli":
            self._watch_for_drought()

    # Bounds, in seconds

    @property
    def way(self) -> float:
        """The longest that one way takes in fair weather, including a process's turn at its end."""
        return (self.options.delay_max + SLACK) * self.options.session

    @property
    def led_within(self) -> float:
        """The next beat brings it; then comes the wait, if any; then a message, which the next beat brings."""
        options = self.options
        session = options.session
        waits = (options.current + options.error) if options.exclusive and options.protocol == "neli" else 0.0
        beats = 1 / options.beats_per_session + options.beat + waits
        return beats * session * (1 + 2 * options.drift) + 5 * self.way

    def overlap_max(self, giving: int) -> float:
        """How long the process that got the partition by `giving` may act alongside its successor.

        If it was silent for a session before, it can have received only what was already on its way.
        """
        options = self.options
        silence = 1.0 - 1 / options.beats_per_session if giving in self._silent else 0.0
        return (options.current - silence) * options.session * (1 + 2 * options.drift) + 3 * self.way

    # Processes

    def start(self, name: str) -> ConsumerProcess:
        world, options = self.world, self.options
        self._births[name] += 1
        label = f"{name}#{self._births[name]}"
        if name not in self._clocks:
            horizon = 3 * options.sessions * options.session
            clock = draw_clock(world.random, drift=options.drift, stepping=True, horizon=horizon)
            self._clocks[name] = clock, draw_day_clock(world, options)
        clock, day = self._clocks[name]
        process = ConsumerProcess(
            world,
            self.broker,
            self,
            label=label,
            clock=clock,
            day=day,
            name=name,
        )
        self.living.append(process)
        return process

    def named(self, name: str) -> list[ConsumerProcess]:
        return [process for process in self.living if process.label.partition("#")[0] == name]

    def break_for(self, process: ConsumerProcess) -> None:
        """The topic grew: its client reports that it is no longer usable."""
        if process.label not in self._broken:
            self._broken[process.label] = error = GroupMismatch("a topic of 4 partitions", "5", "start a new group")
            process.consumer.break_for(BrokerBroken(error))

    def drop(self, partition: int) -> None:
        """Retention: all messages of `partition` up to now are gone."""
        self.broker.logs[partition].clear()
        for process in self.living:
            process.consumer.on_dropped(partition)

    def heal(self) -> None:
        """End all faults."""
        self.world.note("world", "healed")
        self._healed_at = self.world.now
        self.broker.heal()
        for process in self.living:
            process.heal()

    # Whether all is well

    @property
    def converged(self) -> bool:
        """Whether each partition is where it should be, and only its holder acts for it, under the latest giving.

        Under `available`, a holder may still act under an earlier giving, on the messages of that time. That ends when
        they are too old, and the first message of the current giving may come later than that. Likewise, it may act on
        messages from before everything was healed, and more of those may have been lost than it knows.
        """
        if self.world.now < self._healed_at + (self.options.current + self.options.error) * self.options.session:
            return False
        if not self.broker.settled or len(self.broker.seats) != len(self.living):
            return False
        if any(process.was_told_to_end for process in self.living):
            return False
        holders = self.broker.holders
        for partition in range(self.options.partitions):
            who = self.acting.who(partition)
            if [holders.get(partition)] != [process.label for process in who]:
                return False
            if self._given_at[partition][1] != who[0].tenures.get((partition, self.acting.terms(who[0])[partition])):
                return False
        return all(self._led_by_program(process) for process in self.living)

    def _led_by_program(self, process: ConsumerProcess) -> bool:
        standing, now = process.standing, process.now
        led = {i for i, term in standing.terms.items() if now < standing.end(i, term)}
        return led == {i for i, label in self.broker.holders.items() if label == process.label}

    def describe(self) -> str:
        """Why it has not converged, for people to read."""
        lines = [f"seats {list(self.broker.seats)}", f"holders {self.broker.holders}"]
        for process in self.living:
            standing = process.standing
            lines.append(f"{process.label} at {process.now:.6f} leads {dict(standing.terms)} until {standing.until}")
        return "; ".join(lines)

    # From processes to the checkers

    def on_step(self, process: ConsumerProcess) -> None:
        self.counts["steps"] += 1
        machine, world = process.machine, self.world
        self.acting.step(process, machine)
        acts = self.acting.terms(process)
        for partition, term in acts.items():
            if partition not in process.givings:
                raise Violation("acts_for_its_own", f"{process.label} was never given partition {partition}")
            # Under `available`, a tenure of an earlier giving may last while the next one begins.
            giving = process.tenures.setdefault((partition, term), process.givings[partition])
            self.terms.acted(process.label, partition, giving, term)
            self._note_led(partition, giving)
        if self.options.fair:
            self._require_stays(process, acts)
            self._look()
            for start in self.acting.claims[process].starts[1:]:
                world.at(start, self._look)

    def on_end(self, process: ConsumerProcess, *, error: NeliError | None) -> None:
        self.living.remove(process)
        for partition in self.acting.terms(process):
            self._dark_since.setdefault(partition, self.world.now)
            self._orphaned.add(partition)
        self.acting.end(process)
        if process.stopped:
            self.counts[f"stopped_{type(error).__name__.lower()}"] += 1
            good = process.was_told_to_end if error is None else error is self._broken.get(process.label)
            if not good:
                raise Violation("stops_for_a_reason", f"{process.label} ended without cause: {error!r}")
        else:
            self.on_trouble(self.world.now)

    def on_trouble(self, until: float) -> None:
        """A process died, or is cut off `until` then."""
        self._troubles.append((self.world.now, until))

    # From the broker to the checkers

    def _on_given(self, label: str, partition: int, giving: int) -> None:
        self.counts["givings"] += 1
        if self.calm:
            raise Violation("nothing_moves_in_peace", f"partition {partition} went to {label}")
        self._given_at[partition] = label, giving, self.world.now
        if self.options.fair:
            self.world.at(self.world.now + self.led_within, self._require_led, partition, giving)

    def _on_taken(self, label: str, partition: int, giving: int, *, silent: bool) -> None:
        if silent:
            self._silent.add(giving)
        if self._given_at.get(partition, ("", 0, 0.0))[1] == giving:
            del self._given_at[partition]
        if self.options.fenced_fetch:
            for process in self.living:
                if process.label == label:
                    process.consumer.on_taken(partition, giving)

    def _on_append(self, message: Message) -> None:
        self.counts["messages"] += 1
        self._appended_at[message.partition] = self.world.now
        for process in self.living:
            process.consumer.on_append(message)

    # Coverage

    def _reaches(self, process: ConsumerProcess, *, since: float) -> bool:
        return process.alive and not process.was_told_to_end and process.cut_until <= since

    def _note_led(self, partition: int, giving: int) -> None:
        held = self._given_at.get(partition)
        if held is None or held[1] != giving or giving in self._led:
            return
        self._led.add(giving)
        self._orphaned.discard(partition)
        self._measure("led_after", self.world.now - held[2])
        if partition in self._dark_since:
            self._measure("dark", self.world.now - self._dark_since.pop(partition))

    def _measure(self, what: str, seconds: float) -> None:
        self.measured[what] = max(self.measured[what], seconds)

    def _require_led(self, partition: int, giving: int) -> None:
        held = self._given_at.get(partition)
        if held is None or held[1] != giving or giving in self._led:
            return
        process = next((one for one in self.living if one.label == held[0]), None)
        if process is None or process.was_told_to_end:
            return
        due = max(held[2], process.cut_until, process.consumer.asked_until) + self.led_within
        if self.world.now < due:
            again = due if due < inf else self.world.now + self.led_within
            self.world.at(again, self._require_led, partition, giving)
        else:
            raise Violation(
                "led_in_time",
                f"partition {partition} was given to {process.label} {self.world.now - held[2]:.6f} s ago",
            )

    def _require_stays(self, process: ConsumerProcess, acts: dict[int, int]) -> None:
        since = self.world.now - self.led_within
        if not self._reaches(process, since=since) or process.consumer.asked_until > since:
            return
        for partition, giving in process.consumer.givings.items():
            held = self._given_at.get(partition)
            if held is not None and held[1] == giving and giving in self._led and partition not in acts:
                raise Violation("stays_led", f"{process.label} leads partition {partition} no longer, and still has it")

    def _watch_for_drought(self) -> None:
        options, now = self.options, self.world.now
        bound = options.beat * options.session * (1 + options.drift) + 2 * self.way
        if any(self._reaches(one, since=now - 2 * bound) and one.started_at < now - 2 * bound for one in self.living):
            for partition, at in enumerate(self._appended_at):
                if now - at > bound:
                    raise Violation("never_dry", f"partition {partition} has had no message for {now - at:.6f} s")
        self.world.at(now + options.beat * options.session, self._watch_for_drought)

    def _look(self) -> None:
        """Under `available`: which processes act together, and since when."""
        if self.options.at_most_one:
            return
        now = self.world.now
        together: dict[tuple[_Tenure, _Tenure], float] = {}
        for partition in range(self.options.partitions):
            who = [_Tenure(one, partition, self.acting.terms(one)[partition]) for one in self.acting.who(partition)]
            if who:
                self._covered.add(partition)
            elif partition in self._covered:
                self._require_excuse(partition)
            for at, one in enumerate(who):
                for other in who[:at]:
                    pair = (one, other) if one.term < other.term else (other, one)
                    together[pair] = self._together.get(pair, now)
        for (one, other), since in (self._together | together).items():
            lasted = now - since
            first = one.process.tenures[one.partition, one.term]
            self._measure("overlap_after_silence" if first in self._silent else "overlap", lasted)
            allowed = self.overlap_max(first)
            if lasted > allowed:
                raise Violation(
                    "brief_overlap",
                    f"{one.process.label} and {other.process.label} act for partition {one.partition} "
                    f"for {lasted:.6f} s, "
                    f"where {allowed:.6f} s are allowed",
                )
        self._together = together

    def _require_excuse(self, partition: int) -> None:
        """T outlasts one process that falls silent. Two, one after the other, may leave a gap."""
        self._covered.discard(partition)
        due = self.world.now - self.led_within
        heirs = (one for one in self.living if self._reaches(one, since=due) and one.started_at <= due)
        if partition in self._orphaned or next(heirs, None) is None:
            return
        since = self.world.now - 2 * (self.options.current + 1.0) * self.options.session
        if sum(until >= since for _, until in self._troubles) <= 1:
            raise Violation("at_least_one", f"partition {partition} was left by every process")
