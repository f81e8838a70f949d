"""Databases for the fence: SQLite always, and a PostgreSQL that the whole session shares."""

from collections.abc import Iterator

import psycopg
import pytest

from neli_router import fence
from tests.support.servers.postgresql import postgresql


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with postgresql() as address:
        yield address


@pytest.fixture
def address(server: str) -> str:
    """The server, containing only the fence and a table that it protects."""
    with psycopg.connect(server) as connection:
        connection.execute("DROP TABLE IF EXISTS neli_fence, notes")
        connection.execute("CREATE TABLE notes (id TEXT PRIMARY KEY, body TEXT NOT NULL, fence BIGINT NOT NULL)")
        fence.install(connection)
    return server
