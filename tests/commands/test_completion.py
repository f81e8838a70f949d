"""Completion: each shell gets its script, and bash completes with it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import neli
from tests.support.waiting import PATIENCE

BASH = """
eval "$(neli completion bash)"
for line in "$@"; do
    COMPREPLY=()
    COMP_WORDS=(neli $line)
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _neli_completion neli "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "${COMPREPLY[@]}"
done
"""

COMPLETED = {"me": "members", "drain --dr": "--dry-run", "members --output j": "json"}


@pytest.mark.parametrize(
    ("shell", "mark"), [("bash", "complete -o"), ("zsh", "#compdef neli"), ("fish", "complete --no-files")]
)
def test_each_shell_gets_its_script(shell: str, mark: str) -> None:
    result = neli("completion", shell)
    assert (0, True, True) == (result.exit_code, mark in result.stdout, "_NELI_COMPLETE" in result.stdout)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is wanted, to ask it")
def test_bash_completes_commands_options_and_what_they_take(tmp_path: Path) -> None:
    program = tmp_path / "neli"
    code = "from neli_router.commands.cli import main; main(prog_name='neli')"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}" "$@"\n')
    program.chmod(0o755)
    found = subprocess.run(
        ["bash", "--norc", "-c", BASH, "bash", *COMPLETED],  # noqa: S607 - whichever bash there is.
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert ([*COMPLETED.values()], "") == (found.stdout.splitlines(), found.stderr)
