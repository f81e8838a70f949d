"""goNELI in a program of ours, built once, and its processes, which tests start, stop and kill.

    goneli_program/ --make fetch: go mod download--> Go's module cache --go build, offline--> .make/goneli/goneli
                                                                                                  |
    GoneliMember(...) --starts--> a process <-----------------------------------------------------'
                          '--acquired, revoked, fenced, closed--> events

Only `make fetch` brings modules, as it does jars; the library that they contain for C is not compiled anew. A build
after that takes seconds, and none if nothing has changed.

`python -m tests.support.servers.goneli` is that step of `make fetch`.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from neli_router.clock import host_clock
from neli_router.leash import leashed
from neli_router.processes.referee import Life, Span

__all__ = ["GoneliEvent", "GoneliMember", "build", "fetch"]

SOURCE = Path(__file__).with_name("goneli_program")
PROGRAM = Path(__file__).parents[3] / ".make" / "goneli" / "goneli"

BUILD_MAX = 600.0
"""Seconds. On two idle cores it takes about twenty, the first time; the gate's machine may be busy."""

END_MAX = 60.0


class GoneliEvent(NamedTuple):
    """What a member said of itself, or "killed". `at` is by the host's clock."""

    event: str
    at: float


class GoneliMember:
    """One process, which leaves its group when `leave` is called or the test ends. `settings` are of Kafka's client."""

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
        """By what it said last."""
        said = [event for event, _ in self.events if event != "started"]
        return bool(said) and said[-1] == "acquired"

    @property
    def life(self) -> Life:
        """When it led, for the referee. goNELI has no terms, so all are under 0, and their order says nothing."""
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

    def said(self, event: str) -> bool:
        return any(it.event == event for it in self.events)

    def leave(self) -> None:
        """In good order. It says `closed` when it has."""
        self.ask_to_leave()
        self._process.wait(END_MAX)
        self._listener.join(END_MAX)

    def ask_to_leave(self) -> None:
        """Begin to, and do not wait for the end: now and then its library hangs in it, and goNELI waits ten seconds."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        """With kill -9. If it led, it did so until the kernel says that it is no more."""
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


def build() -> str:
    """Build the program from what is on this machine. Returns why it cannot be, or nothing.

    A program that is newer than its sources is left alone: even to find that out takes Go longer than most tests.
    """
    if PROGRAM.exists() and PROGRAM.stat().st_mtime > max(path.stat().st_mtime for path in SOURCE.iterdir()):
        return ""
    for needed in ("go", "cc"):
        if shutil.which(needed) is None:
            return f"goNELI needs {needed}, which is not installed"
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    with PROGRAM.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        why = _go("build", "-o", str(PROGRAM), ".", offline=True)
    return f"goNELI could not be built ({why}): run `make fetch`, which takes a network" if why else ""


def fetch() -> str:
    """Bring the modules, and build. Returns why it could not be done, or nothing."""
    if shutil.which("go") is None:
        return "go is not installed"
    if why := _go("mod", "download", offline=False):
        return f"Go's modules could not be had: {why}"
    return build()


def _go(*arguments: str, offline: bool) -> str:
    """Run Go in the folder of the program. Returns the end of its complaint, or nothing."""
    # A user's flags may forbid what is needed here, or let go.mod be written to. Each run of the compiler ends before
    # it would need its memory again.
    environment = {**os.environ, "CGO_ENABLED": "1", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOGC": "off"}
    if not os.access(Path.home(), os.W_OK):
        environment |= {"GOPATH": str(PROGRAM.parent / "path"), "GOCACHE": str(PROGRAM.parent / "cache")}
    done = subprocess.run(
        ["go", *arguments],  # noqa: S607 - the one that people have.
        cwd=SOURCE,
        env={**environment, **({"GOPROXY": "off"} if offline else {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_MAX,
        check=False,
    )
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]


def main() -> None:
    why = fetch()
    print(f"goNELI: {PROGRAM}" if not why else f"goNELI: its tests are skipped: {why}", flush=True)  # noqa: T201
    sys.exit(1 if why and os.environ.get("CI") == "true" else 0)


if __name__ == "__main__":
    main()
