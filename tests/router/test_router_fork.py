"""A forked child has the router's memory but not its threads: look-ups raise until it opens the ledger itself."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.protocols.induction.records import Leave, Record
from neli_router.router.async_router import AsyncRouter
from neli_router.router.feed import WATCHDOG, Feed
from neli_router.router.router import Router
from neli_router.router.table import Owner
from tests.support.forking import in_child, raised_by
from tests.support.groups import LAYOUT, genesis, join, refused_by, write
from tests.support.waiting import PATIENCE, beside

# From 3.12 on, Python warns about a fork in a process with threads, which is what these tests do.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def append(path: Path, *records: Record) -> None:
    with closing(SqliteLedger(path)) as ledger:
        write(ledger, *records)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    append(path, genesis(), join("a"))
    return path


@pytest.fixture
def router(path: Path) -> Iterator[Router]:
    with Router(f"sqlite:{path}", max_age=60.0) as router:
        yield router


def changed_to(router: Router, path: Path, *records: Record) -> str:
    """The owner of everything after `records`."""
    with router.watch() as watch:
        append(path, *records)
        assert watch.take(PATIENCE) is not None
    return router.owner("key").name


def test_look_ups_in_a_child_raise_forked_which_says_what_to_do_until_it_reopens(router: Router, path: Path) -> None:
    kept = router.owner

    def child() -> str:
        said = [raised_by(partial(ask, "key")) for ask in (kept, router.owner, router.owner_of_role, router.owners)]
        said += [raised_by(lambda: router.table), raised_by(partial(router.await_table, 0))]
        router.reopen()
        said += [kept("key").name, router.owner("key").name]
        said.append(changed_to(router, path, join("b"), Leave(by="a")))
        router.close()
        return " ".join([*said, raised_by(lambda: kept("key"))])

    assert "Forked Forked Forked Forked Forked Forked a a b Closed" == in_child(lambda: in_child(child))
    assert (
        f"the owner of slot {LAYOUT.slot('key')} was wanted, but this process is a fork, and what reads the ledger "
        "stayed in its parent: reopen the router here; if a member feeds it, open a member here"
    ) == in_child(lambda: str(refused_by(lambda: router.owner("key"))))
    # The parent kept going, and saw what the child wrote.
    assert "c" == changed_to(router, path, join("c"), Leave(by="b"))


def test_a_child_that_closes_or_just_ends_leaves_its_parent_and_its_watches_alone(router: Router, path: Path) -> None:
    watch = router.watch()
    assert ["nothing", "Closed"] == in_child(lambda: [raised_by(router.close), raised_by(lambda: router.owner("key"))])
    assert "nothing to say" == in_child(lambda: "nothing to say")
    assert "Forked" == in_child(lambda: raised_by(lambda: next(watch)))
    assert "b" == changed_to(router, path, join("b"), Leave(by="a"))
    assert watch.take(PATIENCE) is not None


def test_locks_that_other_threads_held_do_not_stop_the_child(router: Router) -> None:
    """Threads do not survive in a child; their locks stay locked there forever."""
    held, release = threading.Barrier(4), threading.Event()

    def hold(lock: threading.Condition) -> None:
        with lock:
            held.wait()
            release.wait()

    watch = router.watch()
    locks = [router.feed._changed, watch._changed, WATCHDOG._changed]

    def child() -> str:
        said = [raised_by(lambda: router.owner("key")), raised_by(lambda: watch.take(0))]
        router.reopen()
        watchdog = WATCHDOG._thread
        said.append(f"{watchdog is not None and watchdog.is_alive()}")
        return " ".join([*said, router.owner("key").name, str(router.watch().take(0))])

    with beside(*(partial(hold, lock) for lock in locks), end=release.set):
        held.wait()
        assert "Forked Forked True a None" == in_child(child)


def test_a_router_that_a_member_feeds_cannot_reopen_and_a_static_one_need_not() -> None:
    fed, fixed = Router(Feed("memory", tell=print)), Router.static([Owner("a", "", i, 1) for i in range(4)], LAYOUT)

    def child() -> str:
        said = [raised_by(fed.reopen), raised_by(lambda: fed.owner("key")), fixed.owner("key").name]
        fixed.reopen()
        return " ".join([*said, fixed.owner("key").name])

    assert "Forked Forked a a" == in_child(child)


def test_an_async_router_reopens_in_the_childs_own_loop(path: Path) -> None:
    async def parent() -> None:
        async with AsyncRouter(f"sqlite:{path}") as router:
            waiting = asyncio.create_task(router.watch().take())
            await asyncio.sleep(0)

            async def child() -> str:
                said = raised_by(lambda: router.owner("key"))
                await router.reopen()
                name = router.owner("key").name
                await router.close()
                return f"{said} {name}"

            # The child is in the middle of its parent's loop, so it uses a thread for its own loop.
            assert "Forked a" == in_child(lambda: ThreadPoolExecutor().submit(asyncio.run, child()).result())
            assert not waiting.done()
            append(path, join("b"), Leave(by="a"))
            assert await waiting is not None

    asyncio.run(parent())
