"""The status page in a real browser, with a group that the test makes up: its contents, and its use.

Each test also fails on any error in the console, and on any request to another host (see conftest.py).
"""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from neli_router.agent.wire import EventView, MovedView, MoveView, PartitionView, Refusal, StatusView, WishAsked
from tests.support.browsing import Keys, Page
from tests.support.page_stand_in import TOKEN, StandIn, after_takeover, group
from tests.support.waiting import until

pytestmark = pytest.mark.browser

GROUP = group(3, 16)
NOBODY = PartitionView(None, 0, None)
REFUSAL = Refusal("ConfigError", "a drain was wanted", "the ledger is full", "make room")


@pytest.fixture(name="stand_in", scope="module")
def _stand_in() -> Iterator[StandIn]:
    with StandIn(GROUP) as agent:
        yield agent


@pytest.fixture(name="agent")
def as_new(stand_in: StandIn) -> StandIn:
    """Three members, worker-0 to worker-2; partition n belongs to worker-(n mod 3)."""
    stand_in.cut()  # A browser keeps six connections to one address, and streams of former pages use them up.
    stand_in.begin(GROUP)
    return stand_in


@pytest.fixture(name="view")
def opened(page: Page, agent: StandIn) -> Page:
    page.open(agent.address)
    return page


@pytest.fixture(name="allowed")
def unlocked(view: Page) -> Page:
    view.unlock(TOKEN)
    return view


def changed(view: StatusView, partition: int, cell: PartitionView) -> StatusView:
    cells = list(view.table.partitions)
    cells[partition] = cell
    return replace(view, table=replace(view.table, partitions=cells, at=view.table.at + 1))


def with_member(view: StatusView, place: int, **different: Any) -> StatusView:
    members = list(view.members)
    members[place] = replace(members[place], **different)
    return replace(view, members=members)


def test_a_large_group_is_shown_whole_and_a_borrowed_one_without_wishes(page: Page, agent: StandIn) -> None:
    agent.view = large = group()
    page.open(agent.address)
    expected = [large.members[cell.owner].name for cell in large.table.partitions if cell.owner is not None]
    assert expected == page.owners()
    assert [member.name for member in large.members] == page.members()
    assert "4\u202f096 of 4\u202f096" == page.run("return document.querySelector('#fact-partitions dd').textContent")
    entries = page.texts("#moves li")
    drained = next(entry for entry in entries if "was drained by ops" in entry)
    assert "\u2192 worker-0 24 partitions" in drained
    assert "\u2192 worker-2 24 partitions" in drained
    assert "within 3.5 s" in drained
    assert any("worker-gone was expired by worker-2" in entry for entry in entries)
    assert any("worker-killed was certified dead by worker-1" in entry for entry in entries)
    assert any("worker-gone was heard again: it had lived on, and was fenced" in entry for entry in entries)
    assert page.text("#moves-count").startswith(f"{len(entries)} events since ")
    claim = EventView(7, 60.0, "claim", "worker-0", "worker-0", [MovedView(None, "worker-0", 2, [0, 3])], last=8)
    members = [replace(member, lag=None) for member in GROUP.members]
    told = replace(GROUP, protocol="fast-neli", store="redis://h:6379/orders", members=members, history=[claim])
    agent.view = told
    page.open(agent.address)
    page.await_text("#borrowed", "read from redis://h:6379/orders", "takes no drains, pins or weights")
    hidden = ("#unlock", "#fact-moving", "#fact-at", "th.acts", "th.of-wishes", "td.of-wishes")
    assert not any(map(page.is_shown, hidden))
    assert ["Weight", "Load", "Lag", "Witness"] == page.texts("th.of-wishes")
    assert "fast-neli" == page.text("#fact-protocol dd")
    assert page.texts("#moves li")[0].endswith("worker-0 leads more nobody → worker-0 2 partitions 0, 3")
    agent.tell(replace(told, members=[replace(member, lease_left=None) for member in members]))
    page.await_text('tr[data-member="worker-1"] .left', "not known")
    page.click_cell(3)
    assert "Pinned to" not in page.text("#detail")


def test_a_member_is_shown_with_its_lease_weight_load_lag_and_witness(view: Page, agent: StandIn) -> None:
    cells = view.texts('tr[data-member="worker-1"] > *')
    assert "worker-1" == cells[0]
    assert cells[1].endswith("s")  # The remaining time runs down meanwhile.
    assert ["5", "1", "4", "1 record", "child", "eu-west-1b", "10.0.0.2:7400"] == cells[2:9]
    assert view.run("return /^([0-9]+ [A-Z][a-z]+ )?[0-9:]{8}$/.test(arguments[0])", cells[9])  # Readable by people.
    assert "before this agent" == view.texts('tr[data-member="worker-0"] > *')[9]
    place = view.texts("#members thead th").index("Witness") + 1
    assert ["agent", "child", "\u2013"] == view.texts(f"#members tbody tr > :nth-child({place})")
    agent.tell(with_member(with_member(agent.view, 1, lease_left=0.0), 2, lease_left=None))
    view.await_text('tr[data-member="worker-1"] .lease', "ran out")
    view.await_text('tr[data-member="worker-2"] .lease', "not heard yet")


def test_a_takeover_needs_no_reload_and_colours_stay_with_names(view: Page, agent: StandIn) -> None:
    def looks() -> dict[str, str]:
        found = view.run(
            "return [...document.querySelectorAll('#members tbody tr')]"
            ".map((row) => [row.dataset.member, row.querySelector('.sample').className])"
        )
        return dict(found)

    before = looks()
    agent.tell(after_takeover(agent.view, dead=1, heir=2))
    until(lambda: "worker-1" not in view.owners(), "the takeover")
    assert ["worker-0", "worker-2", "worker-2"] * 5 + ["worker-0"] == view.owners()
    assert ["worker-0", "worker-2"] == view.members()
    assert "worker-1 was expired by worker-2 \u2192 worker-2 5 partitions" in view.text("#moves li")
    assert "term 1760000000009413" in view.text("#moves li")
    assert "worker-1 was expired by worker-2, 5 partitions from worker-1 to worker-2" == view.text("#news")
    assert view.was_never_reloaded

    view.open(agent.address)
    assert {name: before[name] for name in ("worker-0", "worker-2")} == looks()
    dead = "return document.querySelector('#moves li[data-member=\"worker-1\"] .what .sample').className"
    assert before["worker-1"] == view.run(dead)


def test_what_is_wrong_or_under_way_is_said_and_why(view: Page, agent: StandIn) -> None:
    assert not view.is_shown("#powerless")
    agent.tell(replace(changed(agent.view, 5, NOBODY), why="no member of the group is alive"))
    view.await_text("#why", "1 partition has no owner: no member of the group is alive")
    view.click_cell(5)
    assert "nobody" in view.text("#detail")
    assert "Why no member of the group is alive" in view.text("#detail")
    assert "partition 5, no owner" == view.label(5)

    agent.tell(replace(GROUP, can_expire=False))
    view.await_text("#powerless", "cannot expire one that dies", "a longer lease: neli doctor says how long")
    assert not view.is_shown("#why")
    agent.tell(changed(GROUP, 4, PartitionView(1, 9, 2, "worker-2", standby=0)))
    view.await_hidden("#powerless")
    until(lambda: "being handed to worker-2, pinned to worker-2" in view.label(4), "the handover")
    assert "1" == view.text("#fact-moving dd")
    view.click_cell(4)
    assert "Going to worker-2 Standby worker-0 Pinned to worker-2" in view.text("#detail")
    drained = with_member(GROUP, 1, drained=True)
    agent.tell(changed(drained, 1, PartitionView(1, 9, 2)))
    view.await_text('tr[data-member="worker-1"]', "draining")
    agent.tell(changed(drained, 1, PartitionView(2, 10, 2)))
    view.await_text('tr[data-member="worker-1"]', "drained")
    assert "3 members, 1 drained" == view.text("#members-count")


def test_a_group_without_members_or_table_says_so_and_a_partition_has_an_address(page: Page, agent: StandIn) -> None:
    bare = group(3, 16, moves=False)
    table = replace(bare.table, partitions=[])
    agent.view = replace(bare, members=[], member="reading", table=table, why="nothing was read")
    page.open(agent.address)
    page.await_text("#map", "No group was read from the ledger yet.")
    assert "The table cannot be believed: nothing was read" == page.text("#why")
    assert "There are no members yet." == page.text("#members-none")
    assert "Nothing has happened since this agent began to read." == page.text("#moves")
    agent.view = group()
    page.open(f"{agent.address}#partition=4000")
    page.address = agent.address  # To the host, it is the same.
    seen = "const at = document.activeElement.getBoundingClientRect(); return at.top > 0 && at.bottom <= innerHeight"
    page.await_text("#detail", "Partition 4000")
    assert page.run(seen)
    page.run("location.hash = '#partition=7'")
    page.await_text("#detail", "Partition 7")
    assert "7" == page.run("return document.querySelector('.kept:focus').dataset.partition")


def test_a_hostile_name_is_shown_as_text(view: Page, agent: StandIn) -> None:
    names = ("<img src=x onerror='window.isHurt=1'>", "<script>window.isHurt=1</script>", '"><b>bold</b>')
    for offset, name in enumerate((*names, "a\u202eb&lt;"), 9999):
        event = EventView(offset, 0.0, "drain", name, name, [MovedView(name, name, 1, [1])], last=offset)
        hostile = changed(with_member(GROUP, 1, name=name), 0, NOBODY)
        agent.tell(replace(hostile, agent=name, why=name, history=[event]))
        until(lambda name=name: name == view.run("return document.querySelector('#agent').textContent"), "the name")  # type: ignore[misc]
        shown = view.run("return [...document.querySelectorAll('#members .name')].map((one) => one.textContent)")
        assert ["worker-0", name, "worker-2"] == shown
        assert name in str(view.run("return document.querySelector('#moves').textContent"))
        view.click_cell(4)
        assert name in str(view.run("return document.querySelector('#detail').textContent"))
        assert 0 == view.count("main img, main b, main script")
        assert view.run("return window.isHurt === undefined")


def test_it_has_nothing_inline_fits_a_narrow_window_and_follows_the_theme(view: Page) -> None:
    assert 0 == view.count("script:not([src]), style, [style*='url'], [onclick]")
    places = "[...document.querySelectorAll(':root, .members .scroll')]"
    view.unlock(TOKEN)  # It adds a column.
    view.resize(1280, 900)
    fits = f"return {places}.every((one) => one.scrollWidth <= one.clientWidth)"
    until(lambda: view.run(fits), "a page and a table that fit")
    view.resize(420, 900)
    until(lambda: view.run("return document.documentElement.scrollWidth <= innerWidth"), "a page that fits")
    until(lambda: ["0", "4", "8", "12"] == view.texts(".row-label"), "shorter rows")

    def colours() -> tuple[str, str]:
        return view.style("body", "backgroundColor"), view.style(":root", "backgroundColor")

    light = colours()
    view.prefer("dark")
    dark = colours()
    assert light != dark
    view.click("#theme")
    assert light == colours()
    view.prefer("light")
    view.click("#theme")
    assert dark == colours()
    assert "Theme: dark" == view.element("#theme").get_attribute("aria-label")


def test_the_map_is_walked_by_keys_is_one_stop_of_the_tab_key_and_what_has_the_focus_is_seen_to(view: Page) -> None:
    assert 1 == view.count('#map [tabindex="0"]')
    view.focus('[data-partition="0"]')
    walk = [Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.ARROW_DOWN, Keys.ARROW_UP, Keys.END, Keys.HOME]
    seen = []
    for key in walk:
        view.press(key)
        seen.append(view.focused())
    below = str(1 + int(view.element("#map").get_attribute("aria-colcount") or 0))  # Depends on the window's width.
    assert ["1", "2", "1", below, "1", "15", "0"] == seen
    assert "Partition 0" in view.text("#detail")
    view.press(Keys.ARROW_LEFT)
    assert "0" == view.focused()
    view.press(Keys.TAB)
    assert not view.focused().isdigit()
    for selector in ('[data-partition="3"]', "#theme", "#unlock", "button.name", "thead button"):
        view.focus(selector)
        view.press(Keys.SHIFT)  # From now on, the keyboard is in use.
        assert "none" != view.style(":focus", "outlineStyle"), selector


def test_enter_keeps_a_partition_or_a_member_and_escape_lets_it_go(view: Page) -> None:
    view.focus('[data-partition="0"]')
    view.press(Keys.ARROW_RIGHT, Keys.ENTER, Keys.ARROW_RIGHT)
    assert "Partition 2" in view.text("#detail")
    view.focus("#theme")
    assert "Partition 1" in view.text("#detail")
    view.focus('[data-partition="2"]')
    view.press(Keys.ESCAPE)
    view.focus("#theme")
    assert "Point at a cell" in view.text("#detail")
    view.focus('tr[data-member="worker-0"] .name')
    view.press(Keys.ARROW_DOWN, Keys.ENTER)
    assert "worker-1" == view.focused()
    view.focus("#theme")
    assert 5 == view.count("#map.dimmed .lit")
    view.focus('tr[data-member="worker-1"] .name')
    view.press(Keys.ESCAPE)
    view.focus("#theme")
    assert 0 == view.count("#map.dimmed")


def test_members_are_sorted_by_what_is_pressed_and_keep_the_focus(view: Page, agent: StandIn) -> None:
    assert ["worker-0", "worker-1", "worker-2"] == view.members()
    view.click("thead th:nth-child(6) button")
    view.click("thead th:nth-child(6) button")
    assert ["worker-2", "worker-1", "worker-0"] == view.members()
    assert "descending" == view.element("thead th:nth-child(6)").get_attribute("aria-sort")
    view.focus('tr[data-member="worker-0"] .name')
    members = [replace(member, lag=100 - place) for place, member in enumerate(agent.view.members)]
    agent.tell(replace(agent.view, members=members))
    until(lambda: view.members() == ["worker-0", "worker-1", "worker-2"], "the new order")
    assert "worker-0" == view.focused()


def test_only_the_right_token_opens_the_page_until_it_is_forgotten(view: Page) -> None:
    view.click_cell(1)
    assert not view.is_shown("td.acts")
    assert 0 == view.count("#pin-to")
    view.click("#unlock")
    assert "token" == view.focused()
    view.press(Keys.ESCAPE)
    assert not view.is_shown("#token-form")
    assert "unlock" == view.focused()

    view.give_token("not-this-one")
    view.await_text("#token-error", "Found another one was given", "Remedy give the right one")
    assert "not-this-one" == view.element("#token").get_property("value")
    assert "Read-only" == view.text("#unlock")
    view.press(TOKEN, Keys.ENTER)
    view.await_text("#unlock", "Forget token")
    assert view.is_shown("td.acts")

    view.click("#unlock")
    assert "Read-only" == view.text("#unlock")
    assert not view.is_shown("td.acts")
    assert 0 == view.run("return sessionStorage.length")


def test_each_wish_shows_its_moves_before_it_is_made(allowed: Page, agent: StandIn) -> None:
    wishes: list[tuple[list[str], str, dict[str, Any]]] = [
        (['tr[data-member="worker-1"] .drain'], "drain", {"name": "worker-1"}),
        (['tr[data-member="worker-1"] .acts button + button'], "weigh", {"name": "worker-1", "weight": 1}),
        (['[data-partition="3"]', ".pinning button"], "pin", {"name": "worker-0", "partition": 3}),
        (['[data-partition="5"]', ".pinning button + button"], "unpin", {"partition": 5}),
    ]
    agent.moved = [MoveView(1, 0.0, [1, 4, 5, 6], "worker-1", "worker-2", "drain", "x")]
    for steps, wish, expected in wishes:
        agent.asked.clear()
        for step in steps:
            allowed.click(step)
        allowed.await_text("#wish-summary", "This will move 4 partitions:")
        assert "worker-1 \u2192 worker-2 4 partitions: 1, 4\u20136" == allowed.text("#wish-moves")
        assert [(f"/v1/{wish}", WishAsked(**expected, preview=True))] == agent.asked
        allowed.click("#wish-confirm")
        allowed.await_hidden("#wish")
        assert (f"/v1/{wish}", WishAsked(**expected)) == agent.asked[-1]
        assert allowed.text("#toast").endswith(": done")


def test_what_was_chosen_survives_the_next_status(allowed: Page, agent: StandIn) -> None:
    allowed.click_cell(3)
    allowed.focus("#pin-to")
    allowed.press("worker-2")
    assert "worker-2" == allowed.element("#pin-to").get_property("value")
    agent.tell(changed(agent.view, 3, PartitionView(0, 77, 0, load=9.0)))
    allowed.await_text("#detail", "Term 77")
    assert "worker-2" == allowed.element("#pin-to").get_property("value")
    assert "pin-to" == allowed.focused()


def test_wishes_are_made_by_keys_alone_and_escape_leaves_one_unmade(allowed: Page, agent: StandIn) -> None:
    agent.tell(with_member(GROUP, 1, drained=True))
    allowed.await_text('tr[data-member="worker-1"]', "drained", "Undrain\u2026")
    allowed.focus('tr[data-member="worker-1"] .drain')
    allowed.press(Keys.ENTER)
    allowed.await_text("#wish-summary", "This will move nothing now.")
    allowed.press(Keys.ESCAPE)
    assert not allowed.is_shown("#wish")
    assert "Undrain worker-1" == allowed.focused()
    assert [("/v1/undrain", True)] == [(path, asked.preview) for path, asked in agent.asked]

    allowed.focus('tr[data-member="worker-2"] .acts button + button')
    allowed.press(Keys.ENTER)
    assert "wish-weight" == allowed.focused()
    allowed.press(Keys.BACKSPACE, "7")
    until(lambda: agent.asked and agent.asked[-1][1].weight == 7, "the preview of the new weight")
    until(lambda: allowed.element("#wish-confirm").is_enabled(), "the answer")
    allowed.press(Keys.ENTER, Keys.ENTER)
    allowed.await_hidden("#wish")
    assert ("/v1/weigh", WishAsked(name="worker-2", weight=7)) == agent.asked[-1]


def test_a_refused_preview_or_wish_says_why_and_can_be_repeated(allowed: Page, agent: StandIn) -> None:
    allowed.click('tr[data-member="worker-2"] .acts button + button')
    agent.refusal = REFUSAL
    allowed.press(Keys.BACKSPACE, "9")
    allowed.await_text("#wish-error", "Wanted a drain was wanted Found the ledger is full Remedy make room")
    assert "9" == allowed.element("#wish-weight").get_property("value")
    assert not allowed.element("#wish-confirm").is_enabled()
    agent.refusal = None
    allowed.press("9")
    allowed.await_hidden("#wish-error")
    until(lambda: agent.asked and agent.asked[-1][1].weight == 99, "the next preview")
    allowed.press(Keys.ESCAPE)

    agent.moved = [MoveView(1, 0.0, [1], "worker-1", "worker-2", "drain", "x")]
    allowed.click('tr[data-member="worker-1"] .drain')
    allowed.await_text("#wish-summary", "This will move 1 partition:")
    agent.refusal = REFUSAL
    allowed.click("#wish-confirm")
    allowed.await_text("#wish-error", "Found the ledger is full", "Remedy make room")
    assert "worker-1 \u2192 worker-2 1 partition: 1" == allowed.text("#wish-moves")
    agent.refusal = None
    allowed.click("#wish-confirm")
    allowed.await_hidden("#wish")
    assert ("/v1/drain", WishAsked(name="worker-1")) == agent.asked[-1]


def test_a_token_that_no_longer_opens_is_replaced_where_the_wish_is(view: Page, agent: StandIn) -> None:
    view.run("sessionStorage.setItem('neli.token', 'of-yesterday')")
    view.open(agent.address)
    view.click('tr[data-member="worker-1"] .drain')
    view.await_text("#wish-error", "Found another one was given")
    assert "wish-token" == view.focused()
    view.press(TOKEN, Keys.ENTER)
    view.await_text("#wish-summary", "This will move nothing now.")
    assert [("/v1/drain", WishAsked(name="worker-1", preview=True))] == agent.asked


def test_a_silent_or_broken_stream_is_reported_and_comes_back(view: Page, agent: StandIn) -> None:
    agent.is_mute = True
    view.await_word("silent")
    view.await_text('tr[data-member="worker-0"] .lease', "not known")
    agent.is_mute = False
    agent.tell(agent.view)
    view.await_word("live")
    agent.cut()
    view.await_word("not connected")
    view.await_text('tr[data-member="worker-0"] .lease', "not known")
    view.await_text("#connection-since", "last seen")
    agent.view = after_takeover(agent.view, dead=1, heir=2)
    agent.mend()
    view.await_word("live")
    until(lambda: view.members() == ["worker-0", "worker-2"], "what happened meanwhile")
    assert view.was_never_reloaded
