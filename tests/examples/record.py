"""The runs of a job in one file, in the order in which they happened.

    begin TERM PID | end TERM PID        a line each, appended in one step

A job may run in one process at a time. A run whose process is killed, or whose lease is lost, has no end: another one
may begin then, but the older one must not come to its end after that.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import until

__all__ = ["KILLS", "Record", "recorded"]

KILLS = int(os.environ.get("NELI_TEST_KILLS", "2"))


def note(path: str | Path, *words: object) -> None:
    with open(path, "a", encoding="ascii") as file:  # noqa: PTH123 - one write, as one line.
        file.write(" ".join(map(str, words)) + "\n")


@contextmanager
def recorded(term: int) -> Iterator[None]:
    """For the job of an example: a run, which has no end if an error breaks it off."""
    note(os.environ["RECORD"], "begin", term, os.getpid())
    yield
    note(os.environ["RECORD"], "end", term, os.getpid())


class Record:
    """The test's view of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.path.read_text(encoding="ascii").splitlines()]

    def latest(self) -> tuple[int, int]:
        """The term and the process of the latest run."""
        begun = until(lambda: [words[1:] for words in self.lines() if words[0] == "begin"], "a run")
        return int(begun[-1][0]), int(begun[-1][1])

    @contextmanager
    def runs_elsewhere(self, send: Callable[[int], object]) -> Iterator[tuple[int, int]]:
        """Send a signal to the process that runs the job. After the block, another process has run it."""
        term, pid = self.latest()
        seen = len(self.lines())
        send(pid)
        yield term, pid
        until(lambda: any(kind == "begin" and int(of) != pid for kind, *_, of in self.lines()[seen:]), "another's run")

    def check(self) -> None:
        """No two runs overlap, terms only grow, and a term belongs to one process."""
        latest, running, owners = 0, 0, dict[int, int]()
        for kind, *numbers in self.lines():
            term, pid = map(int, numbers)
            if kind == "begin":
                assert latest <= term, f"{pid} runs under term {term} after term {latest}"
                assert pid == owners.setdefault(term, pid), f"{pid} runs under the term {term} of {owners[term]}"
                latest, running = term, pid
            else:
                assert pid == running, f"{pid} ends a run, after {running} has begun one"
                running = 0
        assert len(owners) > KILLS
