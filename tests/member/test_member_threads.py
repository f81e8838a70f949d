"""Members as programs run them: on threads, in real time, on memory and on SQLite; and whole processes."""

import logging
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.base import Entry, Ledger
from neli_router.drivers.ledgers.memory import MemoryLog
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.errors import (
    Closed,
    ConfigError,
    GroupMismatch,
    LeaseLost,
    LedgerUnavailable,
    LedgerUnusable,
    NeliError,
    NotLeading,
)
from neli_router.member.engine import Engine
from neli_router.member.member import Member
from neli_router.member.membership import Lease
from neli_router.member.runtime import Runtime
from neli_router.protocols.induction.records import Beat, Leave, decode
from neli_router.protocols.protocol import Acquired, Event, Fenced, Revoked
from tests.support.groups import Flaky, flaky
from tests.support.waiting import PATIENCE, beside, until


class Unsteady(Runtime):
    """A runtime whose in-memory ledgers can be made unreachable, or broken."""

    def __init__(self, log: MemoryLog | None = None) -> None:
        self.log = MemoryLog() if log is None else log
        self.problem: BaseException | None = None
        self.opened: list[Flaky] = []

    def ledger(self, config: Config) -> Ledger:
        if self.problem is not None:
            raise self.problem
        return flaky(self.log, self.opened)

    def fail(self, problem: BaseException | None) -> None:
        self.problem = problem
        for ledger in self.opened:
            ledger.failure = problem


AWAY = LedgerUnavailable("the ledger was wanted", "it was taken away", "give it back")

Make = Callable[..., Config]


@pytest.fixture
def in_memory(request: pytest.FixtureRequest) -> Make:
    """Creates the configuration of a member, for tests in which the kind of ledger makes no difference."""

    def make(name: str, **options: Any) -> Config:
        return Config(
            f"memory://{request.node.name}", **{"name": name, "lease": 0.5, "layout": Layout(partitions=8), **options}
        )

    return make


@pytest.fixture(autouse=True)
def _leave_no_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    until(lambda: not [one for one in set(threading.enumerate()) - before if one.name != "neli-watchdog"])


@pytest.mark.parametrize("alive", [True, False], ids=["copied while its member lived", "copied at rest"])
def test_a_ledger_restored_from_an_older_copy_gives_no_term_again(tmp_path: Path, alive: bool) -> None:
    ledger, copy = tmp_path / "ledger.db", tmp_path / "copy.db"

    def backed_up() -> None:
        with closing(sqlite3.connect(ledger)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)

    def terms(name: str, then: Callable[[], None] = lambda: None) -> set[int]:
        with Member(Config(f"sqlite:{ledger}", name=name, lease=0.2, layout=Layout(partitions=4))) as member:
            until(lambda: 4 == len(member.led))
            then()
            return set(member.led.values())

    terms("a", backed_up if alive else lambda: None)
    if not alive:
        backed_up()
    given = terms("b") | terms("c")
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    copy.rename(ledger)
    assert max(given) < min(terms("d"))


def test_a_member_that_ends_slowly_reports_another_layout(in_memory: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    end = Engine._end

    def slowly(engine: Engine, *given: Any, **options: Any) -> None:
        time.sleep(0.3)
        end(engine, *given, **options)

    with Member(in_memory("a")) as a:
        until(lambda: a.state.genesis)
        monkeypatch.setattr(Engine, "_end", slowly)
        with pytest.raises(GroupMismatch, match=r"slots=16384, partitions=4, .* against slots=16384, partitions=8"):
            Member(in_memory("b", layout=Layout(partitions=4)))


@pytest.mark.parametrize("timeout", [None, 0.2])
def test_closing_waits_for_another_threads_block_until_its_timeout(in_memory: Make, timeout: float | None) -> None:
    def work() -> None:
        try:
            with a.leading(0) as lease:
                entered.set()
                assert lease.revoked.wait(PATIENCE)
                assert timeout is None or closed.wait(PATIENCE)
                done.append(lease.holds())
        except LeaseLost as error:
            lost.append(error.found)

    entered, closed, done, lost = threading.Event(), threading.Event(), list[bool](), list[str]()
    with Member(in_memory("a")) as a, beside(work):
        assert entered.wait(PATIENCE)
        a.close(timeout=timeout)
        assert a.closed
        closed.set()
    if timeout is None:
        assert ([True], []) == (done, lost)
    else:
        assert ([False], True) == (done, lost[0].startswith("it was lost"))
        assert "the program left the group without finishing" in lost[0]


@pytest.mark.parametrize("when", [Acquired, Revoked, Fenced])
def test_closing_in_a_handler_does_not_deadlock(when: type[Event]) -> None:
    runtime = Unsteady()

    def close(event: Event) -> None:
        if isinstance(event, when | Fenced):  # On a busy machine the member may lose its lease before it is asked.
            member.close()
            member.close(timeout=0.0)

    member = Member(Config("memory://unused", name="a", lease=0.3), on_event=close, runtime=runtime)
    if when is not Acquired:
        assert member.pulse(PATIENCE)
    with Member(Config("memory://unused", name="b", lease=0.3), runtime=Unsteady(runtime.log)) as other:
        if when is Fenced:
            runtime.fail(AWAY)
            until(lambda: member.engine.membership.closing)
            runtime.fail(None)
        assert member.wait(timeout=PATIENCE)
        until(lambda: 256 == len(other.led))
    assert [True] == [ledger.closed.is_set() for ledger in runtime.opened]


def test_tasks_run_on_threads_of_their_own_until_they_are_stopped_or_raise(in_memory: Make) -> None:
    def work(lease: Lease) -> None:
        ran.append((lease.holds(), threading.current_thread().name))

    def broken(_: Lease) -> None:
        raise SystemExit

    ran: list[tuple[bool, str]] = []
    with Member(in_memory("mine")) as member, Member(in_memory("other")) as other:
        until(lambda: 4 == len(other.led) == len(member.led))
        handle = member.background(work, role=min(member.led), interval=0.01)
        until(lambda: len(ran) > 2)
        assert (True, False) == (handle.running, handle.wait(0.0))
        handle.stop()
        assert (True, False) == (handle.wait(PATIENCE), handle.running)
        with pytest.raises(SystemExit):
            member.background(broken, role=min(member.led)).wait(PATIENCE)
        # Two tasks wait to lead: one is stopped, and one ends with its member.
        stopped, closed = (member.background(work, role=min(other.led)) for _ in range(2))
        stopped.stop()
        assert (True, False) == (stopped.wait(PATIENCE), closed.wait(0.0))
        member.close()
        assert closed.wait(PATIENCE)
    assert {(True, "neli-mine-background")} == set(ran)


def test_a_member_that_starts_during_an_outage_joins_after_it(caplog: pytest.LogCaptureFixture) -> None:
    runtime = Unsteady()
    runtime.fail(AWAY)
    config = Config("memory://unused", lease=0.3)
    with caplog.at_level(logging.INFO), Member(config, wait=True, runtime=runtime) as member:
        with pytest.raises(NotLeading, match="out of reach"):
            member.leading(0, timeout=0.3).__enter__()
        with pytest.raises(LedgerUnavailable, match="it was taken away"):
            member.operator.drain("x", timeout=0.1)
        runtime.fail(None)
        assert member.pulse(PATIENCE)
        assert "" == member.engine.membership.obstacle
    told = [record.getMessage() for record in caplog.records if " what=open " in record.getMessage()]
    assert ["ledger.unavailable", "ledger.available"] == [line.partition(" ")[0] for line in told]
    assert "it was taken away: give it back" in told[0]
    runtime.fail(AWAY)
    member = Member(config, wait=True, runtime=runtime)
    member.close()
    assert member.wait()
    opened = len(runtime.opened)

    def refusal() -> str:
        with pytest.raises(LedgerUnavailable) as caught:
            Member(config, timeout=0.3, runtime=runtime)
        return str(caught.value)

    # On a busy machine the first try to open it may take longer.
    until(lambda: "within 0.3 s, but it was taken away: give it back; to start before" in refusal())
    assert opened == len(runtime.opened)


class Hanging(Unsteady):
    """A runtime whose driver hangs while opening, like the driver of a Kafka whose port never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()

    def ledger(self, config: Config) -> Ledger:
        self.answers.wait(PATIENCE)
        return super().ledger(config)


def test_a_driver_that_hangs_in_the_opening_holds_up_no_caller(caplog: pytest.LogCaptureFixture) -> None:
    runtime = Hanging()
    member = Member(Config("memory://unused", lease=0.3), timeout=0.01, wait=True, runtime=runtime)
    until(lambda: "no answer has come" in caplog.text)
    assert "no answer has come" in member.engine.membership.obstacle
    member.close()
    assert (True, None, []) == (member.closed, member.error, runtime.opened)
    with pytest.raises(Closed):
        member.pulse(0)
    runtime.answers.set()
    until(lambda: runtime.opened and runtime.opened[0].closed.is_set())


def test_a_group_that_answers_late_may_refuse() -> None:
    runtime, config = Hanging(), Config("memory://unused", lease=0.3)
    with Member(config, runtime=Unsteady(runtime.log)) as other:
        assert other.pulse(PATIENCE)
        member = Member(replace(config, lease=0.4), timeout=0.01, wait=True, runtime=runtime)
        runtime.answers.set()
        with pytest.raises(GroupMismatch, match=r"lease 0\.4 s here and 0\.3 s there"):
            member.wait(timeout=PATIENCE)


def test_a_member_that_has_stopped_waits_for_no_more_records() -> None:
    """It used to read once more, for half a second, before it reported its end."""
    runtime, woken = Unsteady(), threading.Event()

    def sleep(_: float) -> list[Entry]:
        woken.wait(PATIENCE)
        woken.clear()
        raise AWAY

    member = Member(Config("memory://unused", lease=0.5), runtime=runtime)
    assert member.pulse(PATIENCE)
    (ledger,) = runtime.opened
    ledger.wake, ledger.read = woken.set, sleep  # type: ignore[assignment, method-assign]
    member.close(timeout=0.3)  # Its Leave is never read, so it is then asked to end immediately.
    until(lambda: member.closed)


@pytest.mark.parametrize(
    "problem",
    [
        LedgerUnusable("the ledger was wanted", "it is corrupt", "start a new one"),
        RuntimeError("a driver with a bug"),
        SystemExit("a driver that ends the thread"),
    ],
)
def test_what_the_ledger_cannot_recover_from_ends_the_member_with_its_error(problem: BaseException) -> None:
    runtime, told = Unsteady(), list[Event]()
    member = Member(Config("memory://unused", lease=0.3), on_event=told.append, runtime=runtime)
    assert member.pulse(PATIENCE)
    lease = member.lease(0)
    runtime.fail(problem)
    for _ in range(2):
        with pytest.raises(type(problem)) as raised:
            member.wait(timeout=PATIENCE)
        assert str(problem) == str(raised.value)
    until(lambda: isinstance(told[-1], Fenced) and runtime.opened[0].closed.is_set())
    assert lease is not None
    assert not lease.holds()
    with pytest.raises(NeliError):
        member.router.owner("key")
    for ask in (lambda: list(member.changes()), lambda: member.led, lambda: member.__exit__(None, None, None)):
        with pytest.raises(type(problem)):
            ask()
    with pytest.raises(ZeroDivisionError), member:
        raise ZeroDivisionError


def test_what_will_not_heal_is_raised_by_the_constructor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LedgerUnusable, match="there is no folder"):
        Member(Config(f"sqlite://{tmp_path}/nowhere/ledger.db"))
    runtime = Unsteady()
    monkeypatch.setattr(Flaky, "promises", frozenset())
    with pytest.raises(ConfigError, match="needs a ledger that never rewinds"):
        Member(Config("memory://unused"), runtime=runtime)
    assert [True] == [ledger.closed.is_set() for ledger in runtime.opened]
    runtime.fail(RuntimeError("a driver with a bug"))
    with pytest.raises(RuntimeError, match="a driver with a bug"):
        Member(Config("memory://unused"), runtime=runtime)


def test_a_log_that_blocks_costs_no_lease(
    in_memory: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Blocking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            blocked.set()
            release.wait(PATIENCE)

    def end(member: Member) -> float:
        now, lease = host_clock(), member.lease(0)
        return 0.0 if lease is None else now + lease.remaining()

    blocked, release = threading.Event(), threading.Event()
    monkeypatch.setattr(logging.getLogger("neli_router"), "handlers", [Blocking()])
    with caplog.at_level(logging.INFO, "neli_router"), Member(in_memory("a", lease=1.0)) as a:
        try:
            assert (True, True) == (a.pulse(PATIENCE), blocked.wait(PATIENCE))
            first = end(a)
            until(lambda: end(a) > first + 2.0)
        finally:
            release.set()


SCRIPT = """
import sys, time
from neli_router import Config, Member

member = Member(Config(sys.argv[1], name="script", lease=5.0), on_event={handler})
assert member.pulse({patience})
"""


@pytest.mark.parametrize("handler", ["None", 'lambda event: "Revoked" in str(event) and time.sleep(3600)'])
def test_a_script_that_ends_without_closing_leaves_the_group(handler: str, tmp_path: Path) -> None:
    """It says only that its handler hangs, and on a busy machine that its ledger is late."""
    script = SCRIPT.format(handler=handler, patience=PATIENCE)
    command = [sys.executable, "-c", script, f"sqlite://{tmp_path}/ledger.db"]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert (0, "") == (finished.returncode, finished.stdout)
    told = [line.partition(" ")[0] for line in finished.stderr.splitlines() if "available member=" not in line]
    assert ([] if handler == "None" else ["leader.fenced"]) == told, finished.stderr
    with closing(SqliteLedger(tmp_path / "ledger.db")) as ledger:
        records = [decode(entry.payload) for entry in ledger.read(0)]
    if handler == "None":  # The member hands over when it leaves.
        assert [Leave, Beat] == [type(records[-1]), type(records[-2])]
