"""A group of goNELI processes, which is queried, killed and judged like a group of ours.

    goneli BROKERS GROUP TOPIC NAME TIMEOUT --> m1.1.events --translated--> notes --> its `Life`

    acquired                   it leads partition 0; its tenures are counted, because goNELI has no terms
    (still leads, by a look)   until now; a killed one until the kill
    revoked, fenced            done

Like our processes, it uses the host's clock. It leaves in good order when its standard input ends, like a process that
has called `Close`.
"""

import json
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from neli_router.core.clock import host_clock
from neli_router.lab.processes.group import MemberProcess, ProcessGroup
from neli_router.lab.referee import LifePhase
from neli_router.status.notes import Acts, Done, Left, Note, Opened
from tests.support.servers.goneli_build import PROGRAM

__all__ = ["GoneliGroup", "GoneliTranslator"]


class GoneliTranslator:
    """Translates the lines of one process into notes."""

    def __init__(self) -> None:
        self._tenure = 0
        self._led_until: float | None = None
        """While it leads: the time up to which this was noted."""

    def translated(self, lines: Sequence[str], until: float) -> list[Note]:
        """The notes for these lines. A process that leads does so `until` then."""
        notes: list[Note] = []
        for said in map(json.loads, lines):
            at = said["at"]
            match said["event"]:
                case "started":
                    notes.append(Opened(at))
                case "acquired":
                    self._tenure, self._led_until = self._tenure + 1, at
                case "revoked" | "fenced" if self._led_until is not None:
                    # A fenced process is reported as revoked, too, some time later.
                    terms = {0: self._tenure}
                    notes += [Acts(self._led_until, max(at, self._led_until), terms), Done(at, terms)]
                    self._led_until = None
                case "closed":
                    notes.append(Left(at))
                case _:
                    pass
        if self._led_until is not None:
            since, self._led_until = self._led_until, max(self._led_until, until)
            notes.append(Acts(since, self._led_until, {0: self._tenure}))
        return notes


class GoneliProcess(MemberProcess):
    """One process of goNELI."""

    def __init__(self, folder: Path, label: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._events, self._position = folder / f"{label}.events", 0
        self._translator, self._killed_at = GoneliTranslator(), inf
        to_file = ["sh", "-c", 'exec "$@" > "$0"', str(self._events)]
        super().__init__(folder, label, [*to_file, *command], environment)

    def kill(self) -> float:
        self._killed_at = super().kill()
        return self._killed_at

    def ask_to_leave(self) -> float:
        self.life.phase, at = LifePhase.LEAVING, host_clock()
        assert self._process.stdin is not None
        self._process.stdin.close()
        return at

    def fresh_notes(self) -> list[Note]:
        if self.has_ended:
            return []
        has_ended = not self.is_running  # Checked before reading, or its last lines could be missed.
        now = host_clock()
        notes = self._translator.translated(self._fresh_lines(), min(now, self._killed_at))
        for note in notes:
            self.life.hear(note)
        self.has_ended = has_ended
        return notes

    def _fresh_lines(self) -> list[str]:
        """Without an unfinished line."""
        if not self._events.exists():
            return []
        with self._events.open("rb") as file:
            file.seek(self._position)
            lines = file.read().rpartition(b"\n")[0]
        self._position += len(lines) + bool(lines)
        return lines.decode().splitlines()


class GoneliGroup(ProcessGroup):
    """goNELI processes in one consumer group of `brokers`, on an existing topic."""

    def __init__(self, folder: Path, brokers: str, group: str, topic: str, *, heartbeat_timeout: float) -> None:
        super().__init__(folder, partitions=1, pause=0.0, ledger=f"kafka://{brokers}/{group}")
        self._place, self._milliseconds = (str(PROGRAM), brokers, group, topic), str(round(1000 * heartbeat_timeout))

    def _begin(
        self, label: str, prefix: Sequence[str], environment: Mapping[str, str], **_of_member: Any
    ) -> MemberProcess:
        command = [*prefix, *self._place, label, self._milliseconds]  # Names are only labels: none is ever taken.
        return GoneliProcess(self._folder, label, command, environment)
