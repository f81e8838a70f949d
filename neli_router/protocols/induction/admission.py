"""Admission: how a member introduces itself, and when it is turned away.

the ledger has no Genesis ------> genesis()      the first one appended counts; the others compare theirs with it
other settings or another fold -> mismatch()     refused; the error names both sides
a seat is wanted ---------------> join()
a newer Join under my name -----> replaced()     the newer wins; the older does not come back to fight
a Certify of me while I live ---> miscertified() others lead what I led: its writer must be found before I come back
a member with my name lives ----> NameWatch      a newcomer gives up, unless it is configured to replace that member

Two processes with the same name, each restarted whenever it ends, would replace each other forever. Each of them owes a
wait when it starts, so the partitions of that name would hardly ever be led. So a newcomer listens while it waits.

A member with the newcomer's name may have died a moment ago, and the newcomer may be its restart. The dead member's
last Beats may still be in flight. Each Beat says how far its writer had read. If the writer had read a record that was
appended after the newcomer started, the writer was alive after that. Two such Beats prove that the member lives; after
only one, it may still be shutting down.
"""

from math import inf

from neli_router.errors import GroupMismatch, Miscertified, NameTaken, Replaced
from neli_router.protocols.induction.fold import FOLD_VERSIONS, State
from neli_router.protocols.induction.records import Beat, Certify, Genesis, Join
from neli_router.protocols.protocol import BASE_MAX, Notice, Settings

__all__ = ["NameWatch", "genesis", "join", "miscertified", "mismatch", "replaced", "unknown_version"]

PROOFS = 2
"""How many Beats prove that a member with the same name lives. If it were more, a newcomer's wait could end before the
last of them arrives."""


def genesis(settings: Settings, by: str, base: int, at: int) -> Genesis:
    """The record that founds a group; `at` is how far the ledger was read without finding a Genesis.

    `base` is the wall clock. If the clocks were right, it is above every term of any earlier ledger.
    """
    return Genesis(
        by=by,
        layout=settings.layout,
        lease=settings.lease,
        guarantee=settings.guarantee,
        base=max(base, settings.term_base),
        version=FOLD_VERSIONS[1],
        at=at,
    )


def join(settings: Settings, by: str, at: int, witness: str, wall: int) -> Join:
    """The record that asks for a seat. `witness` names the witness that watches this process; empty for none. `wall` is
    the wall clock in microseconds."""
    return Join(
        by=by,
        name=settings.name,
        address=settings.address,
        weight=settings.weight,
        zone=settings.zone,
        versions=FOLD_VERSIONS,
        at=at,
        witness=witness,
        floor=max(min(wall, BASE_MAX), settings.term_base),
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
    if settings.term_base > state.base:  # A fence would refuse its terms, or admit an older group's.
        differences.append(f"terms above {settings.term_base} here and above {state.base} there")
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
    remedy = "run a release of neli-router that knows that version"
    if state.version < oldest:
        remedy = (
            "stop all its members, which run an older release, delete the ledger by `neli group delete`, and start all "
            "of them with this release"
        )
    return GroupMismatch(
        f"a group with fold version {oldest} to {newest} was wanted",
        f"the ledger's group is at version {state.version}",
        remedy,
    )


class NameWatch:
    """A newcomer's check: does a live member have its name?"""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._since = inf
        self._heard_of, self._proofs = "", 0

    def begin(self, at: int) -> None:
        """All records below `at` were read: everything that the ledger held when this process had started."""
        self._since, self._proofs = at, 0

    def read(self, beat: Beat, state: State) -> None:
        seat = state.seats.get(beat.by)
        if seat is None or seat.name != self._settings.name or beat.at <= self._since:
            return
        self._proofs = self._proofs + 1 if self._heard_of == beat.by else 1
        self._heard_of = beat.by

    def verdict(self, state: State) -> NameTaken | Notice | None:
        """Called when the newcomer is about to join: why it must not, or which member it replaces."""
        seat = state.seats.get(self._heard_of)
        if seat is None or self._proofs < PROOFS:
            return None
        if self._settings.replace:
            return Notice(
                "member.replaces", {"name": seat.name, "address": seat.address, "incarnation": seat.incarnation}
            )
        where = f", at {seat.address}" if seat.address else f", and gave no address (incarnation {seat.incarnation})"
        return NameTaken(
            f"the name {seat.name!r} was wanted for this member",
            f"a member that lives has it{where}",
            "give each process a name of its own, or stop that one; replace=True, or --replace, takes the name from it",
        )


def replaced(settings: Settings, address: str) -> Replaced:
    """Why this member must end: a process at `address` took its name."""
    where = f" from {address}" if address else ""
    return Replaced(
        f"this member was to be the only one called {settings.name!r}",
        f"a newer process joined under that name{where}",
        "give each process a name of its own, or let this one rest: the newer has its partitions",
    )


def miscertified(settings: Settings, state: State, record: Certify) -> Miscertified:
    """Why this member must end: `record` says that its process has ended, and others take over immediately."""
    seat = state.seats.get(record.by)
    writer = repr(record.by) if seat is None else f"the member {seat.name!r}{seat.address and f' at {seat.address}'}"
    return Miscertified(
        f"a certificate of the death of {settings.name!r} was to be written only after its process had ended",
        f"this process lives, and {writer} certified that {record.incarnation} is dead",
        "keep the ledger and find out why; until then start this member with witness='none'",
    )
