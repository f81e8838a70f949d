"""The tutorials, followed to the letter: what a reader types is typed, and what the page shows must appear.

    python block, after "Save this as `NAME`" --> a file
    sh block ---------------> one bash, which lives as long as the page; the block's last command must succeed
    text block -------------> each line must appear in the output since the last block; ... is anything

    python -m tests.tutorials                    all of them, in new folders, with the time of each step
    python -m tests.tutorials worker --install   one of them, from a new clone and an environment of its own

Without --install, the first section is left out: the programs of this environment are used. A page ends for a reader
who follows it at its section "What comes next".

Whatever the page starts ends with this program: the leash sends SIGHUP to bash, which kills its jobs.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Generator, Mapping
from pathlib import Path

from neli_router.hosts.leash import leashed
from tests.support.waiting import until

__all__ = ["FOLDER", "follow", "main"]

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "tutorials"

PART = re.compile(r"^## (?P<title>[^\n]+)$|^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED = re.compile(r"[Ss]ave (?:this|it) as `([^`]+)`[^`]*\Z")
LAST = "What comes next"

PATIENCE = 300.0
"""Seconds for one block. Only a page that is wrong, or an installation over a slow network, takes them."""

CLOSE_MAX = 20.0

END = "trap 'kill -KILL $(jobs -p)' EXIT; trap 'kill -KILL $(jobs -p); exit' HUP\n"
"""Both, because either may come while bash handles the other: the end of its input, and SIGHUP."""


class Terminal:
    """A bash with job control, in a folder of its own."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._log = folder / "terminal.log"
        self._blocks = 0
        self._from = 0
        with self._log.open("wb") as log:
            self._bash = subprocess.Popen(
                leashed(["bash", "--norc", "-m"], by=signal.SIGHUP),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment},
            )
        self._write(END)

    @property
    def said(self) -> str:
        """The output since the last block was typed."""
        return self._log.read_bytes()[self._from :].decode(errors="replace")

    @property
    def directory(self) -> Path:
        """Where the reader is now: the leash has become bash, which has changed it."""
        return Path(f"/proc/{self._bash.pid}/cwd").resolve()

    def type(self, block: str) -> None:
        """Type a block, and wait until the prompt is back."""
        self._blocks += 1
        self._from = self._log.stat().st_size
        mark = f"-- block {self._blocks} ended with"
        self._write(f"{block}\nprintf '\\n%s %s\\n' '{mark}' $?\n")
        until(lambda: mark in self.said or self._bash.poll() is not None, f"the end of:\n{block}", patience=PATIENCE)
        code = re.search(rf"{mark} (\d+)", self.said)
        assert code is not None, f"bash ended in:\n{block}\n{self.said}"
        assert "0" == code[1], f"{code[1]} after:\n{block}\n{self.said}"

    def await_lines(self, text: str) -> None:
        """Wait until each line of the page is there, in any order: several programs may write."""
        for line in text.splitlines():
            pattern = re.compile("^" + ".*".join(map(re.escape, line.rstrip().split("..."))), re.MULTILINE)
            try:
                until(lambda pattern=pattern: pattern.search(self.said), f"the line {line!r}", patience=PATIENCE)  # type: ignore[misc]
            except AssertionError as missed:
                raise AssertionError(f"{missed}; the output is:\n{self.said}") from None
        self._from = self._log.stat().st_size

    def close(self) -> None:
        """End all jobs, also those that are stopped."""
        assert self._bash.stdin is not None
        self._bash.stdin.close()
        self._bash.send_signal(signal.SIGHUP)
        try:
            self._bash.wait(CLOSE_MAX)
        except subprocess.TimeoutExpired:  # A command in the foreground hangs.
            self._bash.kill()
            self._bash.wait()

    def _write(self, text: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(text.encode())
        self._bash.stdin.flush()


def follow(
    page: Path, folder: Path, environment: Mapping[str, str], *, installs: bool = False, without: str | None = None
) -> Generator[tuple[str, float]]:
    """Do what the page says, and yield each section's title and seconds when it is done.

    :param installs: also follow the section that installs the library
    :param without: a line that is not typed, because the caller has done it
    """
    text = page.read_text(encoding="utf-8")
    if without is not None:
        assert f"\n{without}\n" in text, f"{page.name} has no such line"
        text = text.replace(f"\n{without}\n", "\n")
    terminal = Terminal(folder, environment)
    title, began_at, before = "", time.monotonic(), 0
    try:
        for part in PART.finditer(text):
            if part["title"]:
                if title:
                    yield title, time.monotonic() - began_at
                title, began_at = part["title"], time.monotonic()
                if title == LAST:
                    break
            elif "Install" in title and not installs:
                pass
            elif part["language"] == "sh":
                terminal.type(part["text"])
            elif part["language"] == "text":
                terminal.await_lines(part["text"])
            else:
                saved = SAVED.search(" ".join(text[before : part.start()].split()).removesuffix(":"))
                assert saved, f"{page.name} does not say where to save:\n{part['text']}"
                (terminal.directory / saved[1]).write_text(part["text"], encoding="utf-8")
            before = part.end()
    finally:
        terminal.close()


def main() -> None:
    parser = ArgumentParser(prog="python -m tests.tutorials", description="Follow the tutorials to the letter.")
    parser.add_argument("pages", nargs="*", choices=sorted(page.stem for page in FOLDER.glob("*.md")), metavar="PAGE")
    parser.add_argument("--install", action="store_true", help="from a new clone, in an environment of its own")
    chosen = parser.parse_args()
    for page in [FOLDER / f"{name}.md" for name in chosen.pages] or sorted(FOLDER.glob("*.md"), reverse=True):
        with tempfile.TemporaryDirectory(prefix="neli-tutorial-", ignore_cleanup_errors=True) as folder:
            clone, whole = Path(folder, "clone"), time.monotonic()
            if chosen.install:
                subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)  # noqa: S607 - the user's git.
            else:
                clone.mkdir()
            environment = {} if chosen.install else {"PYTHONPATH": str(ROOT)}
            for title, seconds in follow(page, clone, environment, installs=chosen.install):
                print(f"{page.stem:8} {seconds:6.1f} s  {title}", flush=True)  # noqa: T201 - people read it, here and below.
            print(f"{page.stem:8} {time.monotonic() - whole:6.1f} s  in all", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
