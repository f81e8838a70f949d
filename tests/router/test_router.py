"""The router: look-ups over real ledgers and threads. test_feed.py tests when a feed believes its source."""

import copy
import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from neli_router.config.config import Config
from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.errors import (
    BadKey,
    Closed,
    ConfigError,
    GroupMismatch,
    LedgerMissing,
    LedgerUnusable,
    MissingExtra,
    NeliError,
    NoOwner,
    StaleTable,
)
from neli_router.protocols.induction.records import Leave
from neli_router.router.router import Router
from neli_router.router.table import Owner, Peer, Table
from neli_router.router.watch import Change
from tests.support.groups import LAYOUT, Flaky, Plights, flaky, genesis, join, log_of, refused_by, write
from tests.support.waiting import PATIENCE, beside, until


@pytest.fixture
def log() -> MemoryLog:
    return log_of("a")


@pytest.fixture
def router(log: MemoryLog) -> Iterator[Router]:
    with Router(lambda: MemoryLedger(log)) as router:
        yield router


def test_a_router_names_the_owner_and_follows_the_ledger(log: MemoryLog, router: Router) -> None:
    kept = router.owner
    partition = LAYOUT.partition("key")
    assert Owner("a", "a:1", partition, 1_002) == router.owner("key") == router.owner(b"key") == kept("key")
    assert [router.owner("key"), router.owner("Zoë")] == router.owners(["key", "Zoë"])
    assert (Peer("a", "a:1", 1, ""),) == router.members
    with router.watch() as watch:
        write(MemoryLedger(log), join("b"), Leave(by="a"))
        assert {0, 1, 2, 3} == {cast("Change", watch.take(PATIENCE)).partition for _ in range(4)}
    assert Owner("b", "b:1", partition, 1_004) == router.owner("key") == kept("key")
    assert router.table.offset == router.at.offset == 5
    assert (Peer("b", "b:1", 1, ""),) == router.members


def test_what_is_neither_text_nor_bytes_is_refused_whatever_else_is_wrong(router: Router) -> None:
    for _ in range(2):
        for bad in (7, None, True, 1.5, bytearray(b"ab"), memoryview(b"ab"), "\ud800", "a\udfff", ("a",)):
            with pytest.raises(BadKey) as caught:
                router.owner(cast("Any", bad))
            assert caught.value.__context__ is None
        router.close()


def test_a_role_is_a_number_or_a_name_and_mine_are_the_named_members_keys(log: MemoryLog, router: Router) -> None:
    assert 3 == router.owner_of_role(3).partition
    assert router.owner("nightly") == router.owner_of_role("nightly")
    with pytest.raises(BadKey):
        router.owner_of_role(cast("Any", None))
    keys = [f"key-{i}" for i in range(20)]
    with Router(lambda: MemoryLedger(log), name="a") as of_a, Router(lambda: MemoryLedger(log), name="b") as of_b:
        assert (keys, []) == (of_a.mine(keys), of_b.mine(keys))
    with pytest.raises(ConfigError, match=r"mine\(\) needs to know who is asking: give the router a name"):
        router.mine(keys)


def test_a_thread_that_looks_up_meets_only_owners_while_tables_come_and_go(log: MemoryLog, router: Router) -> None:
    ledger = MemoryLedger(log)
    names, stop = set[str](), threading.Event()

    def look_up() -> None:
        owner = router.owner
        while not stop.is_set():
            names.update(owner(f"key-{i}").name for i in range(100))

    with beside(*[look_up] * 3, end=stop.set), router.watch() as watch:
        for i in range(12):
            write(ledger, join(f"m{i}"), Leave(by=f"m{i - 1}" if i else "a"))
            while cast("Change", watch.take(PATIENCE)).after != Owner(f"m{i}", f"m{i}:1", 3, 1_000 + log.tip - 1):
                pass
    assert names <= {"a", *(f"m{i}" for i in range(12))}
    assert "m11" == router.owner("key").name


def test_a_configuration_speaks_where_the_call_does_not(tmp_path: Path) -> None:
    """test_async_router.py opens a configuration and an address, and compares their answers."""
    with closing(SqliteLedger(tmp_path / "ledger.db")) as ledger:
        write(ledger, genesis(), join("a"))
        config = Config(f"sqlite:{tmp_path}/ledger.db", layout=Layout(), max_age=None)
        with pytest.raises(GroupMismatch, match="slots=16384, partitions=256, tags=off against slots=64, partitions=4"):
            Router(config)
        with Router(config, layout=LAYOUT, name="a") as router:
            assert ["key"] == router.mine(["key"])


def test_what_is_no_source_is_refused(log: MemoryLog) -> None:
    with pytest.raises(ConfigError, match="sqlight is not a known kind of ledger: did you mean sqlite"):
        Router("sqlight:ledger.db")
    # An open handle could not be opened again, which a forked child must do.
    expected = "a MemoryLedger is not a source: give a Config, an address, or a function that"
    with pytest.raises(ConfigError, match=expected):
        Router(cast("Any", MemoryLedger(log)))


def test_a_static_router_needs_no_ledger() -> None:
    owners = [Owner(name, f"{name}:1", i, 1) for i, name in enumerate("abcd")]
    with Router.static(owners, LAYOUT, name="b") as router:
        assert owners[LAYOUT.partition("key")] == router.owner("key")
        assert ["<Router of a static table: at offset 0, 0.0 s old>", None] == [repr(router), router.error]
        assert [key for key in map(str, range(9)) if LAYOUT.partition(key) == 1] == router.mine(map(str, range(9)))
    with pytest.raises(Closed):
        router.owner("key")


def test_a_router_without_a_member_makes_no_ledger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "ledger.db"
    why = f"no member has made the ledger sqlite:{path} yet (there is no such file)"
    with Router(f"sqlite:{path}", wait=False) as router:
        Plights(router).await_one("unmade")
        for kind, ask in ((NoOwner, lambda: router.owner("key")), (LedgerMissing, lambda: router.await_table(0.01))):
            refused = refused_by(ask)
            assert (kind, True) == (type(refused), f"{why}: start a member, which" in str(refused))
        assert [] == list(tmp_path.iterdir())
        until(lambda: "router.waits" in caplog.text)
        # Patient: the router looks at the file while it is made.
        ledger = SqliteLedger(path, busy_max=PATIENCE)
        write(ledger, genesis(), join("a"))
        router.await_table(PATIENCE)
        # It may have read the file before there was a record in it: then it is certain that no member is alive.
        until(lambda: isinstance(view := router.feed.view, Table) and view.rows, "a table in which all have owners")
        assert "a" == router.owner("key").name
        ledger.close()
    # The last notice of an earlier test's router may come this late.
    told = [line for line in caplog.messages if str(path) in line]
    assert [f"router.waits ledger=sqlite:{path} why='{why}'"] == told


def test_a_driver_that_hangs_at_the_opening_delays_no_caller(log: MemoryLog, caplog: pytest.LogCaptureFixture) -> None:
    """Like the driver of a Kafka whose port accepts connections and never answers. The log says what it waits for."""
    answers, handles = threading.Event(), list[Flaky]()

    def open_ledger() -> Ledger:
        answers.wait(PATIENCE)
        return flaky(log, handles)

    expected = "a table of the ledger was wanted within 0.01 s, but the ledger was not yet read"
    with pytest.raises(StaleTable, match=expected):
        Router(open_ledger, timeout=0.01)
    with Router(open_ledger, wait=False) as router:
        assert StaleTable is type(refused_by(lambda: router.owner("key")))
        until(lambda: "router.waits ledger= why='the ledger was not yet read up to its end'" in caplog.text)
    assert Closed is type(refused_by(lambda: router.owner("key")))
    answers.set()
    until(lambda: [True, True] == [handle.closed.is_set() for handle in handles])


def test_a_driver_that_is_not_installed_is_told_to_who_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "redis" or "ledgers.redis.l" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(MissingExtra, match="redis-py was wanted, for a ledger in Redis, but it is not installed"):
        Router("redis://localhost/jobs", wait=False)


def test_a_driver_that_hangs_does_not_keep_an_old_table_in_use(log: MemoryLog) -> None:
    ledger = Flaky(log)
    with Router(lambda: ledger, max_age=1.0) as router:
        plights, kept = Plights(router), router.owner
        assert "none" == plights.next()
        ledger.flowing.clear()
        assert "stale" == plights.next()
        look_ups = (lambda: router.owner("key"), lambda: kept("key"), lambda: router.owner_of_role("key"))
        for ask in (*look_ups, lambda: router.owners(["key"]), lambda: router.table, lambda: router.members):
            with pytest.raises(StaleTable, match=r"was last read .* s ago, up to offset 3, and max_age is 1 s"):
                ask()
        assert router.at.age > 1.0
        assert repr(router).startswith("<Router of memory: stale, at offset 3, ")
        ledger.flowing.set()
        assert "none" == plights.next()
        assert "a" == router.owner("key").name == kept("key").name


def test_what_ends_the_reading_is_what_look_ups_raise_until_it_is_mended_and_reopened(log: MemoryLog) -> None:
    handles: list[Flaky] = []
    with Router(lambda: flaky(log, handles)) as router:
        plights, kept = Plights(router), router.owner
        handles[0].failure = failure = LedgerUnusable("a ledger was wanted", "it is damaged", "make a new one")
        assert ["none", "stopped"] == [plights.next(), plights.next()]
        first, second = (refused_by(lambda: router.owner("key")) for _ in range(2))
        assert [LedgerUnusable] * 3 == [type(error) for error in (first, second, router.error)]
        assert str(failure) == str(first) == str(second)
        assert first is not second
        with pytest.raises(LedgerUnusable):
            router.await_table()
        assert handles[0].closed.wait(PATIENCE)
        router.reopen()
        assert "a" == router.owner("key").name == kept("key").name
        router.reopen()
        assert ([True, True, False], "a") == ([one.closed.is_set() for one in handles], kept("key").name)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_defect_in_the_reading_thread_is_no_reason_to_trust_the_last_table(log: MemoryLog) -> None:
    ledger = Flaky(log)
    with Router(lambda: ledger, max_age=None) as router:
        plights = Plights(router)
        ledger.failure = ZeroDivisionError("division by zero")
        assert ["none", "stopped"] == [plights.next(), plights.next()]
        with pytest.raises(NeliError, match="it ended by a ZeroDivisionError, which is a defect"):
            router.owner("key")


def test_a_reader_that_hung_and_comes_back_disturbs_no_other(log: MemoryLog) -> None:
    """Closing gave up waiting for it. Another reader has opened the ledger since, so its news must not count."""
    handles: list[Flaky] = []
    with Router(lambda: flaky(log, handles)) as router:
        hung = handles[0]
        hung.flowing.clear()
        router.reopen()
        hung.failure = LedgerUnusable("a ledger was wanted", "it is damaged", "make a new one")
        hung.flowing.set()
        assert hung.closed.wait(PATIENCE)
        assert ("a", None) == (router.owner("key").name, router.error)


def test_after_closing_look_ups_raise_closed_and_closing_twice_is_fine(router: Router) -> None:
    kept, watch = router.owner, router.watch()
    router.close()
    router.close()
    asks = (lambda: kept("key"), lambda: router.owners(["key"]), lambda: router.table, router.reopen)
    for ask in (*asks, lambda: router.await_table(0)):
        with pytest.raises(Closed, match="this router was closed before"):
            ask()
    assert [] == list(watch)
    assert repr(router).startswith("<Router of memory: closed, at offset 3, ")
    assert "neli-router" not in {thread.name for thread in threading.enumerate()}


def test_a_router_that_a_program_forgot_stops_reading_but_a_kept_owner_keeps_its_router(log: MemoryLog) -> None:
    ledger = Flaky(log)
    router = Router(lambda: ledger)
    gone, owner = weakref.ref(router), router.owner
    del router
    gc.collect()
    assert "a" == owner("key").name
    del owner
    while not ledger.closed.wait(0.01):
        gc.collect()
    assert gone() is None


def test_a_router_cannot_be_copied_but_its_table_can(router: Router) -> None:
    duplicates: tuple[Callable[[object], object], ...] = (pickle.dumps, copy.copy, copy.deepcopy)
    expected = r"a Router cannot be pickled: .*\. Send memory and open a router where that"
    for duplicate in duplicates:
        with pytest.raises(TypeError, match=expected):
            duplicate(router)
        duplicate(router.table)
