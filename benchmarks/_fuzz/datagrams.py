"""Fuzz of the link among peers: datagrams of strangers, of a network that keeps and mixes them, and of key holders.

    a, b and c speak; a restarts -----datagrams--> the wire: kept forever, doubled, cut, changed, misdirected
                                                      |
    sealed with the right key, with any fields -------+--> b opens them, and whatever it replies goes to the wire
    a file of votes, changed anywhere ----------------'

No datagram is taken twice, none of a process after its successor's, and none that was not sent. The key is the secret.
"""

import hashlib
import random
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks._fuzz import MARKER, Attempt, any_bytes, mutated
from neli_router.drivers.peers.kept import KeptMemory
from neli_router.drivers.peers.seal import ANSWER, DATAGRAM_MAX, HEADER, Content, Seal, derived_key
from neli_router.errors import PeersUnusable
from neli_router.protocols.electors.events import BODY_MAX

__all__ = ["DOCUMENTED", "opened"]

DOCUMENTED = (PeersUnusable,)

PEERS = ("a:1", "b:1", "c:1")
KEY = derived_key(MARKER.encode() * 2, "jobs")
ROUNDS = 60
NUMBERS = (0, 1, 2, 255, 1200, 1201, 2**32, 2**63, 2**64 - 1)


@contextmanager
def opened() -> Iterator[Attempt]:
    with tempfile.TemporaryDirectory(prefix="neli-") as folder:
        yield lambda rng: _attempt(rng, Path(folder))


def _attempt(rng: random.Random, folder: Path) -> Iterable[str]:
    sides, lives = [_side(rng, me) for me in range(3)], [0, 0, 0]
    wire: list[tuple[int, bytes]] = []
    said: set[bytes] = set()
    taken: list[tuple[int, int, bytes]] = []
    for number in range(ROUNDS):
        place = rng.randrange(3)
        match rng.randrange(10):
            case 0 | 1 | 2:
                to = rng.choice([other for other in range(3) if other != place])
                body = f"{place} {lives[place]} {number} ".encode()
                body += any_bytes(rng, size_max=rng.choice((0, 20, BODY_MAX - len(body))))
                said.add(body)
                wire.append((to, sides[place].seal(to, body)))
            case 3:
                wire.append((rng.randrange(3), sides[place].ask((place + 1) % 3)))
            case 4 if rng.random() < 0.2:
                lives[place] += 1
                sides[place] = _side(rng, place)
            case 5:
                datagram = _junk(rng, wire)
                shown = sides[place].open(datagram)
                assert (shown.sender, shown.content, shown.reply) == (-1, Content.NOTHING, b"") or datagram in {
                    sealed for _, sealed in wire
                }, "junk has no sender, and is neither taken nor answered"
                yield repr(shown)
            case _ if wire:
                to, datagram = rng.choice(wire[-5:] if rng.random() < 0.7 else wire)
                shown = sides[to].open(datagram)
                yield repr((shown.content, shown.flaw, shown.sender, shown.size))
                if shown.content is Content.BODY:
                    assert shown.body in said, "the body was sent by a peer"
                    taken.append((to, lives[to], shown.body))
                assert shown.content is not Content.REPLACED, "no process outlives the start of its successor"
                if shown.reply:
                    assert len(shown.reply) <= DATAGRAM_MAX, "a reply is no longer than any datagram"
                    wire.append((shown.sender, shown.reply))
    assert len(set(taken)) == len(taken), "no process takes a body twice"
    for me in range(3):
        heard = [body.split(b" ", 2) for to, life, body in taken if (to, life) == (me, lives[me])]
        for sender in range(3):
            ages = [int(life) for place, life, _ in heard if int(place) == sender]
            assert ages == sorted(ages), "nothing of a process is taken after its successor's"
    yield from _by_a_key_holder(rng, sides[1])
    if rng.random() < 0.1:  # Each waits for the disk.
        yield from _votes(rng, folder)


def _side(rng: random.Random, me: int) -> Seal:
    return Seal(KEY, group="jobs", peers=PEERS, mark=b"term 8", me=me, draw=lambda: rng.getrandbits(64))


def _junk(rng: random.Random, wire: list[tuple[int, bytes]]) -> bytes:
    if not wire or rng.random() < 0.2:
        return rng.choice((b"", b"NELP", b"NELP\x01")) + any_bytes(rng, size_max=DATAGRAM_MAX + 50)
    texts = [datagram.decode("latin-1") for _, datagram in (rng.choice(wire), rng.choice(wire))]
    return mutated(rng, texts[0], texts).encode("latin-1", "replace")


def _by_a_key_holder(rng: random.Random, side: Seal) -> Iterable[str]:
    """Fields that no release of ours writes: a holder of the key may send anything, and must not crash a peer."""
    genuine = HEADER.unpack_from(side.ask(0))
    for _ in range(20):
        fields = list(genuine)
        fields[2], fields[4], fields[5] = rng.choice((0, 1, 2, 2, 3, 255)), rng.choice((0, 2)), 1
        for place in rng.sample((3, 4, 5, 9, 10, 11), rng.randint(0, 3)):
            limit = 256 if place < 9 else 2**64
            fields[place] = rng.choice([one for one in NUMBERS if one < limit])
        if rng.random() < 0.1:
            fields[rng.choice((6, 7, 8))] = rng.randbytes(8)
        told = ANSWER.pack(rng.choice((side.session, 1)), rng.choice(NUMBERS), rng.choice(NUMBERS), rng.random() < 0.5)
        body = rng.choice((told, told, any_bytes(rng, size_max=BODY_MAX), b""))
        fields[-1] = len(body) if rng.random() < 0.9 else rng.choice((0, 65535))
        sealed = HEADER.pack(*fields) + body
        shown = side.open(sealed + hashlib.blake2b(sealed, digest_size=16, key=KEY).digest())
        assert len(shown.reply) <= DATAGRAM_MAX, "a reply is no longer than any datagram"
        yield repr((shown.content, shown.flaw, shown.sender, shown.size))


def _votes(rng: random.Random, folder: Path) -> Iterable[str]:
    path = folder / "jobs@a:1.votes"
    path.unlink(missing_ok=True)
    with closing(KeptMemory(folder, group="jobs", me="a:1", mark=b"")) as kept:
        kept.keep(rng.randbytes(rng.choice((0, 10, 5000))))
    whole = path.read_bytes()
    text = mutated(rng, whole.decode("latin-1"), [whole.decode("latin-1")]).encode("latin-1", "replace")
    path.write_bytes(text)
    try:
        with closing(KeptMemory(folder, group="jobs", me="a:1", mark=b"")) as again:
            assert text == whole, "a changed file is refused"
            yield repr(again.memory[:10])
    finally:
        assert text == path.read_bytes(), "a file is not touched until something is kept"
