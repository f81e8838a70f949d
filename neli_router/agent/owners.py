"""Owners: what a router's table says about a partition, in the class of the wire.

    view (a table, or why there is none), at (how far, how long ago) --owner_view--> OwnerView

An agent answers with it, and so does the provider of Airflow where a connection is to a ledger instead of an agent.
"""

from neli_router.agent.wire import AGE_MAX, OwnerView
from neli_router.router.table import At, Table, View

__all__ = ["age_of", "owner_view"]


def age_of(at: At) -> float:
    return min(AGE_MAX, at.age)


def owner_view(
    view: View, partition: int, slot: int | None, at: At, *, peer: str = "", believed: bool = False
) -> OwnerView:
    """The owner of `partition`, or why there is none."""
    if isinstance(view, Table):
        owner = view.partitions[partition]
        if owner is not None:
            name, address, _, term = owner
            return OwnerView(partition, name, address, term, slot, at.offset, age_of(at), believed=believed, peer=peer)
        why = view.why_unowned[0]
    else:
        why = view.explain(f"the owner of partition {partition} was wanted").found
    return OwnerView(partition, None, slot=slot, at=at.offset, age=age_of(at), why=why)
