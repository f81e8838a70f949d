"""The tests of Spark share a database."""

from collections.abc import Iterator

import pytest

from tests.support.servers.postgresql import postgresql


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    """How to connect to a PostgreSQL. Each test has its own tables and resources."""
    with postgresql() as address:
        yield address
