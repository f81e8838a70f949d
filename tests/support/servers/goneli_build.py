"""goNELI in a program of our own, built once.

    goneli_program/ --make fetch: go mod download--> Go's module cache --go build, offline--> .make/goneli/goneli

Only `make fetch` and `make test` download modules, which contain a precompiled C library. A later build takes seconds,
or no time if no source has changed. This module needs no package, so `make test` builds while it installs packages.

`python -m tests.support.servers.goneli_build` is that step of `make fetch`.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["PROGRAM", "build", "fetch", "go"]

SOURCE = Path(__file__).with_name("goneli_program")
PROGRAM = Path(__file__).parents[3] / ".make" / "goneli" / "goneli"

BUILD_MAX = 600.0
"""Seconds. The first build takes about twenty on two idle cores; the gate's machine may be busy."""


def is_built() -> bool:
    """Whether the program is newer than its sources. Go would take longer than most tests just to find that out."""
    return PROGRAM.exists() and PROGRAM.stat().st_mtime > max(path.stat().st_mtime for path in SOURCE.iterdir())


def build() -> str:
    """Build the program from what this machine has, unless it is built. Returns why that fails, or an empty text."""
    if is_built():
        return ""
    for needed in ("go", "cc"):
        if shutil.which(needed) is None:
            return f"goNELI needs {needed}, which is not installed"
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    with PROGRAM.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        why = _failing("build", "-o", str(PROGRAM), ".", offline=True)
    return f"goNELI could not be built ({why}): run `make fetch`, which takes a network" if why else ""


def fetch() -> str:
    """Download the modules and build, unless it is built. Returns why that failed, or an empty text."""
    if is_built():
        return ""
    if shutil.which("go") is None:
        return "go is not installed"
    if why := _failing("mod", "download", offline=False):
        return f"Go's modules could not be had: {why}"
    return build()


def go(place: Path, *arguments: str, given: bytes = b"", offline: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run Go in the folder `place`. All programs are built with the same flags, so they share the compiled library."""
    # A user's flags may forbid what is needed here, or allow writes to go.mod. Each run of the compiler ends before it
    # would need to collect garbage.
    environment = {**os.environ, "CGO_ENABLED": "1", "GOFLAGS": "-mod=readonly -buildvcs=false", "GOGC": "off"}
    if not os.access(Path.home(), os.W_OK):
        environment |= {"GOPATH": str(PROGRAM.parent / "path"), "GOCACHE": str(PROGRAM.parent / "cache")}
    return subprocess.run(
        ["go", *arguments],  # noqa: S607 - the one installed by the user.
        cwd=place,
        env={**environment, **({"GOPROXY": "off"} if offline else {})},
        input=given,
        capture_output=True,
        timeout=BUILD_MAX,
        check=False,
    )


def _failing(*arguments: str, offline: bool) -> str:
    """Run Go in the folder of the program. Returns the end of its error output, or an empty text."""
    done = go(SOURCE, *arguments, offline=offline)
    return (
        "" if done.returncode == 0 else (done.stderr.decode().strip().splitlines() or [f"exit {done.returncode}"])[-1]
    )


def main() -> None:
    why = fetch()
    print(f"goNELI: {PROGRAM}" if not why else f"goNELI: its tests are skipped: {why}", flush=True)  # noqa: T201
    sys.exit(1 if why and os.environ.get("CI") == "true" else 0)


if __name__ == "__main__":
    main()
