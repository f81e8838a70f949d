"""The vocabulary of the ledger: all that members tell each other.

    Genesis                                     once: the group's settings; records before it are void
    Join  Beat*  Leave                          a member's life
    Expire                                      another member ends it, which only suspects that it is dead
    Certify                                     another process ends it, which has seen its process end
    Handover                                    an owner gives one partition to its target
    Drain Undrain  Pin Unpin  Weigh  Load       wishes of people and programs; by name, so they outlive a restart
    Snapshot                                    the fold so far, so that a newcomer may start late
    Upgrade                                     the group moves to another fold version

A record is one line of JSON that a person can read: `kind` says what it is, `v` is the version of the record format,
`by` the incarnation of the writer (or, for wishes, any name for the one that asked). All readers skip a record that
cannot be decoded: it takes its offset and changes no state. So decoding is strict and depends on the bytes alone.
Unknown fields are refused, because a reader that ignored a field with a meaning would compute another table.

This is the one door through which a ledger's bytes come in, so all bounds are here: how long a record and a name may
be, how large a number, and that a name is text. Behind it, nothing has to ask again.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

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
    "RECORD_VERSION",
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
    "decode",
    "encode",
    "skip_notices",
]

RECORD_VERSION = 1

WHOLE_MAX = 2**53 - 1
"""Offsets and terms fit 53 bits, so that readers in any language can take them for numbers. Without a bound, one number
that no digest can hold would stop every reader there is and is to come."""

TIME_MAX = 1e12
"""Seconds on any host's clock: thirty thousand years. A float there still tells a tenth of a millisecond."""

TEXT = (
    r"\A[^\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    r"\U000e0000-\U000e007f]*\Z"
)
"""No control characters, no line ends, nothing invisible or that turns the direction of writing: a name comes into logs
and onto terminals. Spelled out: releases of Python differ in `str.isprintable`, and then readers would."""

Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX, pattern=TEXT)]
Text = Annotated[str, Meta(max_length=NAME_MAX, pattern=TEXT)]
Time = Annotated[float, Meta(ge=-TIME_MAX, le=TIME_MAX)]
Offset = Annotated[int, Meta(ge=0, le=WHOLE_MAX)]
Base = Annotated[int, Meta(ge=0, le=BASE_MAX)]
Version = Annotated[int, Meta(ge=1, le=WHOLE_MAX)]
Place = Annotated[int, Meta(ge=-1, le=WHOLE_MAX)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
Weight = Annotated[int, Meta(ge=0, le=WEIGHT_MAX)]
Amount = Annotated[float, Meta(ge=0, le=LOAD_MAX)]


class _Record(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag=str.lower):
    by: Name
    v: Literal[1] = 1


class Genesis(_Record, frozen=True, kw_only=True):
    """The settings of the group, for as long as the ledger lives. The first one counts.

    `at` is how far the writer had read without meeting one: a second Genesis whose writer had read past the first
    is proof that the ledger lost records.
    """

    layout: Layout
    lease: Annotated[float, Meta(ge=LEASE_MIN, le=LEASE_MAX)]
    guarantee: Guarantee
    base: Base
    version: Version
    at: Offset = 0


class Join(_Record, frozen=True, kw_only=True):
    """`by` becomes a member called `name`; an older incarnation of that name is expired in the same record.

    `at` is how far the writer had read. A Join whose writer had not yet read the Join that it would replace is void:
    it may have been in flight since before its own process died. So is one whose writer had read beyond its own place:
    it was meant for a ledger that has lost records since. `versions` is the range of folds the writer knows. `witness`
    tells people which witness will certify the writer's death; the fold only keeps it.
    """

    name: Name
    address: Text = ""
    weight: Weight = 1
    zone: Text = ""
    versions: tuple[Version, Version]
    at: Offset
    witness: Text = ""


class Beat(_Record, frozen=True, kw_only=True):
    """`by` is alive. `sent_at` is on the writer's own clock and means nothing to other members.

    `digest` is that of the writer's fold below the offset `at`, so that a member that computed another one notices.
    """

    sent_at: Time
    at: Offset
    digest: Digest


class Expire(_Record, frozen=True, kw_only=True):
    """`incarnation` is no longer a member, if `last_beat` is still its last Beat (or Join) here."""

    incarnation: Name
    last_beat: Offset


class Certify(_Record, frozen=True, kw_only=True):
    """The process of `incarnation` has ended with all its threads: `by` has seen it. So it is no longer a member.

    Its writer must know, for no wait is owed: the dead do not act. One that only suspects writes Expire. `by` need not
    be a member. An incarnation that never had a seat gets none afterwards: its Join may still be on its way.
    """

    incarnation: Name


class Handover(_Record, frozen=True, kw_only=True):
    """The owner under `term` is done with `partition`: the target at this very record owns it now."""

    partition: Offset
    term: Offset


class Leave(_Record, frozen=True, kw_only=True):
    """`by` is no longer a member. Fold version 1 gives its partitions away at once, whatever `grace` says."""

    grace: Annotated[float, Meta(ge=0, le=LEASE_MAX)] = 0.0


class Drain(_Record, frozen=True, kw_only=True):
    """A member called `name` shall own nothing but the partitions that are pinned to it."""

    name: Name


class Undrain(_Record, frozen=True, kw_only=True):
    """Takes a Drain back."""

    name: Name


class Pin(_Record, frozen=True, kw_only=True):
    """`partition` shall belong to the member called `name`, as soon as there is one."""

    partition: Offset
    name: Name


class Unpin(_Record, frozen=True, kw_only=True):
    """Takes a Pin back."""

    partition: Offset


class Weigh(_Record, frozen=True, kw_only=True):
    """`name` counts with `weight` from now on, whatever it says when it joins; None takes that back."""

    name: Name
    weight: Weight | None


class Load(_Record, frozen=True, kw_only=True):
    """How much work partitions are, as measured; in any unit, the same for all. 0 forgets a partition's load."""

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
    """A fold's state, written down. Owners and targets are indexes into `seats`; -1 means none."""

    genesis: Genesis
    genesis_at: Offset
    version: Version
    seats: list[Seat]
    last_beats: list[Offset]
    owners: list[Place]
    terms: list[Offset]
    targets: list[Place]
    pins: dict[Offset, Name]
    drains: dict[Name, Offset]
    weights: dict[Name, Weight]
    loads: dict[Offset, Amount]
    departed: list[Name]
    digest: Digest


class Snapshot(_Record, frozen=True, kw_only=True):
    """`state` folds all records below `upto`; replay goes on with the record *at* `upto`, which is still retained."""

    state: Image
    upto: Offset


Record = (
    Genesis
    | Join
    | Beat
    | Expire
    | Certify
    | Handover
    | Leave
    | Drain
    | Undrain
    | Pin
    | Unpin
    | Weigh
    | Load
    | Upgrade
    | Snapshot
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """One line of JSON."""
    return _encoder.encode(record)


def decode(payload: bytes) -> Record | None:
    """The record, or None for bytes that are no record of this format version: all readers skip the same ones."""
    if len(payload) > RECORD_MAX:
        return None
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # ValidationError is a DecodeError: not JSON, not ours and not of this version are all the same to a fold.
        return None


def skip_notices(skipped: int, offset: int) -> list[Notice]:
    """The notice that the record at `offset` cannot be decoded, the `skipped`-th of its kind, if it is worth one.

    Only the 1st, the 2nd, the 4th, the 8th ... are told: a broken writer may append a thousand a second.
    """
    return [Notice("record.skipped", {"offset": offset, "skipped": skipped})] if skipped.bit_count() == 1 else []
