"""The demo's view of a hand-written record."""

import io
import re
from functools import partial

import pytest
from rich.console import Console

from neli_router.lab.demo import screen
from neli_router.lab.demo.checks import Check
from neli_router.lab.demo.scene import Run, StoryEvent
from neli_router.lab.demo.screen import MEMBER_STYLES, LiveScreen, frame
from neli_router.lab.demo.story import NAMES
from neli_router.lab.demo.traffic import LookUps
from neli_router.lab.referee import Life, LifePhase
from neli_router.status.notes import Span

START = 1000.0
NOW = START + 3.4
KILL = StoryEvent(3.0021, "kill", "bravo", "kill -9: process 4712 was killed; it led 2 partitions")


def life(name: str, pid: int, phase: LifePhase, partitions: str, *, until: float) -> Life:
    """`partitions` are those it was last known to lead."""
    made = Life(name, pid, START, phase, until=until)
    made.held = {int(digit): Span(name, int(digit), 5, START + 1, until) for digit in partitions}
    made.spans = list(made.held.values())
    return made


def record() -> Run:
    """Eight partitions: alpha leads, bravo was killed, charlie's lease ran out while it was stopped, delta is new."""
    return Run(
        partitions=8,
        lease=0.5,
        started_at=START,
        lives=[
            life("alpha", 4711, LifePhase.MEMBER, "0134", until=NOW + 0.42),
            life("bravo", 4712, LifePhase.KILLED, "25", until=NOW + 0.02),
            life("charlie", 4713, LifePhase.STOPPED, "67", until=NOW - 0.1),
            life("delta", 4714, LifePhase.MEMBER, "", until=0.0),
        ],
        routed=LookUps(
            lookups=1_234_567, seconds=0.37, answers={"bravo": 400_000, "alpha": 834_567}, samples={"user-7": "alpha"}
        ),
    )


def drawn(run: Run, *events: StoryEvent, width: int = 80, height: int = 23) -> str:
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(frame(run, events, title="NELI Router demo: a test", now=NOW, width=width, height=height))
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


def test_a_frame_shows_the_members_what_is_led_the_traffic_and_the_events() -> None:
    expected = """
NELI Router demo: a test                                                   3.4 s
member         process  state               leads    heartbeat        lease
 A  alpha         4711  leads                   4   0.08 s ago  0.42 s left
 b  bravo         4712  dead (kill -9)          2   0.48 s ago  0.02 s left
 c  charlie       4713  stopped (SIGSTOP)       0   0.60 s ago         over
 D  delta         4714  reads along             0     none yet     none yet

    0  AAbAAb..
       A may act  a dead or stopped, lease not over  . none  ! two leaders

look-ups  1,234,567, 0.30 microseconds each; 0 without an answer
answers   alpha 834,567, bravo 400,000
now       user-7 -> alpha

    3.002 s  kill   bravo    kill -9: process 4712 was killed; it led 2
                             partitions
"""
    run = record()
    assert expected.strip() == drawn(run, KILL)
    run.lives.append(life("delta", 4715, LifePhase.MEMBER, "0", until=NOW + 0.5))
    assert "    0  !AbAAb.." in drawn(run)  # Two members that may both act cannot be overlooked.
    run.partitions = 1000
    assert "488 more are not shown" in drawn(run, width=120)


@pytest.mark.parametrize(("width", "height"), [(80, 23), (120, 39), (60, 15)])
@pytest.mark.parametrize("partitions", [8, 1000])
def test_a_frame_fits_its_terminal_and_ends_with_the_latest_event(width: int, height: int, partitions: int) -> None:
    run = record()
    run.partitions = partitions
    tale = "a rather long tale " * 12
    events = [StoryEvent(number / 7, "share", "all", f"{tale}{number}.") for number in range(100)]
    lines = drawn(run, *events, width=width, height=height).splitlines()
    fixed = 11 + len(run.lives) + min(8, -(-run.partitions // 64))
    assert max(height, fixed) >= len(lines)
    assert width >= max(map(len, lines))
    if height > fixed:
        assert "99." == lines[-1].split()[-1]


def test_every_member_has_a_letter_and_a_style_of_its_own_which_can_be_read_whatever_the_terminals_is() -> None:
    assert len(NAMES) == len({name[0] for name in NAMES}) == len(set(MEMBER_STYLES))
    for style in MEMBER_STYLES:
        found = re.fullmatch(r"bold (white|black) on #(..)(..)(..)", style)
        assert found is not None
        shares = [int(part, 16) / 255 for part in found.groups()[1:]]
        red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
        background = 0.2126 * red + 0.7152 * green + 0.0722 * blue
        contrast = 1.05 / (background + 0.05) if found[1] == "white" else (background + 0.05) / 0.05
        assert contrast >= 4.5, f"{style}: the Web Content Accessibility Guidelines (AA) ask for more"


def test_the_live_view_leaves_its_outcome(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("NO_COLOR", "1")
    with LiveScreen(partial(frame, record(), title="NELI Router demo: a test")) as live:
        live.tell(KILL)
        live.refresh()
    live.show([Check("kill -9", True, "467 ms")])
    shown = capsys.readouterr().out
    assert "all 1 checks held" == shown.split("\n")[-2].strip("\x1b[0m1")
    assert (True, True) == ("kill -9: process 4712 was killed" in shown, "PASS" in shown)
    assert not re.search(r"\x1b\[[0-9;]*[34]8;", shown), "NO_COLOR asks for no colours"


def test_a_terminal_that_can_draw_gets_the_live_view_and_a_file_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setattr("sys.stdout", output)
    for is_terminal, kind, expected in ((False, "xterm", False), (True, "dumb", False), (True, "xterm", True)):
        monkeypatch.setattr(output, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setenv("TERM", kind)
        assert expected == screen.wants_live()
