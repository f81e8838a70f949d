"""Fuzz of a ledger's records: a member, a router and a newcomer read lines that anyone may have written.

    genuine records --fields lost, changed, forged; lines cut, spliced; junk--> a ledger in memory
                                                                                   |--a member, as its pump turns
                                                                                   |--an observer, as a router has one
                                                                                   '--a newcomer, by the newest snapshot
    all that read all of it hold one state; the state can be written down; no name in it is a command

The attempt turns the clock, so leases pass immediately.
"""

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from benchmarks._fuzz import ODD, Attempt, any_bytes, any_text, mutated
from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.drivers.ledgers.pump import Pump
from neli_router.errors import NeliError
from neli_router.protocols.induction.digest import digest_text
from neli_router.protocols.induction.fold import FOLD_VERSIONS
from neli_router.protocols.induction.machine import InductionMachine
from neli_router.protocols.induction.observer import Observer
from neli_router.protocols.induction.records import (
    Beat,
    Certify,
    Drain,
    Expire,
    Genesis,
    Handover,
    Join,
    Leave,
    Load,
    Pin,
    Record,
    Unpin,
    Upgrade,
    Weigh,
    encode,
)
from neli_router.protocols.induction.snapshots import restore, snapshot
from neli_router.protocols.protocol import Notice, Settings

__all__ = ["DOCUMENTED", "opened"]

DOCUMENTED = (NeliError,)

LAYOUT, LEASE = Layout(slots=16, partitions=8), 1.0
BASE = 1_700_000_000_000_000
ROUNDS, LINES_MAX = 6, 6
NUMBERS: Sequence[Any] = (-1, 0, 1, 7, 2**53 - 1, 2**53, 2**70, 1e999, -0.0, 1e15, 1e300, True, None, "7", [], {})
WORDS: Sequence[str] = ("exclusive", "0" * 16, "f" * 16, "n" * 300, "", *ODD)


@contextmanager
def opened() -> Iterator[Attempt]:
    yield _attempt


def _attempt(rng: random.Random) -> Iterable[str]:
    log = MemoryLog()
    writer = MemoryLedger(log)
    now = [1000.0]
    member = _Reader(
        log, now, lambda state, at: InductionMachine(_settings(), state, at, wall=BASE, rng=random.Random(7))
    )
    router = _Reader(log, now, Observer)
    for _ in range(ROUNDS):
        writer.append([_line(rng, member.pump.machine) for _ in range(rng.randint(0, LINES_MAX))])
        now[0] += rng.choice((0.01, 0.2, 0.2, 1.5)) * LEASE
        member.turn()
        router.turn()
    member.turn()
    router.turn()
    state, followed = member.pump.machine.state, router.pump.machine.state
    if state.at == followed.at:
        assert state == followed, "all that read the same records hold the same state"
    if state.genesis is not None:
        assert restore(snapshot("z", state)) == state, "a member can write the state down, and start from it"
    names = [*state.drains, *state.weights, *state.pins.values(), *(seat.name for seat in state.seats.values())]
    assert all(name.isprintable() for name in names), "a name is text"
    late = _Reader(log, now, Observer)
    late.turn()
    yield from (*member.told, *router.told, *late.told, *names)
    for reader in (member, router, late):
        if (error := reader.pump.machine.error) is not None:
            assert str(error).isprintable(), "an error is text"
            raise error


class _Reader:
    """One machine over the log, and its messages to people."""

    def __init__(self, log: MemoryLog, now: list[float], begin: Any) -> None:
        self.told: list[str] = []
        self._ledger = MemoryLedger(log)
        self.pump: Pump[Any] = Pump(
            self._ledger,
            begin,
            clock=lambda: now[0],
            pause=lambda _: None,
            publish=lambda *_: None,
            tell=lambda news: self.told.append(repr(news.fields) if isinstance(news, Notice) else repr(news)),
        )

    def turn(self) -> None:
        for _ in range(4):
            self._ledger.wake()  # It waits for nothing: time passes only between two rounds.
            self.pump.turn()


def _settings() -> Settings:
    return Settings(name="a", layout=LAYOUT, lease=LEASE)


def _line(rng: random.Random, machine: Any) -> bytes:
    """A record that would have an effect now, unchanged or after accidents."""
    payload = encode(_record(rng, machine))
    match rng.randrange(8):
        case 0 | 1 | 2:
            return payload
        case 3:
            return any_bytes(rng, size_max=60)
        case 4:
            return mutated(rng, payload.decode(), [encode(_record(rng, machine)).decode()]).encode(errors="replace")
        case _:
            fields = msgspec.json.decode(payload)
            _change(rng, fields)
            return json.dumps(fields).encode()  # It escapes half of a surrogate pair, which no other encoder accepts.


def _change(rng: random.Random, fields: dict[str, Any]) -> None:
    inner = fields["state"] if "state" in fields and rng.random() < 0.8 else fields
    for _ in range(rng.randint(1, 2)):
        key = rng.choice(sorted(inner))
        match rng.randrange(4):
            case 0:
                del inner[key]
                inner["more"] = 1
            case 1:
                inner[key] = rng.choice(NUMBERS)
            case 2:
                inner[key] = rng.choice(WORDS)
            case _:
                inner[key] = any_text(rng)


def _text(rng: random.Random) -> str:
    return any_text(rng, size_max=5).replace("\udcff", "")


def _record(rng: random.Random, machine: Any) -> Record:
    state = machine.state
    incarnations: Sequence[str] = (*state.seats, machine.incarnation, "nobody")
    by, other = rng.choice(incarnations), rng.choice(incarnations)
    name = rng.choice(("a", "b", "c", _text(rng) or "x"))
    partition, number = rng.randrange(9), rng.choice((0, 1, state.at, state.at + 1, 2**40))
    digest = rng.choice((digest_text(state.digest), "f" * 16))
    seated = state.genesis is not None
    term = state.terms[partition % 8] if seated else 0
    records: list[Record] = [
        Genesis(
            by=by, layout=LAYOUT, lease=LEASE, guarantee="exclusive", base=BASE, version=FOLD_VERSIONS[1], at=number
        ),
        Join(by=other, name=name, address=_text(rng), versions=FOLD_VERSIONS, at=number),
        *[Beat(by=by, sent_at=rng.choice((0.0, 1000.5, 1e11)), at=number, digest=digest)] * 3,
        Expire(by=by, last_beats={other: state.last_beats.get(other, number)}),
        Handover(by=by, terms={partition: term}),
        Leave(by=by),
        Certify(by=by, incarnation=other),
        Drain(by=by, name=name),
        Pin(by=by, partition=partition, name=name),
        Unpin(by=by, partition=partition),
        Weigh(by=by, name=name, weight=rng.choice((None, 0, 3))),
        Load(by=by, loads={partition: rng.choice((0.0, 2.5, 1e15))}),
        Upgrade(by=by, version=rng.choice((1, 2))),
    ]
    if seated:
        records += [snapshot(by, state)] * 2
    return rng.choice(records)
