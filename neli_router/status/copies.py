"""Copies of a ledger: a file that holds its records, and a new group with the settings of an old one.

    ledger --exported--> lines of JSON: one for each record, and a last one that shows that nothing is missing
    lines --of_copy----> Copy: what the records say --found_again--> an empty ledger of any kind

A copy begins where a newcomer would begin: with all records, or with the first snapshot of a ledger that dropped its
oldest ones. Folding it gives the state that the ledger had. The last line has the checksum of all lines before it,
because a digest of the state would not show a change to a member that has left.

**A group is founded again, not replayed.** A term follows from an offset, and another ledger has other offsets. So a
Genesis is appended, with the copy's layout, lease, guarantee and version, and the wishes that were in effect. Members,
owners and terms stay behind. The base of the new terms is above every term that the old ledger can have given before
the end of the copy, and not below the clock. So a fence admits the new owners and refuses the old ones.

Two groups know nothing of each other: while members of the old one run, both lead. The copy shows members that had not
left, but not whether they have ended since. The caller must ask.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Any

import msgspec
from msgspec.structs import replace

from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.base import Entry, Ledger
from neli_router.drivers.ledgers.pump import oldest_state
from neli_router.errors import GroupMismatch, NeliError
from neli_router.protocols.induction.digest import digest_text
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.records import Drain, Load, Pin, Record, Snapshot, Weigh, decode, encode
from neli_router.protocols.induction.snapshots import restore, snapshot
from neli_router.status.inspection import Inspection

__all__ = ["BadCopy", "Copy", "LedgerSummary", "exported", "found_again"]

KIND, VERSION = "neli ledger", 1
"""The keys `copy` and `v` of the first line."""

AUTHOR = "neli ledger"

READ_SECONDS = 0.5

LOADS_AT_A_TIME = 4096
"""Partitions in one Load: a record has a limit."""

SEEN_MAX = 10.0
"""Seconds until what was appended must be read."""


class BadCopy(NeliError):
    """The file is not a copy of a ledger, or it is damaged or incomplete."""


class LedgerSummary(msgspec.Struct, frozen=True):
    """The records of a ledger, summed up in the keys of `neli ledger inspect --output json`."""

    source: str
    start: int
    tip: int
    records: dict[str, int]
    """Kind -> how many."""
    bytes: int
    version: int = 0
    slots: int = 0
    partitions: int = 0
    tags: bool = False
    lease: float | None = None
    """None before there is a group."""
    guarantee: str | None = None
    members: list[str] = []
    away: list[str] = []
    unowned: int = 0
    highest_term: int = 0
    pins: int = 0
    drains: list[str] = []
    weights: dict[str, int] = {}
    loads: int = 0
    digest: str = ""


class Copy:
    """All that was read of `source`, a ledger or a file, from `state` on."""

    def __init__(self, source: str, state: State) -> None:
        self.source, self.state, self.start = source, state, state.at
        self.count = self.bytes = 0
        self._kinds: Counter[str] = Counter()

    @classmethod
    def of_ledger(cls, ledger: Ledger) -> "Copy":
        """All that `ledger` has now. Raises LedgerError."""
        copy = cls(ledger.address, oldest_state(ledger))
        for entry in _entries(ledger, copy.start, ledger.tip()):
            copy.take(entry)
        return copy

    @classmethod
    def of_file(cls, name: str, lines: Iterable[bytes]) -> "Copy":
        """All that a whole copy has. Raises BadCopy."""
        copy, number, rest, read = cls(name, State()), 0, iter(lines), sha256()
        try:
            for number, line in enumerate(rest, 1):
                said = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
                if number == 1:
                    copy = cls(name, _begun(said))
                elif "end" in said:
                    if line == copy.last_line(read.hexdigest()) and next(rest, None) is None:
                        return copy
                    raise BadCopy(
                        f"a copy of a ledger as it was exported was wanted in {name}",
                        f"the checksum in line {number} is of other lines",
                        "export the ledger again",
                    )
                else:
                    copy.take(_entry(said))
                read.update(line)
        except (KeyError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadCopy(
                f"a copy of a ledger was wanted in {name}",
                f"line {number} does not belong to one ({type(error).__name__})",
                "name a file that `neli ledger export` wrote",
            ) from None
        found = f"it ends after {number} lines" if number else "it is empty"
        raise BadCopy(f"a whole copy of a ledger was wanted in {name}", found, "export the ledger again")

    def take(self, entry: Entry) -> None:
        record = decode(entry.payload)
        self.state = fold(self.state, entry.offset, record)
        self.count, self.bytes = self.count + 1, self.bytes + len(entry.payload)
        self._kinds["skipped" if record is None else type(record).__name__.lower()] += 1

    @property
    def members(self) -> list[str]:
        """The names of the members that had neither left nor been removed."""
        return sorted(seat.name for seat in self.state.members.values())

    def last_line(self, checksum: str) -> bytes:
        digest = digest_text(self.state.digest)
        return _line({"end": self.state.at, "records": self.count, "digest": digest, "sha256": checksum})

    def summary(self) -> LedgerSummary:
        state, genesis = self.state, self.state.genesis
        summary = LedgerSummary(self.source, self.start, state.at, dict(sorted(self._kinds.items())), self.bytes)
        if genesis is None:
            return summary
        return replace(
            summary,
            version=state.version,
            slots=genesis.layout.slots,
            partitions=genesis.layout.partitions,
            tags=genesis.layout.tags,
            lease=genesis.lease,
            guarantee=genesis.guarantee,
            members=self.members,
            away=sorted(state.seats[incarnation].name for incarnation in state.away),
            unowned=sum(owner is None for owner in state.owners),
            highest_term=max(state.terms, default=0),
            pins=len(state.pins),
            drains=[*state.drains],
            weights=state.weights,
            loads=len(state.loads),
            digest=digest_text(state.digest),
        )


def exported(ledger: Ledger) -> Iterator[bytes]:
    """The lines of a copy of all that `ledger` has now; a busy group may go on. Raises LedgerError."""
    copy, tip = Copy(ledger.address, oldest_state(ledger)), ledger.tip()
    first: dict[str, Any] = {"copy": KIND, "v": VERSION, "ledger": copy.source, "start": copy.start}
    if copy.state.genesis is not None:
        first["snapshot"] = msgspec.Raw(encode(snapshot(AUTHOR, copy.state)))
    written = sha256(line := _line(first))
    yield line
    for entry in _entries(ledger, copy.start, tip):
        copy.take(entry)
        written.update(line := _line({"offset": entry.offset, **_spelled(entry.payload)}))
        yield line
    yield copy.last_line(written.hexdigest())


def found_again(ledger: Ledger, copy: Copy, now: float, partitions: int | None = None) -> tuple[int, int]:
    """Found the group of `copy` on `ledger`, which has none yet; with another number of `partitions`, without pins and
    loads. Return the number below all its terms, and how many wishes it has. Raises LedgerError and GroupMismatch."""
    inspection = Inspection(ledger)
    if inspection.is_founded:
        raise GroupMismatch(
            f"a ledger without a group was wanted at {ledger.address}",
            "it has one",
            "name another ledger, or delete that group with `neli group delete`",
        )
    base = max(int(now * 1e6), copy.state.base + copy.state.at)
    records = [*_founding(copy.state, base, partitions, inspection.state.at)]
    ledger.append([encode(record) for record in records])
    inspection.await_state(lambda state: state.genesis is not None, SEEN_MAX)
    if (founded := inspection.state.genesis) != records[0]:
        raise GroupMismatch(
            f"the group of {copy.source} was wanted at {ledger.address}",
            f"nothing was read within {SEEN_MAX:g} s" if founded is None else "another process founded one meanwhile",
            "look at it with `neli ledger inspect`",
        )
    return base, len(records) - 1


def _founding(state: State, base: int, partitions: int | None, at: int) -> Iterator[Record]:
    if state.genesis is None:
        raise BadCopy("a copy of a group was wanted", "its ledger had none", "there is nothing to import")
    old = state.genesis.layout
    layout = old if partitions is None else Layout(old.slots, partitions, old.tags)
    yield replace(state.genesis, by=AUTHOR, layout=layout, base=base, version=state.version, at=at)
    yield from (Drain(by=AUTHOR, name=name) for name in state.drains)
    yield from (Weigh(by=AUTHOR, name=name, weight=weight) for name, weight in state.weights.items())
    if partitions is None:
        yield from (Pin(by=AUTHOR, partition=partition, name=name) for partition, name in state.pins.items())
        loads = [*state.loads.items()]
        for first in range(0, len(loads), LOADS_AT_A_TIME):
            yield Load(by=AUTHOR, loads=dict(loads[first : first + LOADS_AT_A_TIME]))


def _begun(said: dict[str, msgspec.Raw]) -> State:
    """The state that the first line of a copy begins with."""
    kind, version = msgspec.json.decode(said["copy"]), msgspec.json.decode(said["v"])
    record = decode(bytes(said["snapshot"])) if "snapshot" in said else None
    if (kind, version) != (KIND, VERSION) or ("snapshot" in said and not isinstance(record, Snapshot)):
        raise BadCopy(
            "a copy of a ledger that this release can read was wanted",
            f"its first line says {kind!r}, version {version!r}"[:200],
            "use the release that wrote it, or a newer one",
        )
    return restore(record) if isinstance(record, Snapshot) else State(at=msgspec.json.decode(said["start"], type=int))


def _entries(ledger: Ledger, start: int, tip: int) -> Iterator[Entry]:
    ledger.seek(start)
    at = start
    while at < tip and (entries := ledger.read(READ_SECONDS)):
        yield from (entry for entry in entries if entry.offset < tip)
        at = entries[-1].offset + 1


def _spelled(payload: bytes) -> dict[str, object]:
    """A record as JSON, if its bytes are JSON; otherwise in base64."""
    try:
        if b"\n" not in payload and isinstance(msgspec.json.decode(payload), dict):
            return {"record": msgspec.Raw(payload)}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return {"base64": payload}


def _entry(said: dict[str, msgspec.Raw]) -> Entry:
    payload = bytes(said["record"]) if "record" in said else msgspec.json.decode(said["base64"], type=bytes)
    return Entry(msgspec.json.decode(said["offset"], type=int), payload)


def _line(values: dict[str, object]) -> bytes:
    return msgspec.json.encode(values) + b"\n"
