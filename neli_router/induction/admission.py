"""Admission: how a member introduces itself, and when it is turned away.

the ledger has no Genesis ------> genesis()      the first to be appended counts, the others compare theirs with it
other settings or another fold -> mismatch()     refused, with both spelled out
a seat is wanted ---------------> join()
a newer Join under my name -----> replaced()     the newer wins; the older does not come back to fight
"""

from neli_router.errors import GroupMismatch, Replaced
from neli_router.induction.fold import FOLD_VERSIONS, State
from neli_router.induction.records import Genesis, Join
from neli_router.protocol import Settings

__all__ = ["genesis", "join", "mismatch", "replaced", "unknown_version"]


def genesis(settings: Settings, by: str, base: int, at: int) -> Genesis:
    """The record that founds a group; `at` is how far the ledger was read without finding one."""
    return Genesis(
        by=by,
        layout=settings.layout,
        lease=settings.lease,
        guarantee=settings.guarantee,
        base=base,
        version=FOLD_VERSIONS[1],
        at=at,
    )


def join(settings: Settings, by: str, at: int) -> Join:
    """The record that asks for a seat."""
    return Join(
        by=by,
        name=settings.name,
        address=settings.address,
        weight=settings.weight,
        zone=settings.zone,
        versions=FOLD_VERSIONS,
        at=at,
    )


def mismatch(settings: Settings, state: State) -> GroupMismatch | None:
    """Why a member with `settings` may not take part in the group of `state`."""
    if state.genesis is None:
        return None
    if error := unknown_version(state):
        return error
    wanted, found = settings.layout, state.genesis.layout
    differences = [wanted.difference(found)] if wanted != found else []
    if settings.lease != state.genesis.lease:
        differences.append(f"lease {settings.lease:g} s here and {state.genesis.lease:g} s there")
    if settings.guarantee != state.genesis.guarantee:
        differences.append(f"guarantee {settings.guarantee!r} here and {state.genesis.guarantee!r} there")
    if not differences:
        return None
    return GroupMismatch(
        "a group with this member's settings was wanted",
        f"the ledger records others since its genesis: {', '.join(differences)}",
        "start with the ledger's settings, which never change while it lives, or use a new ledger",
    )


def unknown_version(state: State) -> GroupMismatch | None:
    """Why this code cannot read the ledger of `state` any further."""
    oldest, newest = FOLD_VERSIONS
    if state.genesis is None or oldest <= state.version <= newest:
        return None
    return GroupMismatch(
        f"a group with fold version {oldest} to {newest} was wanted",
        f"the ledger's group is at version {state.version}",
        "run a release of neli-router that knows that version",
    )


def replaced(settings: Settings, address: str) -> Replaced:
    """Why this member must end: a process that is reached at `address` took its name."""
    where = f" from {address}" if address else ""
    return Replaced(
        f"this member was to be the only one called {settings.name!r}",
        f"a newer process joined under that name{where}",
        "give each process a name of its own, or let this one rest: the newer has its partitions",
    )
