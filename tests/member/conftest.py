"""The group that most tests of members begin with."""

from collections.abc import Iterator

import pytest

from neli_router import testing
from neli_router.testing import Group


@pytest.fixture(name="group")
def pair() -> Iterator[Group]:
    """Two members that share eight partitions, at rest."""
    with testing.group("a", "b", partitions=8, lease=1.0, drain_timeout=5.0) as group:
        group.settle()
        yield group
