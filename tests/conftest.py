"""What all tests share: how to ask for transcripts to be written anew, and the servers, each started once.

A test that needs a server says so by a fixture and a marker. Where the machine cannot have one, the test is skipped and
says why; with CI=true that is a failure.
"""

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.support.servers import redis as redis_servers
from tests.support.servers.kafka import SHORT_GROUPS, Kafka, missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write the answers of every transcript anew; commit a difference only if you can explain it",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the proofs that may take longest: else one of them computes alone when all other tests are done."""

    def bound(item: pytest.Item) -> float:
        timeout = item.get_closest_marker("timeout")
        return timeout.args[0] if timeout is not None and item.get_closest_marker("exhaustive") is not None else 0.0

    items.sort(key=bound, reverse=True)


@pytest.fixture(scope="session", autouse=True)
def _folder_of_java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Spark that is killed leaves blocks and artifacts behind: in a folder that goes with those of the tests."""
    folder = str(tmp_path_factory.mktemp("java"))
    there = f"-Djava.io.tmpdir={folder}"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARK_LOCAL_DIRS", folder)
        patched.setenv("SPARK_SUBMIT_OPTS", f"{there} -Dspark.executor.extraJavaOptions={there}")
        yield


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """The address of a broker that all tests share: HOST:PORT."""
    if there := os.environ.get("NELI_TEST_KAFKA"):
        yield there
        return
    require(missing())
    with Kafka.started(settings=SHORT_GROUPS) as brokers:
        yield brokers.bootstrap


@pytest.fixture
def new_topic(kafka: str) -> Callable[[int], str]:
    """Makes a topic with so many partitions; its address, as kafka://HOST:PORT/TOPIC."""
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415 - most tests do without Kafka.

    def make(partitions: int) -> str:
        name = f"topic-{uuid4().hex}"
        client = AdminClient({"bootstrap.servers": kafka})
        client.create_topics([NewTopic(name, partitions, 1)])[name].result(60)
        return f"kafka://{kafka}/{name}"

    return make


@pytest.fixture(scope="session")
def redis() -> Iterator[str]:
    """The address of a Redis that all tests share, with nothing behind the port: redis://HOST:PORT."""
    if there := os.environ.get("NELI_TEST_REDIS"):
        yield there
        return
    require(redis_servers.missing())
    with redis_servers.Redis.started(settings=redis_servers.DURABLE) as server:
        yield f"redis://127.0.0.1:{server.port}"


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A Spark that all tests of a worker share: local, with two cores. It needs no Java of this machine."""
    from neli_router.spark import session  # noqa: PLC0415 - most tests do without Spark.

    settings = {
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.ui.showConsoleProgress": "false",
    }
    with session("neli tests", master="local[2]", settings=settings) as started:
        yield started


def require(why_not: str) -> None:
    """Skip the test if there is a reason, or fail it where every server must be had."""
    if why_not and os.environ.get("CI") == "true":
        pytest.fail(f"a server was wanted, but {why_not}")
    if why_not:
        pytest.skip(why_not)
