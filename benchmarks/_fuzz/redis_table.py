"""Fuzz of the table of owners in a real Redis, filled with junk of every type, which our code reads and writes.

    a sound table --fields lost, doubled, overwritten; keys of other types--> Redis --READ--> RedisOwners, Router
    junk on the channel -------------------------------------------------------------news---> the same
    a member says what it leads <--SAY-- RedisOwners                                       of its answers and errors

The Redis asks for a password, which is the secret.
"""

import json
import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager

import redis as redis_client

from benchmarks._fuzz import HUGE, MARKER, ODD, Attempt, any_bytes, any_text
from neli_router import Router
from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.redis.address import parse
from neli_router.drivers.owners.base import Card, Claim
from neli_router.drivers.owners.redis import RedisOwners, channel, keys
from neli_router.errors import GroupMismatch, LedgerUnavailable, LedgerUnusable, LookupFailed
from tests.support.servers.redis import Redis
from tests.support.waiting import PATIENCE

__all__ = ["DOCUMENTED", "opened"]

DOCUMENTED = (GroupMismatch, LedgerUnavailable, LedgerUnusable, LookupFailed)

GROUP = "jobs"
OWNERS, HOLDERS, LAYOUT = keys(GROUP)
LATER = 4_102_444_800_000
"""Milliseconds: the year 2100, when a live holder expires."""

NUMBERS = ("0", "-1", "7", "1.5", "007", "+3", " 4", "1_000", "\u0661", str(2**53), str(2**63), "9" * 25)
CARDS: Sequence[object] = (
    {"name": "a", "address": "host:1", "weight": 1, "zone": "z"},
    {"name": "a"},
    {"name": 3, "address": "host:1"},
    {"name": "a", "weight": 1e999},
    {"name": "a", "weight": True, "zone": None},
    {"name": "\x1b[31m\r\n", "address": "\0"},
    {"name": {"name": "a"}},
    {},
    [],
    "a",
    None,
    "[" * 5000,
    '{"name":' * 3000,
    float("nan"),
)
READ_MAX = 5.0


@contextmanager
def opened() -> Iterator[Attempt]:
    with Redis.started(settings={"requirepass": MARKER}) as server:
        # Not over TCP: each attempt opens a few connections, which would use up the ports of this host.
        url = server.unix_url(GROUP, who=f":{MARKER}@")
        with closing(redis_client.Redis(unix_socket_path=server.socket, password=MARKER)) as client:
            yield lambda rng: _attempt(rng, url, client)


def _attempt(rng: random.Random, url: str, client: "redis_client.Redis") -> Iterable[str]:
    client.flushdb()
    _fill(rng, client)
    at, problems = parse(*url.split(":", 1))
    assert at is not None, problems
    with closing(RedisOwners(at)) as owners:
        if rng.random() < 0.3:
            yield repr(owners.publish(Layout(slots=64, partitions=8), _claim(rng)))
        yield repr(owners.table())
        client.publish(channel(GROUP), _news(rng))
        yield repr(owners.follow(READ_MAX))
        yield repr(owners.table())
    if rng.random() < 0.2:
        with Router.from_redis(url, wait=False) as router:
            client.publish(channel(GROUP), _news(rng))
            yield f"{router!r} {router.at} {router.owner('key')} {router.table!r}"
        for thread in threading.enumerate():
            if thread.name == "neli-router":
                thread.join(PATIENCE)
                assert not thread.is_alive(), "the reader of a closed router must end"


def _fill(rng: random.Random, client: "redis_client.Redis") -> None:
    for key, fields in ((OWNERS, _owners(rng)), (HOLDERS, _holders(rng)), (LAYOUT, _layout(rng))):
        kind = rng.randrange(24)
        if kind == 0:
            client.set(key, any_bytes(rng))
        elif kind == 1:
            client.rpush(key, any_bytes(rng), "x")
        elif kind == 2:
            client.sadd(key, any_bytes(rng))
        elif kind == 3:
            client.zadd(key, {any_bytes(rng): rng.random()})
        elif kind == 4:
            client.xadd(key, {"field": any_bytes(rng)})
        elif kind == 5:
            client.set(key, b"\x00" * 100_000)
        elif fields:
            client.hset(
                key, mapping={_perhaps_junk(rng, field): _perhaps_junk(rng, held) for field, held in fields.items()}
            )


def _perhaps_junk(rng: random.Random, text: str) -> bytes:
    sound = text.encode(errors="surrogateescape")
    match rng.randrange(60):
        case 0:
            return any_bytes(rng)
        case 1:
            at = rng.randint(0, len(sound))
            return sound[:at] + any_bytes(rng, size_max=3) + sound[at + rng.randrange(3) :]
        case 2:
            return any_text(rng).encode(errors="surrogateescape")
        case 3:
            return rng.choice((*HUGE, *ODD)).encode(errors="surrogateescape")
        case 4:
            return sound.replace(b" ", rng.choice((b"", b"\n", b"\t", b"  ")), 1)
    return sound


def _number(rng: random.Random, sound: int) -> str:
    return rng.choice(NUMBERS) if rng.random() < 0.05 else str(sound)


def _layout(rng: random.Random) -> dict[str, str]:
    said = {"slots": 64, "partitions": 8, "tags": 0, "since": 1, "revision": 5}
    return {name: _number(rng, number) for name, number in said.items() if rng.random() < 0.98}


def _owners(rng: random.Random) -> dict[str, str]:
    return {
        _number(rng, partition): f"{_number(rng, rng.randrange(10**6))} {rng.choice(('m1', 'm2', '-', '', 'm1 more'))}"
        for partition in range(rng.choice((0, 8, 8, 8, 9)))
    }


def _holders(rng: random.Random) -> dict[str, str]:
    return {
        holder: f"{_number(rng, rng.choice((LATER, LATER, 1)))} {_card(rng)}"
        for holder in ("m1", "m2", "")[: rng.randrange(4)]
    }


def _card(rng: random.Random) -> str:
    card = CARDS[0] if rng.random() < 0.8 else rng.choice(CARDS)
    return card if isinstance(card, str) and len(card) > 100 else json.dumps(card)


def _claim(rng: random.Random) -> Claim:
    terms = {partition: rng.randrange(10**6) for partition in range(rng.randrange(9))}
    return Claim("m1", Card("a", "host:1"), rng.choice((0, 1.0, 60.0)), terms, {7: 3} if rng.random() < 0.5 else {})


def _news(rng: random.Random) -> bytes:
    lines = [f"{rng.choice(('1', '1', '2', '', ':'))}:{_number(rng, rng.choice((5, 6, 7)))}"]
    for _ in range(rng.randrange(4)):
        holding = f"{_number(rng, rng.randrange(9))} {_number(rng, rng.randrange(10**6))} m1"
        lines += [holding if rng.random() < 0.5 else f"@m1 {_number(rng, LATER)} {_card(rng)}"]
    return _perhaps_junk(rng, rng.choice(("\n", "\n", "\n", "\r\n", "")).join(lines))
