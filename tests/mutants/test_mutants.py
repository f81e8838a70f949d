"""Every deliberate break of the protocol is found by the explorer or the simulator, and the smallest by a test.

patch --applied to a copy of the package--> neli explore | neli simulate | pytest --> must exit with 1, and show how
shipped code --------------------------->   neli explore | neli simulate -----------> must exit with 0

Each patch names the cheapest command that catches it: a seed that does begins its seeds, and an exploration ends soon
after the world that breaks a rule. The shipped code is asked no more than that here, because `sim/test_proof.py` asks
it for more; once for each command, in a test of its own, so that no two workers ask the same. A command of pytest is
not asked again, because the tests that it names are run on the shipped code as all others are.
"""

import re
import shutil
import subprocess
import sys
from os import environ
from pathlib import Path

import pytest

import neli_router
from tests.sim.test_proof import FURTHER

PACKAGE = Path(neli_router.__file__).parent
PATCHES = sorted(Path(__file__).parent.glob("*.patch"))
TESTS = Path(__file__).parent.parent
COMMAND = re.compile(r"^caught-by: (?P<command>(?:neli|pytest) .+)$", re.MULTILINE)
SECONDS_MAX = 3000
"""Of one command: many times what it takes alone on a machine with two cores, since others have these first."""

PROVEN = {f"neli explore {bounds}" for bounds in FURTHER} | {
    "neli explore --protocol fast-neli --no-leave --no-crash --states 12000",
    "neli explore --protocol gossip --terms 2 --voter-twice-as-fast",
    "neli explore --protocol term --terms 1 --restarts 1",
    "neli explore --protocol term --terms 2 --no-cede --states 40000",
}
"""What `sim/test_proof.py` walks, by these bounds or, in the `test` profiles, at least as far."""

COMMANDS = sorted(
    {said for patch in PATCHES for said in COMMAND.findall(patch.read_text()) if said[:4] == "neli"} - PROVEN
)

each_patch = pytest.mark.parametrize("patch", PATCHES, ids=[patch.stem for patch in PATCHES])


CRASH = re.compile(r"^E +(?:Attribute|Import|ModuleNotFound|Name|Syntax|Type|UnboundLocal)Error\b.*", re.MULTILINE)
"""How pytest shows a break that does not run any more: whatever fails by it has seen nothing of the protocol."""

PROGRAMS = {
    "neli": "import sys; from neli_router.cli import main; sys.argv[0] = 'neli'; main()",
    # One failure is enough.
    "pytest": "import sys, pytest; sys.exit(pytest.main(['-q', '-x', '-p', 'no:cacheprovider', *sys.argv[1:]]))",
}

WITHOUT_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Importing those that are installed takes three times as long as most of these tests do, and none needs one."""


BEING_WRITTEN = shutil.ignore_patterns("*.pyc.*")
"""Another process renames such a file as soon as it is whole."""


def run(command: str, package: Path) -> subprocess.CompletedProcess[str]:
    """Run it with the copy of the package in `package`, and the tests beside it."""
    program, *arguments = command.split()
    if program == "pytest":
        shutil.copytree(TESTS, package.parent / "tests", ignore=BEING_WRITTEN)
    return subprocess.run(
        [sys.executable, "-c", PROGRAMS[program], *arguments],
        cwd=package.parent,
        env={**environ, **WITHOUT_PLUGINS, "PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def mutate(patch: Path, folder: Path) -> Path:
    """A copy of the package with `patch` applied. It brings what is compiled: only what changes is compiled anew."""
    copy = folder / "neli_router"
    shutil.copytree(PACKAGE, copy, ignore=BEING_WRITTEN)
    apply(patch, folder)
    return copy


def apply(patch: Path, folder: Path, *options: str) -> None:
    applied = subprocess.run(
        ["git", "apply", "--verbose", "--unidiff-zero", *options, str(patch)],  # noqa: S607 - whichever git is there.
        cwd=folder,
        # Else git would take a copy for a part of whatever repository the folder is in, and skip every file.
        env={**environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert applied.returncode == 0, f"{patch.name} no longer applies:\n{applied.stderr}"


@each_patch
def test_it_still_applies_and_says_what_catches_it(patch: Path) -> None:
    apply(patch, PACKAGE.parent, "--check")
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
    assert None is CRASH.search(broken.stdout)


def test_there_are_enough_of_them() -> None:
    assert len(PATCHES) >= 15
