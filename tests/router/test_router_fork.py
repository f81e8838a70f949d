"""A forked child has the router's memory and none of its threads: look-ups raise until it opens the ledger itself."""

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from neli_router.errors import NeliError
from neli_router.induction.records import Genesis, Join, Leave, Record, encode
from neli_router.keyspace import Layout
from neli_router.ledgers.sqlite.ledger import SqliteLedger
from neli_router.router.async_router import AsyncRouter
from neli_router.router.feed import WATCHDOG, Feed
from neli_router.router.router import Router
from neli_router.router.table import Owner

# From 3.12 on, Python warns of a fork in a process that has threads. That is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

LAYOUT = Layout(slots=64, partitions=4)
GENESIS = Genesis(by="x", layout=LAYOUT, lease=3600.0, guarantee="exclusive", base=1_000, version=1)
PATIENCE_S = 60


def join(name: str) -> Join:
    return Join(by=name, name=name, address=f"{name}:1", versions=(1, 1), at=0)


def write(path: Path, *records: Record) -> None:
    ledger = SqliteLedger(path)
    ledger.append([encode(record) for record in records])
    ledger.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    write(path, GENESIS, join("a"))
    return path


@pytest.fixture
def router(path: Path) -> Iterator[Router]:
    with Router(f"sqlite:{path}", max_age=60.0) as router:
        yield router


def in_child(act: Callable[[], object]) -> str:
    """What `act` returned in a forked child, or the name of the error that it raised there."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        signal.alarm(PATIENCE_S)  # A child that hangs must not hang the tests.
        said = "nothing"
        try:
            said = str(act())
        except BaseException as error:  # noqa: BLE001 - the parent asks which.
            said = type(error).__name__ if isinstance(error, NeliError) else repr(error)
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return said if status == 0 else f"ended by signal {os.WTERMSIG(status)}"


def changed_to(router: Router, path: Path, *records: Record) -> str:
    """The owner of everything after `records`."""
    with router.watch() as watch:
        write(path, *records)
        assert watch.take(PATIENCE_S) is not None
    return router.owner("key").name


def test_look_ups_in_a_child_raise_forked_until_it_reopens(router: Router, path: Path) -> None:
    kept = router.owner

    def child() -> str:
        said = [error_of(partial(ask, "key")) for ask in (kept, router.owner, router.owner_of_role, router.owners)]
        said += [error_of(lambda: router.table), error_of(partial(router.await_table, 0))]
        router.reopen()
        said += [kept("key").name, router.owner("key").name]
        said.append(changed_to(router, path, join("b"), Leave(by="a")))
        router.close()
        return " ".join([*said, error_of(lambda: kept("key"))])

    assert "Forked Forked Forked Forked Forked Forked a a b Closed" == in_child(child)
    # The parent went on all the while, and saw what the child wrote.
    assert "c" == changed_to(router, path, join("c"), Leave(by="b"))


def test_the_error_says_what_to_do(router: Router) -> None:
    def child() -> str:
        with pytest.raises(NeliError) as caught:
            router.owner("key")
        return str(caught.value)

    slot = LAYOUT.slot("key")
    assert (
        f"the owner of slot {slot} was wanted, but this process is a fork, and what reads the ledger stayed in its "
        "parent: reopen the router here; if a member feeds it, open a member here"
    ) == in_child(child)


def test_a_child_that_closes_or_just_ends_leaves_its_parent_alone(router: Router, path: Path) -> None:
    def close() -> str:
        router.close()
        return error_of(lambda: router.owner("key"))

    assert "Closed" == in_child(close)
    assert "nothing to say" == in_child(lambda: "nothing to say")
    assert "b" == changed_to(router, path, join("b"), Leave(by="a"))


def test_a_grandchild_reopens_too(router: Router) -> None:
    def reopen() -> str:
        said = error_of(lambda: router.owner("key"))
        router.reopen()
        return f"{said} {router.owner('key').name}"

    assert "Forked a, and its child: Forked a" == in_child(lambda: f"{reopen()}, and its child: {in_child(reopen)}")


def test_locks_that_other_threads_held_do_not_stop_the_child(router: Router) -> None:
    """Threads do not live on in a child; their locks stay locked there for ever."""
    held, release = threading.Barrier(3), threading.Event()

    def hold(lock: threading.Condition) -> None:
        with lock:
            held.wait()
            release.wait()

    watch = router.watch()
    locks = [router.feed._changed, watch._changed]
    threads = [threading.Thread(target=hold, args=(lock,)) for lock in locks]
    for thread in threads:
        thread.start()
    held.wait()

    def child() -> str:
        said = [error_of(lambda: router.owner("key")), error_of(lambda: watch.take(0))]
        router.reopen()
        return " ".join([*said, router.owner("key").name, str(router.watch().take(0))])

    assert "Forked Forked a None" == in_child(child)
    release.set()
    for thread in threads:
        thread.join()


def test_the_watchdogs_lock_does_not_stop_the_child_and_it_watches_there(router: Router) -> None:
    def child() -> str:
        router.reopen()
        thread = WATCHDOG._thread
        return f"{thread is not None and thread.is_alive()} {router.owner('key').name}"

    with WATCHDOG._changed:
        assert "True a" == in_child(child)


def test_a_fork_in_the_middle_of_a_change_leaves_no_half_of_it_behind(router: Router, path: Path) -> None:
    for i in range(10):
        writer = threading.Thread(target=write, args=(path, join(f"m{i}"), Leave(by=f"m{i - 1}" if i else "a")))
        writer.start()

        def child() -> str:
            router.reopen()
            table = router.table
            terms = {owner.term - GENESIS.base for owner in table.partitions if owner is not None}
            return f"{len(terms)} term, below {table.offset}" if max(terms) < table.offset else f"{terms}"

        assert in_child(child).startswith("1 term, below ")
        writer.join()


def test_a_watch_of_the_parent_ends_in_the_child(router: Router, path: Path) -> None:
    watch = router.watch()
    assert "Forked" == in_child(lambda: next(watch))
    write(path, join("b"), Leave(by="a"))
    assert watch.take(PATIENCE_S) is not None


def test_a_router_that_a_member_feeds_cannot_reopen_and_says_so() -> None:
    feed = Feed("memory", tell=print)
    fed = Router(feed)
    assert "Forked Forked" == in_child(lambda: f"{error_of(fed.reopen)} {error_of(lambda: fed.owner('key'))}")


def test_a_static_router_is_as_good_in_a_child() -> None:
    fixed = Router.static([Owner("a", "", i, 1) for i in range(4)], LAYOUT)

    def child() -> str:
        name = fixed.owner("key").name
        fixed.reopen()
        return f"{name} {fixed.owner('key').name}"

    assert "a a" == in_child(child)


def test_a_process_of_multiprocessing_inherits_a_router(router: Router) -> None:
    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()

    def child(inherited: Router) -> None:
        said.put(error_of(lambda: inherited.owner("key")))
        inherited.reopen()
        said.put(inherited.owner("key").name)

    process = context.Process(target=child, args=(router,))
    process.start()
    process.join(PATIENCE_S)
    assert (0, "Forked", "a") == (process.exitcode, said.get(), said.get())


def test_an_async_router_reopens_in_the_childs_own_loop(path: Path) -> None:
    async def parent() -> None:
        async with AsyncRouter(f"sqlite:{path}") as router:
            waiting = asyncio.create_task(router.watch().take())
            await asyncio.sleep(0)

            async def child() -> str:
                said = error_of(lambda: router.owner("key"))
                await router.reopen()
                name = router.owner("key").name
                await router.close()
                return f"{said} {name}"

            # The child is in the middle of its parent's loop, so it takes a thread for one of its own.
            assert "Forked a" == in_child(lambda: in_thread(lambda: asyncio.run(child())))
            assert not waiting.done()
            write(path, join("b"), Leave(by="a"))
            assert await waiting is not None

    asyncio.run(parent())


def in_thread(act: Callable[[], object]) -> object:
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(act()))
    thread.start()
    thread.join()
    return answers[0]


def error_of(act: Callable[[], Any]) -> str:
    try:
        return f"no error, but {cast('object', act())}"
    except NeliError as error:
        return type(error).__name__
