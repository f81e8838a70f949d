"""Every check can fail: for each rule, the smallest situation that breaks it, unless a mutant in `proofs.lock` does.

The runs in which every promise holds show that it fails only then: see test_contract.

Where a machine would never do such a thing, the checker is given by hand what a broken machine would have done.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace as changed

from neli_router.drivers.ledgers.pump import Pump
from neli_router.errors import Diverged, GroupMismatch, LedgerRewound, LedgerUnusable, NameTaken, NeliError, Replaced
from neli_router.lab.sim.acting import Acting, ProcessClaims
from neli_router.lab.sim.induction import referee as referee_module
from neli_router.lab.sim.induction import simulate as simulate_module
from neli_router.lab.sim.induction.coverage import Coverage, ends_of_tenure
from neli_router.lab.sim.induction.group import SimulatedGroup, require_bounded
from neli_router.lab.sim.induction.process import Process
from neli_router.lab.sim.induction.referee import DIGEST_EVERY, Referee
from neli_router.lab.sim.induction.simulate import CONVERGED_LEASES_MAX, _converge, simulate
from neli_router.lab.sim.program import Program
from neli_router.lab.sim.world import LocalClock, Violation, World
from neli_router.protocols.induction.events import Effect, Input
from neli_router.protocols.induction.fold import DEPARTED_MAX, FOLD_VERSIONS, State, fold
from neli_router.protocols.induction.machine import InductionMachine
from neli_router.protocols.induction.observer import Observer
from neli_router.protocols.induction.records import Certify, Handover, Join, Leave, Pin, Record, encode
from neli_router.protocols.induction.tenure import Tenure
from neli_router.protocols.induction.trust import RING_MAX
from neli_router.protocols.protocol import NO_STANDING, TICK, Acquired, Fenced, Revoked, Settings, Standing, Stopped
from tests.lab.sim.groups import LEASE, at_rest, group, incarnation, options
from tests.support.records import LAYOUT, beat, expire, folded, founded, genesis, join

CLOCK = LocalClock(0.0, [(0.0, 1.0)])
"""A host whose clock shows the time of the world."""


def breaks(rule: str, message: str = "") -> AbstractContextManager[object]:
    return pytest.raises(Violation, match=rf"^{rule}: .*{message}")


def say(found: SimulatedGroup, record: Record) -> None:
    """`record` is appended, by any writer."""
    found.log.extend(None, [encode(record)])


def referee(*records: Record) -> Referee:
    """A referee that has read `records`, from offset 0 on."""
    found = Referee(on_unseated=lambda *_: None, on_change=lambda *_: None, on_certified=lambda _: None)
    for offset, record in enumerate(records):
        found.read(offset, encode(record))
    return found


PAIR = (genesis(), join("a"), join("b"), Handover(by="a", terms={1: 1001}))
"""a owns partitions 0, 2 and 3 under 1001, b owns 1 under 1003, and is to own one more."""


def test_who_holds_another_state_than_the_records_say_or_still_holds_what_the_ledger_lost_is_found() -> None:
    judge = referee(*PAIR)
    judge.require_same("m1", folded(*PAIR))
    with breaks("equal_prefixes", "m1 at 4 holds {'drains': "):
        judge.require_same("m1", changed(folded(*PAIR), drains={"a": 3}))
    judge.rewind(3, [0, 1, 2])
    judge.read(3, encode(beat("a")))
    judge.require_same("m1", folded(*PAIR[:3], beat("a")))
    with breaks("equal_prefixes"):
        judge.require_same("m1", folded(*PAIR))


def test_a_wrong_digest_is_found_and_a_reader_that_stands_where_no_record_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = referee(*PAIR)
    judge.require_digest()
    monkeypatch.setattr(referee_module, "fold", lambda *of: changed(fold(*of), digest=1))
    for offset in range(len(PAIR), DIGEST_EVERY - 1):
        judge.read(offset, encode(beat("a")))
    with breaks("digest", "of its facts"):
        judge.read(DIGEST_EVERY - 1, encode(beat("a")))
    judge = referee(genesis())
    judge.read(5, encode(join("a")))
    with breaks("equal_prefixes", "stands at 4, where no record ends"):
        judge.require_same("m1", changed(founded(), at=4))


Fields = Callable[[State, State], dict[str, Any]]
"""Given the states before and after a record: the fields that a broken fold sets instead."""


def swaps(partition: int, **changes: Any) -> Fields:
    """Another owner, target or term of one partition, such as `owners="b"`."""
    return lambda _, after: {
        field: (*getattr(after, field)[:partition], value, *getattr(after, field)[partition + 1 :])
        for field, value in changes.items()
    }


def keeps(*fields: str) -> Fields:
    return lambda before, _: {field: getattr(before, field) for field in fields}


def loses(gone: str, **others: Any) -> Fields:
    """All members but `gone` stay."""
    return lambda before, _: {"seats": {key: seat for key, seat in before.seats.items() if key != gone}, **others}


def seats(newcomer: str, like: Record) -> Fields:
    return lambda before, _: {"seats": {**before.seats, newcomer: next(iter(founded(like).seats.values()))}}


LAST_OF_A, LAST_OF_B = 1, 2
ALL_OF_A = {"owners": ("a",) * 4}
GIVES = Handover(by="a", terms={0: 1001})
LEAVES = Leave(by="b")
B_IS_DEAD, C_IS_DEAD = Certify(by="w", incarnation="b"), Certify(by="w", incarnation="c")
KEEPS_EVERYTHING = keeps("owners", "terms", "seats")

MOVES = {"owners": "b", "targets": "b", "terms": 1004}

BROKEN_FOLDS: list[tuple[tuple[Record, ...], Record, str, Fields]] = [
    (PAIR, LEAVES, "a is no longer a member after", lambda *_: {"seats": {}}),
    (PAIR, join("c", "a", at=4), "b is no longer a member after", loses("b")),
    (PAIR, Pin(by="a", partition=0, name="a"), "b is no longer a member", loses("b")),
    (PAIR, expire("x", "b", LAST_OF_B), "b is no longer a member after", loses("b", **ALL_OF_A)),
    (PAIR, B_IS_DEAD, "a is no longer a member after", lambda *_: {"seats": {}}),
    ((*PAIR, C_IS_DEAD), join("c", at=5), "who departed is a member again after", seats("c", join("c"))),
    (PAIR, B_IS_DEAD, "who is certified dead is still a member after", KEEPS_EVERYTHING),
    (PAIR, join("c"), "another incarnation is a member after", seats("d", join("c"))),
    ((*PAIR, LEAVES), join("b", at=5), "who departed is a member again after", seats("b", join("b"))),
    (PAIR, GIVES, "None owns partition 0, of 2 members, after", swaps(0, owners=None)),
    (PAIR[:2], Leave(by="a"), "a owns partition 3, of 0 members, after", swaps(3, owners="a")),
    (PAIR, LEAVES, "b is not a member but owns partition 1 after", keeps("owners", "terms")),
    (PAIR, beat("b"), "partition 2 has term 1000 and not 1004 after", swaps(2, terms=1000)),
    (PAIR, beat("b"), "the group was founded again by", lambda *_: {"genesis": genesis(lease=7.0)}),
    (PAIR, LEAVES, "partition 1 has term 1003 and not 1004 after", keeps("terms")),
    (PAIR, LEAVES, "partition 1 has term 9999 and not 1004 after", swaps(1, terms=9999)),
    (PAIR, GIVES, "partition 0 went to another than its target by", swaps(0, owners="b", targets="a")),
    (PAIR, GIVES, "partition 2 moved needlessly from a to b by", swaps(2, **MOVES)),
    (PAIR, Handover(by="a", terms={0: 1000}), "partition 0 moved needlessly from a to b by", swaps(0, **MOVES)),
    (PAIR, expire("a", "b", LAST_OF_B), "who was rightly accused is still a member after", KEEPS_EVERYTHING),
    (PAIR, LEAVES, "who left is still a member after", KEEPS_EVERYTHING),
]


@pytest.mark.parametrize(("records", "record", "message", "fields"), BROKEN_FOLDS, ids=[it[2] for it in BROKEN_FOLDS])
def test_a_fold_that_does_what_a_record_may_not_is_found(
    monkeypatch: pytest.MonkeyPatch, records: tuple[Record, ...], record: Record, message: str, fields: Fields
) -> None:
    referee(*records, record)  # The shipped fold does nothing of the kind.
    judge = referee(*records)

    def broken(before: State, offset: int, record: Record | None) -> State:
        after = fold(before, offset, record)
        return changed(after, **fields(before, after))

    monkeypatch.setattr(referee_module, "fold", broken)
    with breaks("no_needless_move", message):
        judge.read(len(records), encode(record))


BEFORE = founded(join("a"), join("b"))
AFTER = folded(expire("b", "a", LAST_OF_A), state=BEFORE)
"""a owned everything under 1001; then b does, under 1003."""
LED = dict.fromkeys(range(4), 1001)


class ActingScene:
    """Processes that act when a test decides, as `acting` sees them."""

    def __init__(self, *, exclusive: bool = True) -> None:
        self.world = World(1)
        self.acting: Acting[Process, InductionMachine] = Acting(self.world, exclusive=exclusive, ends_of=ends_of_tenure)
        self._group = SimulatedGroup(self.world, options())

    def host(self, label: str) -> Process:
        # It runs an observer, which never acts: a test steps `acting` with the machine of its choice.
        return Process(self.world, self._group.log, _Indifferent(), label=label, clock=CLOCK, birth=Observer)

    def step(self, host: Process | str, who: str, state: State, *, sent: float = 0.0, settled: float = 0.0) -> Process:
        """`host` runs `who`, which has read up to `state`. Its Beat of `sent` came back; its wait ends at `settled`."""
        process = self.host(host) if isinstance(host, str) else host
        machine = InductionMachine(Settings(name=who, layout=LAYOUT, lease=LEASE), state, 0.0, wall=0, rng=Random(1))
        machine.tenure = Tenure(incarnation=who, exclusive=True, lasts=LEASE, wait=LEASE, sent=sent, settled=settled)
        machine._look()
        self.acting.step(process, machine)
        return process

    def leader(self, standing: Standing) -> Process:
        """m1, which runs a and published `standing` to its program."""
        process = self.host("m1")
        process.standing = standing
        return process


class _Indifferent:
    """Checkers that let everything pass."""

    def on_send(self, *_: object) -> None: ...
    def on_step(self, *_: object) -> None: ...
    def on_end(self, *_: object, **__: object) -> None: ...


def test_two_who_act_at_once_are_found_when_too_short_a_wait_ends() -> None:
    stage = ActingScene()
    stage.step("m1", "a", BEFORE)
    stage.step("m2", "b", AFTER, sent=1.0, settled=LEASE - 0.1)
    stage.world.run(LEASE - 0.1)
    with breaks("at_most_one_acts", r"m2 \(term 1003\) and m1 \(term 1001\) both act for partition 0"):
        stage.world.run(LEASE - 0.05)


def test_a_client_of_one_who_is_gone_acts_until_the_lease_ends() -> None:
    stage = ActingScene()
    first = stage.step("m1", "a", BEFORE, sent=1.0)
    assert LED == stage.acting.terms(first)
    assert LEASE + 1.0 == stage.acting.lend(first)
    stage.world.run(LEASE)
    with breaks("at_most_one_acts"):
        stage.step("m2", "b", AFTER, sent=LEASE, settled=LEASE)


@pytest.mark.parametrize("later", [NO_STANDING, Standing(LED, LEASE - 1.0, {})], ids=["lost early", "for less time"])
@pytest.mark.parametrize("asked", [False, True])
def test_a_word_to_a_program_is_kept_to_its_end_unless_it_was_asked_to_finish(later: Standing, asked: bool) -> None:
    stage = ActingScene()
    first = stage.leader(Standing(LED, LEASE, {}))
    stage.step(first, "a", BEFORE)
    if asked:
        first.program.asked.update(LED.items())
    first.standing = later
    stage.step(first, "a", BEFORE if later.terms else AFTER, sent=-1.0 if later.terms else 0.0)
    stage.world.run(LEASE - 0.1)
    with nullcontext() if asked else breaks("keeps_its_word"):
        stage.step("m2", "b", AFTER, sent=LEASE - 0.1)


@pytest.mark.parametrize(("asked", "acts", "at"), [(True, "m2", LEASE - 1.1), (False, "m1", 1.0)])
def test_a_word_given_after_a_request_to_finish_is_kept_by_its_machine_too(asked: bool, acts: str, at: float) -> None:
    """Its drain no longer excuses it: the drain was known when the word was given."""
    stage = ActingScene()
    first = stage.leader(Standing(LED, LEASE - 1.0, {}))
    if asked:
        first.program.asked.update(LED.items())
    stage.step(first, "a", BEFORE)
    first.standing = NO_STANDING
    stage.step(first, "a", AFTER)
    stage.world.run(at)
    with breaks("keeps_its_word"):
        stage.step(first if acts == "m1" else acts, "b", AFTER, sent=at)


def test_a_term_that_does_not_grow_is_found_also_while_one_process_acts_on() -> None:
    for who, state in (("a", BEFORE), ("c", changed(AFTER, owners=("c",) * 4))):  # An earlier term, and the same one.
        stage = ActingScene()
        stage.acting.end(stage.step("m1", "b", AFTER))
        with breaks("terms_grow"):
            stage.step("m2", who, state)
    stage = ActingScene()
    first = stage.step("m1", "b", AFTER)
    stage.world.run(1.0)
    with breaks("terms_grow"):
        stage.step(first, "a", BEFORE)


class CoverageScene:
    """The processes that act for the only partition, as the test decides: under `available`, in fair weather."""

    def __init__(self, owner: str) -> None:
        self.stage = ActingScene(exclusive=False)
        self.world = self.stage.world
        self.one, self.other = self.stage.host("m1"), self.stage.host("m2")
        self.alive = {"a": self.one, "b": self.other}
        fair = options("fair", "available", partitions=1)
        self.coverage = Coverage(self.world, fair, self.stage.acting, self.alive.get)
        self.owner(owner)

    def owner(self, owner: str | None) -> None:
        self.coverage.on_change(State(owners=(owner,)))

    def act(self, *who: Process, at: float = 0.0) -> None:
        """At that time, or now if it has passed, these act."""
        self.world.run(max(at, self.world.now))
        claims = self.stage.acting.claims
        claims.clear()
        claims.update({process: ProcessClaims([self.world.now], [{0: 1}]) for process in who})
        self.coverage.look()


def test_a_partition_that_all_leave_while_its_owner_lives_is_found_and_one_that_waits_too_long_for_its_owner() -> None:
    scene = CoverageScene("a")
    scene.act(scene.one)
    with breaks("at_least_one_acts", "partition 0 was left by all"):
        scene.act()
    scene = CoverageScene("a")
    grace = scene.coverage._grace
    scene.act(at=grace)
    assert grace == scene.coverage.gap_max
    with breaks("at_least_one_acts", "partition 0 waits for "):
        scene.act(at=grace + 0.01)
    scene = CoverageScene("b")
    scene.act(scene.one)
    scene.world.run(5.0)
    scene.stage.acting.claims.clear()
    scene.coverage.on_death(scene.one, {0: 1}, State(owners=("b",)))
    scene.act(at=5.0)
    with breaks("at_least_one_acts", "waits for "):
        scene.act(at=5.0 + scene.coverage._grace + 0.01)


@pytest.mark.parametrize("still", [True, False])
def test_two_who_act_for_longer_than_they_may_are_found_even_when_one_has_stopped(still: bool) -> None:
    scene = CoverageScene("a")
    most = scene.coverage._overlap_max
    scene.act(scene.one, scene.other)
    with breaks("brief_overlap", "act for partition 0 for "):
        scene.act(scene.one, *([scene.other] if still else []), at=most + 0.01)


def test_who_is_replaced_by_one_dead_before_it_began_is_found() -> None:
    found, one, _ = at_rest()
    older = found.start("m1")
    found.world.run(found.world.now + LEASE / 2)  # It has an incarnation, and waits before it joins.
    by = incarnation(older)
    older.kill()
    found.world.run(found.world.now + LEASE / 2)
    one.kill()
    found.start("m1")
    found.world.run(found.world.now + CONVERGED_LEASES_MAX * LEASE)
    before = found.counts["replaced"]
    with breaks("the_newer_wins"):
        say(found, Join(by=by, name="m1", versions=FOLD_VERSIONS, at=found.log.tip))
    assert before + 1 == found.counts["replaced"]


def test_a_certificate_of_one_who_lives_or_whose_client_acts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found, one, other = at_rest()
    monkeypatch.setattr(found.witnesses, "lends", lambda: True)
    dead = incarnation(one)
    one.kill()
    with breaks("witnesses_know", r"m1#1 or a client of it acts"):
        say(found, Certify(by="w", incarnation=dead))
    assert (1, 1) == (found.counts["certificates"], found.counts["certified"])
    with breaks("witnesses_know", r"m2#1 or a client of it acts"):
        say(found, Certify(by="w", incarnation=incarnation(other)))


ERRORS: tuple[type[NeliError], ...] = (Replaced, NameTaken, GroupMismatch, LedgerRewound, Diverged, LedgerUnusable)


@pytest.mark.parametrize("kind", [None, NeliError, *ERRORS])
def test_who_stops_without_cause_is_found(kind: type[NeliError] | None) -> None:
    found, error = group(), kind("a", "b", "c") if kind else None
    process = found.start("m1")
    process.stopped = Stopped(error)
    with breaks("stops_for_a_reason", f"m1#1 ended without cause: {kind and kind.__name__}"):
        found.on_end(process, error=error)


def test_a_reader_that_computes_another_table_is_found_at_its_next_step_or_at_the_end() -> None:
    found, one, _ = at_rest()
    router = found.observe()
    found.world.run(found.world.now + LEASE)
    found.finish()
    for process in (one, router):
        assert isinstance(process.machine, InductionMachine | Observer)
        process.machine.state = changed(process.machine.state, drains={"x": 3})
        with breaks("equal_prefixes", f"{process.label} at"):
            found.on_step(process)
    one.kill()
    with breaks("equal_prefixes", "router#1 at"):
        found.finish()


def test_two_who_act_for_longer_than_the_doubt_after_a_rewind_are_found() -> None:
    """Records were lost that no process had read, everything works again, and every process may be in doubt."""
    found, one, other = at_rest()
    found.rewind(len(found.log.offsets))
    found.heal()
    twice = [process for process in (one, other) if 0 not in found.acting.terms(process)]
    found.world.run(found.doubt_until)
    found.acting.claims[twice[0]] = ProcessClaims([found.world.now], [{0: 1}])  # While in doubt, two may act.
    with breaks("at_most_one_acts", "still act for partition 0 after the rewind"):
        found.world.run(found.doubt_until + 0.001)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([Acquired({0: 5}), Acquired({0: 5})], "got Acquired twice for 0 under 5"),
        ([Acquired({0: 5}), Acquired({0: 4})], "got Acquired twice for 0 under 4"),
        ([Revoked({0: 5})], "got Revoked for what it does not hold"),
        ([Acquired({0: 5}), Revoked({0: 6})], "got Revoked for what it does not hold"),
        ([Acquired({0: 5}), Fenced({0: 5}, "why"), Fenced({0: 5}, "why")], "got Fenced for what it does not hold"),
        ([Acquired({0: 5}), Stopped(None)], "was left in the belief that it holds these when its member ended"),
    ],
)
def test_events_in_an_order_that_misleads_a_program_are_found(events: list[Any], message: str) -> None:
    told = Program("m1#1", options(), LEASE, Random(1), lambda seconds, event: None)
    for event in events[:-1]:
        told.hear(event)
    with breaks("events_in_order", message):
        told.hear(events[-1])


class _Raises(Observer):
    def step(self, event: Input, now: float) -> list[Effect]:
        raise IndexError(f"{event} is out of range")


def test_a_machine_that_raises_is_found_and_a_pump_that_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = group()
    Process(found.world, found.log, found, label="m1#1", clock=CLOCK, birth=_Raises)
    with breaks("never_crashes", "m1#1: IndexError"):
        found.world.run(LEASE)
    found = group()
    found.start("m1")
    monkeypatch.setattr(Pump, "turn", lambda pump: pump._step(TICK))
    with breaks("waits", "m1#1 took 100 turns without waiting"):
        found.world.run(LEASE)


@pytest.mark.parametrize(
    ("path", "most"), [("machine._authors", DEPARTED_MAX), ("machine._trust._digests", RING_MAX), ("new", 64)]
)
def test_a_container_that_grows_over_its_bound_is_found_wherever_it_is(path: str, most: int) -> None:
    found, one, _ = at_rest()
    *way, name = path.split(".")
    owner: object = one.pump
    for step in way:
        owner = getattr(owner, step)
    setattr(owner, name, dict.fromkeys(range(most)))
    require_bounded("m1#1", one.pump, found.options.partitions)
    setattr(owner, name, dict.fromkeys(range(most + 1)))
    with breaks("memory_is_bounded", f"m1#1 keeps {most + 1} items in pump.{path}"):
        require_bounded("m1#1", one.pump, found.options.partitions)
    with breaks("memory_is_bounded"):
        found.finish()
    with breaks("memory_is_bounded"):
        one.kill()


def stopping(found: SimulatedGroup, who: slice) -> None:
    for process in found.living[who]:
        process.pause(2.5 * found.options.lease)


@pytest.mark.parametrize(("who", "rule"), [(slice(None), "stays"), (slice(1), "nothing_moves_in_peace")])
def test_who_stops_when_all_is_calm_is_found(monkeypatch: pytest.MonkeyPatch, who: slice, rule: str) -> None:
    def converge(world: World, found: SimulatedGroup, lease: float) -> float:
        took = _converge(world, found, lease)
        while len(found.living) < 2:
            found.start(f"m{len(found.living) + 7}")
            took += _converge(world, found, lease)
        world.at(world.now + 0.5 * lease, stopping, found, who)
        return took

    monkeypatch.setattr(simulate_module, "_converge", converge)
    violation = simulate(1, weather="foul").violation
    assert violation is not None
    assert rule == violation.rule
