"""Quint, a language for specifications, from npm into .make/quint.

    quint_package/package.json --make quint: npm install--> .make/quint/node_modules

A lock file would name the registry that it was made with. So package.json pins exact versions instead.
`python -m tests.support.servers.quint` is that step of `make fetch`. It needs no Python package.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["PACKAGE", "fetch", "missing"]

SOURCE = Path(__file__).with_name("quint_package") / "package.json"
FOLDER = Path(__file__).parents[3] / ".make" / "quint"
PACKAGE = FOLDER / "node_modules" / "@informalsystems" / "quint"

INSTALL_MAX = 600.0
"""Seconds. It is a hundred small packages."""

OPTIONS = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock")
"""No package's own program runs on this machine at installation."""


def missing() -> str:
    """Why Quint cannot run, or an empty text."""
    if shutil.which("node") is None:
        return "Quint needs node, which is not installed"
    wanted = json.loads(SOURCE.read_text(encoding="utf-8"))["dependencies"]["@informalsystems/quint"]
    found = PACKAGE / "package.json"
    if not found.exists() or json.loads(found.read_text(encoding="utf-8"))["version"] != wanted:
        return f"Quint {wanted} is not installed: run `make fetch`, which takes a network"
    return ""


def fetch() -> str:
    """Install it, unless it is there. Returns why that failed, or an empty text."""
    if not missing():
        return ""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not installed"
    FOLDER.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCE, FOLDER)
    done = subprocess.run(
        [npm, "install", *OPTIONS],
        cwd=FOLDER,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_MAX,
        check=False,
    )
    return "" if done.returncode == 0 else f"npm: {(done.stderr.strip().splitlines() or ['no reason given'])[0]}"


def main() -> None:
    why = fetch()
    print(f"Quint: {PACKAGE}" if not why else f"Quint: the proofs of the model are left out: {why}", flush=True)  # noqa: T201
    sys.exit(1 if why and os.environ.get("CI") == "true" else 0)


if __name__ == "__main__":
    main()
