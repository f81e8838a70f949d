"""The pump of a ledger, beyond the contract: how it handles reads, failures and doubts, and where it begins."""

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest
from msgspec.structs import replace

from neli_router.drivers.ledgers import pump
from neli_router.drivers.ledgers.base import READ_MAX
from neli_router.drivers.ledgers.pump import (
    CHANGES_MAX,
    CROWD,
    REST_MAX,
    RETRY_EVERY,
    SLICE_MAX,
    SLICE_SECONDS,
    SPAN,
    Pump,
    oldest_state,
)
from neli_router.errors import LedgerError, LedgerRewound, LedgerUnavailable, LedgerUnusable, RecordTooLong
from neli_router.protocols.induction.events import (
    Acknowledged,
    Append,
    LedgerAway,
    LedgerBroken,
    Read,
    Recheck,
    Restart,
    Trim,
    Wish,
)
from neli_router.protocols.induction.fold import FOLD_VERSIONS, State
from neli_router.protocols.induction.records import Drain, Leave, Record, Snapshot, decode, encode, snapshot_version
from neli_router.protocols.induction.snapshots import snapshot
from neli_router.protocols.protocol import Notice, Stopped
from tests.drivers.ledgers.tape import Scripted, Tape, failure
from tests.support.records import beat, folded, founded, genesis, join

WISH = Drain(by="operator", name="x")


class Rig:
    """A pump on a tape, and what it did. It reads the first records when it is turned."""

    def __init__(self, tape: Tape) -> None:
        self.tape, self.now = tape, 0.0
        self.tapped: list[Any] = []
        self.told: list[Any] = []
        self.pauses: list[float] = []
        self.heard: list[tuple[float, Any]] = []
        self.machine = Scripted(self.heard)
        self.pump = Pump(
            tape,
            lambda state, now: self.machine,
            clock=lambda: self.now,
            pause=self.pauses.append,
            publish=lambda machine, now: None,
            tell=self.told.append,
            tap=self,
        )

    def begin(self, state: State, now: float) -> None:
        self.tapped.append((now, state))

    def read(self, records: Sequence[tuple[int, Record | None]], now: float) -> None:
        self.tapped.append((now, records))

    @property
    def events(self) -> list[Any]:
        return [event for _, event in self.heard]

    @property
    def sizes(self) -> list[int]:
        """How many records each step had that read some."""
        return [len(event.entries) for event in self.events if isinstance(event, Read)]

    def turn(self, times: int = 1) -> "Rig":
        for _ in range(times):
            self.pump.turn()
        return self

    def appending(self) -> "Rig":
        """A turn in which the machine wants a record appended."""
        self.machine.answers[Read] = [Append([WISH], lasting=True)]
        return self.turn()


def test_a_turn_reads_once_and_hands_on_what_was_read() -> None:
    tape = Tape(genesis(), None, join("a"))
    rig = Rig(tape).turn(2)
    records = [(1, genesis()), (2, None), (3, join("a"))]
    assert [Read(records, 0.0), Read([], 0.0)] == rig.events
    rig.now, tape.payloads = 1.0, [*tape.payloads, encode(beat("a"))]
    rig.turn()
    assert [(0.0, State()), (0.0, records), (1.0, [(4, beat("a"))])] == rig.tapped


def test_a_machine_begins_with_the_time_just_after_its_state_was_read() -> None:
    tape, times, begun = dropped(snapshot("a", BEGUN)), [0.0], list[float]()
    tape.meanwhile = lambda: times.append(5.0)

    def begin(state: State, at: float) -> Scripted:
        begun.append(at)
        return Scripted([])

    Pump(tape, begin, clock=lambda: times[-1], pause=lambda _: None, publish=lambda *_: None, tell=lambda _: None)
    assert [5.0] == begun


def test_what_is_confirmed_is_handed_on_after_what_was_read() -> None:
    rig = Rig(Tape(genesis()))
    rig.tape.confirmed = [1, 2]
    expected = [Read([(1, genesis())], 0.0), Acknowledged([1, 2]), Read([], 0.0)]
    assert expected == rig.turn(2).events


def test_what_is_known_is_as_old_as_the_last_read_that_brought_all() -> None:
    rig = Rig(Tape(*[None] * (READ_MAX + 1)))
    ages = [rig.pump.fresh_at]
    for now in (3.0, 4.0, 5.0):
        if now == 5.0:
            rig.tape.fails["read"] = failure(LedgerUnavailable)
        rig.now = now
        ages.append(rig.turn().pump.fresh_at)
    assert [-inf, -inf, 4.0, 4.0] == ages  # After the full batch at 3.0 there may be more.


def test_many_records_come_in_several_steps_and_the_inbox_is_heard_in_between() -> None:
    """Only the last step of a read is at the tip."""
    tape = Tape(*[None] * (2 * SLICE_MAX + 1))
    rig = Rig(tape)
    tape.meanwhile = lambda: rig.pump.post(Wish(WISH))
    assert [(SLICE_MAX, inf), Wish(WISH), (SLICE_MAX, inf), (1, 0.0)] == [
        (len(event.entries), event.age) if isinstance(event, Read) else event for event in rig.turn().events
    ]


def test_a_step_has_as_many_changes_as_take_a_short_time_at_least_one_and_any_number_of_beats() -> None:
    assert [CHANGES_MAX, CHANGES_MAX] == Rig(Tape(*[WISH] * (2 * CHANGES_MAX))).turn().sizes
    rig = Rig(Tape(*[WISH] * 4 * CHANGES_MAX))

    def work() -> None:
        rig.now += SLICE_SECONDS * 10 / CHANGES_MAX * rig.sizes[-1]  # The tenth part of the most takes just too long.

    rig.machine.on_step = work
    assert [64, 32, 16, 8, 4, 4, 4] == rig.turn().sizes[:7]
    rig.machine.on_step = lambda: None
    rig.tape.payloads += [encode(WISH)] * CHANGES_MAX
    assert [4, 8, 16, 32, 4] == rig.turn().sizes[-5:]
    assert [SLICE_MAX] == Rig(Tape(*[beat("a")] * SLICE_MAX)).turn().sizes


def test_between_two_reads_of_a_large_group_the_pump_rests_but_not_beyond_what_is_due() -> None:
    rig = Rig(Tape())
    assert [] == rig.turn(2).pauses
    rig.machine.state = founded(*(join(f"m{number}") for number in range(CROWD)))
    rig.machine.deadline = 100.0
    rig.turn(2)
    assert [REST_MAX] == rig.pauses, "the first read rests for nothing"
    rig.machine.deadline = REST_MAX / 4
    rig.turn()
    assert [REST_MAX, REST_MAX / 4] == rig.pauses


def test_an_outage_is_no_silence_and_it_and_its_end_are_noted_once() -> None:
    rig = Rig(Tape())
    error = rig.tape.fails["read"] = failure(LedgerUnavailable)
    away = Notice("ledger.unavailable", {"what": "read", "ledger": "tape", "error": str(error)})
    back = Notice("ledger.available", {"what": "read", "ledger": "tape"})
    rig.turn(3)
    assert ([LedgerAway()] * 3, [RETRY_EVERY] * 3, [away]) == (rig.events, rig.pauses, rig.told)
    del rig.tape.fails["read"]
    assert [away, back] == rig.turn(3).told
    rig.tape.fails["read"] = error
    assert [away, back, away] == rig.turn().told


def test_appends_that_fail_are_an_outage_of_their_own() -> None:
    """On a full disk, only appends fail."""
    rig = Rig(Tape())
    error = rig.tape.fails["append"] = failure(LedgerUnavailable)
    rig.appending().appending()
    away = Notice("ledger.unavailable", {"what": "append", "ledger": "tape", "error": str(error)})
    assert ([away], [Read([], 0.0)] * 2) == (rig.told, rig.events)
    del rig.tape.fails["append"]
    assert [away, Notice("ledger.available", {"what": "append", "ledger": "tape"})] == rig.appending().told


@pytest.mark.parametrize("kind", [LedgerRewound, LedgerUnusable])
def test_a_ledger_that_will_not_heal_breaks_the_machine(kind: type[LedgerError]) -> None:
    """An append breaks it only in the next turn, not in the middle of the effects of the step that it belongs to."""
    rig, error = Rig(Tape()), failure(kind)
    rig.tape.fails["append"] = error
    rig.machine.answers[Read] = [Append([WISH], lasting=True), Stopped(None)]
    rig.turn()
    assert ([Read([], 0.0)], [Stopped(None)]) == (rig.events, rig.told)
    rig.tape.fails["read"] = error
    assert [LedgerBroken(error), LedgerBroken(error)] == rig.turn().events[1:]


def test_a_trim_that_fails_does_no_harm_unless_it_finds_the_ledger_rewound() -> None:
    def trimming(kind: type[LedgerError]) -> LedgerError:
        error = rig.tape.fails["trim"] = failure(kind)
        rig.machine.answers[Read] = [Trim(7)]
        rig.turn()
        return error

    rig = Rig(Tape())
    errors = [str(trimming(kind)) for kind in (LedgerUnavailable, LedgerUnusable)]
    assert [Notice("ledger.trim_failed", {"before": 7, "error": error}) for error in errors] == rig.told
    rewound = trimming(LedgerRewound)
    rig.tape.fails.clear()
    rig.machine.answers[Read] = [Trim(7)]
    rig.turn()
    assert [Read([], 0.0)] * 3 + [LedgerBroken(rewound), Read([], 0.0)] == rig.events
    assert ("trim", 7) == rig.tape.log[-1]


def test_a_record_that_is_too_long_is_told_of_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either the ledger finds it too long, or no reader would take it, and then it is not appended."""
    rig = Rig(Tape())
    rig.tape.fails["append"] = error = failure(RecordTooLong)
    assert [Notice("ledger.record_too_long", {"error": str(error)})] == rig.appending().turn().told
    del rig.tape.fails["append"]
    monkeypatch.setattr(pump, "RECORD_MAX", 45)
    rig.machine.answers[Read] = [Append([WISH, Leave(by="a")], lasting=True)]
    assert "ledger.record_too_long" == rig.turn().told[-1].event
    assert ("append", [encode(Leave(by="a"))], True) == rig.tape.log[-1]
    assert not any(isinstance(event, LedgerBroken) for event in rig.turn().events)


def behind() -> Rig:
    """A machine that has read nothing yet, from a ledger whose beginning was dropped meanwhile."""
    rig = Rig(Tape(*[None] * 3, genesis(), join("a"), beat("a")))
    rig.tape.drop(before=3)
    rig.tape.payloads += [encode(snapshot("a", founded(None, join("a"))))]
    return rig


def test_a_machine_that_was_left_behind_restarts_from_a_snapshot() -> None:
    rig, state = behind().turn(), founded(None, join("a"))
    assert [Restart(state)] == rig.events
    assert [(0.0, State()), (0.0, state)] == rig.tapped
    assert [(3, None), (4, genesis())] == rig.turn().events[-1].entries[:2]


@pytest.mark.parametrize(
    ("kind", "event"), [(LedgerUnavailable, LedgerAway), (LedgerRewound, LedgerBroken), (LedgerUnusable, LedgerBroken)]
)
def test_a_restart_may_fail_as_a_read_may(kind: type[LedgerError], event: type) -> None:
    rig = behind()
    rig.tape.fails["start"] = failure(kind)
    assert [event] == [type(one) for one in rig.turn().events]
    if event is LedgerAway:
        assert (["ledger.unavailable"], [RETRY_EVERY]) == ([notice.event for notice in rig.told], rig.pauses)
        del rig.tape.fails["start"]
        assert Restart(founded(None, join("a"))) == rig.turn().events[-1]


FIRST = folded(genesis(), state=State(at=1))
"""The state after the genesis at offset 1."""
BEGUN = folded(join("a"), beat("a"), state=FIRST)
LATE = folded(None, None, state=BEGUN)


def dropped(*records: Record | None, before: int = BEGUN.at) -> Tape:
    """A tape on which `records` stand behind those of BEGUN, which are no longer there."""
    tape = Tape(genesis(), join("a"), beat("a"), *records)
    tape.drop(before)
    return tape


def bad(state: State) -> Snapshot:
    """A snapshot whose digest does not match its state."""
    record = snapshot("a", state)
    return replace(record, state=replace(record.state, digest="0" * 16))


@pytest.mark.parametrize(
    ("first", "records"),
    [
        (1, ()),
        (1, (genesis(), snapshot("a", FIRST), join("a"), snapshot("a", BEGUN))),  # No snapshot is needed.
        (1, (beat("z"), beat("z"))),  # Their writer did not know of a new ledger.
        (7, ()),
        (7, (None, WISH)),
        (7, (None, genesis("b", at=7), join("a"))),  # By a member that had read what was dropped.
        (7, (None, genesis("b", at=8), join("a"))),  # And more.
        (7, (beat("z"), genesis("b", at=8), join("a"))),
    ],
)
def test_a_ledger_is_read_from_its_beginning_if_it_is_there_or_only_what_is_void_was_dropped(
    first: int, records: tuple[Record | None, ...]
) -> None:
    tape = Tape(*records, first=first)
    assert State(at=0 if first == 1 else first) == oldest_state(tape)
    assert len(records) == sum(Rig(tape).turn().sizes)


@pytest.mark.parametrize(
    ("tape", "state"),
    [
        # The members dropped the records of the first one. The newest may be a line of a stranger.
        (dropped(snapshot("a", BEGUN), snapshot("nobody", folded(*[None] * 3, state=FIRST))), BEGUN),
        (dropped(bad(BEGUN), snapshot("a", BEGUN)), BEGUN),
        (dropped(None, None, snapshot("b", BEGUN), snapshot("a", LATE), before=5), LATE),
        # It was in flight to an older ledger: a reader that started from it would never read this ledger.
        (dropped(snapshot("a", folded(*[None] * 50, state=BEGUN)), snapshot("a", BEGUN)), BEGUN),
        (dropped(snapshot("a", BEGUN)), BEGUN),
        # Members' records are not decoded once it is known that there are some.
        (dropped(*[beat("a")] * 50, snapshot("a", BEGUN), *[beat("a")] * 50), BEGUN),
    ],
    ids=["first", "bad digest", "of records not retained", "of more than stands before it", "of all that does", "far"],
)
def test_the_first_good_snapshot_that_is_left_counts(tape: Tape, state: State) -> None:
    assert state == oldest_state(tape)


@pytest.mark.parametrize("state", [FIRST, BEGUN], ids=["the first", "the second"])
def test_a_pump_reads_on_from_where_the_snapshot_ends(state: State) -> None:
    rig = Rig(dropped(beat("a"), snapshot("a", state), before=state.at))
    assert state == rig.tapped[0][1]
    (event,) = rig.turn().events
    assert list(range(state.at, 6)) == [offset for offset, _ in event.entries]


def test_a_ledger_whose_start_moves_on_at_every_look_is_tried_again_later() -> None:
    """A simulated ledger that was rewound to below what had been trimmed made a member look forever."""
    tape = dropped(*[None] * 200, snapshot("a", FIRST))
    tape.meanwhile = lambda: tape.drop(before=tape.first + 1)
    with pytest.raises(LedgerUnavailable, match="its start moved on each of 64 times"):
        oldest_state(tape)


def test_the_end_of_a_long_ledger_is_looked_through_and_more_only_if_there_is_no_snapshot() -> None:
    tape = Tape(genesis(), *[None] * (2 * SPAN))
    tape.payloads.append(encode(snapshot("a", folded(*[None] * (2 * SPAN), state=FIRST))))
    assert 2 * SPAN + 2 == oldest_state(tape).at
    assert SPAN == tape.reads
    tape = dropped(snapshot("a", BEGUN), *[None] * (2 * SPAN))
    assert BEGUN == oldest_state(tape)
    assert tape.reads > SPAN


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


@pytest.mark.parametrize("beats", [(beat("a"),), ()], ids=["with records that it knows", "with none"])
def test_a_ledger_whose_snapshots_are_of_a_newer_version_is_refused_and_not_founded_again(
    beats: tuple[Record, ...],
) -> None:
    """A later release may write snapshots with more in them."""
    written = encode(snapshot("a", replace(BEGUN, version=FOLD_VERSIONS[1] + 1)))
    tape = Tape(*beats, first=7)
    later = written.replace(b'"state":{', b'"state":{"later":1,')
    assert (None, FOLD_VERSIONS[1] + 1) == (decode(later), snapshot_version(later))
    tape.append([later])
    with pytest.raises(LedgerUnusable, match=f"group is at version {FOLD_VERSIONS[1] + 1}: run a release"):
        oldest_state(tape)


def test_a_member_that_trims_between_two_looks_leaves_a_newer_snapshot() -> None:
    tape = dropped(snapshot("a", BEGUN), None, snapshot("a", LATE))
    tape.meanwhile = lambda: tape.drop(before=LATE.at)
    assert LATE == oldest_state(tape)


def test_a_ledger_that_cannot_be_read_cannot_be_begun() -> None:
    tape = dropped(snapshot("a", BEGUN))
    tape.fails["read"] = failure(LedgerUnavailable)
    with pytest.raises(LedgerUnavailable):
        Rig(tape)


def in_doubt() -> tuple[Rig, Tape]:
    """A pump whose machine has read all of a tape, and then learned from a record that the ledger lost others."""
    rig = Rig(tape := Tape(genesis(), join("a"))).turn()
    rig.machine.answers[Read] = [Recheck()]
    tape.append([b"a line"])
    rig.turn()
    rig.heard.clear()
    return rig, tape


@pytest.mark.parametrize("first", [1, 3], ids=["all", "what was not dropped meanwhile"])
def test_a_doubt_lets_what_was_read_be_read_again_and_not_be_given_to_the_machine_again(first: int) -> None:
    rig, tape = in_doubt()
    tape.drop(first)
    tape.append([encode(WISH)])
    assert [(4, WISH)] == [entry for event in rig.turn(2).events for entry in event.entries]
    assert 5 == tape.position


@pytest.mark.parametrize("shorter", [False, True])
def test_what_was_read_and_is_not_there_any_more_breaks_the_ledger(*, shorter: bool) -> None:
    rig, tape = in_doubt()
    tape.payloads[1:] = [] if shorter else [encode(join("b")), b"a line"]
    event = rig.turn().events[0]
    assert isinstance(event, LedgerBroken)
    assert isinstance(event.error, LedgerRewound)


def test_a_doubt_that_meets_an_outage_is_looked_into_after_it() -> None:
    rig, tape = in_doubt()
    tape.fails["read"] = failure(LedgerUnavailable)
    rig.turn()
    tape.fails.clear()
    tape.payloads[0] = b"other"
    assert [LedgerAway, LedgerBroken] == [type(event) for event in rig.turn().events]


def test_lines_that_raise_doubts_do_not_keep_a_member_from_reading_on() -> None:
    rig, tape = in_doubt()

    def look() -> None:
        rig.now += 0.01  # The time of a look grows with its reads.

    tape.meanwhile = look
    for _ in range(50):
        rig.machine.answers[Read] = [Recheck()]
        tape.append([b"a line"])
        rig.turn()
    assert 50 == sum(rig.sizes)
    assert tape.reads < 50 * 50 / 8  # A look at each line would take 50 * 50 / 2.
