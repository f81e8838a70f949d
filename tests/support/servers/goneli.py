"""goNELI processes, running the program of `goneli_build`, which tests start, stop and kill.

GoneliMember(...) --starts--> a process --acquired, revoked, fenced, closed--> events
"""

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, Self

from neli_router.core.clock import host_clock
from neli_router.hosts.leash import leashed
from neli_router.lab.referee import Life
from neli_router.status.notes import Span
from tests.support.servers.goneli_build import PROGRAM

__all__ = ["GoneliEvent", "GoneliMember"]

END_MAX = 60.0


class GoneliEvent(NamedTuple):
    """A report that a member made about itself, or "killed". `at` is on the host's clock."""

    event: str
    at: float


class GoneliMember:
    """One process, which leaves its group when `leave` is called or the test ends. `settings` go to Kafka's client."""

    def __init__(
        self,
        brokers: str,
        group: str,
        topic: str,
        name: str,
        heartbeat_timeout: float,
        *,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name, self.events = name, list[GoneliEvent]()
        milliseconds = str(int(heartbeat_timeout * 1000))
        words = [f"{setting}={value}" for setting, value in settings.items()]
        self._process = subprocess.Popen(
            leashed([str(PROGRAM), brokers, group, topic, name, milliseconds, *words]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def leads(self) -> bool:
        """Whether it leads, by its latest report."""
        said = [event for event, _ in self.events if event != "started"]
        return bool(said) and said[-1] == "acquired"

    @property
    def life(self) -> Life:
        """When it led, for the referee. goNELI has no terms, so all are under term 0, and their order means nothing."""
        label = f"{self.name}.1"
        return Life(label, spans=[Span(label, 0, 0, since, until) for since, until in self._tenures()])

    def _tenures(self) -> Iterator[tuple[float, float]]:
        since = None
        for event, at in list(self.events):
            if event == "acquired":
                since = at
            elif since is not None:
                yield since, at
                since = None
        if since is not None:
            yield since, host_clock()

    def leave(self) -> None:
        """Leave in good order. It reports `closed` once it has left."""
        self.ask_to_leave()
        self._process.wait(END_MAX)
        self._listener.join(END_MAX)

    def ask_to_leave(self) -> None:
        """Begin to leave, without waiting: sometimes its library hangs while leaving, and goNELI waits ten seconds."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """Kill it with kill -9. If it led, it did so until the kernel reports its end."""
        was_running = self._process.poll() is None
        self._process.kill()
        self._process.wait(END_MAX)
        ended_at = host_clock()
        self._listener.join(END_MAX)
        if was_running:
            self.events.append(GoneliEvent("killed", ended_at))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            self.events.append(GoneliEvent(said["event"], said["at"]))
