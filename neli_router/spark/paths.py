"""Paths below which the driver and all executors see the same files, in the forms that Spark takes.

/lake/[eu]/prices --to_write--> file:///lake/[eu]/prices          a bare path may mean the cluster's own storage
                  --to_read---> file:///lake/\\[eu\\]/prices        Spark's readers take a bare path for a pattern
"""

import re
from pathlib import Path

__all__ = ["to_read", "to_write"]

PATTERN = re.compile(r"[\\{}\[\]*?]")
"""Characters that make a path name many files."""


def to_write(path: Path) -> str:
    return f"file://{path.absolute()}"


def to_read(path: Path) -> str:
    return PATTERN.sub(r"\\\g<0>", to_write(path))
