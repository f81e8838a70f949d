"""Every deliberate break of the protocol is found by the explorer or the simulator, and the smallest by a test.

patch --applied to a copy of the package--> neli explore | neli simulate | pytest --> must exit with 1, and show how
shipped code --------------------------->   the same commands -----------> must exit with 0

Several patches name one command. The shipped code is asked once for each command, in a test of its own, so that no two
workers ask the same.
"""

import re
import shutil
import subprocess
import sys
from os import environ
from pathlib import Path

import pytest

import neli_router

PACKAGE = Path(neli_router.__file__).parent
PATCHES = sorted(Path(__file__).parent.glob("*.patch"))
TESTS = Path(__file__).parent.parent
COMMAND = re.compile(r"^caught-by: (?P<command>(?:neli|pytest) .+)$", re.MULTILINE)
SECONDS_MAX = 1000
"""Of one command: many times what it takes alone on a machine with two cores."""

COMMANDS = sorted({said for patch in PATCHES for said in COMMAND.findall(patch.read_text())})

each_patch = pytest.mark.parametrize("patch", PATCHES, ids=[patch.stem for patch in PATCHES])


PROGRAMS = {
    "neli": "import sys; from neli_router.cli import main; sys.argv[0] = 'neli'; main()",
    "pytest": "import sys, pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *sys.argv[1:]]))",
}


def run(command: str, package: Path) -> subprocess.CompletedProcess[str]:
    """Run it with the copy of the package in `package`, and the tests beside it."""
    program, *arguments = command.split()
    if program == "pytest" and package != PACKAGE:
        shutil.copytree(TESTS, package.parent / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    return subprocess.run(
        [sys.executable, "-c", PROGRAMS[program], *arguments],
        cwd=package.parent,
        env={**environ, "PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def mutate(patch: Path, folder: Path) -> Path:
    """A copy of the package with `patch` applied."""
    copy = folder / "neli_router"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    applied = subprocess.run(
        ["git", "apply", "--verbose", "--unidiff-zero", str(patch)],  # noqa: S607 - whichever git is on the path.
        cwd=folder,
        # Else git would take the copy for a part of whatever repository the folder is in, and skip every file.
        env={**environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert applied.returncode == 0, f"{patch.name} no longer applies:\n{applied.stderr}"
    return copy


@each_patch
def test_it_still_applies_and_says_what_catches_it(patch: Path, tmp_path: Path) -> None:
    mutate(patch, tmp_path)
    assert COMMAND.search(patch.read_text()) is not None


@pytest.mark.exhaustive
@pytest.mark.timeout(
    SECONDS_MAX + 120
)  # More than for the broken ones, which end at their first fault: so these begin.
@pytest.mark.parametrize("command", COMMANDS)
def test_the_shipped_protocol_passes_what_catches_the_broken_ones(command: str) -> None:
    found = run(command, PACKAGE)
    assert 0 == found.returncode, found.stdout[-10_000:] + found.stderr


@pytest.mark.exhaustive
@pytest.mark.timeout(SECONDS_MAX + 60)
@each_patch
def test_a_broken_protocol_is_caught(patch: Path, tmp_path: Path) -> None:
    found = COMMAND.search(patch.read_text())
    assert found is not None, f"{patch.name} does not say what catches it"
    broken = run(found["command"], mutate(patch, tmp_path))
    assert (1, "FAIL") == (broken.returncode, "FAIL" if "FAIL" in broken.stdout else broken.stdout + broken.stderr)


def test_there_are_enough_of_them() -> None:
    assert len(PATCHES) >= 15
