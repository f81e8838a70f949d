"""Shared by all tests: a home of their own, transcripts that can be rewritten, and the servers, each started once.

Each test has its own HOME and XDG folders, and no NELI_* variables from the person who runs it. So it neither reads a
`neli.toml` nor meets an agent of this machine, and it leaves nothing behind, not even the level of our log. Things
shared in a session, such as the agent of a whole module, live in the session's home.

A test that needs a server requests it with a fixture and a marker. If the machine cannot run the server, the test is
skipped and says why; with CI=true that is a failure.
"""

import gc
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from neli_router.member.async_member import AsyncMember
from neli_router.member.member import Member
from tests.gate import KINDS, NAMED
from tests.support.servers import postgresql as postgresql_servers
from tests.support.servers import redis as redis_servers
from tests.support.servers.jars import LIGHT, for_spark
from tests.support.servers.kafka import SHORT_GROUPS, Kafka, missing
from tests.support.waiting import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_addoption(parser: pytest.Parser) -> None:
    help_ = "rewrite the answers in every transcript; commit a difference only if you can explain it"
    parser.addoption("--rewrite", action="store_true", help=help_)


_session = pytest.StashKey[tempfile.TemporaryDirectory[str]]()
"""Near the root folder, because the path of a Unix socket has room for only about a hundred letters."""

_homes = count()


def pytest_configure(config: pytest.Config) -> None:
    # Most objects stay. With Python's 700, a tenth of the processor time goes into a search for garbage among them.
    gc.set_threshold(100_000, 20)
    config.stash[_session] = tempfile.TemporaryDirectory(prefix="neli-tests-", ignore_cleanup_errors=True)
    # Go keeps the downloads of `make fetch` in the home of the person who ran it.
    os.environ.setdefault("GOPATH", str(Path.home() / "go"))
    os.environ.setdefault("GOCACHE", str(Path.home() / ".cache" / "go-build"))
    for name in [name for name in os.environ if name.startswith("NELI_") and not name.startswith("NELI_TEST_")]:
        del os.environ[name]
    os.environ.pop("PYTHONUNBUFFERED", None)  # It would hide output that a program forgets to flush.
    os.environ.update(_home(config))
    # A server that shares the cores with other tests may take longer to answer than a program would wait.
    for opening in (Member.__init__, AsyncMember.open):
        opening.__kwdefaults__["timeout"] = PATIENCE  # type: ignore[index]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that may take longest: if one of them came last, all other workers would be idle."""
    longest = dict[Path, float]()
    for item in items:
        timeout = item.get_closest_marker("timeout")
        longest[item.path] = max(longest.get(item.path, 0.0), timeout.args[0] if timeout else 0.0)
    items.sort(key=lambda item: -longest[item.path])


def pytest_deselected(items: list[pytest.Item]) -> None:
    """The gate finds the files with servers by their text."""
    files = {item.path for item in items if {mark.name for mark in item.iter_markers()} & {*KINDS}}
    assert [] == [path for path in files if not NAMED.search(path.read_text(encoding="utf-8"))]


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_session].cleanup()


def _home(config: pytest.Config) -> dict[str, str]:
    home = Path(config.stash[_session].name) / str(next(_homes))
    folders = {"XDG_RUNTIME_DIR": "run", "XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "config"}
    for folder in folders.values():
        (home / folder).mkdir(mode=0o700, parents=True)
    return {"HOME": str(home), **{name: str(home / folder) for name, folder in folders.items()}}


@pytest.fixture(autouse=True)
def _own_home(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in _home(pytestconfig).items():
        monkeypatch.setenv(name, value)
    log = logging.getLogger("neli_router")
    level = log.level
    yield
    log.setLevel(level)  # Commands set it.


@pytest.fixture(scope="session", autouse=True)
def _spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A killed Spark leaves blocks and artifacts behind: in a folder that is removed with those of the tests."""
    folder = str(tmp_path_factory.mktemp("java"))
    options = f"{for_spark()} -Djava.io.tmpdir={folder}"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARK_LOCAL_DIRS", folder)
        patched.setenv("SPARK_LAUNCHER_OPTS", " ".join(LIGHT))
        patched.setenv("SPARK_SUBMIT_OPTS", f"{options} '-Dspark.executor.extraJavaOptions={options}'")
        yield


@pytest.fixture(scope="session")
def kafka() -> Iterator[str]:
    """The address of a broker that all tests share: HOST:PORT."""
    if there := os.environ.get("NELI_TEST_KAFKA") or os.environ.get("GATE_KAFKA"):
        yield there
        return
    require(missing())
    with Kafka.started(settings=SHORT_GROUPS) as brokers:
        yield brokers.bootstrap


@pytest.fixture
def new_topic(kafka: str) -> Callable[[int], str]:
    """Creates a topic with the given number of partitions; returns its address, as kafka://HOST:PORT/TOPIC."""
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415 - most tests do without Kafka.

    def make(partitions: int) -> str:
        name = f"topic-{uuid4().hex}"
        client = AdminClient({"bootstrap.servers": kafka})
        client.create_topics([NewTopic(name, partitions, 1)])[name].result(PATIENCE)
        return f"kafka://{kafka}/{name}"

    return make


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The address of a database that all tests share, which libpq knows, too: postgresql://neli@HOST:PORT/DATABASE."""
    if there := os.environ.get("NELI_TEST_POSTGRESQL"):
        yield there
        return
    require(postgresql_servers.missing())
    with postgresql_servers.Postgresql.started(settings=postgresql_servers.DURABLE) as server:
        yield server.database


@pytest.fixture
def database(postgresql: str) -> Iterator[str]:
    """The address of a new database for one test, for libpq."""
    import psycopg  # noqa: PLC0415 - most tests do without PostgreSQL.

    name = f"test_{uuid4().hex}"
    with psycopg.connect(postgresql, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield f"{postgresql.rpartition('/')[0]}/{name}"
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(scope="session")
def redis() -> Iterator[str]:
    """The address of a Redis that all tests share, with nothing after the port: redis://HOST:PORT."""
    if there := os.environ.get("NELI_TEST_REDIS"):
        yield there
        return
    require(redis_servers.missing())
    with redis_servers.Redis.started(settings=redis_servers.DURABLE) as server:
        yield f"redis://127.0.0.1:{server.port}"


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A Spark that all tests of a worker share: local, with two cores. It does not need this machine's Java."""
    from neli_router.spark import session  # noqa: PLC0415 - most tests do without Spark.

    settings = {
        "spark.driver.memory": "1g",
        # It looks up the line of the program for each column: a quarter of the processor time of these tests.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }
    with session("neli tests", master="local[2]", settings=settings) as started:
        yield started


def require(why_not: str) -> None:
    """Skip the test if there is a reason, or fail it where every server must be available."""
    if why_not and os.environ.get("CI") == "true":
        pytest.fail(f"a server was wanted, but {why_not}")
    if why_not:
        pytest.skip(why_not)


@pytest.fixture(name="namespace", scope="session")
def _namespace() -> tuple[str, ...]:
    """The beginning of a command that runs as root of a PID namespace of its own."""
    begun = ("unshare", "--user", "--map-root-user", "--pid", "--mount-proc", "--fork", "--kill-child")
    if shutil.which("unshare") is None or subprocess.run([*begun, "true"], check=False).returncode:
        pytest.skip("this user may make no namespace")
    return begun


@pytest.fixture(name="as_root")
def _as_root() -> Iterator[Path]:
    """A program that becomes root, no matter which user starts it, and runs its arguments; any user may start it."""
    setpriv = shutil.which("setpriv")
    require("only root can make a program that becomes root" if os.getuid() else "")
    require("" if setpriv else "setpriv, a part of util-linux, is missing")
    assert setpriv is not None
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # Pytest's own folders are closed to other users.
        Path(folder).chmod(0o755)
        program = Path(shutil.copy(setpriv, folder))
        program.chmod(0o4755)
        require("its folder is mounted with nosuid" if os.statvfs(folder).f_flag & os.ST_NOSUID else "")
        yield program
