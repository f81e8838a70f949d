"""The vocabulary of the ledger: every record that members exchange.

    Genesis                                     once: the group's settings; records before it are void
    Join  Beat*  Leave                          a member's life
    Expire                                      a member that only suspects others of being dead ends their lives
    Certify                                     a process that has seen the member's process end, ends its life
    Handover                                    an owner gives partitions to their targets
    Drain Undrain  Pin Unpin  Weigh  Load       wishes of people and programs; by name, so they outlive a restart
    Snapshot                                    the fold so far, so that a newcomer may start late
    Upgrade                                     the group moves to another fold version

A record is one line of JSON that a person can read: `kind` is its type, `v` is the version of the record format, and
`by` is the incarnation of the writer (or, for wishes, any name for the party that asked). All readers skip a record
that cannot be decoded: it takes its offset and changes no state. So decoding is strict and depends on the bytes alone.
Unknown fields are refused: a reader that ignored a meaningful field would compute a different table. The one exception
is `ext`, a map with anything in it that no fold looks at and no state keeps: room for hints that a later release may
add. It is nested EXT_DEPTH_MAX deep at most. How deep a decoder can read depends on the stack of its caller, and all
readers must skip the same records.

**Formats.** `v` is the oldest record format that can say it. In format 1, an Expire or a Handover is about one member
or partition, and each Beat has a digest; in format 2 about any number, a Beat may have none or say what is clear, a
Join may have a grace, and there is `ext`. A group's members may be of two releases, and must skip the same records. So
format 2 counts only in a group whose fold version knows it (`is_known`); before, a newer release skips it as an older
one does, and writes none of it.

All bytes of a ledger enter through this module, so all bounds are checked here: the length of a record and of a name,
the size of a number, and that a name is text. Other modules need not check again.
"""

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from neli_router.core.keyspace import Layout
from neli_router.protocols.protocol import (
    BASE_MAX,
    LEASE_MAX,
    LEASE_MIN,
    LOAD_MAX,
    NAME_MAX,
    RECORD_MAX,
    WEIGHT_MAX,
    Guarantee,
    Notice,
)

__all__ = [
    "BATCHES",
    "BATCHES_SINCE",
    "Beat",
    "Certify",
    "Drain",
    "Expire",
    "Genesis",
    "Handover",
    "Image",
    "Join",
    "Leave",
    "Load",
    "Name",
    "Pin",
    "Record",
    "Seat",
    "Snapshot",
    "Undrain",
    "Unpin",
    "Upgrade",
    "Weigh",
    "WishRecord",
    "decode",
    "encode",
    "is_known",
    "skip_notices",
    "snapshot_version",
]

WHOLE_MAX = 2**53 - 1
"""Offsets and terms fit in 53 bits, so that readers in any language can treat them as numbers. Without a bound, one
number that no digest can hold would stop every present and future reader."""

TIME_MAX = 1e12
"""Seconds on any host's clock: thirty thousand years. A float of this size still resolves a tenth of a millisecond."""

TEXT = (
    r"\A[^\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f]*\Z"
)
"""No control characters, no line ends, nothing invisible and nothing that changes the writing direction: names appear
in logs and on terminals. Spelled out, since `str.isprintable` differs between Python releases, and readers must not."""

EXT_DEPTH_MAX = 32
"""How deep an `ext` may be nested; the map itself is the first level."""

_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")

Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX, pattern=TEXT)]
Text = Annotated[str, Meta(max_length=NAME_MAX, pattern=TEXT)]
Time = Annotated[float, Meta(ge=-TIME_MAX, le=TIME_MAX)]
Offset = Annotated[int, Meta(ge=0, le=WHOLE_MAX)]
Base = Annotated[int, Meta(ge=0, le=BASE_MAX)]
Version = Annotated[int, Meta(ge=1, le=WHOLE_MAX)]
Place = Annotated[int, Meta(ge=-1, le=WHOLE_MAX)]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
Weight = Annotated[int, Meta(ge=0, le=WEIGHT_MAX)]
Grace = Annotated[float, Meta(ge=0, le=LEASE_MAX)]
Amount = Annotated[float, Meta(ge=0, le=LOAD_MAX)]


Key = TypeVar("Key", int, str)


class _Record(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag=str.lower):
    by: Name
    v: Literal[1, 2] = 1
    ext: dict[str, Raw] | UnsetType = UNSET


class Genesis(_Record, frozen=True, kw_only=True):
    """The settings of the group, for as long as the ledger lives. The first Genesis counts.

    `at` is how far the writer had read without finding a Genesis: a second one whose writer had read past the first
    is a sign that the ledger lost records.
    """

    layout: Layout
    lease: Annotated[float, Meta(ge=LEASE_MIN, le=LEASE_MAX)]
    guarantee: Guarantee
    base: Base
    version: Version
    at: Offset = 0


class Join(_Record, frozen=True, kw_only=True):
    """`by` becomes a member called `name`; an older incarnation of that name is expired in the same record.

    `at` is how far the writer had read. A Join is void if its writer had not yet read the Join that it would replace:
    it may have been in flight since before its own process died. It is also void if its writer had read beyond the
    Join's own offset: it was meant for a ledger that has lost records since. `versions` is the range of folds that the
    writer knows. `witness` names, for people, the witness that will certify the writer's death; the fold only keeps it.
    `floor` is the writer's wall clock in microseconds, or its `term_base` if that is higher. This and later records
    give no term below it, so a ledger that was restored from an older copy gives no term twice. For `grace` seconds
    after an Expire or a Certify, its partitions are kept for its name; this needs format 2.
    """

    name: Name
    address: Text = ""
    weight: Weight = 1
    zone: Text = ""
    versions: tuple[Version, Version]
    at: Offset
    witness: Text = ""
    floor: Base = 0
    grace: Grace | UnsetType = UNSET


class Beat(_Record, frozen=True, kw_only=True):
    """`by` is alive. `sent_at` is on the writer's own clock and means nothing to other members.

    `digest` is the digest of the writer's fold below the offset `at`, so that a member with a different one notices.
    In format 2 it may be left out, and `clear` may say that the writer owes no wait on any partition that it owns and
    got below this offset: all earlier owners have stopped.
    """

    sent_at: Time
    at: Offset
    digest: Digest | UnsetType = UNSET
    clear: Offset | UnsetType = UNSET


class Expire(_Record, frozen=True, kw_only=True):
    """An incarnation in `last_beats` is no longer a member, if its last Beat (or Join) here is still at that offset.

    Several in one record, because each change of members computes all targets again.
    """

    last_beats: Annotated[dict[Name, Offset], Meta(min_length=1)]


class Certify(_Record, frozen=True, kw_only=True):
    """The process of `incarnation` has ended with all its threads: `by` has seen it. So it is no longer a member.

    The writer must be certain, because no wait follows: the dead do not act. A writer that only suspects a death must
    write Expire. `by` need not be a member. An incarnation that never had a seat gets none afterwards, because its Join
    may still be in flight.
    """

    incarnation: Name


class Handover(_Record, frozen=True, kw_only=True):
    """The owner is done with the partitions in `terms`: if it owns one under that term, the target owns it now.

    Several in one record, because each change of owners copies the table.
    """

    terms: Annotated[dict[Offset, Offset], Meta(min_length=1)]


class Leave(_Record, frozen=True, kw_only=True):
    """`by` is no longer a member. From fold version 3 on, its partitions are kept for its name for `grace` seconds."""

    grace: Grace = 0.0


class Drain(_Record, frozen=True, kw_only=True):
    """A member called `name` should own only the partitions that are pinned to it."""

    name: Name


class Undrain(_Record, frozen=True, kw_only=True):
    """Revokes a Drain."""

    name: Name


class Pin(_Record, frozen=True, kw_only=True):
    """`partition` should belong to the member called `name`, as soon as there is one."""

    partition: Offset
    name: Name


class Unpin(_Record, frozen=True, kw_only=True):
    """Revokes a Pin."""

    partition: Offset


class Weigh(_Record, frozen=True, kw_only=True):
    """`name` counts with `weight` from now on, whatever weight its Join says; None revokes this."""

    name: Name
    weight: Weight | None


class Load(_Record, frozen=True, kw_only=True):
    """The measured load of partitions, in any unit that is the same for all. 0 forgets a partition's load."""

    loads: dict[Offset, Amount]


class Upgrade(_Record, frozen=True, kw_only=True):
    """The fold changes to `version` at this record, if every member knows that version."""

    version: Version


class Seat(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One member, as the fold knows it. `joined` is the offset of its Join."""

    incarnation: Name
    name: Name
    address: Text
    weight: Weight
    zone: Text
    versions: tuple[Version, Version]
    joined: Offset
    witness: Text = ""


class Image(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fold's state, written down. Owners, targets and standbys are indexes into `seats`; -1 means none."""

    genesis: Genesis
    genesis_at: Offset
    version: Version
    base: Base
    seats: list[Seat]
    last_beats: list[Offset]
    owners: list[Place]
    terms: list[Offset]
    began: list[Offset]
    targets: list[Place]
    pins: dict[Offset, Name]
    drains: dict[Name, Offset]
    weights: dict[Name, Weight]
    loads: dict[Offset, Amount]
    departed: list[Name]
    digest: Digest
    graces: dict[Name, Grace] | UnsetType = UNSET
    away: dict[Name, Grace] | UnsetType = UNSET
    clear: dict[Name, Offset] | UnsetType = UNSET
    standbys: list[Place] | UnsetType = UNSET


class Snapshot(_Record, frozen=True, kw_only=True):
    """`state` folds all records below `upto`; replay continues with the record *at* `upto`, which is still retained."""

    state: Image
    upto: Offset


WishRecord = Drain | Undrain | Pin | Unpin | Weigh | Load
"""The wishes of people and programs."""

Record = Genesis | Join | Beat | Expire | Certify | Handover | Leave | WishRecord | Upgrade | Snapshot

BATCHES: Literal[2] = 2
"""The format with more than one member or partition in an Expire or a Handover, Beats without a digest, and `ext`."""

BATCHES_SINCE = 3
"""The fold version that knows it."""


class _ExpireLine(_Record, frozen=True, kw_only=True, tag="expire"):
    """An Expire in either format."""

    incarnation: Name | UnsetType = UNSET
    last_beat: Offset | UnsetType = UNSET
    last_beats: Annotated[dict[Name, Offset], Meta(min_length=1)] | UnsetType = UNSET

    def read(self) -> Expire | None:
        last_beats = _named(self.v, self.incarnation, self.last_beat, self.last_beats)
        return None if last_beats is None else Expire(by=self.by, v=self.v, ext=self.ext, last_beats=last_beats)


class _HandoverLine(_Record, frozen=True, kw_only=True, tag="handover"):
    """A Handover in either format."""

    partition: Offset | UnsetType = UNSET
    term: Offset | UnsetType = UNSET
    terms: Annotated[dict[Offset, Offset], Meta(min_length=1)] | UnsetType = UNSET

    def read(self) -> Handover | None:
        terms = _named(self.v, self.partition, self.term, self.terms)
        return None if terms is None else Handover(by=self.by, v=self.v, ext=self.ext, terms=terms)


def _named(
    v: int, key: Key | UnsetType, value: int | UnsetType, more: dict[Key, int] | UnsetType
) -> dict[Key, int] | None:
    """The names in a line: one in format 1, any number in format 2; None if it mixes the formats, or names nothing."""
    if v >= BATCHES:
        return more if more is not UNSET and key is UNSET and value is UNSET else None
    return {key: value} if key is not UNSET and value is not UNSET and more is UNSET else None


class _PeekedImage(Struct, frozen=True):
    version: Version


class _PeekedSnapshot(Struct, frozen=True, tag_field="kind", tag="snapshot"):
    """A snapshot of any format: all else that it has is ignored."""

    state: _PeekedImage


_Line = Genesis | Join | Beat | _ExpireLine | Certify | _HandoverLine | Leave | WishRecord | Upgrade | Snapshot

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[_Line] = msgspec.json.Decoder(_Line)
_peeker = msgspec.json.Decoder(_PeekedSnapshot)


def encode(record: Record) -> bytes:
    """One line of JSON."""
    if record.v < BATCHES and isinstance(record, Expire):
        ((incarnation, last_beat),) = record.last_beats.items()
        return _encoder.encode(_ExpireLine(by=record.by, incarnation=incarnation, last_beat=last_beat))
    if record.v < BATCHES and isinstance(record, Handover):
        ((partition, term),) = record.terms.items()
        return _encoder.encode(_HandoverLine(by=record.by, partition=partition, term=term))
    return _encoder.encode(record)


def decode(payload: bytes) -> Record | None:
    """The record; None if the bytes are not a record of a format known here. All readers skip the same ones."""
    if len(payload) > RECORD_MAX:
        return None
    try:
        line = _decoder.decode(payload)
        if line.ext is not UNSET:
            payload.decode()  # The decoder does not look into what it keeps raw.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # ValidationError is a DecodeError: to a fold, not JSON, not ours and not of this version are the same.
        return None
    if line.v < BATCHES and not _is_in_first_format(line):
        return None
    if line.ext is not UNSET and not _is_shallow(payload):
        return None
    if isinstance(line, Snapshot) and line.state.genesis.ext is not UNSET:
        return None  # No state has one, so no member wrote this.
    return line.read() if isinstance(line, _ExpireLine | _HandoverLine) else line


def _is_in_first_format(line: _Line) -> bool:
    if isinstance(line, Beat):
        return line.ext is UNSET and line.digest is not UNSET and line.clear is UNSET
    if isinstance(line, Join):
        return line.ext is UNSET and line.grace is UNSET
    if isinstance(line, Snapshot):
        image = line.state
        later = image.graces, image.away, image.clear, image.standbys
        return line.ext is UNSET and all(field is UNSET for field in later)
    return line.ext is UNSET


def _is_shallow(payload: bytes) -> bool:
    """Whether each `ext` in `payload`, which is valid JSON, is nested EXT_DEPTH_MAX deep at most."""
    # Backslashes and quotes occur only in strings, so every other part between two quotes is outside of them.
    outside = b"".join(payload.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    brackets = outside.translate(_AS_SQUARE, _ALL_BUT_BRACKETS)
    for _ in range(EXT_DEPTH_MAX + 1):
        brackets = brackets.replace(b"[]", b"")  # This removes the innermost level everywhere.
    return not brackets


def snapshot_version(payload: bytes) -> int:
    """The fold version in a snapshot that `decode` cannot read, which a newer release wrote; 0 for anything else."""
    try:
        return _peeker.decode(payload).state.version
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0


def is_known(record: Record, version: int) -> bool:
    """Whether `record` counts in a group of this fold version: all its members can read it."""
    return record.v < BATCHES or version >= BATCHES_SINCE


def skip_notices(skipped: int, offset: int) -> list[Notice]:
    """The notice that the record at `offset` cannot be decoded, as the `skipped`-th so far, if it is worth a notice.

    Only the 1st, 2nd, 4th, 8th ... are reported: a broken writer may append a thousand a second.
    """
    return [Notice("record.skipped", {"offset": offset, "skipped": skipped})] if skipped.bit_count() == 1 else []
