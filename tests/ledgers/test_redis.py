"""Redis as a ledger, with all that befalls it: restarts, failovers, lost records, frozen servers, passwords, rights.

     Redis.started() --> a server for one test --> ledgers of it, and redis-cli for what an operator would do

A loss must be found before anything new is handed over, whatever stands in its place. No test here sleeps and hopes:
each waits for the event that must come.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from neli_router.config import Config
from neli_router.errors import (
    ConfigError,
    LedgerRewound,
    LedgerTrimmed,
    LedgerUnavailable,
    LedgerUnusable,
)
from neli_router.keyspace import Layout
from neli_router.ledgers.addresses import delete_ledger, open_ledger, problems_of, public_address
from neli_router.ledgers.base import Entry, Ledger, Promise
from neli_router.ledgers.redis.address import SCHEMES, RedisAddress, parse
from neli_router.member.member import Member
from neli_router.router.router import Router
from tests.conftest import require
from tests.support.servers.redis import Redis, Sentinel, missing

pytest.importorskip("redis")

import redis as redis_py

from neli_router.ledgers.redis.faults import explain
from neli_router.ledgers.redis.link import Command, Link
from neli_router.ledgers.redis.reader import BLOCK_MAX

PATIENCE = 180.0

QUESTIONS = 12
"""Of an idle reader: the first wait for some milliseconds in Redis, the last for as long as a question may."""

TRIES = 6

on_servers = pytest.mark.redis


@pytest.fixture
def server() -> Iterator[Redis]:
    """One that forgets everything when it is killed."""
    require(missing())
    with Redis.started() as started:
        yield started


@pytest.fixture
def lasting() -> Iterator[Redis]:
    """One that forgets nothing."""
    require(missing())
    with Redis.started(settings={"appendonly": "yes", "appendfsync": "always"}) as started:
        yield started


@pytest.fixture
def opened() -> Iterator[Callable[..., Ledger]]:
    with ExitStack() as stack:

        def open_one(url: str, *, create: bool = True) -> Ledger:
            assert [] == problems_of(url)
            return stack.enter_context(closing(open_ledger(url, create=create, patience=1.0)))

        yield open_one


Open = Callable[..., Ledger]


def write(ledger: Ledger, *payloads: bytes) -> list[int]:
    """Once more, if nothing of it was acknowledged: records that a busy server answers late are dropped."""
    found: list[int] = []
    for _ in range(TRIES):
        ledger.append(payloads)
        if found := heard(ledger.acknowledged, len(payloads), PATIENCE / TRIES):
            break
    assert len(payloads) == len(found)
    return found


def until(more: Callable[[], list[int]], count: int) -> list[int]:
    found = heard(more, count, PATIENCE)
    assert count == len(found)
    return found


def heard(more: Callable[[], list[int]], count: int, patience: float) -> list[int]:
    found: list[int] = []
    give_up_at = time.monotonic() + patience
    while len(found) < count and time.monotonic() < give_up_at:
        found += more() or []
    return found


def take(ledger: Ledger, count: int) -> list[bytes]:
    entries: list[Entry] = []
    give_up_at = time.monotonic() + PATIENCE
    while len(entries) < count and time.monotonic() < give_up_at:
        entries += ledger.read(0.5)
    assert count == len(entries)
    return [entry.payload for entry in entries]


def take_through_trouble(ledger: Ledger, count: int) -> list[bytes]:
    """At least so many."""
    entries: list[Entry] = []
    give_up_at = time.monotonic() + PATIENCE
    while len(entries) < count and time.monotonic() < give_up_at:
        try:
            entries += ledger.read(0.1)
        except LedgerUnavailable:
            time.sleep(0.01)
    assert count <= len(entries)
    return [entry.payload for entry in entries]


def append_through_trouble(ledger: Ledger, payload: bytes) -> int:
    """As a pump does it: again and again, until one is confirmed. Its offset."""
    give_up_at = time.monotonic() + PATIENCE
    while time.monotonic() < give_up_at:
        try:
            ledger.append([payload])
        except LedgerUnavailable:
            time.sleep(0.05)
        asked_at = time.monotonic()
        while time.monotonic() < asked_at + 0.2:
            if offsets := ledger.acknowledged():
                return offsets[0]
            time.sleep(0.005)
    raise AssertionError("nothing was confirmed")


def trouble_of(act: Callable[[], object], said: str = "") -> LedgerUnavailable:
    """What `act` raises sooner or later, with `said` in it."""
    give_up_at = time.monotonic() + PATIENCE
    while time.monotonic() < give_up_at:
        try:
            act()
        except LedgerUnavailable as error:
            if said in error.found:
                return error
        time.sleep(0.01)
    raise AssertionError("it never failed")


def rewinds(ledger: Ledger) -> str:
    """How the ledger finds that it was rewound; nothing may be handed over before that."""
    give_up_at = time.monotonic() + PATIENCE
    while time.monotonic() < give_up_at:
        try:
            assert [] == ledger.read(0.1)
        except LedgerUnavailable:
            time.sleep(0.01)
        except LedgerRewound as error:
            for again in (lambda: ledger.read(0), lambda: ledger.append([b"more"]), ledger.tip, ledger.start):
                with pytest.raises(LedgerRewound):
                    again()
            return error.found
    raise AssertionError("it was not noticed")


# Addresses


def test_an_address_is_taken_apart() -> None:
    found = {
        url: parse(*url.split(":", 1))
        for url in (
            "redis://localhost/jobs",
            "rediss://u:p%40%2F@[::1]:7000/jobs?db=3&ca=/ca.crt",
            "redis+unix:///run/redis.sock?group=jobs",
            "redis+sentinel://:secret@a:1,b/jobs?service=main&sentinel_password=word",
        )
    }
    assert {
        "redis://localhost/jobs": (RedisAddress("redis", "jobs", (("localhost", 6379),)), []),
        "rediss://u:p%40%2F@[::1]:7000/jobs?db=3&ca=/ca.crt": (
            RedisAddress("rediss", "jobs", (("::1", 7000),), "", 3, "", "u", "p@/", {"ca": "/ca.crt"}),
            [],
        ),
        "redis+unix:///run/redis.sock?group=jobs": (RedisAddress("redis+unix", "jobs", path="/run/redis.sock"), []),
        "redis+sentinel://:secret@a:1,b/jobs?service=main&sentinel_password=word": (
            RedisAddress(
                "redis+sentinel",
                "jobs",
                (("a", 1), ("b", 26379)),
                "",
                0,
                "main",
                "",
                "secret",
                {"sentinel_password": "word"},
            ),
            [],
        ),
    } == found
    assert [
        "redis://localhost:6379/jobs",
        "rediss://[::1]:7000/jobs?db=3",
        "redis+unix:///run/redis.sock?group=jobs",
        "redis+sentinel://a:1,b:26379/jobs?service=main",
    ] == [at.public for at, _ in found.values() if at]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://", "one server was wanted"),
        ("redis://host", "a group was wanted"),
        ("redis://host/", "a group was wanted"),
        ("redis://host/a b", "a group was wanted"),
        ("redis://host:99999/jobs", "one server was wanted"),
        ("redis://a,b/jobs", "one server was wanted"),
        ("redis://host/jobs?db=x", "db must be the number"),
        ("redis://host/jobs?ca=/ca.crt", "option 1 is none of redis: There is db"),
        ("rediss://host/jobs?cert=/c", "cert and key belong together"),
        ("redis+unix://host/run/redis.sock?group=jobs", "a socket's path was wanted"),
        ("redis+unix:///run/redis.sock", "a group was wanted"),
        ("redis+sentinel://host/jobs", "say which, as in ?service=mymaster"),
        ("redis://user:pa/ss@host/jobs", "write / as %2F"),
    ],
)
def test_what_is_wrong_with_an_address_is_said_in_a_sentence(url: str, said: str) -> None:
    assert any(said in problem for problem in problems_of(url)), problems_of(url)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("broken", ["", "&nonsense=1"])
def test_no_secret_of_an_address_is_ever_shown(scheme: str, broken: str) -> None:
    place = "/run/redis.sock?group=jobs" if scheme == "redis+unix" else "host/jobs?db=1"
    more = "&service=main&sentinel_password=hidden" if "sentinel" in scheme else ""
    url = f"{scheme}://hidden-user:hidden@{place}{more}{broken}"
    at, problems = parse(*url.split(":", 1))
    shown = [*problems, *problems_of(url), repr(at), at.public if at else "", public_address(url)]
    assert "hidden" not in " ".join(shown)
    assert bool(problems) == bool(broken)
    if not broken:
        assert "hidden" not in repr(Config(url, accept_rewinds=True, ownership=url))


# The stream


@on_servers
def test_offsets_are_the_second_part_of_places_and_any_client_can_read_the_records(server: Redis, opened: Open) -> None:
    ledger = opened(server.url("jobs"))
    assert (1, 1) == (ledger.start(), ledger.tip())
    assert [1, 2] == write(ledger, b"one", b"two")
    assert "0-1\nrecord\none\n0-2\nrecord\ntwo" == server.cli("XRANGE", "jobs:ledger", "-", "+")


@on_servers
def test_a_ledger_that_must_be_there_is_not_made(server: Redis, opened: Open) -> None:
    with pytest.raises(LedgerUnusable, match="there is no key jobs:ledger: correct the address, or start a member"):
        opened(server.url("jobs"), create=False)
    with pytest.raises(LedgerUnusable), Router(server.url("jobs")):
        pass
    write(opened(server.url("jobs")), b"one")
    assert [b"one"] == take(opened(server.url("jobs"), create=False), 1)


@on_servers
def test_groups_and_databases_keep_their_ledgers_apart(server: Redis, opened: Open) -> None:
    for url in (server.url("a"), server.url("b"), server.url("a") + "?db=3", server.unix_url("{c}")):
        assert [1] == write(opened(url), url.encode())
        assert [url.encode()] == take(opened(url), 1)


@on_servers
def test_a_trim_drops_what_is_below_and_a_late_reader_is_told(server: Redis, opened: Open) -> None:
    ledger = opened(server.url("jobs"))
    write(ledger, *(b"%d" % number for number in range(1, 11)))
    ledger.trim(7)
    assert (7, 11) == (ledger.start(), ledger.tip())
    late = opened(server.url("jobs"))
    late.seek(3)
    with pytest.raises(LedgerTrimmed, match=r"offset 3 was wanted.* starts at 7"):
        late.read(1.0)
    late.seek(7)
    assert [b"7", b"8", b"9", b"10"] == take(late, 4)


@on_servers
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (["XADD", "jobs:ledger", "*", "record", "x"], "another program added to it with `\\*`"),
        (["XDEL", "jobs:ledger", "0-2"], "the record at offset 2 is missing: it was deleted|0-2"),
        (["SET", "jobs:ledger", "x"], "WRONGTYPE"),
    ],
)
def test_a_stream_that_others_meddle_with_is_unusable(server: Redis, opened: Open, spoil: list[str], said: str) -> None:
    write(opened(server.url("jobs")), b"one", b"two", b"three")
    server.cli(*spoil)
    with pytest.raises(LedgerUnusable, match=said):
        take(opened(server.url("jobs")), 3)


# Lost records


@on_servers
def test_a_restart_that_loses_everything_is_a_rewound_ledger(server: Redis, opened: Open) -> None:
    ledger = opened(server.url("jobs"))
    write(ledger, b"one", b"two")
    assert [b"one", b"two"] == take(ledger, 2)
    server.restart()
    assert "it is gone, and there was a record at offset 2" == rewinds(ledger)


@on_servers
def test_a_restart_from_an_older_file_is_a_rewound_ledger(server: Redis, opened: Open) -> None:
    ledger = opened(server.url("jobs"))
    write(ledger, b"one", b"two")
    server.cli("SAVE")
    write(ledger, b"three")
    assert [b"one", b"two", b"three"] == take(ledger, 3)
    server.restart()
    assert "it ends at 3, and there was a record at offset 3" == rewinds(ledger)


@on_servers
def test_what_was_lost_is_found_also_if_new_records_have_overtaken_it_meanwhile(server: Redis, opened: Open) -> None:
    """The member is kept out of the server that came back, until others have written there."""
    server.cli("ACL", "SETUSER", "member", "on", ">word", "~*", "&*", "+@all")
    ledger = opened(server.url("jobs", who="member:word@"))
    write(ledger, b"one", b"two")
    server.cli("SAVE")
    write(ledger, b"three")
    assert [b"one", b"two", b"three"] == take(ledger, 3)
    server.restart()  # Which has forgotten the user, too.
    trouble_of(lambda: ledger.read(0), "WRONGPASS")
    assert [3, 4, 5] == write(opened(server.url("jobs")), b"other three", b"four", b"five")
    server.cli("ACL", "SETUSER", "member", "on", ">word", "~*", "&*", "+@all")
    assert "the record at offset 3 is another one than was read there" == rewinds(ledger)


@on_servers
@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_a_stream_that_is_replaced_under_a_waiting_reader_hands_nothing_over(
    server: Redis, opened: Open, count: int
) -> None:
    """In one step, so that no connection breaks and no offset is ever seen to go back."""
    ledger = opened(server.url("jobs"))
    write(ledger, b"one", b"two")
    assert [b"one", b"two"] == take(ledger, 2)
    script = (
        "redis.call('FLUSHALL') for i = 1, tonumber(ARGV[1]) do "
        "redis.call('XADD', 'jobs:ledger', '0-*', 'record', 'new ' .. i) end"
    )
    server.cli("EVAL", script, "0", str(count))
    rewinds(ledger)


@on_servers
def test_nothing_is_appended_to_a_stream_that_is_gone(server: Redis, opened: Open) -> None:
    """Or the next group would begin behind a record of the last one."""
    ledger = opened(server.url("jobs"))
    write(ledger, b"one")
    give_up_at = time.monotonic() + PATIENCE
    while ledger._reader._block < BLOCK_MAX and time.monotonic() < give_up_at:  # type: ignore[attr-defined]
        time.sleep(0.01)  # Until the reader waits for so long that the append is what meets it.
    server.cli("FLUSHALL")

    def append() -> list[int]:
        ledger.append([b"two"])
        time.sleep(0.001)
        return []

    with pytest.raises(LedgerRewound):
        until(append, 1)
    assert "0" == server.cli("EXISTS", "jobs:ledger")


@on_servers
def test_a_failover_that_lost_nothing_is_followed(opened: Open) -> None:
    require(missing())
    with Sentinel.started() as group:
        ledger = opened(group.url("jobs"))
        write(ledger, b"one", b"two")
        assert [b"one", b"two"] == take(ledger, 2)
        group.await_copies("XLEN", "jobs:ledger")
        group.master.kill()
        trouble_of(lambda: ledger.read(0))
        group.await_failover()
        assert 3 == append_through_trouble(ledger, b"three")
        assert b"three" == take_through_trouble(ledger, 1)[0]


@on_servers
def test_a_failover_that_lost_records_is_a_rewound_ledger(opened: Open) -> None:
    require(missing())
    with Sentinel.started() as group:
        ledger = opened(group.url("jobs"))
        write(ledger, b"one", b"two")
        group.await_copies("XLEN", "jobs:ledger")
        (replica,) = group.replicas
        replica.freeze()
        group.master.cli("CLIENT", "KILL", "TYPE", "replica")  # Or it would find them in its socket.
        write(ledger, b"three", b"four")
        assert [b"one", b"two", b"three", b"four"] == take(ledger, 4)
        group.master.kill()
        replica.thaw()
        group.await_failover()
        assert "it ends at 3, and there was a record at offset 4" == rewinds(ledger)


@on_servers
def test_an_answer_is_as_old_as_its_question(server: Redis, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle reader's questions wait in Redis, and what they say may have been true only when they were asked."""
    ledger = opened(server.url("jobs"))
    write(ledger, b"one")
    assert [b"one"] == take(ledger, 1)
    asked_at: list[float] = []
    too_young: list[float] = []
    enough = threading.Event()
    ask, reader = Link.ask, ledger._reader._thread  # type: ignore[attr-defined]

    def asked(link: Link, *questions: Command) -> list[Any]:
        if threading.current_thread() is reader:
            # It has the answer to its last question, and not to this one: it knows what held when it asked the last.
            if asked_at:
                since_last = time.monotonic() - asked_at[-1]
                too_young.extend(age for age in [ledger.age()] if age < since_last)
            asked_at.append(time.monotonic())
            if len(asked_at) == QUESTIONS:
                enough.set()
        return ask(link, *questions)

    monkeypatch.setattr(Link, "ask", asked)
    assert enough.wait(PATIENCE)
    assert [] == too_young


# Away, and back


@on_servers
def test_a_server_that_restarts_with_all_its_records_heals(lasting: Redis, opened: Open) -> None:
    ledger = opened(lasting.url("jobs"))
    write(ledger, b"one", b"two")
    assert [b"one", b"two"] == take(ledger, 2)
    lasting.kill()
    assert "look after the server" in trouble_of(lambda: ledger.read(0)).remedy
    trouble_of(lambda: ledger.append([b"lost"]))
    with pytest.raises(LedgerUnavailable):
        ledger.tip()
    lasting.start()
    assert 3 == append_through_trouble(ledger, b"three")
    assert b"three" == take_through_trouble(ledger, 1)[0]
    assert ledger.tip() >= 4


@on_servers
def test_a_frozen_server_is_no_silence_and_heals(server: Redis, opened: Open) -> None:
    ledger = opened(server.url("jobs"))
    write(ledger, b"one")
    assert [b"one"] == take(ledger, 1)
    server.freeze()
    try:
        trouble_of(lambda: ledger.read(0.05))
        trouble_of(lambda: ledger.append([b"lost or not"]))
        with pytest.raises(LedgerUnavailable, match=r"[Tt]imeout|timed out"):
            ledger.tip()
    finally:
        server.thaw()
    append_through_trouble(ledger, b"two")
    while b"two" not in take_through_trouble(ledger, 1):
        pass


@on_servers
def test_a_wake_up_ends_a_read_while_the_server_is_away(server: Redis, opened: Open) -> None:
    ledger = opened(server.url("jobs"))
    assert [] == ledger.read(0)
    woken = threading.Timer(0.05, ledger.wake)
    woken.start()
    assert [] == ledger.read(PATIENCE)
    woken.join()


@on_servers
def test_a_full_memory_is_said_and_heals(server: Redis, opened: Open) -> None:
    ledger = opened(server.url("jobs"))
    write(ledger, b"one")
    server.cli("CONFIG", "SET", "maxmemory", "1")
    error = trouble_of(lambda: ledger.append([b"two"]))
    assert error.found.startswith("OOM: command not allowed")
    assert "raise maxmemory" in error.remedy
    server.cli("CONFIG", "SET", "maxmemory", "0")
    append_through_trouble(ledger, b"three")


@on_servers
def test_a_master_that_waits_for_replicas_is_said_and_heals(server: Redis, opened: Open) -> None:
    ledger = opened(server.url("jobs"))
    server.cli("CONFIG", "SET", "min-replicas-to-write", "1")
    error = trouble_of(lambda: ledger.append([b"one"]))
    assert error.found.startswith("NOREPLICAS: Not enough good replicas")
    assert "bring replicas back" in error.remedy
    server.cli("CONFIG", "SET", "min-replicas-to-write", "0")
    append_through_trouble(ledger, b"two")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (redis_py.exceptions.BusyLoadingError("Redis is loading"), LedgerUnavailable, "wait: it reads its data"),
        (redis_py.ResponseError("MISCONF Redis is configured to"), LedgerUnavailable, "keeps it from saving to disk"),
        (redis_py.exceptions.MasterDownError("Link is down"), LedgerUnavailable, "bring its master back"),
        (redis_py.ResponseError("CLUSTERDOWN Hash slot not served"), LedgerUnavailable, "missing nodes back"),
        (redis_py.exceptions.MovedError("3999 127.0.0.1:6381"), LedgerUnusable, "a server that is no cluster"),
        (redis_py.exceptions.ClusterCrossSlotError("Keys"), LedgerUnusable, "write the group in braces"),
        (redis_py.ResponseError("ERR something else"), LedgerUnavailable, "look after the server"),
        (redis_py.ConnectionError("Connection refused"), LedgerUnavailable, "look after the server"),
        (OSError("no route"), LedgerUnavailable, "look after the server"),
    ],
)
def test_each_complaint_of_redis_comes_with_what_to_do(error: Exception, kind: type[Exception], said: str) -> None:
    explained = explain(error, RedisAddress("redis", "jobs", (("host", 1),)), "a read")
    assert kind is type(explained)
    assert said in explained.remedy


@on_servers
def test_a_replica_is_refused_and_so_is_a_master_that_became_one(server: Redis, opened: Open) -> None:
    with Redis.started(settings={"replicaof": f"127.0.0.1 {server.port}"}) as replica:
        with pytest.raises(LedgerUnavailable, match=r"from a master, but that server is a replica: .*redis\+sentinel"):
            opened(replica.url("jobs"))
        ledger = opened(server.url("jobs"))
        write(ledger, b"one")
        replica.cli("REPLICAOF", "NO", "ONE")
        server.cli("REPLICAOF", "127.0.0.1", str(replica.port))
        trouble_of(lambda: ledger.read(0.05), "that server is a replica")
        trouble_of(lambda: ledger.append([b"two"]), "that server is a replica")


# Rights


RIGHTS = "+hello +select +xadd +xread +xrange +xtrim +xinfo|stream"


@on_servers
def test_the_least_rights_that_the_documentation_names_are_enough(server: Redis, opened: Open) -> None:
    rights = RIGHTS.split()
    server.cli("ACL", "SETUSER", "member", "on", ">word", "resetkeys", "~jobs:*", "-@all", *rights)
    ledger = opened(server.url("jobs", who="member:word@"))
    write(ledger, b"one", b"two")
    assert [b"one", b"two"] == take(ledger, 2)
    ledger.trim(2)
    assert (2, 3) == (ledger.start(), ledger.tip())
    assert any("cannot be seen: let the user run CONFIG GET" in doubt for doubt in ledger.doubts)
    assert frozenset({Promise.MULTI_HOST}) == ledger.promises


@on_servers
def test_a_wrong_password_and_missing_rights_are_refused_when_it_is_opened(server: Redis, opened: Open) -> None:
    server.cli("ACL", "SETUSER", "member", "on", ">word", "~jobs:*", "-@all", "+select")
    server.cli("ACL", "SETUSER", "other", "on", ">word", "~others:*", "+@all")
    with pytest.raises(LedgerUnusable, match=r"WRONGPASS.*check the user and the password in the address") as caught:
        opened(server.url("jobs", who="member:hidden@"))
    assert "hidden" not in str(caught.value)
    for who in ("member:word@", "other:word@"):
        with pytest.raises(LedgerUnusable, match=r"NOPERM.*docs/redis.md"):
            opened(server.url("jobs", who=who))
    server.cli("CONFIG", "SET", "requirepass", "word")
    with pytest.raises(LedgerUnusable, match=r"NOAUTH: .*check the user"):
        opened(server.url("jobs"))


@on_servers
def test_rights_that_are_taken_away_and_given_back_heal(server: Redis, opened: Open) -> None:
    server.cli("ACL", "SETUSER", "member", "on", ">word", "~*", "+@all")
    ledger = opened(server.url("jobs", who="member:word@"))
    write(ledger, b"one")
    assert [b"one"] == take(ledger, 1)
    server.cli("ACL", "SETUSER", "member", "-@all")
    assert "NOPERM" in trouble_of(lambda: ledger.read(0)).found
    server.cli("ACL", "SETUSER", "member", "+@all")
    append_through_trouble(ledger, b"two")
    assert b"two" == take_through_trouble(ledger, 1)[0]


@on_servers
def test_a_user_that_may_not_delete_the_stream_is_told_so_and_one_that_may_deletes_it(
    server: Redis, opened: Open
) -> None:
    server.cli("ACL", "SETUSER", "member", "on", ">word", "~*", "+@all", "-del")
    url = server.url("jobs", who="member:word@")
    write(opened(url), b"one")
    with pytest.raises(LedgerUnusable, match=r"NOPERM.*docs/redis.md"):
        delete_ledger(url)
    server.cli("ACL", "SETUSER", "member", "+del")
    assert ["jobs:ledger"] == delete_ledger(url)
    assert "0" == server.cli("EXISTS", "jobs:ledger")


@on_servers
def test_tls_works_and_a_stranger_s_certificate_is_refused(server: Redis, opened: Open, tmp_path: Path) -> None:
    with Redis.started(tls=True) as secure, Redis.started(tls=True) as stranger:
        ledger = opened(secure.url("jobs"))
        write(ledger, b"one")
        assert [b"one"] == take(ledger, 1)
        url = f"rediss://127.0.0.1:{secure.port}/jobs"
        for doubtful in (url, f"{url}?ca={stranger.ca}"):
            with pytest.raises(LedgerUnavailable, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
                opened(doubtful)
        with pytest.raises(LedgerUnavailable):
            opened(f"redis://127.0.0.1:{secure.port}/jobs")  # Plain text, to who speaks TLS only.


# Promises


@on_servers
@pytest.mark.parametrize(
    ("settings", "promises", "doubt"),
    [
        ({}, set(), "appendonly is no: a restart loses records"),
        ({"appendonly": "yes"}, set(), "appendfsync is everysec: a crash may lose the records of a second or two"),
        ({"appendonly": "yes", "appendfsync": "always"}, {Promise.DURABLE}, "one disk has all records"),
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, set(), "Redis may drop the whole ledger for room"),
        (
            {"maxmemory": "100mb", "maxmemory-policy": "noeviction"},
            set(),
            "when they are full, nothing can be appended",
        ),
    ],
)
def test_what_it_promises_and_what_endangers_it_follow_from_the_settings(
    opened: Open, settings: dict[str, str], promises: set[Promise], doubt: str
) -> None:
    require(missing())
    with Redis.started(settings=settings) as server:
        ledger = opened(server.url("jobs"))
        assert {Promise.MULTI_HOST, *promises} == ledger.promises
        assert any(doubt in sentence for sentence in ledger.doubts), ledger.doubts
        assert promises == opened(server.unix_url("jobs")).promises  # Only this host can reach a socket.


@on_servers
def test_with_replicas_a_failover_is_doubted(opened: Open) -> None:
    require(missing())
    with Sentinel.started() as group:
        doubts = " ".join(opened(group.url("jobs")).doubts)
        assert "a failover may lose the newest records" in doubts
        assert "min-replicas-to-write is 0" in doubts


@on_servers
def test_an_exclusive_group_needs_its_user_s_word(lasting: Redis) -> None:
    with pytest.raises(ConfigError, match="accept_rewinds=True") as caught:
        Member(Config(lasting.url("jobs"), guarantee="exclusive"))
    assert "one disk has all records" in str(caught.value)
    with Member(Config(lasting.url("jobs"), guarantee="available", lease=0.3)) as member:
        assert member.pulse(PATIENCE)


# A whole group


@on_servers
def test_two_members_take_over_from_each_other(server: Redis) -> None:
    common: dict[str, Any] = {"layout": Layout(partitions=8), "lease": 0.5, "accept_rewinds": True}
    with Router(lambda: open_ledger(server.unix_url("jobs"), create=True, patience=1.0), wait=False) as router:
        first = Member(Config(server.url("jobs"), name="first", **common))
        assert first.pulse(PATIENCE)
        with router.watch() as watch, Member(Config(server.url("jobs"), name="second", **common)) as second:
            while len(second.led) < 4:
                watch.take(0.1)
            first.close()
            while len(second.led) < 8:
                watch.take(0.1)
            while {"second"} != {router.owner(f"key {number}").name for number in range(100)}:
                watch.take(0.1)  # The router reads by itself.
        assert second.closed


@on_servers
def test_members_on_a_server_that_lost_records_stop_and_say_why(server: Redis) -> None:
    with Member(Config(server.url("jobs"), lease=0.5, accept_rewinds=True)) as member:
        assert member.pulse(PATIENCE)
        server.restart()
        with pytest.raises(LedgerRewound, match="a restart without AOF, a failover, FLUSHALL"):
            member.await_closed(timeout=PATIENCE)
        assert {} == dict(member._membership.standing.terms)


@on_servers
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_is_refused_and_the_parent_goes_on(server: Redis, opened: Open) -> None:
    ledger = opened(server.url("jobs"))
    write(ledger, b"one")
    child = os.fork()
    if not child:  # pragma: no cover - counted in another process.
        refused = 0
        for act in (lambda: ledger.read(0), lambda: ledger.append([b"x"]), ledger.tip, ledger.start):
            try:
                act()
            except LedgerUnusable:
                refused += 1
        ledger.wake()
        ledger.close()
        os._exit(refused)
    assert 4 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    write(ledger, b"two")
    assert [b"one", b"two"] == take(ledger, 2)
