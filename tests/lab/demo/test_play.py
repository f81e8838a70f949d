"""The demo itself: with real processes, and as a user sees it."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neli_router.lab import demo
from neli_router.lab.demo.scene import Run, Scene, Unfinished
from neli_router.lab.demo.screen import PlainScreen
from neli_router.lab.processes.group import ProcessGroup
from tests.support.processes.forked import Program, lives
from tests.support.waiting import PATIENCE, until

LONG = 5.0
"""A lease for demos that must end well: each takeover must finish within five leases, on a busy machine, too."""

MADE = "neli-demo-*"

LINE = re.compile(r" *(?P<at>\d+\.\d{3}) s  (?P<kind>[a-z]+) +(?P<who>[a-z]+) +(?P<text>\S.*)")
"""Every line of the story in plain form."""


class Demo(Program):
    """A running demo, in its own process group, with its temporary files in `folder`."""

    def __init__(self, folder: Path, **options: object) -> None:
        given = {"seconds": 1.0, "lease": 0.4, "live": False, **options}
        code = (
            "import signal\n"  # A shell that runs tests in the background makes them ignore it.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "from pathlib import *\n"  # For `keep`, as `repr` writes it.
            "from neli_router.lab import demo\n"
            f"raise SystemExit(demo.run(**{given}))"
        )
        self.lines: list[str] = []
        super().__init__(code, folder=folder, environment={**os.environ, "TMPDIR": str(folder)}, own_group=True)

    def read_until(self, kind: str) -> None:
        for line in self.stdout:
            self.lines.append(line.rstrip("\n"))
            if (told := LINE.fullmatch(self.lines[-1])) and told["kind"] == kind:
                return
        raise AssertionError(f"no {kind} in {self.lines}")

    def end(self) -> int:
        """Read what is left, without the log of a ledger that was locked for a moment; return the exit code."""
        out, errors = self.communicate()
        self.lines += [line for line in (out + errors).splitlines() if not re.match(r"ledger\.(un)?available ", line)]
        return self.wait()

    @property
    def told(self) -> list[re.Match[str]]:
        return [told for line in self.lines if (told := LINE.fullmatch(line))]

    @property
    def workers(self) -> list[int]:
        """The process numbers of all workers that it reported as started."""
        started = [told["text"] for told in self.told if told["kind"] == "start"]
        return [int(found[1]) for text in started if (found := re.search(r"process (\d+)", text))]

    def await_the_end_of_all_workers(self) -> None:
        until(lambda: not any(map(lives, self.workers)), "the end of all workers")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert [] == list(tmp_path.glob(MADE)), "the demo removes what it made for itself"


@pytest.mark.process
def test_the_demo_tells_its_story_and_all_its_checks_hold(folder: Path) -> None:
    """Also with two members. The ledger and the logs are kept on request."""
    two = {"members": 2, "partitions": 5, "seed": 4, "keep": folder / "kept"}
    with Demo(folder, lease=LONG) as shown, Demo(folder, lease=LONG, **two) as kept:
        for one in (shown, kept):
            assert (0, "all 10 checks held") == (one.end(), one.lines[-1]), "\n".join(one.lines)
        blank = shown.lines.index("")
        assert blank - 1 == len(shown.told), "each line but the title is one event, in a constant format"
        kinds = [told["kind"] for told in shown.told if told["kind"] not in {"open", "woke", "fence", "left"}]
        beginning = ["start", "start", "start", "share", "route", "kill", "lead", "start", "share", "stop", "lead"]
        assert [*beginning, "wake", "share", "leave", "lead", "share", "leave", "leave", "route"] == kinds
        assert ["PASS"] * 10 == [line[:4] for line in shown.lines[blank + 2 : -1]]
        shown.await_the_end_of_all_workers()
        assert {"alpha.log", "bravo.log", "ledger.db"} <= {path.name for path in (folder / "kept").iterdir()}
        assert "member.joined member=alpha" in (folder / "kept" / "alpha.log").read_text()


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "code", "at", "workers"),
    [
        (signal.SIGINT, 130, "share", 3),
        (signal.SIGTERM, 143, "stop", 4),
        (signal.SIGHUP, 129, "share", 3),
        (signal.SIGKILL, -signal.SIGKILL, "stop", 4),  # Not even a stopped worker is left behind.
    ],
)
def test_an_ended_demo_ends_its_workers(tmp_path: Path, number: int, code: int, at: str, workers: int) -> None:
    with Demo(tmp_path) as shown:
        shown.read_until(at)
        shown.send_signal(number)
        assert (code, workers) == (shown.end(), len(shown.workers))
        shown.await_the_end_of_all_workers()
        assert not any("Traceback" in line for line in shown.lines)
    assert number == signal.SIGKILL or [] == list(tmp_path.glob(MADE))


@pytest.mark.process
def test_a_worker_that_dies_by_itself_ends_the_story_and_fails_the_demo(folder: Path) -> None:
    with Demo(folder) as shown:
        shown.read_until("share")
        os.kill(shown.workers[2], signal.SIGKILL)
        assert 1 == shown.end()
        (reason,) = (line for line in shown.lines if line.startswith("FAIL  the story "))
        assert f"member charlie (process {shown.workers[2]}) failed: " in reason
        shown.await_the_end_of_all_workers()


def started(folder: Path, ledger: Path) -> str:
    """Why a process that starts on this ledger fails; empty if it does not."""
    with ProcessGroup(folder, partitions=8, pause=0.005, ledger=f"sqlite://{ledger}", lease=0.5) as group:
        scene = Scene(Run(8, 0.5, 0.0), group, PlainScreen("a test"))
        try:
            scene.start("alpha")
            scene.wait(lambda: False, PATIENCE)
        except Unfinished as failure:
            return str(failure)
    return ""


LAST_WORDS = "#!/bin/sh\necho 'Traceback, and so on' >&2\necho 'the disk is full' >&2\nexit 3\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("interpreter", "ledger", "expected"),
    [
        ("", "nowhere/ledger.db", r"member alpha \(process \d+\) failed: (?!.*Traceback).*nowhere.*"),
        ("python", "ledger.db", r"member alpha \(process \d+\) failed: the disk is full"),
        ("/bin/false", "ledger.db", r"member alpha \(process \d+\) failed: exit code 1, and its log is empty"),
        ("/nowhere/python", "ledger.db", r"no process could be started for member alpha: .*No such file .*"),
    ],
)
def test_of_a_worker_that_never_becomes_a_member_the_last_words_are_told(
    interpreter: str, ledger: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").write_text(LAST_WORDS)
    (tmp_path / "python").chmod(0o755)
    if interpreter:
        monkeypatch.setattr(sys, "executable", str(tmp_path / interpreter))
    assert re.fullmatch(expected, started(tmp_path, tmp_path / ledger))


def test_bad_options_are_named_and_a_full_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == demo.run(members=9, partitions=0, lease=-1.0, seconds=-2.0)
    refused = capsys.readouterr().err
    assert [True] * 4 == [what in refused for what in ("members=9", "partitions=0", "lease=-1.0", "seconds=-2")]
    (tmp_path / "ledger.db").write_text("precious")
    assert 2 == demo.run(keep=tmp_path)
    assert "'ledger.db' in it: name another folder" in capsys.readouterr().err
    assert "precious" == (tmp_path / "ledger.db").read_text()
