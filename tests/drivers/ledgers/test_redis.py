"""Redis as a ledger, and its mishaps: restarts, failovers, lost records, frozen servers, passwords, rights.

     Redis.started() --> a server for one test --> ledgers of it, and redis-cli for what an operator would do

A loss must be noticed before anything new is handed over, whatever stands in its place. No test here sleeps and hopes:
each waits for the event that must come.
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from math import inf
from typing import Any

import pytest

from neli_router.drivers.ledgers.asked import BLOCK_MAX
from neli_router.drivers.ledgers.base import Promise
from neli_router.drivers.ledgers.redis.address import RedisAddress
from neli_router.drivers.open import delete_ledger
from neli_router.errors import LedgerRewound, LedgerUnavailable, LedgerUnusable
from tests.conftest import require
from tests.support.asking import Open, append_through_trouble, next_through_trouble, rewinds, take, trouble_of, write
from tests.support.servers.redis import Redis, Sentinel, missing
from tests.support.waiting import PATIENCE, until

pytest.importorskip("redis")

from neli_router.drivers.ledgers.redis.link import Command, Link
from neli_router.drivers.ledgers.redis.stream import RecordStream

pytestmark = pytest.mark.redis


@pytest.fixture
def server() -> Iterator[Redis]:
    """A server that forgets everything when it is killed."""
    require(missing())
    with Redis.started() as started:
        yield started


def test_offsets_are_the_second_part_of_places_and_any_client_can_read_the_records(server: Redis, opened: Open) -> None:
    ledger = opened(server.url("jobs"))
    assert (1, 1) == (ledger.start(), ledger.tip())
    assert [1, 2] == write(ledger, b"one", b"two")
    assert "0-1\nrecord\none\n0-2\nrecord\ntwo" == server.cli("XRANGE", "jobs:ledger", "-", "+")
    write(ledger, *(b"%d" % number for number in range(3, 11)))
    ledger.trim(7)
    assert (7, 11) == (ledger.start(), ledger.tip())


def test_a_stream_that_others_meddle_with_is_unusable(server: Redis, opened: Open) -> None:
    for words, said in (
        ("XADD {}:ledger * record x", r"another program added to it with `\*`"),
        ("XDEL {}:ledger 0-2", r"the record at offset 2 is missing: it was deleted"),
        ("SET {}:ledger x", "WRONGTYPE"),
    ):
        group, _ = words.split(" ", 1)
        write(opened(server.url(group)), b"one", b"two", b"three")
        server.cli(*words.format(group).split(" "))
        with pytest.raises(LedgerUnusable, match=said):
            take(opened(server.url(group)), 3)


@pytest.mark.parametrize(
    ("saved", "found"),
    [
        (False, "it is gone, and there was a record at offset 3"),
        (True, "it ends at 3, and there was a record at offset 3"),
    ],
    ids=["everything", "the newest"],
)
def test_a_restart_that_loses_records_is_a_rewound_ledger(
    server: Redis, begun: Open, *, saved: bool, found: str
) -> None:
    ledger = begun(server.url("jobs"), b"one", b"two")
    if saved:
        server.cli("SAVE")
    write(ledger, b"three")
    assert [b"three"] == take(ledger, 1)
    server.restart()
    assert found == rewinds(ledger)


def commands(server: Redis) -> Counter[str]:
    """How often the server was given each command, without INFO."""
    said = re.findall(r"^cmdstat_(\w+):calls=(\d+)", server.cli("INFO", "commandstats"), re.MULTILINE)
    return Counter({name: int(calls) for name, calls in said if name != "info"})


def test_a_question_that_need_not_wait_is_one_command_and_brings_the_anchor(server: Redis, opened: Open) -> None:
    for payload in ("one", "two", "three", "four"):
        server.cli("XADD", "jobs:ledger", "0-*", "record", payload)
    stream = RecordStream(RedisAddress("redis", "jobs", ((server.host, server.port),)))
    with closing(stream.connect("a test")) as link:
        anchor = stream.at(link, 2)
        asked = commands(server)
        found = stream.ask(link, 3, anchor, 0.0)
        assert {"xread": 1} == commands(server) - asked
        assert ([b"three", b"four"], anchor) == ([entry.payload for entry in found.entries], found.anchor)
        server.cli("XTRIM", "jobs:ledger", "MINID", "0-3")
        found = stream.ask(link, 3, anchor, 0.0)
        assert ([3, 4], None) == ([entry.offset for entry in found.entries], found.anchor)


def test_while_entries_wait_to_be_taken_the_server_is_asked_for_nothing(server: Redis, opened: Open) -> None:
    reader = opened(server.url("jobs"))
    assert [] == reader.read(0.0)
    server.cli("XADD", "jobs:ledger", "0-*", "record", "0")
    until(lambda: reader.age() == inf)  # It has come, and waits to be taken.
    asked = commands(server)
    for number in range(1, 10):
        server.cli("XADD", "jobs:ledger", "0-*", "record", str(number))
    assert {"xadd": 9} == commands(server) - asked
    assert [b"%d" % number for number in range(10)] == take(reader, 10)


def test_a_stream_that_is_replaced_under_a_waiting_reader_hands_nothing_over(server: Redis, begun: Open) -> None:
    """The script runs in one step, so that no connection breaks and no offset is ever seen to go back."""
    script = (
        "redis.call('DEL', KEYS[1]) for i = 1, tonumber(ARGV[1]) do "
        "redis.call('XADD', KEYS[1], '0-*', 'record', 'new ' .. i) end"
    )
    for count in (0, 1, 2, 3, 50):
        ledger = begun(server.url(f"jobs-{count}"), b"one", b"two")
        server.cli("EVAL", script, "1", f"jobs-{count}:ledger", str(count))
        rewinds(ledger)


def test_nothing_is_appended_to_a_stream_that_is_gone(server: Redis, begun: Open) -> None:
    """Otherwise the next group would begin behind a record of the last one."""
    ledger = begun(server.url("jobs"), b"one")
    # Wait until the reader waits for long enough that the append notices the loss first.
    until(lambda: ledger._reader._block >= BLOCK_MAX)  # type: ignore[attr-defined]
    server.cli("FLUSHALL")

    with pytest.raises(LedgerRewound):
        until(lambda: ledger.append([b"two"]))
    assert "0" == server.cli("EXISTS", "jobs:ledger")


def test_a_failover_that_lost_nothing_is_followed(begun: Open) -> None:
    require(missing())
    with Sentinel.started() as group:
        ledger = begun(group.url("jobs"), b"one", b"two")
        doubts = " ".join(ledger.doubts)
        assert "a failover may lose the newest records" in doubts
        assert "min-replicas-to-write is 0" in doubts
        group.await_copies("XLEN", "jobs:ledger")
        group.master.kill()
        trouble_of(lambda: ledger.read(0))
        group.await_failover()
        assert 3 == append_through_trouble(ledger, b"three")
        assert b"three" == next_through_trouble(ledger)


def test_a_failover_that_lost_records_is_a_rewound_ledger(begun: Open) -> None:
    require(missing())
    with Sentinel.started() as group:
        ledger = begun(group.url("jobs"), b"one", b"two")
        group.await_copies("XLEN", "jobs:ledger")
        group.replica.freeze()
        group.master.cli("CLIENT", "KILL", "TYPE", "replica")  # Otherwise it would find them in its socket.
        write(ledger, b"three", b"four")
        assert [b"three", b"four"] == take(ledger, 2)
        group.master.kill()
        group.replica.thaw()
        group.await_failover()
        assert "it ends at 3, and there was a record at offset 4" == rewinds(ledger)


def test_an_answer_is_as_old_as_its_question(server: Redis, begun: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle reader's questions wait in Redis, and their answers may have been true only when they were asked."""
    ledger = begun(server.url("jobs"), b"one")
    asked_at: list[float] = []
    too_young: list[float] = []
    enough = threading.Event()
    ask, reader = Link.ask, ledger._reader._thread  # type: ignore[attr-defined]

    def asked(link: Link, *questions: Command) -> list[Any]:
        if threading.current_thread() is reader:
            # It has the answer to its last question, but not to this one: it knows what held at the last question.
            if asked_at:
                since_last = time.monotonic() - asked_at[-1]
                too_young.extend(age for age in [ledger.age()] if age < since_last)
            asked_at.append(time.monotonic())
            if len(asked_at) == 12:  # The first waited for some milliseconds in Redis, the last for BLOCK_MAX.
                enough.set()
        return ask(link, *questions)

    monkeypatch.setattr(Link, "ask", asked)
    assert enough.wait(PATIENCE)
    assert [] == too_young


@pytest.mark.parametrize(
    ("setting", "refusing", "found", "remedy"),
    [
        ("maxmemory", "1", "OOM: command not allowed", "raise maxmemory"),
        ("min-replicas-to-write", "1", "NOREPLICAS: Not enough good replicas", "bring replicas back"),
    ],
)
def test_a_server_that_takes_no_records_says_why_and_heals(
    server: Redis, begun: Open, setting: str, refusing: str, found: str, remedy: str
) -> None:
    ledger = begun(server.url("jobs"), b"one")
    server.cli("CONFIG", "SET", setting, refusing)
    error = trouble_of(lambda: ledger.append([b"two"]))
    assert error.found.startswith(found)
    assert remedy in error.remedy
    server.cli("CONFIG", "SET", setting, "0")
    append_through_trouble(ledger, b"three")


def test_a_replica_is_refused_and_so_is_a_master_that_became_one(server: Redis, opened: Open, begun: Open) -> None:
    with Redis.started(settings={"replicaof": f"127.0.0.1 {server.port}"}) as replica:
        with pytest.raises(LedgerUnavailable, match=r"from a master, but that server is a replica: .*redis\+sentinel"):
            opened(replica.url("jobs"))
        ledger = begun(server.url("jobs"), b"one")
        replica.cli("REPLICAOF", "NO", "ONE")
        server.cli("REPLICAOF", "127.0.0.1", str(replica.port))
        trouble_of(lambda: ledger.read(0.05), "that server is a replica")
        trouble_of(lambda: ledger.append([b"two"]), "that server is a replica")


RIGHTS = "+hello +select +xadd +xread +xrange +xtrim +xinfo|stream"


def test_the_least_rights_are_enough_and_may_come_back_and_fewer_or_a_wrong_password_are_refused(
    server: Redis, opened: Open, begun: Open
) -> None:
    rights, url = RIGHTS.split(), server.url("jobs", who="member:word@")
    server.cli("ACL", "SETUSER", "member", "on", ">word", "~jobs:*", "-@all", *rights)
    ledger = begun(url, b"one", b"two")
    ledger.trim(2)
    assert (2, 3) == (ledger.start(), ledger.tip())
    assert any("cannot be seen: let the user run CONFIG GET" in doubt for doubt in ledger.doubts)
    assert frozenset({Promise.MULTI_HOST}) == ledger.promises
    server.cli("ACL", "SETUSER", "member", "-@all")
    assert "NOPERM" in trouble_of(lambda: ledger.read(0)).found
    server.cli("ACL", "SETUSER", "member", *rights)
    append_through_trouble(ledger, b"three")
    assert b"three" == next_through_trouble(ledger)
    with pytest.raises(LedgerUnusable, match=r"NOPERM.*docs/redis.md"):
        delete_ledger(url)
    server.cli("ACL", "SETUSER", "fewer", "on", ">word", "~jobs:*", "-@all", "+select")
    server.cli("ACL", "SETUSER", "other", "on", ">word", "~others:*", "+@all")
    with pytest.raises(LedgerUnusable, match=r"WRONGPASS.*check the user and the password in the address") as caught:
        opened(server.url("jobs", who="member:hidden@"))
    assert "hidden" not in str(caught.value)
    for who in ("fewer:word@", "other:word@"):
        with pytest.raises(LedgerUnusable, match=r"NOPERM.*docs/redis.md"):
            opened(server.url("jobs", who=who))
    server.cli("CONFIG", "SET", "requirepass", "word")
    with pytest.raises(LedgerUnusable, match=r"NOAUTH: .*check the user"):
        opened(server.url("jobs"))


def test_tls_works_and_a_stranger_s_certificate_is_refused(opened: Open, begun: Open) -> None:
    require(missing())
    with Redis.started(tls=True) as secure, Redis.started(tls=True) as stranger:
        begun(secure.url("jobs"), b"one")
        url = f"rediss://127.0.0.1:{secure.port}/jobs"
        for doubtful in (url, f"{url}?ca={stranger.ca}"):
            with pytest.raises(LedgerUnavailable, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
                opened(doubtful)
        with pytest.raises(LedgerUnavailable):
            opened(f"redis://127.0.0.1:{secure.port}/jobs")  # Plain text, to a server that speaks only TLS.


def test_what_it_promises_and_what_endangers_it_follow_from_the_settings(server: Redis, opened: Open) -> None:
    for settings, promises, doubt in (
        ("", set(), "appendonly is no: a restart loses records"),
        ("appendonly yes", set(), "appendfsync is everysec: a crash may lose the records of a second or two"),
        ("appendfsync always", {Promise.DURABLE}, "one disk has all records"),
        ("maxmemory 100mb maxmemory-policy allkeys-lru", {Promise.DURABLE}, "Redis may drop the whole ledger for room"),
        ("maxmemory-policy noeviction", {Promise.DURABLE}, "when they are full, nothing can be appended"),
    ):
        if settings:
            server.cli("CONFIG", "SET", *settings.split())
        ledger = opened(server.url("jobs"))
        assert {Promise.MULTI_HOST, *promises} == ledger.promises
        assert any(doubt in sentence for sentence in ledger.doubts), ledger.doubts
        assert promises == opened(server.unix_url("jobs")).promises  # Only this host can reach a socket.
