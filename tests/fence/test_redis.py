"""The fence in a real Redis: admitted writes happen in the same step, and refused writes do not happen."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

import neli_router.fence.redis as fence
from neli_router.fence import TERM_MAX, FenceMisused, Refused, tally
from tests.conftest import require
from tests.fence.test_fence import PAIRS, Grade, lease
from tests.support.servers.redis import Redis, missing

redis_py = pytest.importorskip("redis")

pytestmark = pytest.mark.redis


@pytest.fixture
def resource() -> str:
    return f"invoices {uuid4().hex}"


@pytest.fixture
def client(redis: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    with closing(redis_py.Redis.from_url(redis, decode_responses=getattr(request, "param", False))) as opened:
        yield opened


BYTES_OR_TEXT = pytest.mark.parametrize("client", [False, True], indirect=True, ids=["bytes", "text"])
"""The form in which the client returns answers."""


def text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@BYTES_OR_TEXT
def test_a_term_is_admitted_unless_a_higher_one_was(client: Any, resource: str) -> None:
    assert fence.admitted(client, resource) is None
    before = tally.admitted, tally.refused
    for term in (0, 7, 7, 9, 10, 2**53, 2**53 + 1, TERM_MAX):
        fence.admit(client, resource, term)
        assert term == fence.admitted(client, resource)
    with pytest.raises(Refused) as caught:
        fence.admit(client, resource, TERM_MAX - 1)  # A double could not distinguish the two.
    refused = caught.value
    assert (resource, TERM_MAX - 1, TERM_MAX) == (refused.resource, refused.term, refused.admitted)
    assert TERM_MAX == fence.admitted(client, resource)
    assert (8, 1) == (tally.admitted - before[0], tally.refused - before[1])
    # However many digits they have.
    for held, term in ((10, 9), (100, 99), (10, 0), (2**63 - 1, 2**53), (19, 10), (2, 1)):
        fence.admit(client, f"{resource} {held} {term}", held)
        with pytest.raises(Refused):
            fence.admit(client, f"{resource} {held} {term}", term)
        assert held == fence.admitted(client, f"{resource} {held} {term}")
    for wrong in (-1, True, Grade.HIGH, 2**63):
        with pytest.raises(FenceMisused, match="a term was wanted"):
            fence.admit(client, resource, wrong)


@BYTES_OR_TEXT
def test_what_is_admitted_is_written_in_the_same_step(client: Any, resource: str) -> None:
    key = f"key of {resource}"
    answers = fence.admit(client, resource, 7, ("SET", key, "first"), ("APPEND", key, b"!"), ["GET", key])
    assert ["6", "first!"] == [text(answer) for answer in answers[1:]]
    fence.admit(client, resource, lease(9))
    with pytest.raises(Refused):
        fence.admit(client, resource, lease(7), ("SET", key, "zombie"))
    assert "first!" == text(client.get(key))


@BYTES_OR_TEXT
def test_a_batch_is_written_once_and_a_later_one_ends_all_before_it(client: Any, resource: str) -> None:
    key = f"log of {resource}"
    assert fence.admitted_batch(client, resource) is None
    asked = [(7, 9), (7, 9), (7, 10), (7, 9), (9, 10), (9, 2**53 + 1), (9, 2**53), (9, TERM_MAX)]
    expected = [True, False, True, False, False, True, False, True]
    assert expected == [fence.admit_batch(client, resource, *one, ("RPUSH", key, one[1])) for one in asked]
    assert ["9", "10", str(2**53 + 1), str(TERM_MAX)] == [text(batch) for batch in client.lrange(key, 0, -1)]
    assert (9, TERM_MAX) == (fence.admitted(client, resource), fence.admitted_batch(client, resource))
    with pytest.raises(Refused):
        fence.admit_batch(client, resource, lease(8), TERM_MAX, ("RPUSH", key, "zombie"))
    assert 4 == client.llen(key)


def test_a_pair_is_admitted_if_it_is_greater_than_all_before_it(client: Any, resource: str) -> None:
    before = tally.admitted, tally.refused
    for term, is_new in PAIRS:
        with nullcontext() if is_new else pytest.raises(Refused, match=r"the pair .* but it, or a greater one"):
            fence.admit(client, resource, term, ("RPUSH", f"{resource} sent", str(term)))
    with pytest.raises(Refused, match="term 7 was to be"):
        fence.admit(client, resource, (7, 11), ("RPUSH", f"{resource} sent", "late"))
    expected = [str(term) for term, is_new in PAIRS if is_new]
    assert expected == [text(sent) for sent in client.lrange(f"{resource} sent", 0, -1)]
    assert (4, 4) == (tally.admitted - before[0], tally.refused - before[1])


def test_a_batch_whose_command_failed_is_still_to_be_written_and_counts_nowhere(client: Any, resource: str) -> None:
    before = tally.admitted, tally.refused
    for act in (partial(fence.admit_batch, client, resource, 7, 1), partial(fence.admit, client, resource, 7)):
        with pytest.raises(redis_py.ResponseError, match=r"Unknown Redis command|unknown command"):
            act(("NOSUCHCOMMAND", "x"))
    assert before == (tally.admitted, tally.refused)
    assert fence.admitted_batch(client, resource) is None
    assert fence.admit_batch(client, resource, 7, 1)


def test_a_batch_may_have_many_commands_and_a_step_may_not(client: Any, resource: str) -> None:
    key, words = f"list of {resource}", fence.COMMAND_WORDS_MAX - 2
    assert fence.admit_batch(client, resource, 7, 1, *[("INCR", f"count of {resource}")] * fence.BATCH_MAX)
    assert str(fence.BATCH_MAX) == text(client.get(f"count of {resource}"))
    for commands in ([("PING",)] * (fence.BATCH_MAX + 1), [("DEL", *["x"] * 5000)] * 200):
        with pytest.raises(FenceMisused, match="smaller batches"):
            fence.admit_batch(client, resource, 7, 2, *commands)
    with pytest.raises(FenceMisused, match="at most 1000 commands"):
        fence.admit(client, resource, 7, *[("PING",)] * 1001)
    with pytest.raises(FenceMisused, match="a batch was wanted"):
        fence.admit_batch(client, resource, 7, -1)
    assert fence.admit_batch(client, resource, 7, 2, ("RPUSH", key, *range(words)))
    # A command that Redis could not carry out is refused before those in front of it.
    with pytest.raises(FenceMisused, match=f"{words + 3} in the longest"):
        fence.admit_batch(client, resource, 7, 3, ("DEL", key), ("RPUSH", key, *range(words + 1)))
    assert (words, 2) == (client.llen(key), fence.admitted_batch(client, resource))


def test_a_zombie_among_many_threads_never_writes_after_a_newer_owner(redis: str, resource: str) -> None:
    key = f"log of {resource}"

    def write(term: int) -> None:
        with closing(redis_py.Redis.from_url(redis)) as own, suppress(Refused):
            for _ in range(50):
                fence.admit(own, resource, term, ("RPUSH", key, term))

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(write, range(1, 6)))
    with closing(redis_py.Redis.from_url(redis)) as client:
        written = [int(term) for term in client.lrange(key, 0, -1)]
    assert sorted(written) == written
    assert 50 == written.count(5)


def test_resources_and_databases_are_apart_whatever_their_names(client: Any, redis: str, resource: str) -> None:
    names = [f"{resource}{tail}" for tail in ("", " ", "'; FLUSHALL", "}{", "ü", '"', "\\n", ":1")]
    for term, name in enumerate(names):
        fence.admit(client, name, term)
    assert list(range(len(names))) == [fence.admitted(client, name) for name in names]
    with redis_py.Redis.from_url(f"{redis}/3") as other:
        assert fence.admitted(other, resource) is None


def test_clients_of_any_encoding_have_one_fence(client: Any, redis: str, resource: str) -> None:
    """In bytes of latin-1 the name would be another one, and a zombie would be admitted."""
    name = f"{resource} é"
    with redis_py.Redis.from_url(redis, encoding="latin-1") as other:
        assert fence.admit_batch(other, name, 9, 3)
        assert (9, 3) == (fence.admitted(client, name), fence.admitted_batch(client, name))
        assert not fence.admit_batch(client, name, 9, 3)
        with pytest.raises(Refused):
            fence.admit(client, name, 7)
        assert 9 == fence.admitted(other, name)


NO_COMMANDS: tuple[Any, ...] = ("SET key value", b"SET", (), [])
NO_WORDS: tuple[Any, ...] = (Grade.HIGH, True, None, 1j, ["a"])
"""The client sends an IntEnum as `<Grade.HIGH: 7>`."""

WAYS_OUT: tuple[Any, ...] = (
    *(("SELECT", 1), (b"flushdb",), ("FlushAll",), ("SWAPDB", 0, 1)),
    *(("DEL", "neli:fence"), ("RENAME", "other", b"neli:fence"), ("HSET", b"neli:fence", "invoices", 0)),
)
"""After SELECT, the number of a batch was stored in another database, and the batch was written twice."""


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        *((command, "each a tuple of its words") for command in NO_COMMANDS),
        *((("SET", "key", word), f"found a {type(word).__name__} in one") for word in NO_WORDS),
        *((command, "leave the fence where it is") for command in WAYS_OUT),
    ],
)
def test_what_is_no_command_is_refused_before_others(client: Any, resource: str, command: Any, problem: str) -> None:
    for act in (partial(fence.admit, client, resource, 7), partial(fence.admit_batch, client, resource, 7, 1)):
        with pytest.raises(FenceMisused, match=problem):
            act(("SET", f"key of {resource}", 1), command)
    assert (None, None) == (fence.admitted(client, resource), fence.admitted_batch(client, resource))


def test_a_server_that_drops_any_key_is_refused() -> None:
    """Its user may not be allowed to call `INFO`: then the fence works, and the policy is not checked."""
    require(missing())
    password = "word"  # noqa: S105 - for a test.
    with Redis.started() as server:
        server.cli("ACL", "SETUSER", "few", "on", f">{password}", "~*", "+eval", "+hget", "+hset", "+hello")
        for number, (policy, memory, is_refused) in enumerate(
            (
                ("allkeys-lru", "100mb", True),
                ("allkeys-random", "100mb", True),
                ("allkeys-lru", "0", False),
                ("volatile-lru", "100mb", False),
                ("noeviction", "100mb", False),
            )
        ):
            server.cli("CONFIG", "SET", "maxmemory-policy", policy, "maxmemory", memory)
            with redis_py.Redis(unix_socket_path=server.socket) as keeper:
                with pytest.raises(FenceMisused, match="maxmemory-policy") if is_refused else nullcontext():
                    fence.admit(keeper, "invoices", 7, ("SET", f"key {number}", "value"))
                assert (None if is_refused else b"value") == keeper.get(f"key {number}")
            with redis_py.Redis(unix_socket_path=server.socket, username="few", password=password) as few:
                fence.admit(few, "orders", 7)


def test_the_awaited_form_does_the_same_and_each_refuses_other_clients(client: Any, redis: str, resource: str) -> None:
    import redis.asyncio as redis_asyncio  # noqa: PLC0415 - it is installed, or the test would be skipped.

    async def act() -> None:
        own = redis_asyncio.Redis.from_url(redis)
        try:
            assert await fence.admitted_async(own, resource) is None
            assert [b"PONG"] == await fence.admit_async(own, resource, 9, ("ECHO", "PONG"))
            with pytest.raises(Refused):
                await fence.admit_async(own, resource, 8)
            assert [True, False] == [await fence.admit_batch_async(own, resource, 9, 1) for _ in range(2)]
            assert 1 == await fence.admitted_batch_async(own, resource)
            assert 9 == await fence.admitted_async(own, resource)
            with pytest.raises(FenceMisused, match="methods are awaited"):
                fence.admit(own, resource, 9)
            with pytest.raises(FenceMisused, match="methods are awaited"):
                fence.admitted(own, resource)
            for call in (fence.admit_async(client, resource, 9), fence.admitted_async(client, resource)):
                with pytest.raises(FenceMisused, match="not awaited"):
                    await call
            with client.pipeline() as pipeline:
                for act in (partial(fence.admit, pipeline, resource, 7), partial(fence.admitted, pipeline, resource)):
                    with pytest.raises(FenceMisused, match="as a pipeline does"):
                        act()
        finally:
            await own.aclose()

    asyncio.run(act())
