"""The page of pictures: it shows each commit in its host's colour, the kill and the checks, and loads nothing else."""

import re
from dataclasses import replace

from neli_router.lab.demo.checks import Check
from neli_router.lab.pipeline.landing import TableCommit
from neli_router.lab.pipeline.picture import COLOURS, Picture, page

HOSTS = ("alpha", "bravo", "charlie")
PARTITIONS, INTERVALS, KILLED_AFTER = 6, 8, 4


def picture() -> Picture:
    """Every host has two partitions; after four intervals bravo is killed, and the others each take one of its two."""
    commits, owners = list[TableCommit](), dict[tuple[int, int], str]()
    for number, host in enumerate(HOSTS):
        mine = {it: 100 + number for it in range(PARTITIONS) if it % 3 == number}
        owners |= dict.fromkeys(mine.items(), host)
        commits.append(TableCommit(len(commits) + 1, 1000.0 + number / 10, mine, {}))
    holders = {it: 100 + it % 3 for it in range(PARTITIONS)}
    for step in range(1, INTERVALS + 1):
        if step == KILLED_AFTER + 1:
            for partition, (host, term) in {1: ("alpha", 200), 4: ("charlie", 201)}.items():
                owners[partition, term], holders[partition] = host, term
                commits.append(TableCommit(len(commits) + 1, 1009.0, {partition: term}, {}))
        for number in range(3):
            mine = {it: term for it, term in holders.items() if it % 3 == number}
            at = 1000.5 + 2 * step + number / 5
            commits.append(TableCommit(len(commits) + 1, at, mine, dict.fromkeys(mine, step)))
    came = [1000.0 + 2 * step for step in range(1, INTERVALS + 1)]
    return Picture(HOSTS, came, PARTITIONS, commits, owners, "bravo", 1008.9)


CHECKS = [Check("each tick once", True, "8,000 ticks in & landed"), Check("takeover", False, "<not> all")]


def test_every_commit_is_a_mark_every_raised_fence_a_ring_and_the_colours_of_the_dead_host_end_with_it() -> None:
    shown = page("a <test>", picture(), CHECKS)
    marks = re.findall(r'<rect [^>]*width="2\.4"[^>]*fill="(#\w+)"', shown)
    assert PARTITIONS * INTERVALS == len(marks)
    assert [2 * INTERVALS + 4, 2 * KILLED_AFTER, 2 * INTERVALS + 4] == [marks.count(colour) for colour in COLOURS]
    assert PARTITIONS + 2 == shown.count("<circle") - shown.count("s</title></circle>")
    assert 2 == shown.count("bravo is killed")
    ages = re.findall(r'fill="([#\w]+)" [^>]*><title>(\w+): (\d\.\d) s</title></circle>', shown)
    rings = {("none", host, f"{0.5 + number / 5:.1f}") for number, host in enumerate(HOSTS)}
    assert rings == {dot for dot in ages if dot[0] == "none"}
    assert {("#0072b2", "alpha", "0.5"), ("#0072b2", "alpha", "0.7"), ("#009e73", "charlie", "0.9")} <= set(ages)
    for text in ("a &lt;test&gt;", "1 of 2 checks failed: takeover", "8,000 ticks in &amp; landed", "&lt;not&gt; all"):
        assert text in shown


def test_the_page_is_whole_and_asks_for_nothing_else() -> None:
    shown = page("a test", picture(), CHECKS)
    assert not re.search(r"<script|\b(src|href)=", shown)
    opened: list[str] = []
    for ends, tag, is_empty in re.findall(r"<(/?)(\w+)[^>]*?(/?)>", shown):
        if ends:
            assert tag == opened.pop()
        elif tag != "meta" and not is_empty:
            opened.append(tag)
    assert [] == opened


def test_a_run_of_days_has_a_page_and_one_without_a_commit_a_page_of_its_checks() -> None:
    slow = replace(picture(), intervals=[1000.0 + 40_000 * step for step in range(INTERVALS)])
    assert "86400 s" in page("a test", slow, CHECKS)
    assert "<svg" not in page("a test", Picture(HOSTS, [], PARTITIONS, [], {}, "bravo", 0.0), CHECKS)
