"""A copy of the package that is broken by one of the patches in `tests/mutants`."""

import os
import shutil
import subprocess
from pathlib import Path

import neli_router

__all__ = ["BEING_WRITTEN", "MUTANTS", "PACKAGE", "mutate"]

PACKAGE = Path(neli_router.__file__).parent
MUTANTS = Path(__file__).parents[1] / "mutants"

BEING_WRITTEN = shutil.ignore_patterns("*.pyc.*")
"""Python renames these files when they are complete."""


def mutate(patch: Path, folder: Path) -> None:
    """A copy of the package with `patch` applied. It includes compiled files: only changed ones are compiled again."""
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=BEING_WRITTEN)
    applied = subprocess.run(
        ["git", "apply", "--verbose", "--unidiff-zero", str(patch)],  # noqa: S607 - whichever git is there.
        cwd=folder,
        # Otherwise git would take the copy for a part of the repository that the folder is in, and skip every file.
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    if applied.returncode != 0:
        raise RuntimeError(f"{patch.name} no longer applies:\n{applied.stderr}")
