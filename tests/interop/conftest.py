"""Shared by the tests with goNELI: its program, built, and a group for each test."""

from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import require
from tests.support.servers.goneli_build import build
from tests.support.waiting import PATIENCE


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    require(build())


@pytest.fixture
def group(kafka: str) -> str:
    """A new group, whose topic already exists with one partition: goNELI does not make it."""
    name = f"interop-{uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(f"{name}.neli", 1, 1)])[f"{name}.neli"].result(PATIENCE)
    return name
