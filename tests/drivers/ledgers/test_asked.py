"""Ledgers on a server that is asked: where they are, and what they do when their server falls silent, or complains."""

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

pytest.importorskip("redis")

import redis as redis_py

from neli_router.drivers.ledgers.postgresql import link as postgresql_link
from neli_router.drivers.ledgers.postgresql.address import PostgresqlAddress
from neli_router.drivers.ledgers.redis import link as redis_link
from neli_router.drivers.ledgers.redis.address import RedisAddress
from neli_router.errors import LedgerUnavailable, LedgerUnusable
from neli_router.router.router import Router
from tests.conftest import require
from tests.support.asking import (
    Open,
    append_through_trouble,
    next_through_trouble,
    take,
    through_trouble,
    trouble_of,
    write,
)
from tests.support.groups import refused_by
from tests.support.servers import postgresql, redis
from tests.support.servers.postgresql import Postgresql
from tests.support.servers.redis import Redis
from tests.support.waiting import until

UNANSWERED = {Postgresql: "no answer came in time", Redis: "Timeout"}
TIMED_OUT = {Postgresql: r"timeout", Redis: r"[Tt]imeout|timed out"}


@pytest.fixture(
    scope="module",
    params=[pytest.param(Postgresql, marks=pytest.mark.postgresql), pytest.param(Redis, marks=pytest.mark.redis)],
)
def server(request: pytest.FixtureRequest) -> Iterator[Postgresql | Redis]:
    require((postgresql if request.param is Postgresql else redis).missing())
    with ExitStack() as stack:
        yield stack.enter_context(request.param.started())


def test_a_ledger_that_must_be_there_is_not_made(server: Postgresql | Redis, opened: Open) -> None:
    url = server.url("missing")
    with pytest.raises(LedgerUnusable, match=r"no (group|key) missing.*: correct the address, or start a member"):
        opened(url, create=False)
    # On a busy machine the first look may take longer.
    until(lambda: isinstance(refused_by(lambda: Router(url, timeout=0.1)), LedgerUnusable))
    write(opened(url), b"one")
    assert [b"one"] == take(opened(url, create=False), 1)


def test_groups_schemas_and_databases_keep_their_ledgers_apart(server: Postgresql | Redis, opened: Open) -> None:
    here = server.url("apart")
    if isinstance(server, Redis):
        others = [f"{here}?db=3"]
    else:
        server.ask("CREATE DATABASE other")
        others = [f"{here}&schema=second", here.replace("/postgres?", "/other?")]
    for url in (here, server.url("{c}"), server.unix_url("e"), *others):
        assert [1] == write(opened(url), url.encode())
        assert [url.encode()] == take(opened(url), 1)


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


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (psycopg.errors.TooManyConnections("too many"), LedgerUnavailable, "raise max_connections"),
        (psycopg.errors.AdminShutdown("terminating"), LedgerUnavailable, "bring the server back"),
        (psycopg.errors.QueryCanceled("statement timeout"), LedgerUnavailable, "raise statement_timeout"),
        (psycopg.OperationalError('FATAL: database "x" does not exist'), LedgerUnusable, "correct the database"),
        (psycopg.OperationalError("FATAL: the database system is starting up"), LedgerUnavailable, "wait: it is"),
        (psycopg.OperationalError("connection refused"), LedgerUnavailable, "check the server"),
        (redis_py.exceptions.BusyLoadingError("Redis is loading"), LedgerUnavailable, "wait: it reads its data"),
        (redis_py.ResponseError("MISCONF Redis is configured to"), LedgerUnavailable, "keeps it from saving to disk"),
        (redis_py.exceptions.MasterDownError("Link is down"), LedgerUnavailable, "bring its master back"),
        (redis_py.ResponseError("CLUSTERDOWN Hash slot not served"), LedgerUnavailable, "missing nodes back"),
        (redis_py.exceptions.MovedError("3999 127.0.0.1:6381"), LedgerUnusable, "a server that is not a cluster"),
        (redis_py.exceptions.ClusterCrossSlotError("Keys"), LedgerUnusable, "write the group in braces"),
        (redis_py.ResponseError("ERR something else"), LedgerUnavailable, "check the server"),
        (redis_py.ConnectionError("Connection refused"), LedgerUnavailable, "check the server"),
        (OSError("no route"), LedgerUnavailable, "check the server"),
    ],
)
def test_each_complaint_comes_with_what_to_do(error: Exception, kind: type[Exception], said: str) -> None:
    servers = (("host", 1),)
    if isinstance(error, psycopg.Error):
        at = PostgresqlAddress("jobs", "data", servers)
        explained = postgresql_link.explain(error, at, "the opening", opening=True)
    else:
        explained = redis_link.explain(error, RedisAddress("redis", "jobs", servers), "a read")
    assert kind is type(explained)
    assert said in explained.remedy
