"""Small ledgers made by hand, one for each corner of the fold.

    a word, or the bytes of a record, or a function of the state --> Scribe --> offsets and bytes

A word is `writer:kind(field=value,...)`, as in `tests/support/records.py`: what it omits comes from the state, so a
Handover has the present term, and an Expire the last Beat. The simulated ledgers show what members do. These show
what any writer may do.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from random import Random

import msgspec
from msgspec.structs import replace

from neli_router.protocols.induction.fold import WISHES_MAX, State, fold
from neli_router.protocols.induction.records import Beat, Expire, Handover, Join, Record, decode, encode
from neli_router.protocols.induction.snapshots import snapshot
from tests.support.records import parsed
from tests.vectors.files import Entries

__all__ = ["SCENES", "about"]

Line = str | bytes | Record | Callable[[State], Record]

GENESIS = "a:genesis(partitions=8,version=3)"
LARGER = (
    b'{"kind":"genesis","by":"a","layout":{"slots":64,"partitions":%d},"lease":1,"guarantee":"available","base":7,'
    b'"version":%d}'
)


MIXED = ["leave", "certify", "pin", "unpin", "weigh", "drain", "upgrade", "beat"]
MIXED_RECORDS = 170


class Scribe:
    """Writes a ledger, and folds it."""

    def __init__(self, *, first: int = 1, gaps: Iterable[int] = (0,)) -> None:
        self.entries: list[tuple[int, bytes]] = []
        self.state = State()
        self._next, self._gaps = first, [*gaps]

    def write(self, *lines: Line) -> "Scribe":
        """Each of `lines`; a text may have several words."""
        for line in chain.from_iterable(line.split() if isinstance(line, str) else [line] for line in lines):
            payload = self._payload(line)
            self.entries.append((self._next, payload))
            self.state = fold(self.state, self._next, decode(payload))
            self._next += 1 + self._gaps[len(self.entries) % len(self._gaps)]
        return self

    def hand_over(self) -> "Scribe":
        """Every Handover that is due: one record for each owner."""
        state = self.state
        for by in state.members:
            owed = [i for i, owner in enumerate(state.owners) if owner == by and state.targets[i] != by]
            if owed:
                self.write(Handover(by=by, v=2, terms={i: state.terms[i] for i in owed}))
        return self

    def _payload(self, line: Line) -> bytes:
        if isinstance(line, bytes):
            return line
        if isinstance(line, str):
            return encode(parsed(line, self.state))
        return encode(line(self.state) if callable(line) else line)


def joined(by: str, name: str = "", **fields: object) -> Line:
    """A Join with fields that a word cannot say."""
    kind = {"kind": "join", "by": by, "name": name or by, "versions": [2, 3]}
    return lambda state: msgspec.convert({**kind, "at": state.at, **fields}, Join)


def expired(by: str, *accused: str) -> Line:
    return lambda state: Expire(by=by, v=2, last_beats={q: state.last_beats[q] for q in accused})


def loads(amounts: Mapping[int, float]) -> bytes:
    return json.dumps({"kind": "load", "by": "op", "loads": amounts}).encode()


def _rejected() -> Entries:
    """Every kind of record, void for each of its reasons, and a few that count between them."""
    scribe = Scribe(gaps=(0, 0, 3))
    scribe.write("a:join", "a:beat", "op:drain(name=alice)", "w:certify(incarnation=z)", b"not JSON")
    founding = b'{"kind":"genesis","v":2,"by":"a","layout":{"partitions":8},"lease":1,"guarantee":"exclusive",'
    founding += b'"base":1000,"version":%d'
    scribe.write(founding % 2 + b"}", founding % 3 + b',"ext":{"x": 1.0}}')
    scribe.write("b:genesis(partitions=4,version=2) b:beat b:leave b:expire(incarnation=a,last_beat=1)")
    scribe.write("b:handover(partition=0,term=0) op:upgrade(version=4) op:unpin(partition=3) op:undrain(name=a)")
    scribe.write("op:pin(partition=8,name=a)", b'{"kind":"weigh","by":"op","name":"a","weight":null}')
    scribe.write(loads({8: 3.0}), loads({}), "a:join(name=alice,address=10.0.0.1:80)", "a:join(name=alice)")
    scribe.write("b:join(name=alice,at=0) b:join(name=bob,at=100000)")
    scribe.write(lambda state: Join(by="b", name="alice", versions=(2, 3), at=state.seats["a"].joined))
    scribe.write(joined("b", versions=[4, 9]))
    scribe.write(joined("b", versions=[1, 2]), "w:certify(incarnation=z) z:join(name=zoe) w:certify(incarnation=z)")
    scribe.write("b:join(name=bob) b:handover(partition=0) a:handover(partition=1,term=7)")
    scribe.write(Handover(by="a", v=2, terms={99: 1010})).hand_over()
    scribe.write("a:handover(partition=0) a:expire(incarnation=b,last_beat=3) c:expire(incarnation=b)")
    scribe.write(Expire(by="a", v=2, last_beats={"b": 2, "nobody": 7}), "op:upgrade(version=2) op:upgrade(version=9)")
    scribe.write("op:drain(name=bob) op:drain(name=bob) op:undrain(name=bob) op:drain(name=stranger)")
    scribe.write("op:pin(partition=1,name=bob) op:pin(partition=1,name=bob) op:pin(partition=2,name=stranger)")
    scribe.write("op:weigh(name=bob,weight=3) op:weigh(name=bob,weight=3)")
    scribe.write(loads({0: 2.5}), loads({0: 2.5}), loads({0: 0}))
    odd = [b'{"kind":"hint","by":"a"}', b'{"kind":"leave","by":"a","why":"tired"}', b'{"kind":"leave","v":3,"by":"a"}']
    odd += [b'{"kind":"leave","by":"a","ext":{}}', b'{"kind":"leave","by":""}', b"\xff\x00", b"", b"[]"]
    scribe.write(*odd, b'{"kind":"upgrade","by":"a","version":3.0}', b'{"kind":"drain","by":"a","name":"a\\n"}')
    scribe.write(b'{"kind":"pin","v":2,"by":"op","partition":3,"name":"bob","ext":{"why":["x",{"y":null}]}}')
    scribe.write("b:beat b:snapshot b:leave b:leave b:beat b:join(name=bob) c:join(name=bob)")
    scribe.write("a:beat c:beat a:expire(incarnation=c) c:beat a:leave op:pin(partition=3,name=carol)")
    return scribe.entries


def _older() -> Entries:
    """A group of fold version 2, in which format 2 does not count, and its upgrade."""
    scribe = Scribe(first=0).write("a:genesis(partitions=8,version=2)")
    scribe.write(joined("a", zone="east"), joined("b", zone="west"), joined("c", zone="west", versions=[2, 2]))
    scribe.write(joined("d", v=2, grace=3), b'{"kind":"leave","v":2,"by":"b","ext":{}}', expired("a", "b"))
    scribe.write("a:handover(partition=1) a:handover(partition=4) a:handover(partition=2) a:beat")
    scribe.write(b'{"kind":"beat","v":2,"by":"a","sent_at":1,"at":3}', "op:upgrade(version=3)", "c:leave(grace=5)")
    scribe.write("op:upgrade(version=3)", "op:upgrade(version=2)", b'{"kind":"beat","v":2,"by":"a","sent_at":1,"at":3}')
    return scribe.hand_over().write("e:join(grace=2) b:leave(grace=5)").entries


def _graces() -> Entries:
    """Members that go away with a grace: what is kept for them, and every way in which that ends."""
    scribe = Scribe(first=0).write("a:genesis(partitions=12,version=3) a:join(name=alice,grace=5)")
    scribe.write("b:join(name=bob,grace=0) c:join(name=carol)").hand_over()
    scribe.write(lambda state: Beat(by="a", v=2, sent_at=1.5, at=state.at, clear=state.at))
    scribe.write(lambda state: Beat(by="a", v=2, sent_at=1.6, at=state.at, clear=3))
    scribe.write(lambda state: Beat(by="b", v=2, sent_at=1.6, at=state.at, clear=state.at + 1000))
    scribe.write("d:join(name=dave,grace=0.5) a:leave(grace=2.5) a:beat w:certify(incarnation=a)")
    scribe.write("a:handover(partition=0) a:expire(incarnation=b) b:join(name=alice) op:pin(partition=0,name=carol)")
    scribe.hand_over().write("op:unpin(partition=0) a2:join(name=alice,grace=1)").hand_over()
    scribe.write("w:certify(incarnation=d)", "b:expire(incarnation=d,last_beat=2)", expired("b", "d", "c"))
    scribe.write("b:expire(incarnation=a2) op:drain(name=alice) a3:join(name=alice,grace=1)")
    scribe.write("a3:leave(grace=1) op:undrain(name=alice) a4:join(name=alice,grace=7)")
    scribe.write("w:certify(incarnation=a4) b:leave(grace=9) a5:join(name=alice)").hand_over()
    scribe.write(joined("e", "erin", v=2, grace=3), "w:certify(incarnation=e)", expired("a5", "e", "b"))
    return scribe.write("f:join(name=fred)").entries


def _zones() -> Entries:
    """Members in three zones: standbys, a zone that is lost in one record, and zones without a member."""
    scribe = Scribe(first=0, gaps=(0, 2)).write(LARGER % (24, 3))
    scribe.write(*[joined(q, zone=zone, weight=w) for q, zone, w in [("a", "x", 1), ("b", "y", 1), ("c", "z", 2)]])
    scribe.hand_over().write(joined("d", zone="x"), joined("e", zone="y"), joined("f", zone="z")).hand_over()
    scribe.write("op:pin(partition=5,name=a) op:drain(name=e)").hand_over()
    scribe.write(expired("a", "f", "c"), "op:undrain(name=e)", joined("c2", "c", zone="z")).hand_over()
    scribe.write("b:leave(grace=4)", joined("g", zone="w"), joined("b2", "b", zone="y", weight=3)).hand_over()
    scribe.write(b'{"kind":"weigh","by":"op","name":"b","weight":0}', expired("g", "a", "d"), "op:drain(name=b)")
    return scribe.hand_over().write("g:leave c2:leave e:leave b2:leave").entries


def _many_zones() -> Entries:
    """More zones than the limit: they are hashed."""
    scribe = Scribe(first=0).write(LARGER % (64, 3))
    for number in range(22):
        scribe.write(joined(f"m{number}", zone=f"{number * 7919}.köln"))
        if number % 7 == 0:
            scribe.hand_over()
    return scribe.hand_over().write(expired("m1", "m0", "m7"), "m3:leave", "m1:leave(grace=2)").hand_over().entries


def _loads() -> Entries:
    """Loads and weights: whole numbers from doubles, and exchanges."""
    scribe = Scribe(first=0).write("a:genesis(partitions=16,version=3) a:join b:join(weight=3) c:join")
    scribe.hand_over().write(loads({0: 8.0, 1: 0.1, 2: 2.5})).hand_over()
    scribe.write(loads({i: (i * i % 11) / 4 for i in range(16)})).hand_over()
    scribe.write(loads({i: 100.0 if i % 3 else 0.3 for i in range(16)}), "op:weigh(name=b,weight=1)").hand_over()
    scribe.write(loads({3: 1e15, 4: 1e-7, 5: 1.5e-6, 6: 1e-5, 7: 5e-324})).hand_over()
    scribe.write(joined("d", weight=1_000_000), "op:pin(partition=3,name=c)").hand_over()
    scribe.write(loads({3: 0, 7: 0}), "d:leave", loads(dict.fromkeys(range(16), 1.0))).hand_over()
    return scribe.write(loads({9: 7, 10: 6, 11: 5, 12: 7})).hand_over().entries


def _exchanges() -> Entries:
    """More exchanges are worthwhile than one change makes."""
    scribe = Scribe(first=0).write(LARGER % (48, 3), "a:join(weight=2) b:join(weight=2) c:join").hand_over()
    hot = [i for i, owner in enumerate(scribe.state.owners) if owner == "a"]
    scribe.write(loads({i: 10.0 + i % 5 if i in hot else 1.0 + i % 3 for i in range(48)}))
    return scribe.hand_over().write("op:load(partition=0,load=1000)").hand_over().write(joined("d")).entries


def _pins() -> Entries:
    """Pins and drains that make balance impossible, members without a weight, and pins without a member."""
    scribe = Scribe(first=0).write("a:genesis(partitions=12,version=3)", *map(joined, "abcd")).hand_over()
    scribe.write(*[f"op:pin(partition={i},name=b)" for i in range(7)]).hand_over()
    scribe.write("op:pin(partition=6,name=stranger) op:pin(partition=6,name=b)").hand_over()
    scribe.write("op:pin(partition=7,name=c) op:pin(partition=8,name=c) op:pin(partition=9,name=z)").hand_over()
    scribe.write("op:drain(name=a) op:drain(name=d) op:drain(name=c) op:drain(name=b)").hand_over()
    scribe.write("op:undrain(name=a)", "op:undrain(name=b)", joined("z", weight=0)).hand_over()
    scribe.write("op:unpin(partition=0) op:pin(partition=1,name=a) op:undrain(name=c) op:undrain(name=d)")
    scribe.hand_over().write(*[f"op:weigh(name={q},weight=0)" for q in "abcd"]).hand_over()
    scribe.write("op:weigh(name=a,weight=5) op:weigh(name=b,weight=2) op:weigh(name=c,weight=7)").hand_over()
    return scribe.entries


def _crowded() -> Entries:
    """No pins exceed a share by one, but more members are above theirs than there are ceilings."""
    scribe = Scribe(first=0).write("a:genesis(partitions=4,version=3)")
    scribe.write(*[joined(q, weight=weight) for q, weight in zip("abcde", (1, 3, 3, 1, 3), strict=True)])
    scribe.write(*[f"op:pin(partition={i},name={q})" for i, q in enumerate("eebd")]).hand_over()
    return scribe.write("op:unpin(partition=3) op:unpin(partition=2) op:pin(partition=2,name=a)").hand_over().entries


def _newer() -> Entries:
    """The last record moves the group to a version that this page does not describe. One that is away has no say."""
    scribe = Scribe(first=0).write(GENESIS, joined("a", versions=[2, 9], zone="x"), joined("b", v=2, grace=3, zone="y"))
    return scribe.hand_over().write("op:upgrade(version=4) w:certify(incarnation=b) op:upgrade(version=4)").entries


def _mixed(seed: int) -> Entries:
    """Anything that may happen, in any order: members of four zones, wishes, and accusations of several at a time."""
    rng = Random(seed)
    scribe = Scribe(first=seed % 2).write(LARGER % (30, 2 + seed % 2))
    for number in range(MIXED_RECORDS):
        scribe.write(_drawn(scribe.state, rng, number))
    return scribe.entries


def _drawn(state: State, rng: Random, number: int) -> Line:
    version, members = state.version, [*state.members]
    by, name, partition = rng.choice(members or ["z"]), rng.choice("klmnopqr"), rng.randrange(31)
    due = {i: state.terms[i] for i, owner in enumerate(state.owners) if owner == by and state.targets[i] != by}
    match rng.choice(["join"] * 5 + ["give"] * 7 + ["expire"] * 2 + ["load"] * 2 + MIXED):
        case "join":
            said: dict[str, object] = {"weight": rng.choice((1, 1, 1, 2, 3, 0)), "zone": f"z{ord(name) % 4}"}
            if version > 2 and rng.random() < 0.5:
                said |= {"v": 2, "grace": rng.choice((0.5, 3))}
            return joined(f"{name}{number}", name, **said)
        case "give" if due:
            given = dict(rng.sample([*due.items()], rng.randint(1, len(due))))
            return Handover(by=by, v=2, terms=given) if version > 2 else Handover(by=by, terms=dict([given.popitem()]))
        case "expire" if members:
            accused = rng.sample([*state.seats], rng.randint(1, min(3, len(state.seats))))
            return expired(by, *accused) if version > 2 else f"{by}:expire(incarnation={accused[0]})"
        case "leave":
            return f"{by}:leave(grace={rng.choice((0, 2))})"
        case "certify" if state.seats:
            return f"w:certify(incarnation={rng.choice([*state.seats])})"
        case "load":
            return loads({rng.randrange(30): rng.choice((0, 0.1, 1, 2.5, 7, 40)) for _ in range(rng.randint(1, 9))})
        case "pin":
            return f"op:pin(partition={partition},name={name})"
        case "unpin":
            return f"op:unpin(partition={rng.choice([*state.pins] or [partition])})"
        case "weigh":
            return f"op:weigh(name={name},weight={rng.choice((0, 1, 2, 5))})"
        case "drain":
            return f"op:{'undrain' if name in state.drains else 'drain'}(name={name})"
        case "upgrade" if number > MIXED_RECORDS // 3:
            return "op:upgrade(version=3)"
        case _:
            return Beat(by=by, v=2, sent_at=float(number), at=state.at, clear=state.at) if version > 2 else f"{by}:beat"


def _departed() -> Entries:
    """Only the latest departed incarnations are remembered."""
    scribe = Scribe(first=0).write(GENESIS, "a:join", "w:certify(incarnation=early)", "early:join")
    scribe.write(*[f"w:certify(incarnation=s{number})" for number in range(63)]).write("early:join")
    return scribe.write("w:certify(incarnation=s63) early:join s1:join early:leave s0:join").entries


def _snapshots() -> Entries:
    """A ledger that dropped its beginning: snapshots from which a reader must not start, and the one to start from."""
    scribe = Scribe(first=0, gaps=(2,)).write("a:genesis(partitions=12,version=3)", joined("a", zone="x"))
    scribe.write(joined("b", zone="y", v=2, grace=2), "op:weigh(name=zed,weight=3)", "op:weigh(name=b,weight=2)")
    early = scribe.state
    scribe.hand_over().write(
        "op:pin(partition=3,name=b)", loads({2: 0.75}), "op:drain(name=stranger) w:certify(incarnation=x)"
    )
    start = scribe.state.at
    scribe.write("a:beat b:beat b:leave(grace=2)")
    state = scribe.state
    taken = snapshot("a", state)
    scribe.write("a:beat", "op:unpin(partition=3)", snapshot("a", early), replace(taken, upto=100_000))
    scribe.write(replace(taken, state=replace(taken.state, digest="0123456789abcdef")))
    scribe.write(replace(taken, state=replace(taken.state, targets=taken.state.targets[:-1])))
    scribe.write(encode(taken).replace(b'"upto"', b'"hint":1,"upto"'), "a:beat", taken)
    scribe.write("b2:join(name=b) a:snapshot a:beat op:weigh(name=zed,weight=4) b2:beat").hand_over()
    return [(offset, payload) for offset, payload in scribe.entries if offset >= start]


def _wishes() -> Entries:
    """A full table of weights, from a snapshot: the first name in order that no member has makes room."""
    scribe = Scribe(first=0).write(GENESIS, "a:join(name=n2)")
    scribe.write(*[f"o:weigh(name=n{number * 7 % WISHES_MAX},weight=2)" for number in range(WISHES_MAX)])
    start = scribe.state.at
    scribe.write("a:snapshot op:weigh(name=n7,weight=3) op:weigh(name=new,weight=4) op:weigh(name=n0,weight=5)")
    scribe.write("op:weigh(name=newer,weight=4) b:join(name=n21) op:weigh(name=n2,weight=9) op:weigh(name=x,weight=1)")
    return [(offset, payload) for offset, payload in scribe.entries if offset >= start]


SCENES: dict[str, tuple[Callable[[], Entries], int]] = {
    "rejected": (_rejected, 8),
    "older": (_older, 4),
    "graces": (_graces, 5),
    "zones": (_zones, 6),
    "many-zones": (_many_zones, 60),
    "loads": (_loads, 6),
    "exchanges": (_exchanges, 6),
    "pins": (_pins, 8),
    "crowded": (_crowded, 9),
    "newer": (_newer, 4),
    **{f"mixed-{seed}": (partial(_mixed, seed), 34) for seed in (15, 19, 24)},
    "departed": (_departed, 24),
    "wishes": (_wishes, WISHES_MAX),
    "snapshots": (_snapshots, 5),
}
"""Name -> a ledger, and after how many records each the whole state is written."""


def about(scene: Callable[..., object]) -> str:
    """The sentence that says what a ledger shows."""
    return getattr(scene, "func", scene).__doc__ or ""
