"""The view of a group: the moves told of a wish are the moves that it makes, once all under way has happened."""

from hypothesis import given, settings

from neli_router.induction.fold import State
from neli_router.induction.records import Drain, Handover, Load, Pin, Record, Undrain, Unpin, Weigh
from neli_router.status.group_view import GroupView
from tests.support.records import Plot, folded, founded, join, plots, story


def moves_of(state: State, wish: Record) -> list[tuple[int, str | None, str | None]]:
    return GroupView(state).moves_by(wish)


LAW = settings(deadline=None, max_examples=60)  # A law holds at whatever speed this machine has to spare.

PAIR = founded(
    join("a", "alice"),
    join("b", "bob"),
    Handover(by="a", partition=1, term=1001),
    Handover(by="a", partition=3, term=1001),
)
"""alice owns 0 and 2, bob 1 and 3."""

WISHES: tuple[Record, ...] = (
    Drain(by="x", name="a"),
    Undrain(by="x", name="a"),
    Pin(by="x", partition=1, name="b"),
    Unpin(by="x", partition=1),
    Weigh(by="x", name="c", weight=7),
)


def settled(state: State) -> State:
    """After every Handover that is due."""
    for partition, (owner, target) in enumerate(zip(state.owners, state.targets, strict=True)):
        if owner is not None and owner != target:
            state = folded(Handover(by=owner, partition=partition, term=state.terms[partition]), state=state)
    return state


def test_wishes_move_what_they_must_and_what_keeps_the_balance() -> None:
    before = PAIR.digest
    assert [(0, "alice", "bob"), (2, "alice", "bob")] == moves_of(PAIR, Drain(by="x", name="alice"))
    moves = moves_of(PAIR, Pin(by="x", partition=0, name="bob"))
    assert (0, "alice", "bob") == moves[0]
    assert [("bob", "alice")] == [(source, target) for _, source, target in moves[1:]]
    assert before == PAIR.digest  # A preview changes nothing.


def test_a_wish_that_comes_true_already_or_cannot_yet_or_is_under_way_moves_nothing() -> None:
    for name in ("alice", "carol"):  # The owner, and a name outside the group.
        assert [] == moves_of(PAIR, Pin(by="x", partition=0, name=name))
    assert [] == moves_of(founded(), Pin(by="x", partition=0, name="alice"))
    # alice was to give 0 and 2 away; once the drain is taken back she keeps them.
    drained = folded(Drain(by="x", name="alice"), state=PAIR)
    assert [] == moves_of(drained, Undrain(by="x", name="alice"))
    assert [] == moves_of(drained, Weigh(by="x", name="alice", weight=0))


# Balance


def balance_of(*records: Record, loads: dict[int, float] | None = None) -> tuple[float, float, float]:
    state = folded(*records, state=PAIR)
    before, after, share = GroupView(state).balance_by(Load(by="x", loads=loads or {}))
    return round(before, 3), round(after, 3), round(share, 3)


def test_the_busiest_member_is_told_as_a_multiple_of_what_is_fair() -> None:
    assert (1.0, 1.0, 0.5) == balance_of()
    assert (1.8, 1.0, 0.5) == balance_of(loads={0: 9.0, 1: 1.0, 2: 9.0, 3: 1.0})
    assert (1.5, 1.5, 0.5) == balance_of(loads={0: 8.0, 1: 2.0, 2: 1.0, 3: 1.0})  # The hot one is too hot for any.


def test_what_is_fair_goes_by_weight_and_who_is_drained_counts_for_nothing_unless_all_are() -> None:
    heavy = Weigh(by="x", name="alice", weight=3)
    assert (2.0, 1.0, 0.75) == balance_of(heavy)  # bob still has half of all, and a quarter would be fair.
    assert (1.0, 1.0, 0.5) == balance_of(*[Weigh(by="x", name=name, weight=0) for name in ("alice", "bob")])
    drained = Drain(by="x", name="bob")
    assert (0.5, 1.0, 1.0) == balance_of(drained)
    assert (1.0, 1.0, 0.5) == balance_of(drained, Drain(by="x", name="alice"))
    assert (1.0, 1.0, 1.0) == GroupView(founded()).balance_by(Load(by="x", loads={0: 1.0}))  # A group without members.


def test_a_partition_without_a_load_weighs_as_much_as_the_mean() -> None:
    assert (1.25, 1.0, 0.5) == balance_of(loads={0: 3.0, 1: 1.0})  # The others count as 2.
    assert (1.0, 1.0, 0.5) == balance_of(loads={0: 3.0, 2: 1.0})


@LAW
@given(plots)
def test_what_is_told_is_what_comes_true(drawn: list[Plot]) -> None:
    state = folded(*(record for _, record in story(drawn)))
    for wish in WISHES:
        told = {partition: target for partition, _, target in moves_of(state, wish)}
        was, now = settled(state), settled(folded(wish, state=state))
        names = {seat.incarnation: seat.name for seat in state.seats.values()}
        for partition, (before, after) in enumerate(zip(was.owners, now.owners, strict=True)):
            if partition in told:
                assert (after and names[after]) == told[partition]
            else:
                assert after in (before, state.owners[partition])
