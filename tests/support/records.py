"""Small ledgers for tests: records in few words, and the state that they fold to.

Incarnations are single letters. A member that joins without a name is named like its incarnation. The genesis is at
offset 0 and its base is 1000, so term 1003 began with the record at offset 3. The group has four partitions.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from neli_router.core.keyspace import SLOTS_MAX, Layout
from neli_router.protocols.induction import records as kinds
from neli_router.protocols.induction.digest import digest_text
from neli_router.protocols.induction.fold import FOLD_VERSIONS, State, fold
from neli_router.protocols.induction.records import Beat, Expire, Genesis, Handover, Join, Record
from neli_router.protocols.induction.snapshots import snapshot
from neli_router.protocols.protocol import Guarantee

__all__ = [
    "BASE",
    "LAYOUT",
    "LAYOUTS",
    "STOPPED_CLOCK",
    "Plot",
    "beat",
    "expire",
    "folded",
    "founded",
    "genesis",
    "handed_over",
    "join",
    "next_record",
    "owners",
    "parsed",
    "plots",
    "story",
    "table",
    "targets",
    "value_of",
]

BASE = 1000
LAYOUT = Layout(slots=16, partitions=4)
LAYOUTS = st.builds(
    lambda slots, share, tags: Layout(slots=slots, partitions=max(1, int(slots * share)), tags=tags),
    st.integers(1, SLOTS_MAX) | st.integers(0, 32).map(lambda power: 2**power),
    st.floats(0, 1),
    st.booleans(),
)
"""Any possible layout, for laws."""


STOPPED_CLOCK = -(10**12)
"""A wall clock that raises no term, so that the terms of a test count from the base of its Genesis."""


def genesis(
    by: str = "a",
    *,
    layout: Layout = LAYOUT,
    lease: float = 6.0,
    guarantee: Guarantee = "exclusive",
    version: int = 2,
    at: int = 0,
) -> Genesis:
    return Genesis(by=by, layout=layout, lease=lease, guarantee=guarantee, base=BASE, version=version, at=at)


def join(
    by: str,
    name: str = "",
    *,
    at: int = 0,
    weight: int = 1,
    address: str = "",
    zone: str = "",
    versions: tuple[int, int] = FOLD_VERSIONS,
) -> Join:
    return Join(by=by, name=name or by, address=address, weight=weight, zone=zone, versions=versions, at=at)


def beat(by: str, state: State | None = None, *, sent_at: float = 0.0) -> Beat:
    """A Beat of a member that has read up to `state`."""
    state = State() if state is None else state
    return Beat(by=by, sent_at=sent_at, at=state.at, digest=digest_text(state.digest))


def expire(by: str, incarnation: str, last_beat: int) -> Expire:
    return Expire(by=by, last_beats={incarnation: last_beat})


_WRITTEN = re.compile(r"^(?P<by>\w+):(?P<kind>\w+)(?:\((?P<fields>.*)\))?$")


def parsed(
    word: str,
    state: State,
    *,
    called: Callable[[str], str] = str,
    digests: Mapping[int, int] | None = None,
    agreed: Mapping[str, Any] | None = None,
) -> Record:
    """The record that `b:handover(partition=1)` stands for: `state` supplies the term and all other omitted fields.

    `called` maps a name to its incarnation, `digests` an offset to its digest; `agreed` has the fields of a Genesis.
    """
    match = _WRITTEN.match(word)
    assert match is not None, f"this is no record: {word!r}"
    by, kind = called(match["by"]), match["kind"]
    fields: dict[str, Any] = {}
    for part in filter(None, (match["fields"] or "").split(",")):
        key, text = part.split("=")
        fields[key] = called(text) if key == "incarnation" else value_of(text)
    match kind:
        case "genesis":
            layout = Layout(slots=16, partitions=fields.pop("partitions", LAYOUT.partitions))
            return genesis(by, **{**(agreed or {}), "layout": layout, **fields})
        case "join":
            grace = fields.pop("grace", None)
            joining = join(by, **{"name": match["by"], "at": state.at, **fields})
            return joining if grace is None else replace(joining, v=2, grace=float(grace))
        case "beat":
            at = fields.setdefault("at", state.at)
            return Beat(**{"by": by, "sent_at": 0.0, "digest": digest_text((digests or {}).get(at, 0)), **fields})
        case "expire":
            accused = fields["incarnation"]
            return expire(by, accused, fields.get("last_beat", state.last_beats.get(accused, 0)))
        case "snapshot":
            return snapshot(by, state)
        case "handover":
            partition = fields["partition"]
            return Handover(by=by, terms={partition: fields["term"] if "term" in fields else state.terms[partition]})
        case "load":
            return kinds.Load(by=by, loads={fields["partition"]: float(fields["load"])})
        case "weigh":
            return kinds.Weigh(by=by, name=fields["name"], weight=fields.get("weight"))
        case _:
            record: Record = getattr(kinds, kind.capitalize())(by=by, **fields)
            return record


def value_of(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def folded(*records: Record | None, state: State | None = None) -> State:
    """The state after `records`, which follow one another from where `state` ends."""
    state = State() if state is None else state
    for record in records:
        state = fold(state, state.at, record)
    return state


def founded(*records: Record | None) -> State:
    """The state after a genesis at offset 0 and `records` from offset 1 on."""
    return folded(genesis(), *records)


def handed_over(state: State) -> State:
    """The state after every Handover that is due."""
    for partition, (owner, target) in enumerate(zip(state.owners, state.targets, strict=True)):
        if owner is not None and owner != target:
            state = folded(Handover(by=owner, terms={partition: state.terms[partition]}), state=state)
    return state


def owners(state: State) -> str:
    """The owner of each partition, such as "aab.", where the last has no owner."""
    return _letters(state.owners)


def targets(state: State) -> str:
    """The intended owner of each partition."""
    return _letters(state.targets)


def table(state: State) -> str:
    """Owners with their terms, such as "a@1001 a@1001 b@1004 -@0"."""
    return " ".join(f"{owner or '-'}@{term}" for owner, term in zip(state.owners, state.terms, strict=True))


def _letters(incarnations: Sequence[str | None]) -> str:
    return "".join("." if one is None else one for one in incarnations)


# Stories: sequences of records most of which have an effect, because each is made for the state that it meets.

Plot = tuple[str, int, int, int]
"""The next event: a kind of record, and three small numbers that select which members and partitions it is about."""

_KINDS = ["beat", "certify", "drain", "expire", "genesis", "handover", "join", "junk", "leave", "load"]
_KINDS += ["pin", "snapshot", "undrain", "unpin", "upgrade", "weigh"]
_KINDS += ["join", "beat", "handover", "handover"]  # These happen most often.

plots: st.SearchStrategy[list[Plot]] = st.lists(
    st.tuples(st.sampled_from(_KINDS), st.integers(0, 7), st.integers(0, 7), st.integers(0, 3)), max_size=40
)


def next_record(state: State, plot: Plot) -> Record | None:
    """The record that `plot` means in `state`."""
    kind, one, other, third = plot
    seated = list(state.seats)
    writer = seated[one % len(seated)] if seated and third else "abcdefgh"[one]
    name, partition = "vwxyzabc"[other], other % 5  # One partition more than exist.
    match kind:
        case "join":
            incarnation, zone = "abcdefghijklmnop"[one + 8 * (third % 2)], ("", "z1", "z2")[one % 3]
            joining = join(incarnation, "vwxyz"[other % 5], at=state.at, weight=third, zone=zone)
            return replace(joining, v=2, grace=float(third)) if state.version > 2 and other % 2 else joining
        case "beat":
            return beat(writer, state, sent_at=float(other))
        case "expire":
            accused = seated[other % len(seated)] if seated else "a"
            return expire(writer, accused, max(0, state.last_beats.get(accused, 0) - third % 2))
        case "handover":
            place = other % len(state.owners) if state.owners else 0
            owner = (state.owners[place] if state.owners else None) or "a"
            term = state.terms[place] if state.terms else 0
            by, about = writer if third == 3 else owner, partition if third == 2 else place
            return Handover(by=by, terms={about: term})
        case "leave":
            return kinds.Leave(by=writer, grace=float(other % 2))
        case "certify":
            dead = seated[other % len(seated)] if seated and third else "abcdefgh"[one]
            return kinds.Certify(by=writer, incarnation=dead)
        case "drain":
            return kinds.Drain(by=writer, name=name)
        case "undrain":
            return kinds.Undrain(by=writer, name=next(iter(state.drains), name))
        case "pin":
            return kinds.Pin(by=writer, partition=partition, name=name)
        case "unpin":
            return kinds.Unpin(by=writer, partition=partition)
        case "weigh":
            return kinds.Weigh(by=writer, name=name, weight=third or None)
        case "load":
            return kinds.Load(by=writer, loads={partition: float(one), one: float(third)})
        case "upgrade":
            return kinds.Upgrade(by=writer, version=2 + third)
        case "snapshot" if state.genesis is not None:
            return snapshot(writer, state)
        case "genesis":
            return genesis(writer, at=state.at if third else 0)
        case _:
            return None


def story(plot: Sequence[Plot], *, gaps: Sequence[int] = ()) -> list[tuple[int, Record | None]]:
    """The records that `plot` means, each with its offset, after a genesis at offset 0. `gaps` are skipped offsets."""
    state = founded()
    entries: list[tuple[int, Record | None]] = [(0, genesis())]
    for place, one in enumerate(plot):
        offset = state.at + (gaps[place % len(gaps)] if gaps else 0)
        record = next_record(state, one)
        entries.append((offset, record))
        state = fold(state, offset, record)
    return entries
