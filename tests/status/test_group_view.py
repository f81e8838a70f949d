"""The view of a group: the moves shown for a wish are the moves that it makes, once everything in progress is done."""

from hypothesis import given, settings

from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Drain, Handover, Load, Pin, Record, Undrain, Unpin, Weigh
from neli_router.status.group_view import GroupView
from tests.support.records import Plot, folded, founded, genesis, handed_over, join, plots, story

LAW = settings(max_examples=60)

GIVE = (Handover(by="a", terms={partition: 1001}) for partition in (1, 3))
PAIR = founded(join("a", "alice"), join("b", "bob"), *GIVE)
"""alice owns 0 and 2, bob 1 and 3."""

WISHES: tuple[Record, ...] = (
    *(Drain(by="x", name="a"), Undrain(by="x", name="a"), Weigh(by="x", name="c", weight=7)),
    *(Pin(by="x", partition=1, name="b"), Unpin(by="x", partition=1)),
)


def test_a_wish_names_its_own_move_first_and_those_that_keep_the_balance_after_it() -> None:
    first, *others = GroupView(PAIR).moves_by(Pin(by="x", partition=0, name="bob"))
    assert (0, "alice", "bob") == first
    assert [("bob", "alice")] == [(source, target) for _, source, target in others]
    assert [] == GroupView(founded()).moves_by(Pin(by="x", partition=0, name="alice"))


def test_the_standby_of_each_partition_is_shown_and_a_new_one_is_news() -> None:
    assert [None, None, None, None] == GroupView(PAIR).standbys  # One zone: no member stands by.
    before = GroupView(folded(genesis(version=3), join("a", zone="x"), state=State()))
    view = GroupView(folded(join("b", zone="y"), state=before.state))
    assert [1 - (target or 0) for target in view.targets] == view.standbys
    assert not view.looks_like(before)


def balance_of(*records: Record, loads: dict[int, float] | None = None) -> tuple[float, float, float]:
    state = folded(*records, state=PAIR)
    before, after, share = GroupView(state).balance_by(Load(by="x", loads=loads or {}))
    return round(before, 3), round(after, 3), round(share, 3)


def test_the_busiest_member_is_told_as_a_multiple_of_what_is_fair_by_loads_weights_and_drains() -> None:
    assert (1.0, 1.0, 0.5) == balance_of()
    assert (1.8, 1.0, 0.5) == balance_of(loads={0: 9.0, 1: 1.0, 2: 9.0, 3: 1.0})
    assert (1.5, 1.5, 0.5) == balance_of(loads={0: 8.0, 1: 2.0, 2: 1.0, 3: 1.0})  # Partition 0 alone is too much.
    # A partition without a load weighs as much as the mean.
    assert (1.25, 1.0, 0.5) == balance_of(loads={0: 3.0, 1: 1.0})
    assert (1.0, 1.0, 0.5) == balance_of(loads={0: 3.0, 2: 1.0})
    heavy = Weigh(by="x", name="alice", weight=3)
    assert (2.0, 1.0, 0.75) == balance_of(heavy)  # bob still has half of everything; a quarter would be fair.
    assert (1.0, 1.0, 0.5) == balance_of(*[Weigh(by="x", name=name, weight=0) for name in ("alice", "bob")])
    drained = Drain(by="x", name="bob")
    assert (0.5, 1.0, 1.0) == balance_of(drained)
    assert (1.0, 1.0, 0.5) == balance_of(drained, Drain(by="x", name="alice"))
    assert (1.0, 1.0, 1.0) == GroupView(founded()).balance_by(Load(by="x", loads={0: 1.0}))  # A group without members.


@LAW
@given(plots)
def test_what_is_told_is_what_comes_true(drawn: list[Plot]) -> None:
    state = folded(*(record for _, record in story(drawn)))
    for wish in WISHES:
        told = {partition: target for partition, _, target in GroupView(state).moves_by(wish)}
        was, now = handed_over(state), handed_over(folded(wish, state=state))
        names = {seat.incarnation: seat.name for seat in state.seats.values()}
        for partition, (before, after) in enumerate(zip(was.owners, now.owners, strict=True)):
            if partition in told:
                assert (after and names[after]) == told[partition]
            else:
                assert after in (before, state.owners[partition])
