"""goNELI in a program of ours, built once.

    goneli_program/ --make fetch: go mod download--> Go's module cache --go build, offline--> .make/goneli/goneli

Only `make fetch` and `make test` download modules. The C library in them is compiled already. A later build takes
seconds, or nothing if no source has changed. This module needs no package, so `make test` builds while it installs
packages.

`python -m tests.support.servers.goneli_build` is that step of `make fetch`.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["PROGRAM", "build", "fetch"]

SOURCE = Path(__file__).with_name("goneli_program")
PROGRAM = Path(__file__).parents[3] / ".make" / "goneli" / "goneli"

BUILD_MAX = 600.0
"""Seconds. On two idle cores it takes about twenty, the first time; the gate's machine may be busy."""


def is_built() -> bool:
    """A program that is newer than its sources is left alone: even to find that out takes Go longer than most tests."""
    return PROGRAM.exists() and PROGRAM.stat().st_mtime > max(path.stat().st_mtime for path in SOURCE.iterdir())


def build() -> str:
    """Build the program from what is on this machine, unless it is built. Returns why it cannot be, or nothing."""
    if is_built():
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
    """Bring the modules, and build, unless it is built. Returns why it could not be done, or nothing."""
    if is_built():
        return ""
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
