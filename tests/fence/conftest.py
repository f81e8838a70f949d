"""A database for the fence, in the PostgreSQL that the whole session shares."""

import psycopg
import pytest

from neli_router import fence


@pytest.fixture
def address(database: str) -> str:
    """A database that contains only the fence and a table that it protects."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE notes (id TEXT PRIMARY KEY, body TEXT NOT NULL, fence BIGINT NOT NULL)")
        fence.install(connection)
    return database
