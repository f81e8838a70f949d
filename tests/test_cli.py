"""The command line: its output, and how it ends."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import neli_router
from neli_router.commands.cli import COMMANDS
from tests.support.commands import neli


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ["demo", "simulate", "explore", "or without one"]),
        (("agent",), ["neli and fast-neli need it"]),
        (("doctor",), ["In a group without a broker it checks the names of the peers"]),
        (("members",), ["it prints what `neli peers` prints"]),
        (("events",), ["Such a group does not record what operators wished"]),
        (("drain",), ["the peers of `term` give partitions back within some seconds"]),
    ],
)
def test_help_names_every_command_and_speaks_of_more_than_ledgers(words: tuple[str, ...], expected: list[str]) -> None:
    result = neli(*words, "--help")
    assert (0, []) == (result.exit_code, [text for text in expected if text not in " ".join(result.output.split())])


def test_without_the_laboratory_the_products_commands_are_all_there_are(tmp_path: Path) -> None:
    package = Path(neli_router.__file__).parent
    shutil.copytree(package, tmp_path / package.name, ignore=shutil.ignore_patterns("lab", "__pycache__"))
    command = [sys.executable, "-m", "neli_router", "--help"]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    shown = [line.split()[0] for line in output.partition("Commands:\n")[2].splitlines() if line[2:3].strip()]
    assert sorted(COMMANDS) == shown
