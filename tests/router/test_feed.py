"""The feed: when look-ups may believe a table, as time passes and its source reports various things.

Its answers are in `transcripts/feed.txt`, and `--rewrite` writes them again.
"""

import gc
import threading
from collections.abc import Iterator
from functools import partial
from math import inf
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError, LedgerUnusable, NeliError, StaleTable
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.records import Beat, Leave, Record
from neli_router.protocols.protocol import Notice
from neli_router.router.feed import Feed, Watchdog
from neli_router.router.ledger_reader import LedgerReadings
from neli_router.router.router import Router
from neli_router.router.table import Owner
from neli_router.router.watch import CHANGES_MAX, Change, Gap
from tests.protocols.rules import Rule, rules_in
from tests.support.groups import LAYOUT, genesis, join, refused_by
from tests.support.waiting import PATIENCE

KEY = "somebody's name"


class Story:
    """A feed, a ledger's fold and a clock, driven by the lines of a transcript."""

    def __init__(self, *, layout: Layout | None = None, max_age: float | None = 10.0) -> None:
        self.now = 0.0
        self.heard_at = 0.0
        self.notices: list[Notice] = []
        self.state = State(at=1)
        self.readings = LedgerReadings()
        self.feed = Feed(
            "memory", layout=layout, max_age=max_age, clock=lambda: self.now, watched=False, tell=self.notices.append
        )
        self.router = Router(self.feed)

    def replay(self, script: str) -> str:
        return "\n".join(self.played(script.strip().splitlines()))

    def played(self, lines: list[str]) -> Iterator[str]:
        for line in lines:
            done = line.partition("->")[0].rstrip()
            if done[:1] in {"", "#"}:
                yield line
                continue
            time, verb, *words = done.split()
            self.now = float(time)
            self.notices.clear()
            self.act(verb, *words)
            events = [notice.event for notice in self.notices]
            yield f"{done:16} -> {', '.join([self.look_up(), *events])}"

    def act(self, verb: str, *words: str) -> None:
        match verb, *words:
            case "begin", size:
                self.read(genesis(Layout(slots=64, partitions=int(size)), lease=1.0))
            case "join", name:
                self.read(join(name))
            case "leave", name:
                self.read(Leave(by=name))
            case "beat", name:
                self.read(Beat(by=name, sent_at=0.0, at=0, digest="0" * 16))
            case "read", *_:
                self.read()
            case "lag", *_:
                self.publish(self.now - 20)
            case "away", *_:
                self.feed.away("the disk is full")
            case "fail", *_:
                self.feed.fail(LedgerUnusable("a ledger was wanted", "it is damaged", "make a new one"))
            case "wait", *_:
                self.feed.check()
            case "reopen", *_:
                self.feed.reopen()
            case "close", *_:
                self.feed.close()
            case _:
                pytest.fail(f"no such verb: {verb}")

    def read(self, *records: Record) -> None:
        for record in records:
            self.state = fold(self.state, self.state.at, record)
            if record.by in self.state.seats:
                self.heard_at = self.now
        self.publish(self.now)

    def publish(self, read_at: float) -> None:
        self.feed.publish(self.readings.of(self.state, "memory", read_at=read_at, heard_at=self.heard_at))

    def look_up(self) -> str:
        try:
            return self.router.owner(KEY).name
        except NeliError as error:
            return "the key itself" if KEY in str(error) else type(error).__name__


@pytest.mark.parametrize("rule", rules_in(Path(__file__).parent / "transcripts" / "feed.txt"))
def test_look_ups_answer_as_their_transcript(rule: Rule, pytestconfig: pytest.Config) -> None:
    rule.require(Story().played, pytestconfig)


def test_without_max_age_the_last_table_stays() -> None:
    assert Story(max_age=None).replay("0.0 begin 4\n0.1 join a\n9999.0 wait").endswith("9999.0 wait      -> a")


def test_a_ledger_with_another_layout_is_refused_with_both_spelled_out() -> None:
    story = Story(layout=LAYOUT)
    script = """
0.0 read         -> NoOwner
0.1 begin 8      -> GroupMismatch, router.stopped
0.2 join a       -> GroupMismatch
"""
    assert script.strip() == story.replay(script)
    expected = "the ledger records another since its genesis: slots=64, partitions=4, tags=off against slots=64, "
    assert f"{expected}partitions=8, tags=off (unequal: partitions)" in str(story.feed.error)
    # The first layout stays: a look-up in progress holds the old rows and the old mask.
    story = Story()
    story.replay("0.0 begin 4\n0.1 join a\n0.2 reopen")
    story.state = State(at=1)
    assert "0.3 begin 8      -> GroupMismatch, router.stopped" == story.replay("0.3 begin 8")


NOT_READ = "the owner of a key was wanted, but the ledger memory was not yet read up to its end"
MESSAGES = {
    "0 wait": f"{NOT_READ}: wait for it with `await_table`, or see why it cannot be read",
    "0 away": f"""
        {NOT_READ} (the last try: the disk is full): wait for it with `await_table`, or see why it cannot be read""",
    "0 begin 4\n0 join a\n4 away\n12.34 wait": """
        the owner of slot 18 was wanted, but the ledger memory was last read 12.3 s ago, up to offset 3, and max_age is
        10 s (the last try: the disk is full): see why it cannot be read; look-ups resume automatically once it is read
        again""",
    "0 begin 4\n0 join a\n4 read": """
        the owner of slot 18 was wanted, but no member is alive on memory (last heard 4.0 s ago: member a at a:1): start
        a member, or see why the members cannot reach the ledger""",
    "0 read": """
        the owner of a key was wanted, but no member ever joined, no group has begun on memory: start a member""",
    "0 begin 4\n0 join a\n1 leave a": """
        the owner of slot 18 (partition 2 of memory) was wanted, but the group no longer has a member: all of them left
        or were expired: start a member""",
    "0 close": """
        the owner of a key was wanted, but this router was closed before: look up before closing, or open another
        router""",
    "0 fail": "a ledger was wanted, but it is damaged: make a new one",
}


@pytest.mark.parametrize("script", MESSAGES)
def test_an_error_says_what_was_wanted_what_was_found_and_what_to_do(script: str) -> None:
    story = Story()
    story.replay(script)
    assert " ".join(MESSAGES[script].split()) == str(refused_by(lambda: story.router.owner(KEY)))


def test_an_error_made_late_still_tells_of_the_plight_that_it_is_for() -> None:
    """A look-up may be about to explain a failure when another source has already begun and the members have gone."""
    story = Story()
    story.replay("0 begin 4\n0 join a\n4 read")
    silent: Any = story.feed.view
    story.act("leave", "a")
    story.act("fail")
    stopped: Any = story.feed.view
    story.act("reopen")
    assert "(last heard 4.0 s ago: a member that has left)" in str(silent.explain("it was wanted"))
    assert "it is damaged" in str(stopped.explain("it was wanted"))


@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), "10", True])
def test_a_max_age_that_makes_no_sense_is_refused(bad: float) -> None:
    with pytest.raises(ConfigError, match=r"max_age=.* must be a number of seconds above 0, or None for no limit"):
        Story(max_age=bad)


def test_waiting_ends_with_a_table_without_members_or_with_the_error_that_ended_the_feed() -> None:
    story = Story()
    expected = r"a table of memory was wanted within 0.01 s, but .* not yet read up to its end"
    with pytest.raises(StaleTable, match=expected):
        story.feed.await_table(0.01)
    story.act("read")
    story.feed.await_table(0)  # It is certain that the group has no member.
    story.replay("0.1 begin 4\n0.2 join a")
    story.feed.await_table(0)
    story.replay("20 wait")
    with pytest.raises(StaleTable):
        story.feed.await_table(0)
    story.act("fail")
    with pytest.raises(LedgerUnusable):
        story.feed.await_table(0)


def test_a_watch_yields_what_changed_since_its_table_and_a_first_table_is_a_change_from_no_owner() -> None:
    story = Story()
    early = story.feed.watch()
    assert early.table is None
    story.replay("0 begin 4\n0 join a")
    a = [Owner("a", "a:1", i, 1_002) for i in range(4)]
    assert [Change(i, None, a[i], 3) for i in range(4)] == [early.take(0) for _ in range(4)]
    found: list[str] = []  # A program looks up keys inside the notification.
    watch = story.feed.watch(tell=lambda: found.append(story.router.owner(KEY).name))
    assert story.router.table is watch.table
    assert watch.take(0) is None
    story.replay("1 beat a\n2 join b\n3 leave a")
    b = [Owner("b", "b:1", i, 1_005) for i in range(4)]
    assert [Change(i, a[i], b[i], 6) for i in range(4)] == [watch.take(0) for _ in range(4)]
    assert (None, "b") == (watch.take(0), found[-1])


def test_a_watcher_that_is_too_slow_gets_a_gap_in_place_of_all_it_missed() -> None:
    story = Story()
    story.replay("0 begin 4\n0 join a")
    watch, change = story.feed.watch(), partial(Change, 0, None, Owner("a", "a:1", 0, 1))
    watch.put([change(7)] * CHANGES_MAX)
    watch.put([change(8)])
    watch.put([change(9)])
    assert [Gap(CHANGES_MAX + 1, 8), change(9), None] == [watch.take(0) for _ in range(3)]
    watch.put([change(7)] * (CHANGES_MAX + 1))
    watch.put([change(8)] * CHANGES_MAX)
    assert [Gap(2 * CHANGES_MAX + 1, 8), None] == [watch.take(0) for _ in range(2)]


def test_a_watch_ends_with_its_router_and_says_so_if_that_failed() -> None:
    story = Story()
    story.replay("0 begin 4")
    with story.feed.watch() as closed, story.feed.watch() as failed, story.feed.watch() as other:
        other.close()
        story.act("join", "a")
        story.act("fail")
        assert 4 == len([failed.take(0) for _ in range(4)])
        with pytest.raises(LedgerUnusable):
            next(failed)
        assert [] == list(other)
        story.act("reopen")
        story.act("close")
        with pytest.raises(LedgerUnusable):
            list(closed)
    assert [] == list(story.feed.watch())


def test_a_feed_does_not_keep_its_watches_alive() -> None:
    story = Story()
    watch = story.feed.watch()
    gone = ref(watch)
    del watch
    gc.collect()
    assert gone() is None


class Egg(Feed):
    """Good for `left` seconds, and then spoilt forever."""

    def __init__(self, *left: float) -> None:
        self.left = [*left]
        self.spoilt = threading.Event()

    def check(self) -> float:
        if not self.left:
            self.spoilt.set()
            return inf
        return self.left.pop(0)


def test_the_watchdog_checks_again_when_the_time_is_up_goes_home_when_nothing_is_left_and_comes_back() -> None:
    watchdog, egg = Watchdog(), Egg(0.01, 0.0, 0.01)
    for _ in range(2):
        egg.spoilt.clear()
        watchdog.watch(egg)
        assert egg.spoilt.wait(PATIENCE)
        thread = watchdog._thread
        assert thread is not None
        watchdog.unwatch(egg)
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_the_watchdog_looks_again_when_it_is_nudged() -> None:
    watchdog, egg = Watchdog(), Egg(inf)
    watchdog.watch(egg)
    while egg.left:
        watchdog.nudge()
    watchdog.nudge()
    assert egg.spoilt.wait(PATIENCE)
    watchdog.unwatch(egg)


def test_nobody_waits_for_the_watchdog_while_its_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler that closes a member then waits for a thread that nudges it."""
    watchdog, egg, begin = Watchdog(), Egg(), threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "neli-watchdog":
            other = threading.Thread(target=watchdog.nudge)
            other.start()
            other.join(PATIENCE)
            assert not other.is_alive()
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    watchdog.watch(egg)
    assert egg.spoilt.wait(PATIENCE)
    watchdog.unwatch(egg)
