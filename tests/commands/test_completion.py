"""Completion: that each shell gets its script, and that bash completes with it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from neli_router.cli import completion_command

BASH = """
eval "$(neli completion bash)"
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_neli_completion neli "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
echo "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("shell", "mark"), [("bash", "complete -o"), ("zsh", "#compdef neli"), ("fish", "complete --no-files")]
)
def test_each_shell_gets_its_script(shell: str, mark: str) -> None:
    result = CliRunner().invoke(completion_command, [shell], catch_exceptions=False)
    assert (0, True, True) == (result.exit_code, mark in result.stdout, "_NELI_COMPLETE" in result.stdout)


def test_a_shell_that_is_not_known_is_refused_with_those_that_are() -> None:
    result = CliRunner().invoke(completion_command, ["tcsh"])
    assert (2, True) == (result.exit_code, "'bash', 'zsh', 'fish'" in result.stderr)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is wanted, to ask it")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["dr"], "drain"),
        (["un"], "undrain unpin"),
        (["drain", "--dr"], "--dry-run"),
        (["members", "--output", "j"], "json"),
        (["run", "--ro"], "--role"),
        (["completion", "z"], "zsh"),
    ],
)
def test_bash_completes_commands_options_and_what_they_take(tmp_path: Path, words: list[str], completed: str) -> None:
    neli = tmp_path / "neli"
    code = "from neli_router.cli import main; main(prog_name='neli')"
    neli.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}" "$@"\n')
    neli.chmod(0o755)
    found = subprocess.run(
        ["bash", "--norc", "-c", BASH, "bash", "neli", *words],  # noqa: S607 - whichever bash there is.
        env={
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (completed, "") == (found.stdout.strip(), found.stderr)
