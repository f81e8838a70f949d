"""Wishes: what an operator or a program wants from the group, checked before it is written permanently.

    drain, undrain    the member of that name should own nothing except what is pinned to it
    pin, unpin        a partition should belong to the member of that name
    weigh             override a member's weight
    load              how much work each partition is, as measured
    upgrade           the group should fold its ledger by the newest version that this release knows

A wish outlives members: it goes by name, and the ledger keeps it until it is taken back. Readers skip a record that
does not decode, so a wish that no reader would understand is refused here. And an append may be lost, so a wish counts
as made only when the state shows it, and is written again until then.

An upgrade is never taken back, and is void unless every member knows the version. So it is not written while a member
holds it back. That member may be dead, and not yet expired.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from neli_router.config.protocols import ELECTED, PROTOCOLS, is_whole
from neli_router.core.keyspace import Layout
from neli_router.errors import BeyondProtocol, ConfigError, GroupMismatch, LedgerUnavailable, NeliError
from neli_router.protocols.induction.admission import unknown_version
from neli_router.protocols.induction.fold import FOLD_VERSIONS, State
from neli_router.protocols.induction.records import (
    Drain,
    Load,
    Pin,
    Record,
    Seat,
    Undrain,
    Unpin,
    Upgrade,
    Weigh,
    encode,
)
from neli_router.protocols.protocol import LOAD_MAX, NAME_MAX, WEIGHT_MAX

__all__ = [
    "NEWEST",
    "WISH_AGAIN",
    "WISH_MAX",
    "CheckedWish",
    "drain",
    "held_back_by",
    "known",
    "load",
    "no_wishes",
    "pin",
    "require_member",
    "undrain",
    "unheard",
    "unpin",
    "upgrade",
    "weigh",
]

NEWEST = FOLD_VERSIONS[1]
"""The newest fold version that this release knows."""

NAMES_SHOWN = 10
"""How many members an error lists; the most similar names come first."""

WISH_MAX = 10.0
"""How long to wait until a wish is read back: enough for several attempts on a ledger that barely responds."""

WISH_AGAIN = 3.0
"""How long a member waits for a wish before it writes it again. Raising it makes a lost wish wait longer; lowering it
writes a wish several times to a ledger that is only slow, which does no harm."""


@dataclass(frozen=True, slots=True)
class CheckedWish:
    """A valid wish: in words, as a record of the member that says it, and how to see that it was granted."""

    what: str
    record: Callable[[str], Record]
    shown: Callable[[State], bool]
    name: str = ""
    """The name of the member that it is for. A wish for an absent member waits for it; if mistyped, forever."""
    refusal: Callable[[State], NeliError | None] = lambda _: None
    """Why the group would not grant it now. It is not written before that has changed."""

    def payload(self, by: str) -> bytes:
        """The bytes of the record, for a writer that is not a member."""
        return encode(self.record(by))


def unheard(wish: CheckedWish, timeout: float, obstacle: str) -> LedgerUnavailable:
    """The error if the ledger did not show the wish in time."""
    return LedgerUnavailable(
        f"{wish.what} was to be read back within {timeout:g} s",
        obstacle or "the ledger did not show it",
        "it may still take effect: look at the group, and repeat the wish, which does no harm",
    )


def no_wishes(what: str, protocol: str) -> BeyondProtocol:
    """The error for a wish in a group whose protocol takes none."""
    if protocol in ELECTED:
        return BeyondProtocol(
            f"{what} was wanted",
            f"in a group of the protocol {protocol!r} {PROTOCOLS[protocol].sharer}, and such wishes are not recorded",
            "drain a member at its own agent; name a leader with `neli rebalance --to`",
        )
    return BeyondProtocol(
        f"{what} was wanted",
        f"in a group of the protocol {protocol!r} {PROTOCOLS[protocol].sharer}, and it takes no wishes",
        "stop a member to empty it, which hands over what it leads; choose the protocol 'induction' for a group that "
        "takes wishes",
    )


def drain(name: str) -> CheckedWish:
    _require(_name_problems(name))
    return CheckedWish(
        f"a drain of {name}", lambda by: Drain(by=by, name=name), lambda state: name in state.drains, name
    )


def undrain(name: str) -> CheckedWish:
    _require(_name_problems(name))
    return CheckedWish(
        f"the end of a drain of {name}", lambda by: Undrain(by=by, name=name), lambda s: name not in s.drains
    )


def pin(partition: int, name: str, layout: Layout) -> CheckedWish:
    _require(_partition_problems(partition, layout) + _name_problems(name))
    return CheckedWish(
        f"a pin of partition {partition} to {name}",
        lambda by: Pin(by=by, partition=partition, name=name),
        lambda state: state.pins.get(partition) == name,
        name,
    )


def unpin(partition: int, layout: Layout) -> CheckedWish:
    _require(_partition_problems(partition, layout))
    return CheckedWish(
        f"the end of a pin of partition {partition}",
        lambda by: Unpin(by=by, partition=partition),
        lambda state: partition not in state.pins,
    )


def weigh(name: str, weight: int | None) -> CheckedWish:
    problems = _name_problems(name)
    if weight is not None and not (is_whole(weight) and 0 <= weight <= WEIGHT_MAX):
        problems.append(
            f"weight={weight!r} must be a whole number from 0 to {WEIGHT_MAX}, or None for the member's own"
        )
    _require(problems)
    return CheckedWish(
        f"a weight of {weight} for {name}",
        lambda by: Weigh(by=by, name=name, weight=weight),
        lambda state: state.weights.get(name) == weight,
        name,
    )


def load(loads: Mapping[int, float], layout: Layout) -> CheckedWish:
    problems = [problem for partition in loads for problem in _partition_problems(partition, layout)]
    problems += [
        f"the load of partition {partition} must be a number from 0 to {LOAD_MAX:g}, got {amount!r:.40}"
        for partition, amount in loads.items()
        if not _is_amount(amount)
    ]
    _require(problems)
    wanted = {partition: float(amount) for partition, amount in loads.items()}
    return CheckedWish(
        f"the loads of {len(wanted)} partitions",
        lambda by: Load(by=by, loads=wanted),
        lambda state: all(state.loads.get(partition, 0.0) == amount for partition, amount in wanted.items()),
    )


def upgrade() -> CheckedWish:
    """The upgrade to the newest fold version that this release knows."""
    what = f"an upgrade to fold version {NEWEST}"

    def refusal(state: State) -> GroupMismatch | None:
        if error := unknown_version(state):
            return error
        if state.genesis is None or state.version == NEWEST:
            return None
        wanted = f"{what} was wanted"
        if not state.members:
            return GroupMismatch(wanted, "the group has no member", "start its members, then repeat this")
        if not (behind := held_back_by(state)):
            return None
        named = [f"{it.name}{it.address and f' at {it.address}'} (knows {known(it)})" for it in behind]
        more = f" and {len(named) - NAMES_SHOWN} more" if len(named) > NAMES_SHOWN else ""
        return GroupMismatch(
            wanted,
            f"{len(behind)} of {len(state.members)} members do not know it: {', '.join(named[:NAMES_SHOWN])}{more}",
            "restart each of them with this release, then repeat this",
        )

    return CheckedWish(
        what, lambda by: Upgrade(by=by, version=NEWEST), lambda state: state.version == NEWEST, refusal=refusal
    )


def held_back_by(state: State) -> list[Seat]:
    """The members that do not know the version NEWEST, so the group cannot be upgraded to it.

    Those that are away do not count: if they return with an older release, they are refused.
    """
    return [seat for seat in state.members.values() if not seat.versions[0] <= NEWEST <= seat.versions[1]]


def known(seat: Seat) -> str:
    """The fold versions that a member knows."""
    oldest, newest = seat.versions
    return str(newest) if oldest == newest else f"{oldest} to {newest}"


def require_member(name: str, members: Collection[str]) -> None:
    """Raise ConfigError, listing the members, unless `name` is one of them."""
    if name in members:
        return
    nearest = sorted(members, key=lambda other: (-SequenceMatcher(None, name, other).ratio(), other))
    shown = ", ".join(nearest[:NAMES_SHOWN]) or "none"
    more = f" and {len(nearest) - NAMES_SHOWN} more" if len(nearest) > NAMES_SHOWN else ""
    raise ConfigError([f"no member is called {name!r:.60}: the members are {shown}{more}"])


def _require(problems: list[str]) -> None:
    if problems:
        raise ConfigError(problems)


def _name_problems(name: object) -> list[str]:
    if isinstance(name, str) and name and name.isprintable() and len(name) <= NAME_MAX:
        return []
    return [f"a member's name must be printable text of 1 to {NAME_MAX} characters, got {name!r:.60}"]


def _partition_problems(partition: object, layout: Layout) -> list[str]:
    if isinstance(partition, int) and is_whole(partition) and 0 <= partition < layout.partitions:
        return []
    return [f"there is no partition {partition!r:.40}: they count from 0 to {layout.partitions - 1}"]


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LOAD_MAX
