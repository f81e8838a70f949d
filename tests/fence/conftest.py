"""A database for the fence."""

import psycopg
import pytest

from neli_router import fence


@pytest.fixture
def address(postgresql: str) -> str:
    """The server that all tests share, with an empty fence and a table that it protects."""
    with psycopg.connect(postgresql) as connection:
        connection.execute("DROP TABLE IF EXISTS neli_fence, notes")
        connection.execute("CREATE TABLE notes (id TEXT PRIMARY KEY, body TEXT NOT NULL, fence BIGINT NOT NULL)")
        fence.install(connection)
    return postgresql
