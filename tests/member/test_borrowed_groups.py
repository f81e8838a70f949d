"""Members whose protocol borrows a consumer group from a real Kafka, and what such a member can and cannot know."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from neli_router.config.config import Config
from neli_router.core.keyspace import Layout
from neli_router.drivers.open import open_ledger
from neli_router.errors import BeyondProtocol, ConfigError
from neli_router.member.member import Member
from neli_router.protocols.protocol import Acquired, Event, Fenced, Revoked
from neli_router.router.router import Router
from tests.support.waiting import PATIENCE, until

LAYOUT = Layout(slots=64, partitions=4)

Open = Callable[..., Member]


@pytest.fixture(name="config")
def _config(kafka: str) -> Callable[..., Config]:
    address = f"kafka://{kafka}/group-{uuid4().hex}"

    def make(protocol: str, **options: Any) -> Config:
        return Config.of({"ledger": address, "protocol": protocol, "layout": LAYOUT, "drain_timeout": 5.0, **options})

    return make


@pytest.fixture(name="opened")
def _opened() -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda config, **options: stack.enter_context(Member(config, **options))


@pytest.mark.kafka
@pytest.mark.parametrize("protocol", ["neli", "fast-neli"])
def test_a_slow_handler_delays_a_handover(config: Callable[..., Config], opened: Open, protocol: str) -> None:
    revoked, done, told = threading.Event(), threading.Event(), list[Event]()

    def slow(event: Event) -> None:
        told.append(event)
        if isinstance(event, Revoked):
            revoked.set()
            assert done.wait(PATIENCE)

    options = {"lease": 3.0, "drain_timeout": PATIENCE}
    first = opened(config(protocol, name="first", **options), on_event=slow)
    until(lambda: len(first.led) == 4)
    before = dict(first.led)
    second = opened(config(protocol, name="second", **options))
    assert revoked.wait(PATIENCE)
    slow_until = time.monotonic() + 2 * first.engine.lease
    kept = {i: term for i, term in before.items() if i not in told[-1].partitions}
    until(lambda: time.monotonic() > slow_until)
    assert (2, kept, {}) == (len(kept), first.led, second.led)
    done.set()
    until(lambda: len(second.led) == 2)
    assert [] == [event for event in told if isinstance(event, Fenced)]
    assert not first.led.keys() & second.led.keys()
    moved = dict(second.led)
    assert all(term > before[partition] for partition, term in moved.items())
    assert moved.keys() == {i for event in told if isinstance(event, Revoked) for i in event.partitions}
    assert "the broker gave it to another member" in first.engine.membership.why_not(next(iter(moved)))
    with first.leading(next(iter(first.led)), timeout=PATIENCE) as lease:
        assert 0 < lease.remaining() <= first.engine.lease
    second.close()
    until(lambda: len(first.led) == 4)
    assert all(first.led[partition] > term for partition, term in moved.items())
    assert isinstance(told[-1], Acquired)


@pytest.mark.kafka
def test_members_may_leave_gonelis_style_one_by_one(config: Callable[..., Config], opened: Open) -> None:
    """docs/protocols.md, step 3. A pulse is false where another member leads, until that one closes."""
    given = f"{config('fast-neli').ledger}?partition.assignment.strategy=range,roundrobin&client.id="
    # A leader must not lose its session, no matter how busy the machine is. The assignors prefer the first identity in
    # order, which begins with this `client.id`.
    options = {"layout": {"partitions": 1}, "lease": 5.0, "drain_timeout": 30.0}
    first = opened(config("fast-neli", name="first", ledger=f"{given}a", goneli=True, **options))
    assert first.pulse(PATIENCE)
    term = first.led[0]
    second = opened(config("fast-neli", name="second", ledger=f"{given}b", **options))
    assert not second.pulse(0.2)
    first.close()
    assert second.pulse(PATIENCE)
    assert second.led[0] > term


def test_a_member_without_a_broker_does_not_lead_and_says_what_its_protocol_cannot_know_or_do() -> None:
    config = Config("kafka://127.0.0.1:1/prices", protocol="fast-neli", layout=LAYOUT)
    with Member(config, timeout=0.2, wait=True) as member:
        assert (False, None) == (member.pulse(0.2), member.error)
        with pytest.raises(BeyondProtocol, match="knows only what it leads itself"):
            member.router.owner("customer-3")
        operator = member.operator
        for wish in (partial(operator.drain, "a"), partial(operator.pin, 0, "a"), partial(operator.load, {0: 1.0})):
            with pytest.raises(BeyondProtocol, match="takes no wishes"):
                wish()
    config = Config("kafka://127.0.0.1:1/jobs", protocol="neli")
    with pytest.raises(BeyondProtocol, match="no store of owners is named"):
        Router(config)
    with pytest.raises(BeyondProtocol, match="has none"):
        open_ledger(config.common_ledger, create=True, patience=1.0)


@pytest.mark.parametrize(
    ("protocol", "options", "lease", "rate"),
    [
        ("neli", {}, 3.0, 38),
        ("neli", {"guarantee": "available"}, 12.0, 8),
        ("fast-neli", {}, 5.0, 160),
        ("neli", {"layout": {"partitions": 256}}, 3.0, 614),
    ],
)
def test_a_lease_suits_the_protocol(protocol: str, options: dict[str, Any], lease: float, rate: int) -> None:
    config = Config.of({"ledger": "kafka://127.0.0.1:1/jobs", "protocol": protocol, **options})
    assert (lease, rate) == (config.lease, round(config.group_settings().messages_per_second))


@pytest.mark.parametrize("protocol", ["neli", "fast-neli"])
def test_a_borrowed_group_has_fewer_partitions_unless_they_are_chosen(protocol: str) -> None:
    chosen = partial(Config, "kafka://127.0.0.1:1/jobs", protocol=protocol)
    assert [16, 256, 256] == [
        one.layout.partitions for one in (chosen(), chosen(layout=Layout()), Config("memory://x"))
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"protocol": "neli", "ledger": "sqlite:/tmp/ledger.db"}, "no consumer groups to borrow"),
        ({"protocol": "neli", "groups": 0}, "groups=0 must be a whole number of at least 1"),
        ({"protocol": "neli", "clock_error": "much"}, "clock_error='much' must be a number of seconds"),
        ({"protocol": "fast-neli", "guarantee": "available"}, "choose the protocol neli"),
        ({"protocol": "fast-neli", "drain_timeout": 86_386.0}, "lower drain_timeout to 86385"),
    ],
)
def test_each_contradiction_is_spelled_out(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.of({"ledger": "kafka://127.0.0.1:1/jobs", **options})
    assert any(words in problem for problem in caught.value.problems), caught.value.problems
