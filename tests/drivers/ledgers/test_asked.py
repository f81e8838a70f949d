"""Ledgers on a server that is asked: what each of them does when its server falls silent."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from neli_router.errors import LedgerUnavailable
from tests.conftest import require
from tests.support.asking import Open, append_through_trouble, next_through_trouble, through_trouble, trouble_of
from tests.support.servers import postgresql, redis
from tests.support.servers.postgresql import Postgresql
from tests.support.servers.redis import Redis
from tests.support.waiting import until

UNANSWERED = {Postgresql: "no answer came in time", Redis: "Timeout"}
TIMED_OUT = {Postgresql: r"timeout", Redis: r"[Tt]imeout|timed out"}


@pytest.fixture(
    params=[pytest.param(Postgresql, marks=pytest.mark.postgresql), pytest.param(Redis, marks=pytest.mark.redis)]
)
def server(request: pytest.FixtureRequest) -> Iterator[Postgresql | Redis]:
    require((postgresql if request.param is Postgresql else redis).missing())
    with ExitStack() as stack:
        yield stack.enter_context(request.param.started())


def test_a_frozen_server_is_no_silence_and_heals(
    server: Postgresql | Redis, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # A server that answers late is given up, as in production.
    ledger = opened(server.url("jobs"))
    append_through_trouble(ledger, b"one")
    assert b"one" == next_through_trouble(ledger)
    server.freeze()
    try:
        trouble_of(lambda: ledger.read(0.05))
        trouble_of(lambda: ledger.append([b"lost or not"]), UNANSWERED[type(server)])
        with pytest.raises(LedgerUnavailable, match=TIMED_OUT[type(server)]):
            ledger.tip()
    finally:
        server.thaw()
    append_through_trouble(ledger, b"two")
    until(lambda: b"two" in [entry.payload for entry in through_trouble(lambda: ledger.read(0.1))])
