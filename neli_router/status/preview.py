"""The preview: what a wish would move, told before it is made.

    state -------------> as it is --------> targets --.
       '--fold(wish)---> as it would be --> targets --+--> where they differ: partition, owner now, new target

A wish changes targets only; owners follow by their Handovers, one by one. A live owner's Handover gives a partition to
the target at that record, and a Handover changes no target. So once all that is under way has happened, the targets are
the owners, and what a wish does is the difference between the targets with it and without it. What it lets
stay with the member that still owns it, and was to give it away, is no move.

The wish is folded at the very next offset. If other records come first it may move something else, as any plan may.
"""

from neli_router.induction.fold import State, fold
from neli_router.induction.records import Record

__all__ = ["moves_of"]


def moves_of(state: State, record: Record) -> list[tuple[int, str | None, str | None]]:
    """Each partition that `record` would move, with the names of its owner now and of who is to own it; None is
    nobody. In the order of partitions."""
    after = fold(state, state.at, record)
    names = {seat.incarnation: seat.name for seat in (*state.seats.values(), *after.seats.values())}
    moves = []
    for partition, (target, owner, meant) in enumerate(zip(after.targets, state.owners, state.targets, strict=False)):
        if target not in (meant, owner):
            moves.append((partition, owner and names[owner], target and names[target]))
    return moves
