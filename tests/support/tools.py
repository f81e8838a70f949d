"""External programs: found; otherwise the test is skipped, or fails where nothing may be skipped."""

import os
import shutil
import subprocess

import pytest

__all__ = ["output_of", "tool"]


def tool(name: str, *, required: bool = True) -> str:
    """The program's path. Without the program, the test is skipped, or fails with CI=true if it is `required`."""
    found = shutil.which(name)
    if found is None:
        if required and os.environ.get("CI") == "true":
            pytest.fail(f"{name} is not installed, and in CI nothing that needs it may be skipped")
        pytest.skip(f"{name} is not installed")
    return found


def output_of(*command: str, given: bytes = b"") -> str:
    """The output of the command, if it succeeded."""
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    text = done.stdout.decode(errors="replace")
    assert 0 == done.returncode, text
    return text
