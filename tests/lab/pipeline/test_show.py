"""The show's frame: it shows the hosts, the table's progress and who has what, and never outgrows its terminal."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from neli_router.lab.demo.scene import StoryEvent, Unfinished
from neli_router.lab.demo.screen import PlainScreen
from neli_router.lab.pipeline import show
from neli_router.lab.pipeline.show import Board, core_share, frame
from neli_router.lab.pipeline.ticks import Market

NOW = 31.25


def board() -> Board:
    return Board(
        intervals=40,
        sizes=[25_000] * 40,
        started_at=0.0,
        states={"alpha": "publishes", "bravo": "dead (kill -9)", "charlie": "publishes"},
        tip=17,
        landed=[16, 12, 17] * 2,
        owners=["alpha", "bravo", "charlie"] * 2,
    )


def shown(board: Board, *events: StoryEvent, width: int = 80, height: int = 24) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, highlight=False)
    console.print(frame(board, events, title="a test", now=NOW, width=width, height=height))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_frame_shows_hosts_progress_partitions_and_events() -> None:
    lines = shown(board(), StoryEvent(12.5, "kill", "bravo", "kill -9: agent, driver and JVM were killed"))
    expected = """
a test                                                                    31.2 s
host          state               partitions  of which behind
 A  alpha     publishes                    2                2
 B  bravo     dead (kill -9)               2                2
 C  charlie   publishes                    2                0

landed  ###############------.............................  12 of 40
        300,000 ticks are in every partition; 17 intervals have been published
owner   ABCABC
behind  15.15.
        A landed it last; behind: intervals that it lacks, + if ten or more

   12.500 s  kill   bravo    kill -9: agent, driver and JVM were killed
"""
    assert expected.strip().splitlines() == lines
    empty = Board(intervals=40, sizes=[25_000] * 40, started_at=0.0)
    assert "0 of 40" in "\n".join(shown(empty))  # There is a frame even before anything has landed.


@pytest.mark.parametrize("height", [5, 12, 13, 24])
@pytest.mark.parametrize("width", [80, 200])
def test_a_frame_never_outgrows_its_terminal(width: int, height: int) -> None:
    events = [StoryEvent(float(second), "start", "alpha", "words " * 30) for second in range(40)]
    lines = shown(board(), *events, width=width, height=height)
    assert len(lines) <= max(height, 12)
    assert all(len(line) <= width for line in lines)


def test_a_show_says_what_it_waits_for_and_what_ends_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(show, "SAY_EVERY", 0.0)
    market = list(Market(instruments=2, seconds=60).split(8, 4))
    screen = PlainScreen("a show")
    one = show._Show(tmp_path, tmp_path / "job.py", market, board(), screen, 6, 1.0)
    with pytest.raises(Unfinished, match=r"^the table was to move, but nothing moved for 0 s$") as ended:
        one._await(lambda: False, 0.01, "the table was to move")
    one.unfinished = str(ended.value)
    checks, _ = one.judged()
    screen.show(checks)
    said = capsys.readouterr().out
    assert "wait   all      the table was to move, and nothing has moved for 0 s" in said
    assert "1 of 1 checks failed: the story" in said


@pytest.mark.parametrize(("load", "share"), [(0.5, 1.0), (2.0, 1.0), (20.0, 0.1)])
def test_patience_is_counted_by_the_share_of_a_core(load: float, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    assert share == core_share()
