"""The tests of Spark also share a Java that starts sooner, and a database."""

import os
from collections.abc import Iterator

import pytest

from tests.support.servers.postgresql import postgresql

JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""The C1 compiler alone: no test runs long enough for what the other one makes of it."""


@pytest.fixture(scope="session", autouse=True)
def _light_java(_folder_of_java: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARK_SUBMIT_OPTS", f"{os.environ['SPARK_SUBMIT_OPTS']} {JAVA}")
        yield


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    """How to connect to a PostgreSQL. Each test has tables and resources of its own."""
    with postgresql() as address:
        yield address
