"""The table: who owns what, as one value that never changes.

    key --hash--> slot --mod M--> partition --> partitions[i]   an Owner, or None and the reason why
           '------- & mask ----------------> rows[j]            the same by one index, if everything is owned

A source makes a new table whenever owners, terms or members changed (`ledger_reader.py`, `owners_reader.py`). A table
may be given to any thread, kept, compared with a later one, or sent to another process.

**Rows.** If S and M are powers of two (the defaults are), slot mod M is nothing but the lowest bits of the hash:
`hash & (M - 1)`. So the quickest table is the row of partitions itself. It stays in the processor's nearest cache,
where one entry a slot (128 KiB at S = 16384) does not: on CPython 3.11, a look-up costs 1.3 times the bare
`owners[mmh3.hash(key) % S]` with the short row, and 1.5 times with the long one. Another M needs the long one. Tags,
or an S that is no power of two, need the longer way. So does a table with a hole, which must say why: it has no rows
at all, so that a look-up that finds a row need not ask whether it has an owner.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mmh3

from neli_router.core.keyspace import Key, Layout, Role
from neli_router.errors import BadKey, ConfigError, NoOwner

__all__ = ["ROWS_MAX", "Owner", "Peer", "Table", "no_owner"]

ROWS_MAX = 2**16
"""The longest row of slots, for an M that is no power of two. A longer one would fit into no cache, and at 2**32 slots
not into memory; the longer way is then as quick."""

RUN = 4096
"""Keys that are joined at a time: enough to make a run cheap, and few enough to stay in the cache."""


class Owner(NamedTuple):
    """The owner of a partition, and its term: the fencing token that a write on its behalf must carry."""

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
    """Of the ledger that it was read from."""
    layout: Layout
    offset: int
    """Every record below it is counted in. The table stays the newest until a record changes an owner or a member."""
    partitions: tuple[Owner | None, ...]
    members: tuple[Peer, ...]
    """In the order in which they joined."""
    why_unowned: tuple[str, str]
    """Why a partition without an owner has none, and what to do about it."""
    rows: tuple[Owner, ...]
    """`rows[mmh3.hash(key) & mask]` is the owner of a key, if there are any rows and mmh3 can be given the key."""
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
        """The table of these owners, one or None for each partition of `layout`."""
        mask = _mask(layout)
        row = [owner for owner in owners if owner is not None]
        rows: list[Owner] = []
        if mask is not None and len(row) == layout.partitions:
            rows = (row * -(-(mask + 1) // layout.partitions))[: mask + 1]
        return cls(address, layout, offset, tuple(owners), members, why_unowned, tuple(rows), mask or 0)

    @classmethod
    def static(cls, owners: "Sequence[Owner | None] | Mapping[int, Owner]", layout: Layout) -> "Table":
        """The table that a program wrote down itself: an owner for each partition. Raises ConfigError."""
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
        """Who owns `key`. Raises BadKey, NoOwner."""
        return self.owner_of_slot(self.layout.slot(key))

    def owner_of_slot(self, slot: int) -> Owner:
        """Who owns the keys of `slot`. Raises NoOwner."""
        partition = slot % self.layout.partitions
        owner = self.partitions[partition]
        if owner is None:
            raise self._no_owner(partition, f"slot {slot}")
        return owner

    def owner_of_role(self, role: Role) -> Owner:
        """Who fills `role`, a number or a name. Raises BadKey, NoOwner."""
        partition = self.layout.partition_of_role(role)
        owner = self.partitions[partition]
        if owner is None:
            raise self._no_owner(partition, "a role")
        return owner

    def owners(self, keys: Iterable[Key]) -> list[Owner]:
        """The owner of each of `keys`, in their order. Raises BadKey, and NoOwner if one of them has none."""
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
        keys = _collected(keys)
        if self.rows:
            return [key for key, owner in zip(keys, self.owners(keys), strict=True) if owner.name == name]
        held = {owner.partition for owner in self.partitions if owner is not None and owner.name == name}
        return [key for key in keys if self.layout.partition(key) in held]

    def _no_owner(self, partition: int, what: str) -> NoOwner:
        return NoOwner(f"the owner of {what} (partition {partition} of {self.address}) was wanted", *self.why_unowned)


def _mask(layout: Layout) -> int | None:
    """The mask that turns mmh3's signed hash into an index into the rows; None if this layout has no rows.

    Python's `&` takes a negative number as two's complement, so the lowest bits are those of the unsigned hash.
    """
    if layout.tags or layout.slots & (layout.slots - 1):
        return None
    if not layout.partitions & (layout.partitions - 1):
        return layout.partitions - 1
    return layout.slots - 1 if layout.slots <= ROWS_MAX else None


def _collected(keys: Iterable[Key]) -> tuple[Key, ...]:
    """All of them, in a tuple: in a list, another thread could put a key that mmh3 cannot bear after it was checked."""
    if isinstance(keys, str | bytes):
        # A text would pass for its letters, and each would have an owner.
        raise BadKey(
            "several keys were wanted", f"found one {type(keys).__name__}", "put it into a list, or ask owner()"
        )
    return tuple(keys)


def _are_ascii(keys: tuple[Key, ...]) -> bool:
    """Whether all are texts of ASCII, which mmh3 can be given as they are. To join them and ask once is quickest."""
    try:
        return all("".join(keys[at : at + RUN]).isascii() for at in range(0, len(keys), RUN))  # type: ignore[arg-type]
    except TypeError:
        return False  # Bytes among them, or what is no key.


def _misplaced(owners: Sequence[Any]) -> list[str]:
    """The problem with the first entry that is not its partition's owner. A list off by one would else name all."""
    for place, owner in enumerate(owners):
        if owner is not None and not (isinstance(owner, Owner) and owner.partition == place):
            said = f"says that it owns {owner.partition!r}" if isinstance(owner, Owner) else "is none"
            return [f"the owner of partition {place} {said}: give an Owner that names its partition"]
    return []


def no_owner(had_owners: bool) -> tuple[str, str]:
    """Why a table without owners has none: every partition belongs to a member as long as there is one."""
    if had_owners:
        return "the group has no member any more: all of them left or were expired", "start a member"
    return "no member ever joined the group", "start a member"
