"""A group of real processes, and what may happen to them.

    start --> life "m2.3": the third process called m2, with files of its own for notes and complaints
                | kill                at any moment, and nothing is said
                | stop ... resume     the whole process stands still, and wakes up believing what it did
                | close               it leaves in good order

Two lives of one name may run at once: the older finds that out by itself, and ends.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks._processes.notes import Acts, Note, Reader
from benchmarks._processes.referee import Referee
from neli_router.clock import host_clock

__all__ = ["Group", "Life"]

ROOT = Path(__file__).resolve().parents[2]

END_MAX = 40.0
"""How long a worker may take to leave: longer than a member waits for its program before it breaks off."""

PATIENCE = 60.0
"""Seconds after which what must happen has failed to. It takes two or three; on a busy machine, more."""

LOOK_EVERY = 0.01
"""Between two looks at notes. All times in them are the workers' own, so looking more often would only cost them."""


class Life:
    """One process, from its start to its end.

    `order` is the worker's, but for what this adds. `prefix` stands before its command, which it must become by `exec`.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        number: int,
        order: Mapping[str, Any],
        *,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.label = name, f"{name}.{number}"
        self.leads: dict[int, int] = {}
        """Partition -> term, as it last noted."""
        self._all_read = False
        self._complaints = folder / f"{self.label}.stderr"
        notes = folder / f"{self.label}.notes"
        self._reader = Reader(notes)
        order = {**order, "config": {**order["config"], "name": name}, "notes": str(notes)}
        with self._complaints.open("wb") as complaints:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "benchmarks._processes.worker", json.dumps(order)],
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE,
                stderr=complaints,
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended; a stopped process runs."""
        return self._process.poll() is None

    def kill(self) -> float:
        """End it with kill -9; returns the time just before that."""
        at = host_clock()
        self._process.kill()
        self._process.wait()
        return at

    def stop(self) -> float:
        """Let it stand still; returns the time just after that."""
        self._process.send_signal(signal.SIGSTOP)
        return host_clock()

    def resume(self) -> float:
        """Let it go on; returns the time just before that."""
        at = host_clock()
        self._process.send_signal(signal.SIGCONT)
        return at

    def ask_to_leave(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def terminate(self) -> None:
        """Send it SIGTERM, as whoever runs containers does."""
        self._process.terminate()

    def exit_code(self) -> int:
        """Wait for its end."""
        return self._process.wait(END_MAX)

    def complaints(self) -> str:
        """What it wrote on standard error."""
        return self._complaints.read_text(encoding="utf-8", errors="replace")

    def fresh_notes(self) -> list[Note]:
        """What it noted since the last call."""
        if self._all_read:
            return []
        self._all_read = not self.is_running  # Asked before reading, or its last words could be missed.
        notes = list(self._reader.fresh())
        for note in notes:
            if isinstance(note, Acts):
                self.leads = dict(note.terms)
        return notes


class Group:
    """All lives on one ledger, by default a file in `folder`. Whatever still runs at the end of the block is killed.

    `fence` is a database that they write to (see `writer`); without one, they only note.
    """

    def __init__(
        self,
        folder: Path,
        *,
        partitions: int,
        pause: float,
        ledger: str = "",
        fence: Path | None = None,
        **options: Any,
    ) -> None:
        self.ledger = ledger or f"sqlite://{folder / 'ledger.db'}"
        self.referee = Referee()
        self.lives: list[Life] = []
        self._folder, self.partitions = folder, partitions
        self._order = {
            "config": {"ledger": self.ledger, "layout": {"partitions": partitions}, **options},
            "pause": pause,
            "fence": str(fence or ""),
        }
        self._started: Counter[str] = Counter()
        self._latest: dict[int, tuple[int, str]] = {}
        """Partition -> the highest term under which anybody acted, and who."""

    def start(self, name: str, *, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Life:
        """Start a process called `name`; see `Life` for what may be said of how."""
        self._started[name] += 1
        number = self._started[name]
        life = Life(self._folder, name, number, self._order, prefix=prefix, environment=environment)
        self.lives.append(life)
        return life

    def read_notes(self) -> dict[str, list[Note]]:
        """What every life noted since the last call; the referee has heard it, too."""
        fresh = {life.label: life.fresh_notes() for life in self.lives}
        for label, notes in fresh.items():
            self.referee.hear(label, notes)
            for note in notes:
                for partition, term in note.terms.items():
                    self._latest[partition] = max(self._latest.get(partition, (term, label)), (term, label))
        return {label: notes for label, notes in fresh.items() if notes}

    def is_balanced(self) -> bool:
        """Whether those who run share all partitions evenly, by the notes read so far."""
        running = [life.label for life in self.lives if life.is_running]
        shares = Counter(label for _, label in self._latest.values())
        fair, rest = divmod(self.partitions, max(1, len(running)))
        return (
            len(self._latest) == self.partitions
            and set(shares) == set(running)
            and all(shares[label] in (fair, fair + (rest > 0)) for label in running)
        )

    def watch(self, wanted: str) -> Iterator[dict[str, list[Note]]]:
        """What is noted, again and again; TimeoutError if that is still asked for after `PATIENCE`."""
        give_up_at = host_clock() + PATIENCE
        while host_clock() < give_up_at:
            yield self.read_notes()
            time.sleep(LOOK_EVERY)
        said = "\n".join(f"{life.label}:\n{life.complaints()}" for life in self.lives if life.is_running)
        raise TimeoutError(f"{wanted} within {PATIENCE:g} s. What was written by those who run:\n{said}")

    def settle(self) -> None:
        """Wait until all who run share everything evenly."""
        for _ in self.watch("the group was to share everything evenly"):
            if self.is_balanced():
                return

    def led_from(self, moment: float) -> dict[int, float]:
        """Wait until somebody acts for each partition at `moment` or later; when that began, or `moment` itself."""
        led_at: dict[int, float] = {}
        for fresh in self.watch("every partition was to be led"):
            for note in (note for notes in fresh.values() for note in notes):
                if isinstance(note, Acts) and note.until > moment:
                    for partition in note.terms:
                        led_at[partition] = max(moment, min(note.since, led_at.get(partition, note.since)))
            if len(led_at) == self.partitions:
                break
        return led_at

    def leave(self) -> None:
        """Let all who run leave in good order, and hear their last words."""
        leaving = [life for life in self.lives if life.is_running]
        for life in leaving:
            life.ask_to_leave()
        for life in leaving:
            if (code := life.exit_code()) != 0:
                raise RuntimeError(f"{life.label} was to leave, and ended with {code}:\n{life.complaints()}")
        self.read_notes()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for life in self.lives:
            if life.is_running:
                life.kill()
            life.ask_to_leave()  # Which closes our end of its pipe.
