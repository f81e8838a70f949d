"""The table: which member owns which partition, as one immutable value. Or `NoTable`: why look-ups have none.

    key --hash--> slot --mod M--> partition --> partitions[i]   an Owner, or None and the reason why
           '------- & mask ----------------> rows[j]            the same by one index, if everything is owned

A source makes a new table whenever owners, terms or members change (`ledger_reader.py`, `owners_reader.py`). A table
may be given to any thread, kept, compared with a later one, or sent to another process.

    nothing read yet  AWAITING    StaleTable      no member made the ledger yet  UNMADE      NoOwner
    too old           STALE       StaleTable      no group was founded           UNFOUNDED   NoOwner
    source failed     STOPPED     its own error   no member is alive             SILENT      NoOwner
    closed            CLOSED      Closed          in a forked child              FORKED      Forked

The feed judges which of these it is, and explains it (`feed.py`).

**Rows.** If S and M are powers of two (the defaults are), slot mod M is just the lowest bits of the hash:
`hash & (M - 1)`. So the fastest table is the row of partitions itself. It stays in the processor's nearest cache, while
a row with one entry per slot (128 KiB at S = 16384) does not: on CPython 3.11, a look-up costs 1.3 times the bare
`owners[mmh3.hash(key) % S]` with the short row, and 1.5 times with the long one. Any other M needs the long row. Tags,
or an S that is not a power of two, need the slow path. So does a table with an unowned partition, which must say why:
it has no rows at all, so that a look-up that finds a row need not check whether it has an owner.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import mmh3

from neli_router.core.keyspace import Key, Layout, Role
from neli_router.errors import BadKey, ConfigError, NeliError, NoOwner

__all__ = [
    "ALARMING",
    "NO_MEMBER",
    "OVER",
    "ROWS_MAX",
    "WAITING",
    "At",
    "NoTable",
    "Owner",
    "Peer",
    "Plight",
    "Table",
    "View",
    "keys_in",
    "no_owner",
]

Plight = Enum("Plight", "AWAITING UNMADE UNFOUNDED STALE SILENT STOPPED FORKED CLOSED")

WAITING = frozenset({Plight.AWAITING, Plight.UNMADE})
"""The source was not read yet."""

NO_MEMBER = frozenset({Plight.UNFOUNDED, Plight.SILENT})
"""The source was read, and it says that the group has no live member."""

OVER = frozenset({Plight.STOPPED, Plight.FORKED, Plight.CLOSED})
"""Only `reopen` heals these, and nothing heals the last."""

ALARMING = {Plight.STALE: "router.stale", Plight.SILENT: "router.silent", Plight.STOPPED: "router.stopped"}
"""Something is wrong that the program did not ask for: its name in the log."""

ROWS_MAX = 2**16
"""The longest row of slots, for an M that is not a power of two. A longer row would not fit into any cache, and with
2**32 slots not into memory; the slow path is then just as fast."""

RUN = 4096
"""How many keys are joined at a time: enough to make a run cheap, and few enough to stay in the cache."""


class Owner(NamedTuple):
    """The owner of a partition, and its term: the fencing token that a write for the partition must carry."""

    name: str
    address: str
    partition: int
    term: int


class Peer(NamedTuple):
    """One member of the group, as it introduced itself."""

    name: str
    address: str
    weight: int
    zone: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Table:
    """All owners, as of `offset`. Immutable, so it may be shared between threads; may be pickled."""

    address: str
    """The address of the ledger that the table was read from."""
    layout: Layout
    offset: int
    """Every record below this offset is included. The table stays current until a record changes an owner or member."""
    partitions: tuple[Owner | None, ...]
    members: tuple[Peer, ...]
    """In the order in which they joined."""
    why_unowned: tuple[str, str]
    """Why a partition without an owner has none, and what to do about it."""
    rows: tuple[Owner, ...]
    """`rows[mmh3.hash(key) & mask]` is the owner of a key, if there are any rows and mmh3 can hash the key directly."""
    mask: int
    """The same for all tables of one layout, with rows or without."""

    @classmethod
    def of(
        cls,
        address: str,
        layout: Layout,
        offset: int,
        owners: list[Owner | None],
        members: tuple[Peer, ...],
        why_unowned: tuple[str, str],
    ) -> "Table":
        """The table of these owners: an Owner or None for each partition of `layout`."""
        mask = _mask(layout)
        row = [owner for owner in owners if owner is not None]
        rows: list[Owner] = []
        if mask is not None and len(row) == layout.partitions:
            rows = (row * -(-(mask + 1) // layout.partitions))[: mask + 1]
        return cls(address, layout, offset, tuple(owners), members, why_unowned, tuple(rows), mask or 0)

    @classmethod
    def static(cls, owners: "Sequence[Owner | None] | Mapping[int, Owner]", layout: Layout) -> "Table":
        """A table that a program wrote down itself: an owner for each partition. Raises ConfigError."""
        problems: list[str] = []
        if isinstance(owners, Mapping):
            unknown = [partition for partition in owners if partition not in range(layout.partitions)]
            if unknown:
                problems.append(f"there is no partition {unknown[0]!r}: they count from 0 to {layout.partitions - 1}")
            owners = [owners.get(partition) for partition in range(layout.partitions)]
        if len(owners) != layout.partitions:
            problems.append(f"{len(owners)} owners were given for {layout.partitions} partitions: give one for each")
        problems += _misplaced(owners)
        if problems:
            raise ConfigError(problems)
        peers = dict.fromkeys(Peer(owner.name, owner.address, 1, "") for owner in owners if owner is not None)
        why_unowned = ("it was given none", "give the table an owner for every partition")
        return cls.of("a static table", layout, 0, list(owners), tuple(peers), why_unowned)

    def __repr__(self) -> str:
        owned = sum(owner is not None for owner in self.partitions)
        return (
            f"<Table of {self.address} at {self.offset}: {len(self.members)} members own {owned} of "
            f"{len(self.partitions)} partitions>"
        )

    def owner(self, key: Key) -> Owner:
        """The owner of `key`. Raises BadKey, NoOwner."""
        return self.owner_of_slot(self.layout.slot(key))

    def owner_of_slot(self, slot: int) -> Owner:
        """The owner of the keys of `slot`. Raises NoOwner."""
        partition = slot % self.layout.partitions
        owner = self.partitions[partition]
        if owner is None:
            raise self._no_owner(partition, f"slot {slot}")
        return owner

    def owner_of_role(self, role: Role) -> Owner:
        """The owner of `role`, a number or a name. Raises BadKey, NoOwner."""
        partition = self.layout.partition_of_role(role)
        owner = self.partitions[partition]
        if owner is None:
            raise self._no_owner(partition, "a role")
        return owner

    def owners(self, keys: Iterable[Key]) -> list[Owner]:
        """The owner of each of `keys`, in their order. Raises BadKey, and NoOwner if a key has no owner."""
        keys, rows, mask, hash_32 = _collected(keys), self.rows, self.mask, mmh3.hash
        if not rows:
            return [self.owner(key) for key in keys]
        if _are_ascii(keys):
            return [rows[hash_32(key) & mask] for key in keys]
        return [
            rows[hash_32(key) & mask] if type(key) is bytes or (type(key) is str and key.isascii()) else self.owner(key)
            for key in keys
        ]

    def held_by(self, name: str, keys: Iterable[Key]) -> list[Key]:
        """Those of `keys` that the member called `name` owns, in their order. Raises BadKey."""
        held = {owner.partition for owner in self.partitions if owner is not None and owner.name == name}
        return keys_in(held, keys, self.layout)

    def _no_owner(self, partition: int, what: str) -> NoOwner:
        return NoOwner(f"the owner of {what} (partition {partition} of {self.address}) was wanted", *self.why_unowned)


class At(NamedTuple):
    """How current a table is."""

    offset: int
    """Every record of the ledger below this offset was read."""
    age: float
    """Seconds since the ledger was last read up to its end; `inf` if it never was."""


@dataclass(frozen=True, slots=True)
class NoTable:
    """Why look-ups have no table. `explain(wanted)` makes the error for a look-up that wanted something.

    It makes a new error each time: raising one again would grow its traceback, and keep callers' variables alive.
    """

    plight: Plight
    explain: Callable[[str], NeliError]


View = Table | NoTable
"""The input of a look-up: a table, or the reason why there is none."""


def keys_in(held: Container[int], keys: Iterable[Key], layout: Layout) -> list[Key]:
    """Those of `keys` that belong to one of the partitions `held`, in their order. Raises BadKey."""
    keys, hash_32 = _collected(keys), mmh3.hash
    if layout.tags or layout.slots & (layout.slots - 1) or not _are_ascii(keys):
        return [key for key in keys if layout.partition(key) in held]
    mask, partitions = layout.slots - 1, layout.partitions
    return [key for key in keys if (hash_32(key) & mask) % partitions in held]


def _mask(layout: Layout) -> int | None:
    """The mask that turns mmh3's signed hash into an index into the rows; None if this layout has no rows.

    Python's `&` treats a negative number as two's complement, so the lowest bits are those of the unsigned hash.
    """
    if layout.tags or layout.slots & (layout.slots - 1):
        return None
    if not layout.partitions & (layout.partitions - 1):
        return layout.partitions - 1
    return layout.slots - 1 if layout.slots <= ROWS_MAX else None


def _collected(keys: Iterable[Key]) -> tuple[Key, ...]:
    """All keys, in a tuple: into a list, another thread could put a key that mmh3 cannot hash after the check."""
    if isinstance(keys, str | bytes):
        # A text would count as a sequence of letters, and each letter would have an owner.
        raise BadKey(
            "several keys were wanted", f"found one {type(keys).__name__}", "put it into a list, or ask owner()"
        )
    return tuple(keys)


def _are_ascii(keys: tuple[Key, ...]) -> bool:
    """Whether all keys are ASCII texts, which mmh3 can hash directly. Joining them and checking once is fastest."""
    try:
        return all("".join(keys[at : at + RUN]).isascii() for at in range(0, len(keys), RUN))  # type: ignore[arg-type]
    except TypeError:
        return False  # Some are bytes, or not keys at all.


def _misplaced(owners: Sequence[Any]) -> list[str]:
    """The problem with the first entry that is not its partition's owner. With all of them, a list off by one would
    report every entry."""
    for place, owner in enumerate(owners):
        if owner is not None and not (isinstance(owner, Owner) and owner.partition == place):
            said = f"says that it owns {owner.partition!r}" if isinstance(owner, Owner) else "is none"
            return [f"the owner of partition {place} {said}: give an Owner that names its partition"]
    return []


def no_owner(had_owners: bool) -> tuple[str, str]:
    """Why a table without owners has none: while there is a member, every partition has an owner."""
    if had_owners:
        return "the group no longer has a member: all of them left or were expired", "start a member"
    return "no member ever joined the group", "start a member"
