"""Shared by tests with randomly drawn faults: the draw, which makes a run repeatable, and the line printed about it.

NELI_TEST_SEED=N    draws the same as the run that printed it
"""

import os
import random

__all__ = ["SEED", "SNAPSHOT_EVERY", "say"]

SEED = int(os.environ.get("NELI_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)

SNAPSHOT_EVERY = 500
"""Often, so that returning members start from snapshots, and the ledger is trimmed below what they once read."""


def say(line: str) -> None:
    print(line)  # noqa: T201 - pytest shows it if the test fails, or if asked to with -rP.
