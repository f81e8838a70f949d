"""The pump: the order of its calls, what it makes of each failure, and where it begins.

The ledger here is a tape that a test can write on, cut off and break; the clock moves only where the test says.
"""

import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pytest

from neli_router import pump
from neli_router.errors import (
    LedgerError,
    LedgerRewound,
    LedgerTrimmed,
    LedgerUnavailable,
    LedgerUnusable,
    RecordTooLong,
)
from neli_router.induction.events import (
    Acknowledged,
    Append,
    Away,
    Broken,
    Effect,
    Input,
    Read,
    Recheck,
    Restart,
    Trim,
    Wish,
)
from neli_router.induction.fold import State
from neli_router.induction.records import Drain, Leave, Record, Snapshot, encode
from neli_router.induction.snapshots import snapshot
from neli_router.ledgers.base import READ_MAX, Entry, Promise
from neli_router.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.protocol import NO_STANDING, TICK, Acquired, Notice, Standing, Stopped
from neli_router.pump import CHANGES_MAX, POLL_MAX, RETRY_EVERY, SLICE_MAX, SPAN, Pump, oldest_state
from tests.support.records import beat, folded, founded, genesis, join

WISH = Drain(by="operator", name="x")


def failure(kind: type[LedgerError]) -> LedgerError:
    return kind("a good ledger was wanted", "it is not", "mend it")


class Tape:
    """A ledger of which everything can be seen. The first record stands at offset 1."""

    promises: frozenset[Promise] = frozenset()
    doubts: tuple[str, ...] = ()
    address = "tape"

    def __init__(self, *records: Record | None, first: int = 1) -> None:
        self.first = first
        self.payloads = [b"junk" if record is None else encode(record) for record in records]
        self.position = first
        self.fails: dict[str, LedgerError] = {}
        self.timeouts: list[float] = []
        self.reads = 0
        self.confirmed: list[int] = []
        self.trimmed: list[int] = []
        self.lasting: list[bool] = []
        self.woken = 0
        self.all = False
        self.on_read: Callable[[], None] = lambda: None

    def _fail(self, what: str) -> None:
        if what in self.fails:
            raise self.fails[what]

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        self._fail("append")
        self.payloads += payloads
        self.lasting.append(lasting)

    def acknowledged(self) -> list[int]:
        confirmed, self.confirmed = self.confirmed, []
        return confirmed

    def read(self, timeout: float) -> list[Entry]:
        self.timeouts.append(timeout)
        self.on_read()
        self._fail("read")
        if self.position < self.first:
            raise failure(LedgerTrimmed)
        entries = [
            Entry(offset, self.payloads[offset - self.first])
            for offset in range(self.position, min(self.tip(), self.position + READ_MAX))
        ]
        self.reads += len(entries)
        self.position += len(entries)
        self.all = len(entries) < READ_MAX
        return entries

    def age(self) -> float:
        return 0.0 if self.all else inf

    def seek(self, offset: int) -> None:
        self.position = offset if offset > 0 or self.first > 1 else self.first

    def start(self) -> int:
        self._fail("start")
        return self.first

    def tip(self) -> int:
        return self.first + len(self.payloads)

    def trim(self, before: int) -> None:
        self._fail("trim")
        self.trimmed.append(before)

    def drop(self, before: int) -> None:
        """What retention does."""
        del self.payloads[: before - self.first]
        self.first = before

    def wake(self) -> None:
        self.woken += 1

    def close(self) -> None:
        pass


class Machine:
    """Notes what it hears, and answers as it was told to."""

    def __init__(self, state: State, began: float) -> None:
        self.state, self.began = state, began
        self.heard: list[tuple[float, Input]] = []
        self.answers: dict[type, list[Effect]] = {}
        self.deadline = 0.0
        self.standing: Standing = NO_STANDING
        self.incarnation, self.caught_up, self.error, self.heard_at = "", True, None, 0.0

    def step(self, event: Input, now: float) -> list[Effect]:
        self.heard.append((now, event))
        return self.answers.pop(type(event), [])

    def tenures(self, now: float) -> dict[int, int]:
        return {}


class Rig:
    """A pump on a tape, and what came of it, in order."""

    def __init__(self, tape: Tape) -> None:
        self.tape, self.now = tape, 0.0
        self.tapped: list[Any] = []
        self.journal: list[Any] = []
        self.pauses: list[float] = []
        self.pump = Pump(
            tape,
            Machine,
            clock=lambda: self.now,
            pause=self.pauses.append,
            publish=lambda machine, now: self.journal.append("publish"),
            tell=self.journal.append,
            tap=self,
        )
        self.machine = self.pump.machine
        tape.timeouts.clear()

    def begin(self, state: State, now: float) -> None:
        self.tapped.append((now, state))

    def read(self, records: Sequence[tuple[int, Record | None]], now: float) -> None:
        self.tapped.append((now, records))

    @property
    def events(self) -> list[Input]:
        return [event for _, event in self.machine.heard]

    def turn(self, times: int = 1) -> "Rig":
        for _ in range(times):
            self.pump.turn()
        return self

    def told(self) -> list[Any]:
        """All but the publishing, since it was last asked for."""
        told = [one for one in self.journal if one != "publish"]
        self.journal.clear()
        return told


# Reading


def test_a_turn_reads_once_and_hands_on_what_was_read() -> None:
    rig = Rig(Tape(genesis(), None)).turn()
    assert [Read([(1, genesis()), (2, None)], 0.0)] == rig.events


def test_a_read_that_finds_nothing_is_handed_on_too() -> None:
    assert [Read([], 0.0)] == Rig(Tape()).turn().events


def test_the_clock_is_read_after_the_ledger() -> None:
    """What a read brings may have been sent while it waited."""
    rig = Rig(Tape(genesis()))

    def wait() -> None:
        rig.now = 7.0

    rig.tape.on_read = wait
    rig.turn()
    assert [(7.0, Read([(1, genesis())], 0.0))] == rig.machine.heard
    assert 7.0 == rig.pump.fresh_at


def test_a_machine_begins_with_the_time_just_after_its_state_was_read() -> None:
    tape = dropped(snapshot("a", BEGUN))
    now = 0.0

    def wait() -> None:
        nonlocal now
        now = 5.0

    tape.on_read = wait
    pump = Pump(tape, Machine, clock=lambda: now, pause=time.sleep, publish=lambda *_: None, tell=lambda _: None)
    assert 5.0 == pump.machine.began


@pytest.mark.parametrize(
    ("deadline", "timeout"),
    [(10.25, 0.25), (99.0, POLL_MAX), (float("inf"), POLL_MAX), (10.0, 0.0), (3.0, 0.0), (float("-inf"), 0.0)],
    ids=["until the deadline", "not for long", "nor for ever", "already due", "late", "at once"],
)
def test_a_read_waits_until_the_machines_deadline(deadline: float, timeout: float) -> None:
    rig = Rig(Tape())
    rig.now, rig.machine.deadline = 10.0, deadline
    rig.turn()
    assert [timeout] == rig.tape.timeouts


def test_a_read_does_not_wait_while_there_is_something_in_the_inbox() -> None:
    """Posted by what the machine answered to the inbox before."""
    rig = Rig(Tape())
    rig.machine.deadline = 99.0
    rig.machine.answers[Wish] = [Append([WISH], lasting=True)]
    rig.tape.fails["append"] = failure(LedgerUnusable)
    rig.pump.post(Wish(WISH))
    rig.turn()
    assert [0.0] == rig.tape.timeouts


def test_a_turn_takes_what_was_in_the_inbox_when_it_began() -> None:
    """A machine whose answers post again must not keep the pump from reading."""
    rig = Rig(Tape())
    rig.pump.post(Wish(WISH))
    rig.pump.post(TICK)
    rig.turn()
    assert [Wish(WISH), TICK, Read([], 0.0)] == rig.events


def test_a_post_wakes_the_read_that_waits() -> None:
    rig = Rig(Tape())
    rig.pump.post(TICK)
    assert 1 == rig.tape.woken


def test_a_post_from_another_thread_ends_a_wait() -> None:
    """With a real ledger, and by the real clock."""
    pump = Pump(
        MemoryLedger(MemoryLog()),
        Machine,
        clock=time.monotonic,
        pause=time.sleep,
        publish=lambda machine, now: None,
        tell=lambda effect: None,
    )
    pump.machine.deadline = float("inf")
    waiting = threading.Event()
    read = pump._ledger.read

    def announced(timeout: float) -> list[Entry]:
        waiting.set()
        return read(60.0)  # Longer than the test may take: only a wake-up ends it.

    pump._ledger.read = announced  # type: ignore[method-assign]

    def post() -> None:
        waiting.wait()
        pump.post(Wish(WISH))

    poster = threading.Thread(target=post)
    poster.start()
    pump.turn()
    poster.join()
    pump._ledger.read = read  # type: ignore[method-assign]
    pump.turn()
    heard = [event for _, event in pump.machine.heard]
    assert [Read([], 0.0), Wish(WISH), Read([], 0.0)] == heard


def test_what_is_confirmed_is_handed_on_after_what_was_read() -> None:
    rig = Rig(Tape(genesis()))
    rig.tape.confirmed = [1, 2]
    assert [Read([(1, genesis())], 0.0), Acknowledged([1, 2])] == rig.turn().events
    assert [Read([], 0.0)] == rig.turn().events[2:]


def test_what_is_known_is_as_old_as_the_last_read_that_brought_all() -> None:
    rig = Rig(Tape(*[None] * (READ_MAX + 1)))
    assert float("-inf") == rig.pump.fresh_at
    rig.now = 3.0
    rig.turn()
    assert float("-inf") == rig.pump.fresh_at  # After a full batch there may be more.
    rig.now = 4.0
    rig.turn()
    assert 4.0 == rig.pump.fresh_at
    rig.now, rig.tape.fails["read"] = 5.0, failure(LedgerUnavailable)
    rig.turn()
    assert 4.0 == rig.pump.fresh_at


# Effects


def test_a_tap_of_a_pump_reads_all_that_its_machine_does() -> None:
    tape = Tape(genesis(), None, join("a"))
    rig = Rig(tape)
    rig.turn(2)
    rig.now = 1.0
    tape.payloads.append(encode(beat("a")))
    rig.turn()
    assert [
        (0.0, State()),
        (0.0, [(1, genesis()), (2, None), (3, join("a"))]),
        (1.0, [(4, beat("a"))]),
    ] == rig.tapped


def test_the_standing_is_published_before_any_effect_is_carried_out() -> None:
    """No thread of the program may still find a partition led when its Handover is on the way."""
    rig = Rig(Tape())
    effect = Acquired({0: 1})
    rig.machine.answers[Read] = [effect, Stopped(None)]
    rig.turn()
    assert ["publish", effect, Stopped(None)] == rig.journal


def test_the_standing_is_published_before_a_record_is_appended() -> None:
    rig = Rig(Tape())
    rig.machine.answers[Read] = [Append([WISH], lasting=True)]
    seen: list[list[Any]] = []
    append = rig.tape.append

    def noted(payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        seen.append(list(rig.journal))
        append(payloads, lasting=lasting)

    rig.tape.append = noted  # type: ignore[method-assign]
    rig.turn()
    assert [["publish"]] == seen


def test_every_step_is_published_even_if_nothing_came_of_it() -> None:
    rig = Rig(Tape())
    rig.pump.post(TICK)
    assert ["publish", "publish"] == rig.turn().journal


@pytest.mark.parametrize("lasting", [True, False])
def test_records_are_appended_as_they_are_written(lasting: bool) -> None:
    rig = Rig(Tape())
    rig.machine.answers[Read] = [Append([WISH, beat("a")], lasting=lasting)]
    rig.turn()
    assert ([encode(WISH), encode(beat("a"))], [lasting]) == (rig.tape.payloads, rig.tape.lasting)


def test_records_that_are_not_needed_any_more_are_trimmed() -> None:
    rig = Rig(Tape())
    rig.machine.answers[Read] = [Trim(7)]
    assert [7] == rig.turn().tape.trimmed


# Failures


def test_a_ledger_that_cannot_be_read_is_away_and_not_silent() -> None:
    rig = Rig(Tape())
    rig.tape.fails["read"] = failure(LedgerUnavailable)
    assert [Away()] == rig.turn().events
    assert [RETRY_EVERY] == rig.pauses


def test_an_outage_is_noted_once_and_so_is_its_end() -> None:
    rig = Rig(Tape())
    error = rig.tape.fails["read"] = failure(LedgerUnavailable)
    away = Notice("ledger.unavailable", {"what": "read", "ledger": "tape", "error": str(error)})
    back = Notice("ledger.available", {"what": "read", "ledger": "tape"})
    assert [away] == rig.turn(3).told()
    del rig.tape.fails["read"]
    assert [back] == rig.turn(3).told()
    rig.tape.fails["read"] = error
    assert [away] == rig.turn().told()


def test_appends_that_fail_are_an_outage_of_their_own() -> None:
    """On a full disk, only they do."""
    rig = Rig(Tape())
    error = rig.tape.fails["append"] = failure(LedgerUnavailable)
    for _ in range(2):
        rig.machine.answers[Read] = [Append([WISH], lasting=True)]
        rig.turn()
    assert [Notice("ledger.unavailable", {"what": "append", "ledger": "tape", "error": str(error)})] == rig.told()
    assert [Read([], 0.0), Read([], 0.0)] == rig.events
    del rig.tape.fails["append"]
    rig.machine.answers[Read] = [Append([WISH], lasting=True)]
    assert [Notice("ledger.available", {"what": "append", "ledger": "tape"})] == rig.turn().told()


@pytest.mark.parametrize("kind", [LedgerRewound, LedgerUnusable])
def test_a_ledger_that_will_not_heal_breaks_the_machine(kind: type[LedgerError]) -> None:
    rig = Rig(Tape())
    error = rig.tape.fails["read"] = failure(kind)
    assert [Broken(error)] == rig.turn().events


@pytest.mark.parametrize("kind", [LedgerRewound, LedgerUnusable])
def test_an_append_that_will_not_heal_breaks_the_machine_in_the_next_turn(kind: type[LedgerError]) -> None:
    """Not in the midst of the effects of the step that it belongs to."""
    rig = Rig(Tape())
    error = rig.tape.fails["append"] = failure(kind)
    rig.machine.answers[Read] = [Append([WISH], lasting=True), Stopped(None)]
    rig.turn()
    assert [Read([], 0.0)] == rig.events
    assert [Stopped(None)] == rig.told()
    assert [Read([], 0.0), Broken(error), Read([], 0.0)] == rig.turn().events


@pytest.mark.parametrize("kind", [LedgerUnavailable, LedgerUnusable])
def test_a_trim_that_fails_is_noted_and_does_no_harm(kind: type[LedgerError]) -> None:
    rig = Rig(Tape())
    error = rig.tape.fails["trim"] = failure(kind)
    rig.machine.answers[Read] = [Trim(7)]
    assert [Notice("ledger.trim_failed", {"before": 7, "error": str(error)})] == rig.turn().told()
    assert [Read([], 0.0), Read([], 0.0)] == rig.turn().events


def test_a_trim_that_finds_the_ledger_rewound_breaks_the_machine() -> None:
    rig = Rig(Tape())
    error = rig.tape.fails["trim"] = failure(LedgerRewound)
    rig.machine.answers[Read] = [Trim(7)]
    assert [Read([], 0.0), Broken(error), Read([], 0.0)] == rig.turn(2).events


# What was dropped before it was read


def behind() -> Rig:
    """A machine that has read nothing yet, of a ledger whose beginning was dropped meanwhile."""
    state = founded(None, join("a"))
    rig = Rig(Tape(*[None] * 3, genesis(), join("a"), beat("a")))
    rig.tape.drop(before=3)
    rig.tape.payloads += [encode(snapshot("a", state))]
    return rig


def test_a_machine_that_was_left_behind_restarts_from_a_snapshot() -> None:
    rig = behind().turn()
    state = founded(None, join("a"))
    assert [Restart(state)] == rig.events
    assert [Restart(state), Read([(3, None), (4, genesis())])] == [
        event if isinstance(event, Restart) else Read(event.entries[:2])
        for event in rig.turn().events
        if isinstance(event, Restart | Read)
    ]


def test_a_tap_of_a_pump_is_told_of_a_restart() -> None:
    assert [(0.0, State()), (0.0, founded(None, join("a")))] == behind().turn().tapped


@pytest.mark.parametrize(
    ("kind", "event"), [(LedgerUnavailable, Away), (LedgerRewound, Broken), (LedgerUnusable, Broken)]
)
def test_a_restart_may_fail_as_a_read_may(kind: type[LedgerError], event: type) -> None:
    rig = behind()
    rig.tape.fails["start"] = failure(kind)
    rig.turn()
    assert [event] == [type(one) for one in rig.events]
    if event is Away:
        assert ["ledger.unavailable"] == [notice.event for notice in rig.told()]
        assert [RETRY_EVERY] == rig.pauses
        del rig.tape.fails["start"]
        assert Restart(founded(None, join("a"))) == rig.turn().events[-1]


# Where to begin

FIRST = folded(genesis(), state=State(at=1))
"""What the genesis at offset 1 says."""
BEGUN = folded(join("a"), beat("a"), state=FIRST)


def test_an_empty_ledger_has_said_nothing() -> None:
    assert State() == oldest_state(Tape())


def test_a_ledger_without_a_snapshot_is_read_from_its_beginning() -> None:
    assert State() == oldest_state(Tape(genesis(), join("a"), beat("a")))


def test_a_ledger_with_all_its_records_is_read_from_its_beginning_whatever_a_snapshot_says() -> None:
    assert State() == oldest_state(Tape(genesis(), snapshot("a", FIRST), join("a"), snapshot("a", BEGUN)))


def dropped(*records: Record | None) -> Tape:
    """`records` stand behind those of BEGUN, which are no longer there."""
    tape = Tape(genesis(), join("a"), beat("a"), *records)
    tape.drop(before=BEGUN.at)
    return tape


def test_the_first_snapshot_that_is_left_counts() -> None:
    """The members dropped what it tells. The newest may be a line of a stranger."""
    false = folded(*[None] * 3, state=FIRST)
    assert BEGUN == oldest_state(dropped(snapshot("a", BEGUN), snapshot("nobody", false)))


@pytest.mark.parametrize("state", [FIRST, BEGUN], ids=["the first", "the second"])
def test_a_pump_reads_on_from_where_the_snapshot_ends(state: State) -> None:
    tape = Tape(genesis(), join("a"), beat("a"), beat("a"), snapshot("a", state))
    tape.drop(before=state.at)
    rig = Rig(tape)
    assert state == rig.machine.state
    rig.turn()
    (event,) = rig.events
    assert isinstance(event, Read)
    assert list(range(state.at, 6)) == [offset for offset, _ in event.entries]


def bad(state: State) -> Snapshot:
    """One whose digest is not that of its state."""
    record = snapshot("a", state)
    image = record.state
    return Snapshot(by="a", upto=record.upto, state=type(image)(**{**_fields(image), "digest": "0" * 16}))


def _fields(image: Any) -> dict[str, Any]:
    return {name: getattr(image, name) for name in image.__struct_fields__}


def test_a_bad_snapshot_is_skipped_for_a_later_one() -> None:
    assert BEGUN == oldest_state(dropped(bad(BEGUN), snapshot("a", BEGUN)))


def test_a_snapshot_whose_records_are_not_retained_is_skipped() -> None:
    late = folded(None, None, state=BEGUN)
    tape = Tape(genesis(), join("a"), beat("a"), None, None, snapshot("b", BEGUN), snapshot("a", late))
    tape.drop(before=5)
    assert late == oldest_state(tape)


def test_a_snapshot_that_tells_of_more_than_stands_before_it_is_skipped() -> None:
    """It was in flight to a ledger that is no more, and a reader that started from it would never read this one."""
    later = folded(*[None] * 50, state=BEGUN)
    assert BEGUN == oldest_state(dropped(snapshot("a", later), snapshot("a", BEGUN)))


def test_a_snapshot_may_tell_of_all_that_stands_before_it() -> None:
    assert BEGUN == oldest_state(dropped(snapshot("a", BEGUN)))


def test_a_ledger_whose_start_moves_on_at_every_look_is_tried_again_later() -> None:
    """A simulated ledger, rewound to below what had been trimmed, had a member look for ever."""
    tape = dropped(*[None] * 200, snapshot("a", FIRST))
    tape.on_read = lambda: tape.drop(before=tape.first + 1)
    with pytest.raises(LedgerUnavailable, match="its start moved on each of 64 times"):
        oldest_state(tape)


def test_only_the_end_of_a_long_ledger_is_looked_through() -> None:
    tape = Tape(genesis(), *[None] * (2 * SPAN))
    tape.payloads.append(encode(snapshot("a", folded(*[None] * (2 * SPAN), state=FIRST))))
    assert 2 * SPAN + 2 == oldest_state(tape).at
    assert SPAN == tape.reads


def test_if_there_is_no_snapshot_at_the_end_more_is_looked_through() -> None:
    tape = dropped(snapshot("a", BEGUN), *[None] * (2 * SPAN))
    assert BEGUN == oldest_state(tape)
    assert tape.reads > SPAN


def test_a_snapshot_is_found_among_many_records_of_members() -> None:
    """Those are not decoded, once it is known that they are there."""
    tape = dropped(*[beat("a")] * 50, snapshot("a", BEGUN), *[beat("a")] * 50)
    assert BEGUN == oldest_state(tape)


@pytest.mark.parametrize(
    "records",
    [
        (join("a"), beat("a")),
        (genesis("b", at=1), join("a")),
        (genesis("b", at=1), genesis("c", at=8)),
        (bad(BEGUN), beat("a")),
    ],
    ids=["no genesis", "one that may be void, as another may have stood before it", "and a second", "a bad snapshot"],
)
def test_a_ledger_whose_beginning_was_dropped_without_a_snapshot_is_refused(records: tuple[Record, ...]) -> None:
    with pytest.raises(LedgerUnusable) as caught:
        oldest_state(Tape(*records, first=7))
    assert f"its records from 7 to {7 + len(records)} have neither" in caught.value.found


@pytest.mark.parametrize(
    "records",
    [
        (),
        (None, WISH),
        (None, genesis("b", at=7), join("a")),
        (None, genesis("b", at=8), join("a")),
        (beat("z"), genesis("b", at=8), join("a")),
    ],
    ids=["empty", "none of members", "a genesis by who had read what was dropped", "and more", "after a stray Beat"],
)
def test_a_ledger_of_which_only_what_is_void_was_dropped_is_read_from_where_it_starts(
    records: tuple[Record | None, ...],
) -> None:
    tape = Tape(*records, first=7)
    assert State(at=7) == oldest_state(tape)
    (event,) = Rig(tape).turn().events
    assert isinstance(event, Read)
    assert len(records) == len(event.entries)


def test_records_from_before_the_genesis_are_no_reason_to_refuse_a_ledger_from_its_beginning_on() -> None:
    """Written by who did not know yet that the ledger was made anew."""
    assert State() == oldest_state(Tape(beat("z"), beat("z")))


def test_a_member_that_trims_between_two_looks_leaves_a_newer_snapshot() -> None:
    late = folded(None, None, state=BEGUN)
    tape = dropped(snapshot("a", BEGUN), None, snapshot("a", late))

    def trim() -> None:
        if tape.first == BEGUN.at:
            tape.drop(before=late.at)

    tape.on_read = trim
    assert late == oldest_state(tape)


def test_a_ledger_that_cannot_be_read_cannot_be_begun() -> None:
    tape = dropped(snapshot("a", BEGUN))
    tape.fails["read"] = failure(LedgerUnavailable)
    with pytest.raises(LedgerUnavailable):
        Rig(tape)


# Records that are too long


def test_a_record_that_the_ledger_finds_too_long_is_told_of_and_ends_nothing() -> None:
    rig = Rig(Tape())
    rig.tape.fails["append"] = error = failure(RecordTooLong)
    rig.machine.answers[Read] = [Append([WISH], lasting=True)]
    assert [Notice("ledger.record_too_long", {"error": str(error)})] == rig.turn(2).told()
    assert not any(isinstance(event, Broken) for event in rig.events)


def test_a_record_that_no_reader_would_take_is_not_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "RECORD_MAX", 45)
    rig = Rig(Tape())
    rig.machine.answers[Read] = [Append([WISH, Leave(by="a")], lasting=True)]
    (notice,) = rig.turn().told()
    assert ("ledger.record_too_long", [encode(Leave(by="a"))]) == (notice.event, rig.tape.payloads)


# Doubts


def in_doubt(tape: Tape) -> Rig:
    """A pump whose machine has read all of `tape`, and then was told by a record that the ledger lost others."""
    rig = Rig(tape).turn()
    rig.machine.answers[Read] = [Recheck()]
    tape.append([b"a line"])
    rig.turn()
    rig.machine.heard.clear()
    return rig


def test_a_doubt_lets_what_was_read_be_read_again_and_not_be_given_to_the_machine_again() -> None:
    tape = Tape(genesis(), join("a"))
    rig = in_doubt(tape)
    tape.append([encode(WISH)])
    rig.turn()
    assert [Read([(4, WISH)], 0.0)] == rig.events
    assert 5 == tape.position


def test_what_was_read_and_is_not_there_any_more_breaks_the_ledger() -> None:
    tape = Tape(genesis(), join("a"))
    rig = in_doubt(tape)
    tape.payloads[1] = encode(join("b"))
    rig.turn()
    (event,) = rig.events
    assert isinstance(event, Broken)
    assert isinstance(event.error, LedgerRewound)


def test_a_ledger_that_became_shorter_than_what_was_read_is_found_at_its_tip() -> None:
    tape = Tape(genesis(), join("a"))
    rig = in_doubt(tape)
    del tape.payloads[2:]
    rig.turn()
    assert isinstance(rig.events[0], Broken)


def test_what_was_dropped_meanwhile_is_not_looked_at() -> None:
    tape = Tape(genesis(), join("a"))
    rig = in_doubt(tape)
    tape.drop(3)
    tape.append([encode(WISH)])
    rig.turn(2)
    assert [Read([(4, WISH)], 0.0)] == rig.events


def test_a_doubt_that_meets_an_outage_is_looked_into_after_it() -> None:
    tape = Tape(genesis(), join("a"))
    rig = in_doubt(tape)
    tape.fails["read"] = failure(LedgerUnavailable)
    rig.turn()
    tape.fails.clear()
    tape.payloads[0] = b"other"
    rig.turn()
    assert [Away, Broken] == [type(event) for event in rig.events]


def test_lines_that_raise_doubts_do_not_keep_a_member_from_reading_on() -> None:
    tape = Tape(genesis())
    rig = in_doubt(tape)

    def look() -> None:
        rig.now += 0.01  # A look takes as long as it has reads.

    tape.on_read = look
    for _ in range(50):
        rig.machine.answers[Read] = [Recheck()]
        tape.append([b"a line"])
        rig.turn()
    assert 50 == sum(len(event.entries) for event in rig.events if isinstance(event, Read))
    assert tape.reads < 50 * 50 / 8  # And not 50 * 50 / 2, as with a look at each line.


# Steps


def test_many_records_come_in_several_steps_and_the_inbox_is_heard_in_between() -> None:
    tape = Tape(*[None] * (2 * SLICE_MAX + 1))
    rig = Rig(tape)
    tape.on_read = lambda: rig.pump.post(Wish(WISH))
    rig.turn()
    assert [SLICE_MAX, "Wish", SLICE_MAX, 1] == [
        len(event.entries) if isinstance(event, Read) else type(event).__name__ for event in rig.events
    ]


def test_only_the_last_step_of_a_read_is_at_the_tip() -> None:
    events = Rig(Tape(*[None] * (SLICE_MAX + 1))).turn().events
    assert [inf, 0.0] == [event.age for event in events if isinstance(event, Read)]


def test_a_step_has_few_records_that_change_targets() -> None:
    events = Rig(Tape(*[WISH] * (2 * CHANGES_MAX))).turn().events
    assert [CHANGES_MAX, CHANGES_MAX] == [len(event.entries) for event in events if isinstance(event, Read)]
