"""goNELI's style, with members of a real group that work in it: each test is named after goNELI's term for it.

docs/protocols.md has a table of goNELI's calls and ours. `tests/protocols/consumer_group/test_fast_neli.py` tests these
rules, and more, on the pure machine.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from neli_router.config.config import Config
from neli_router.config.protocols import FastNeli
from neli_router.core.clock import host_clock
from neli_router.core.keyspace import Layout
from neli_router.lab.processes.group import MemberProcess
from neli_router.lab.referee import judged
from neli_router.member.member import Member
from neli_router.protocols.protocol import Acquired, Event, Revoked
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.kafka

LEASE = 2.0
"""Seconds. A session is three times as long, which is the shortest that Kafka allows by default."""

LONG_LEASE = 5.0
"""For tests in which a leader must not lose its session, no matter how busy the machine is."""

MOMENT = 0.2
"""Seconds in which nothing may happen. A busy machine makes such a test pass, never fail."""

Open = Callable[..., Member]


@pytest.fixture(name="options")
def _options(kafka: str) -> dict[str, Any]:
    strategy = "partition.assignment.strategy=range,roundrobin"
    return {
        "ledger": f"kafka://{kafka}/goneli-{uuid4().hex}?{strategy}",
        "protocol": "fast-neli",
        "goneli": True,
        "layout": {"partitions": 1},
        "lease": LEASE,
        "drain_timeout": 30.0,
    }


@pytest.fixture(name="opened")
def _opened(options: dict[str, Any]) -> Iterator[Open]:
    with ExitStack() as stack:

        def open_member(name: str, on_event: Callable[[Event], None] | None = None, **changes: Any) -> Member:
            config = Config.of({**options, "name": name, **changes})
            return stack.enter_context(Member(config, on_event=on_event))

        yield open_member


def ranked(options: dict[str, Any], client: str) -> dict[str, str]:
    """The assignors give partition 0 to the member with the first identity in order; the identity begins with this."""
    return {"ledger": f"{options['ledger']}&client.id={client}"}


def test_pulse_is_false_and_raises_nothing_while_no_broker_answers() -> None:
    config = Config("kafka://127.0.0.1:1/prices", protocol=FastNeli(goneli=True), layout=Layout(partitions=1))
    with Member(config, timeout=MOMENT, wait=True) as member:
        assert not member.pulse(MOMENT)
        assert member.error is None


def test_barrier_hears_acquired_before_the_program_leads_and_revoked_before_await_returns(opened: Open) -> None:
    """A leader's pulse does not wait. goNELI's is-leader is our lease."""
    heard, may_go_on = list[Event](), threading.Event()

    def barrier(event: Event) -> None:
        heard.append(event)
        assert may_go_on.wait(PATIENCE)

    member = opened("first", barrier)
    until(lambda: heard)
    assert not member.pulse(MOMENT)
    may_go_on.set()
    assert member.pulse(PATIENCE)
    assert member.pulse(0.0)
    assert isinstance(heard[0], Acquired)
    lease = member.lease(0)
    assert lease is not None
    assert 0 < lease.remaining() <= LEASE
    waiter = threading.Thread(target=member.wait)
    waiter.start()
    member.close()
    waiter.join(PATIENCE)
    assert not waiter.is_alive()
    assert member.wait(timeout=0.0)
    assert (True, False) == (member.closed, lease.holds())
    assert [Revoked] == [type(event) for event in heard if not isinstance(event, Acquired)]


def test_barrier_hears_fenced_after_a_pause_and_acquired_when_a_heartbeat_returns(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """A process stands still for longer than its heartbeat timeout. No term is used by two leaders."""
    notes = str(tmp_path / "paused.1.notes")
    order = {"config": {**options, "name": "paused"}, "notes": notes, "pause": LEASE / 20}
    command = [sys.executable, "-P", "-m", "neli_router.lab.processes.worker", json.dumps(order)]
    process = MemberProcess(tmp_path, "paused.1", command, {})
    try:

        def leads() -> bool:
            process.fresh_notes()
            return 0 in process.life.held and host_clock() < process.life.until

        until(leads)
        before = process.life.spans[-1].term
        stopped_at = process.stop()
        until(lambda: host_clock() > stopped_at + 1.5 * LEASE)
        process.resume()
        until(lambda: leads() and process.life.spans[-1].term > before)
        assert process.life.halted, process.log
        assert [] == judged([process.life]).faults
    finally:
        process.end(0.0)


def test_pulse_is_false_where_another_leads_until_that_one_closes_though_not_all_work_in_its_manner(
    opened: Open, options: dict[str, Any]
) -> None:
    """docs/protocols.md, step 3: processes move away from goNELI's style one by one."""
    first = opened("first", **ranked(options, "a"), lease=LONG_LEASE)
    assert first.pulse(PATIENCE)
    term = first.led[0]
    second = opened("second", **ranked(options, "b"), lease=LONG_LEASE, goneli=False)
    assert not second.pulse(MOMENT)
    first.close()
    assert second.pulse(PATIENCE)
    assert second.led[0] > term
