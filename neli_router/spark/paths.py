"""Paths below which the driver and all executors see the same files, as Spark takes them.

/lake/[eu]/prices --to_write--> file:///lake/[eu]/prices          a bare path may be one of the cluster's own storage
                  --to_read---> file:///lake/\\[eu\\]/prices        Spark's readers take a bare one for a pattern
"""

import re
from pathlib import Path

__all__ = ["to_read", "to_write"]

PATTERN = re.compile(r"[\\{}\[\]*?]")
"""Characters by which a path names many files."""


def to_write(path: Path) -> str:
    return f"file://{path.absolute()}"


def to_read(path: Path) -> str:
    return PATTERN.sub(r"\\\g<0>", to_write(path))
