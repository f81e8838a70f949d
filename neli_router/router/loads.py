"""A load profile: the measured load of each slot and each partition. The file that `neli load` takes.

    keys, weights --by slot, summed--> slots --mod M--> partitions --neli load--> Load, a record --> assignment
                                         '--> the hottest, by their numbers

A load may be in any unit: rows, seconds, bytes. Only proportions count. A profile contains no keys, because keys may be
personal data, and profiles are sent around. A slot is enough to act on: it shows which partition is hot, and whether a
single slot is more than a member should carry. To find the keys of a slot, search the data:
`neli_router.spark.hot_keys`.

The file is JSON. It names the layout by which slots and partitions were counted, so that a profile of one group is not
mistaken for another group's. The whole file is checked when it is read, before anything is written to a ledger.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError, MissingExtra
from neli_router.protocols.protocol import LOAD_MAX

__all__ = ["SLOTS_KEPT", "LoadProfile"]

SLOTS_KEPT = 65_536
"""How many of the hottest slots a profile keeps: in the default layout, all. More would make files large and fill a
driver's memory, and such cold slots do not matter. The partitions' loads include all slots."""

SIZE_MAX = 64 << 20
"""Bytes of a file: ten times what the largest layout in use would take. A larger file must be something else."""

DIGITS = 6
"""More than the precision of any measurement. With all digits, files, and the record that every member reads, would be
twice as long."""

FLOOR = 1e-9
"""A partition without any load counts as this fraction of the total. Zero would forget its load, and without a load it
would count as the mean of the others."""

Load = Annotated[float, Meta(ge=0)]
Slot = Annotated[int, Meta(ge=0)]


class LoadProfile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The loads by slot and by partition. Immutable; may be pickled and shared between threads."""

    version: int = 1
    layout: Layout
    partitions: list[Load]
    """The load of each partition, all slots counted."""
    slots: dict[Slot, Load]
    """The load of the hottest slots, at most SLOTS_KEPT."""

    def __post_init__(self) -> None:
        if problems := self._problems():
            raise ConfigError(problems)

    @classmethod
    def of(cls, layout: Layout, slots: Iterable[tuple[int, float]], partitions: Mapping[int, float]) -> Self:
        """The profile of these loads, in any order; a partition that is not named has no load. Raises ConfigError."""
        ranked = sorted(slots, key=_by_heat)[:SLOTS_KEPT]
        return cls(
            layout=layout,
            partitions=[_rounded(partitions.get(partition, 0.0)) for partition in range(layout.partitions)],
            slots={slot: _rounded(load) for slot, load in ranked},
        )

    @classmethod
    def of_columns(cls, keys: Any, layout: Layout, *, weights: Any = None) -> Self:
        """The profile of a column of keys in Arrow, pandas or polars, as for `partitions_of`.

        Each key counts as 1, or as the entry at its place in the column `weights`: a number of at least 0. A missing
        key counts for nothing. Needs the extra `columns`. Raises BadKey, ConfigError.
        """
        try:
            import polars as pl  # noqa: PLC0415 - it comes with an extra, and reading files does not need it.
        except ImportError:
            raise MissingExtra.of("polars", "for a load profile of columns", "columns") from None
        from neli_router.router.columns import partitions_of  # noqa: PLC0415 - as above.

        # With as many partitions as there are slots, a key's partition is its slot.
        slots = partitions_of(keys, replace(layout, partitions=layout.slots))
        frame = pl.DataFrame({"slot": pl.Series(slots, dtype=pl.Int64)})
        if weights is None:
            loads = frame.drop_nulls().group_by("slot").agg(load=pl.len().cast(pl.Float64))
        else:
            frame = _weighed(frame, weights)
            loads = frame.drop_nulls("slot").group_by("slot").agg(load=pl.col("load").sum())
        partition = (pl.col("slot") % layout.partitions).alias("partition")
        partitions = loads.group_by(partition).agg(pl.col("load").sum())
        return cls.of(layout, loads.top_k(SLOTS_KEPT, by="load").iter_rows(), dict(partitions.iter_rows()))

    @property
    def total(self) -> float:
        return sum(self.partitions)

    def loads(self) -> dict[int, float]:
        """Partition -> its load, in the form that a Load record takes: each above 0 and at most LOAD_MAX.

        Raises ConfigError if all loads are zero.
        """
        total = self.total
        if not total:
            raise ConfigError(["the profile has no load in it: measure where keys are worked on"])
        unit = max(1.0, max(self.partitions) / LOAD_MAX)
        return {partition: _rounded(max(load, total * FLOOR) / unit) for partition, load in enumerate(self.partitions)}

    def hottest(self, count: int) -> list[tuple[int, float]]:
        """The slots with the highest loads, as pairs of slot and load; the hottest first."""
        return sorted(self.slots.items(), key=_by_heat)[:count]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, as a whole or not at all."""
        target = Path(path)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        beside.write_bytes(msgspec.json.encode(self))
        beside.replace(target)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """The profile in a file. Raises ConfigError, which names everything that is wrong with it."""
        try:
            if Path(path).stat().st_size > SIZE_MAX:
                raise ConfigError([f"{path} has more than {SIZE_MAX >> 20} MiB: it is not a load profile"])
            return msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except OSError as error:
            raise ConfigError([f"the load profile {path} cannot be read: {error.strerror}"]) from None
        except msgspec.ValidationError as error:
            # A ConfigError of the profile itself is the cause of this error.
            said = error.__cause__.problems if isinstance(error.__cause__, ConfigError) else [str(error)]
            raise ConfigError([f"{path} is not a usable load profile: {one}" for one in said]) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise ConfigError([f"{path} is not JSON: give a file that LoadProfile.save wrote"]) from None

    def __repr__(self) -> str:
        return f"<LoadProfile of {self.layout.spelled()}: {self.total:g} in all>"

    def _problems(self) -> list[str]:
        layout, found = self.layout, []
        if self.version != 1:
            found.append(f"it has version {self.version}, and this release reads version 1: measure again")
        if len(self.partitions) != layout.partitions:
            found.append(f"it has the loads of {len(self.partitions)} partitions, and its layout {layout.partitions}")
        if beyond := [slot for slot in self.slots if slot >= layout.slots]:
            found.append(f"it has the load of slot {beyond[0]}, and its layout only {layout.slots} slots")
        found += [
            f"the load of {what} {number} is {load!r}: a finite number of at least 0 was wanted"
            for what, loads in (("partition", enumerate(self.partitions)), ("slot", self.slots.items()))
            for number, load in loads
            if not 0 <= load < float("inf")
        ][:1]
        return found


def _by_heat(one: tuple[int, float]) -> tuple[float, int]:
    slot, load = one
    return -load, slot


def _rounded(load: float) -> float:
    return float(f"{load:.{DIGITS}g}")


def _weighed(frame: Any, weights: Any) -> Any:
    import polars as pl  # noqa: PLC0415

    loads = pl.Series("load", weights, strict=False)
    if len(loads) != len(frame):
        raise ConfigError([f"{len(frame)} keys have {len(loads)} weights: give each key its own"])
    if not loads.dtype.is_numeric():
        raise ConfigError([f"the weights are of type {loads.dtype}: give numbers of at least 0"])
    loads = loads.cast(pl.Float64)
    bad = len(loads) - int((loads.is_finite() & (loads >= 0)).sum())
    if bad:
        raise ConfigError([f"{bad} weights are missing, negative or not finite: give numbers of at least 0"])
    return frame.with_columns(loads)
