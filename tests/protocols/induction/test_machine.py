"""One member's protocol, in transcripts of whole lives, and its bounds.

The transcripts are in `transcripts/`, a file each; `replay.py` says how to read them. Laws for whole groups are in
tests/lab/sim.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError, GroupMismatch
from neli_router.protocols.induction.events import Acknowledged, Append, Effect, Input, LedgerAway, Read, Restart, Wish
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.machine import AUTHORS_MAX, POWERLESS_TOLD_EVERY, InductionMachine, Phase
from neli_router.protocols.induction.observer import Observer
from neli_router.protocols.induction.program_view import HANDOVERS_MAX, SETTLED_LEASES
from neli_router.protocols.induction.records import Beat, Drain, Expire, Handover, Leave, Record, Upgrade
from neli_router.protocols.protocol import TICK, Close, Guarantee, Notice, Released, Revoked, Settings, Stopped
from tests.protocols.induction.replay import played
from tests.protocols.rules import Rule, stories_in
from tests.support.records import LAYOUT, STOPPED_CLOCK, beat, folded, founded, genesis, join


@pytest.mark.parametrize("story", stories_in(*(Path(__file__).parent / "transcripts").glob("*.txt")))
def test_a_life_goes_as_written_down(story: Rule, pytestconfig: pytest.Config) -> None:
    story.require(played, pytestconfig)


def begun(state: State, *, life: str = "", **told: object) -> InductionMachine:
    """A member that starts from `state`."""
    wanted = Settings(**{"name": "a", "layout": LAYOUT, "lease": 6.0, "drift": 0.0, **told})  # type: ignore[arg-type]
    return InductionMachine(wanted, state, 0.0, wall=STOPPED_CLOCK, rng=Random(7), life=life)


def stopped(effects: Sequence[Effect]) -> Stopped:
    """The effect that says so, which comes last."""
    assert effects, "nothing came of it"
    assert isinstance(effects[-1], Stopped)
    return effects[-1]


def appended(effects: Sequence[Effect]) -> list[Record]:
    return [record for effect in effects if isinstance(effect, Append) for record in effect.records]


def test_a_member_whose_group_beats_all_the_time_joins_without_an_empty_read() -> None:
    member = begun(founded(join("b")))
    phases = []
    for offset, age in ((2, inf), (3, 0.25)):
        member.step(Read([(offset, beat("b"))], age), 0.5)
        phases.append(member.phase)
    assert [Phase.READING, Phase.WAITING] == phases


def test_a_member_is_refused_when_its_group_moves_to_a_fold_that_it_does_not_know() -> None:
    member = begun(founded(join("b", versions=(2, 9))))
    member.step(Read([], 0.0), 0.0)
    error = stopped(member.step(Read([(2, Upgrade(by="op", version=9))]), 1.0)).error
    assert isinstance(error, GroupMismatch)
    assert "version 9" in error.found


def test_a_member_with_a_grace_says_once_what_is_clear_when_its_waits_are_over() -> None:
    """First of what b gave it, and then of what it got when b was expired: 6 s after b's last Beat, of 20."""
    member = begun(folded(genesis(version=3), join("b"), join("c"), state=State()), grace=9.0)
    said: list[float] = []
    inbox: list[Record] = []
    for step in range(80):
        now, state = step / 2, member.state
        inbox += [beat(q) for q in "bc" if state.is_member(q)]
        if now == 10.0:
            mine = [i for i, target in enumerate(state.targets) if target == member.incarnation]
            inbox.append(Handover(by="b", terms={i: state.terms[i] for i in mine}))
        if now == 20.5:
            inbox = [Expire(by="c", last_beats={"b": state.last_beats["b"]})]
        inbox = appended(member.step(Read(list(enumerate(inbox, state.at)), 0.0), now))
        said += [now for record in inbox if isinstance(record, Beat) and record.clear is not UNSET]
    assert [10.5, 26.5] == said


def test_a_member_leaves_with_its_grace_unless_its_program_failed() -> None:
    for close, grace in (
        (Close(), 9.0),
        (Close(at_once=True), 9.0),
        (Close(at_once=True, error=ConfigError(["x"])), 0.0),
    ):
        member = begun(founded(), grace=9.0)
        member.step(Read([], 0.0), 0.0)
        assert member.phase is Phase.JOINING
        (leave,) = (it for it in appended(member.step(close, 1.0)) if isinstance(it, Leave))
        assert grace == leave.grace


AHEAD = replace(beat("b"), at=99)
ONE_READ: dict[str, list[tuple[int, Record | None]]] = {
    "members, one twice, and a stranger": [(4 + i, beat(by)) for i, by in enumerate("bzcbc")],
    "other records between": [
        (4, beat("b")),
        (5, Leave(by="b")),
        (6, beat("b")),
        (7, None),
        (8, join("b")),
        (9, beat("c")),
    ],
    "my own": [(4, beat("b")), (5, replace(beat("me"), sent_at=0.0)), (6, beat("c"))],
    "an offset that comes again": [(4, beat("b")), (5, beat("c")), (5, beat("b")), (6, beat("c"))],
    "one who had read further": [(4, beat("b")), (5, AHEAD), (6, beat("c")), (7, AHEAD), (8, beat("c"))],
    "another table of most": [(4, beat("c")), *((5 + i, replace(beat(by), at=4)) for i, by in enumerate("bcbc"))],
}


@pytest.mark.parametrize("entries", ONE_READ.values(), ids=ONE_READ)
@pytest.mark.parametrize("read", [begun, lambda state: Observer(state, 0.0)], ids=["a member", "an observer"])
def test_one_read_teaches_what_the_same_records_teach_one_by_one(
    entries: list[tuple[int, Record | None]], read: Callable[[State], InductionMachine | Observer]
) -> None:
    one, other = (read(founded(join("b"), join("c"), join("d"))) for _ in range(2))
    me = one.incarnation
    entries = [(at, replace(it, by=me) if it is not None and it.by == "me" else it) for at, it in entries]
    one.step(Read(entries), 1.0)
    for entry in entries:
        other.step(Read([entry]), 1.0)
    learned = [(it.state, getattr(it, "tenure", None), it.heard_at, repr(it.error)) for it in (one, other)]
    assert learned[0] == learned[1]


def test_a_member_that_has_ended_says_nothing_more() -> None:
    member = begun(founded(join("b")))
    stopped(member.step(Close(), 0.0))
    wish, close = Wish(Drain(by="o", name="x")), Close(at_once=True)
    events: list[Input] = [TICK, Read([], 0.0), LedgerAway(), close, wish, Acknowledged([9])]
    assert [] == [effect for event in events for effect in member.step(event, 1.0)]
    assert inf == member.deadline


def notices(round_trip: float, *, until: float) -> list[tuple[float, Notice]]:
    """A lone member's notices for operators, and their times. Its records are read `round_trip` after sending."""
    member, told, now = begun(founded()), [], 0.0
    flying: deque[tuple[float, Record]] = deque()
    offset = member.state.at
    while now < until:
        arrived = []
        while flying and flying[0][0] <= now:
            arrived.append((offset, flying.popleft()[1]))
            offset += 1
        effects = member.step(Read(arrived, 0.0 if not arrived else inf), now)
        told += [(now, effect) for effect in effects if isinstance(effect, Notice)]
        flying += [(now + round_trip, record) for record in appended(effects)]
        now += 0.125
    return told


def test_a_member_that_could_expire_no_other_says_so_once_and_then_seldom_and_others_do_not() -> None:
    joined, first, *later = notices(5.5, until=1500.0)
    assert "member.joined" == joined[1].event
    assert ("member.powerless", 5.5, 6.0) == (first[1].event, first[1].fields["round_trip"], first[1].fields["lease"])
    assert 8 * 6.0 < first[0] - joined[0] < 16 * 6.0
    assert ["member.powerless"] * 2 == [notice.event for _, notice in later]
    assert POWERLESS_TOLD_EVERY <= later[0][0] - first[0] < POWERLESS_TOLD_EVERY + 30.0
    assert ["member.joined"] == [notice.event for _, notice in notices(4.5, until=200.0)]


def test_all_incarnations_of_a_life_begin_with_it_and_no_two_are_alike() -> None:
    """A witness that knows the life can certify future incarnations. The count may grow beyond four digits."""
    member = begun(founded(), life="0123456789ab")
    found = [member.incarnation]
    for at in range(2, 6):
        if at == 4:
            member._incarnations = 0xFFFF
        member.step(Restart(founded(*(join("b") for _ in range(at)))), float(at))
        found.append(member.incarnation)
    assert [f"0123456789ab{number}" for number in ("0000", "0001", "0002", "ffff", "10000")] == found
    assert begun(founded()).incarnation == begun(founded()).incarnation, "they come from the generator"
    assert 16 == len(begun(founded()).incarnation)


def test_no_more_authors_are_remembered_than_a_bound_and_the_newest_and_the_member_itself_are() -> None:
    """Otherwise their records would look like another member's at an offset that the ledger confirmed."""
    newest = Drain(by=f"operator {2 * AUTHORS_MAX - 1}", name="x")
    for state in (founded(join("b")), State()):
        member = begun(state)
        for number in range(2 * AUTHORS_MAX):
            member.step(Wish(Drain(by=f"operator {number}", name="x")), 0.0)
        assert AUTHORS_MAX >= len(member._authors)
        own = newest if state.genesis else genesis(member.incarnation, at=5)
        at = 2 if state.genesis else 5
        member.step(Acknowledged([at]), 0.0)
        assert [] == [one for one in member.step(Read([(at, own)]), 0.0) if isinstance(one, Stopped)]


def test_a_member_that_finds_the_group_full_says_so_and_asks_again_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not immediately: its void Join is read back within a moment, and so would the next one be."""
    for module in ("fold", "machine"):
        monkeypatch.setattr(f"neli_router.protocols.induction.{module}.MEMBERS_MAX", 1)
    answers = list(played(["settings starts_from=b", "0 read", "8.9 lives b", "9 lives b"]))
    full = "Notice member.group_is_full members=1"
    assert [(1, 1), (1, 1)] == [(line.count("me:join("), line.count(full)) for line in answers[-2:]]


@dataclass
class Owner:
    """A member called a, with partitions to give: it leads all of a large table when b joins."""

    partitions: int = 600
    guarantee: Guarantee = "exclusive"
    member: InductionMachine = field(init=False)
    state: State = field(init=False)

    def __post_init__(self) -> None:
        layout = Layout(slots=self.partitions, partitions=self.partitions)
        self.state = folded(genesis(layout=layout, guarantee=self.guarantee))
        self.member = begun(self.state, layout=layout, guarantee=self.guarantee)
        now = 0.0
        sent = appended(self.member.step(Read([], 0.0), now))
        while not self.member.leading:
            effects = self.read(sent, now) if sent else self.member.step(Read([], 0.0), now)
            sent = appended(effects)
            now = now if sent else max(now, self.member.deadline)
        self.now = now

    def read(self, records: Sequence[Record], now: float) -> list[Effect]:
        at = self.member.state.at
        return self.member.step(Read([(at + place, record) for place, record in enumerate(records)]), now)

    def asked_by_a_newcomer(self) -> Revoked:
        """The partitions that b is to get, asked back when its Join has settled."""
        assert not [effect for effect in self.read([join("b")], self.now) if isinstance(effect, Revoked)]
        self.now += SETTLED_LEASES * self.member.settings.lease
        (asked,) = [effect for effect in self.member.step(TICK, self.now) if isinstance(effect, Revoked)]
        return asked

    def handovers(self, effects: Sequence[Effect]) -> list[int]:
        return [i for record in appended(effects) if isinstance(record, Handover) for i in record.terms]


def test_no_more_partitions_are_asked_back_and_no_more_handovers_are_in_flight_than_a_bound() -> None:
    owner = Owner()
    effects = owner.read([join("b"), Drain(by="o", name="a")], owner.now)
    revoked = [effect for effect in effects if isinstance(effect, Revoked)]
    assert [HANDOVERS_MAX] == [len(effect.terms) for effect in revoked]
    effects = owner.member.step(Released(dict(list(revoked[0].terms.items())[:10])), owner.now)
    assert 10 == len(owner.handovers(effects))
    assert not [effect for effect in effects if isinstance(effect, Revoked)]
    effects = owner.read(appended(effects), owner.now)
    assert [10] == [len(effect.terms) for effect in effects if isinstance(effect, Revoked)]
    owner = Owner(guarantee="available")
    given: list[int] = []
    effects = owner.read([join("b"), Drain(by="o", name="a")], owner.now)
    for _ in range(3):
        batch = owner.handovers(effects)
        assert len(batch) <= HANDOVERS_MAX
        given += batch
        effects = owner.read(appended(effects), owner.now)
    assert list(range(600)) == sorted(given)


def test_a_handover_is_repeated_behind_many_others_but_not_while_the_member_hears_nothing_of_itself() -> None:
    """The Handover was lost; then a drain asks for more partitions than the bound, and this one lies beyond it."""
    owner = Owner(partitions=300)
    asked = owner.asked_by_a_newcomer()
    last = max(asked.terms)
    assert last > HANDOVERS_MAX
    assert [last] == owner.handovers(owner.member.step(Released({last: asked.terms[last]}), owner.now))
    owner.read([Drain(by="o", name="a")], owner.now)
    assert [last] == owner.handovers(owner.member.step(TICK, owner.now + 1.0))
    owner = Owner(partitions=4)
    lease, began_at = owner.member.settings.lease, owner.now
    asked = owner.asked_by_a_newcomer()
    assert sorted(asked.terms) == owner.handovers(owner.member.step(Released(asked.terms), owner.now))
    repeated: list[float] = []
    while owner.now < began_at + 20 * lease:
        owner.now = max(owner.now, owner.member.deadline)
        if owner.handovers(owner.member.step(TICK, owner.now)):
            repeated.append(owner.now)
    assert repeated
    assert max(repeated) <= began_at + lease
    effects = owner.member.step(LedgerAway(), owner.now)
    effects += owner.read([join("c")], owner.now)
    assert set(asked.terms) <= set(owner.handovers(effects))


def expired(effects: Sequence[Effect]) -> list[str]:
    return [q for record in appended(effects) if isinstance(record, Expire) for q in record.last_beats]


def test_no_member_is_accused_by_a_ledgers_answer_from_before_the_silence_was_long_enough() -> None:
    """If a driver asks for the tip only now and then, the time of its question must not count as now."""
    owner = Owner(partitions=4)
    member, sent = owner.member, list[Record]([join("b")])  # It never beats.
    while sent or owner.now < member._accuse_at - 0.25:
        sent = appended(owner.read(sent, owner.now) if sent else member.step(Read([], 0.0), owner.now))
        owner.now += 0.0 if sent else 0.25
    due = member._accuse_at
    assert due == member.tenure.heard["b"] + member.settings.lease
    assert [] == expired(member.step(Read([], 0.5), due + 0.25))
    member.step(TICK, due + 0.25)
    assert member.deadline > due + 0.25, "it would ask again without a pause"
    assert ["b"] == expired(member.step(Read([], 0.25), due + 0.375))
