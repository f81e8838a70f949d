"""Fixtures that the tests of the provider share: a separate Airflow, an agent, and the connection to it.

    AIRFLOW_HOME, in a folder of this session --set before anything imports Airflow--> airflow.cfg, airflow.db, dags/
    agent (a real one, on a SQLite ledger) <--AIRFLOW_CONN_NELI_DEFAULT-- tasks of `dag_test`, in this process

Airflow reads its home when it is imported, and a test must never touch the home of the user who runs it. So the home is
set here, where this folder's tests are collected. This folder must not be named like Airflow: to find the name of a
module in it, pytest would import Airflow first.
"""

import logging
import os
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from math import inf
from multiprocessing import set_forkserver_preload
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

_home = tempfile.TemporaryDirectory(prefix="neli-airflow-", ignore_cleanup_errors=True)
HOME = Path(_home.name)

LEASE_OF_ONE = 20.0
"""Seconds, for the agent whose tasks run in this process. Starting Spark in it holds up its threads for longer than a
short lease lasts. The agent takes as long to begin to lead, but only once in a session, because no other member's lease
is left then."""

HERE = Path(__file__).parent

TEST_MAX = 1800.0
"""Seconds. Only a test that hangs reaches it."""

BUNDLE = "dags-folder"
"""Airflow's own name for the Dag folder."""

SETTINGS = {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__CORE__DAGS_FOLDER": str(HOME / "dags"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True",
    # Two connections for each test: one to an agent that never exists, and one of another type.
    "AIRFLOW_CONN_AWAY": '{"conn_type": "neli", "extra": {"address": "unix:/nowhere/agent.sock"}}',
    "AIRFLOW_CONN_WRONG": '{"conn_type": "http"}',
}
for name in [name for name in os.environ if name.startswith(("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_"))]:
    del os.environ[name]
os.environ.update(SETTINGS)

from neli_router.agent import Client  # noqa: E402 - after the home is set, like all that follows.
from neli_router.config.agent_options import AgentOptions  # noqa: E402
from neli_router.errors import LedgerUnavailable  # noqa: E402
from tests.support.agents.processes import PARTITIONS, AgentProcess, agents, leader_of  # noqa: E402
from tests.support.agents.running import Running, configured, on_both_sockets, over_unix, running  # noqa: E402
from tests.support.given import DagTest, spelled  # noqa: E402
from tests.support.processes import forked  # noqa: E402
from tests.support.servers.airflow import begin_with_migrated  # noqa: E402
from tests.support.waiting import PATIENCE, until  # noqa: E402

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

# Each `Program` is a fork of a process that has imported Airflow, which would take each of them seconds.
set_forkserver_preload([forked.__name__, "airflow_provider.operators.spark", "airflow_provider._machinery.listener"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test of this folder more time than usual: an installation may start in it, on a busy machine."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_MAX))


def pytest_unconfigure() -> None:
    """Remove the handler that Airflow's import gave to the root logger. It writes to a stream of pytest's, which is
    closed by now, and Spark's connection to Java logs its end when Python ends."""
    logging.getLogger().handlers.clear()


@pytest.fixture(autouse=True)
def _no_end_of_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that lost its lease ends its process; here that is pytest's own, on a machine that is slow."""
    monkeypatch.setattr("airflow_provider._machinery.leases.ENDING_PART", -inf)


def executable(path: Path, script: str) -> Path:
    """Make a program of this script in bash."""
    path.write_text(f"#!/usr/bin/env bash\n{script}", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def spark_default(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of that id: to a Spark of one core, with the modules of this process, and a space in a path."""
    driver = tmp_path_factory.mktemp("a driver") / "python"
    driver.symlink_to(sys.executable)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", str(driver))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", spelled("spark", host="local[1]"))
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """The home of this session's Airflow, with its metadata database migrated."""
    (HOME / "dags").mkdir()
    begin_with_migrated(HOME)
    from airflow.dag_processing.bundles.manager import DagBundlesManager  # noqa: PLC0415 - it takes seconds.

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Airflow's own warnings, as below.
        DagBundlesManager().sync_bundles_to_db()  # type: ignore[no-untyped-call]
    return HOME


@pytest.fixture(name="agent", scope="session")
def _agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An agent that is alone in its group of eight partitions, so it leads them all. It serves both kinds of socket."""
    folder = tmp_path_factory.mktemp("agent")
    with running(configured(folder, lease=LEASE_OF_ONE), on_both_sockets(folder)) as agent:
        agent.await_ready()
        with Client(f"unix:{agent.options.socket}", timeout=PATIENCE) as client:
            until(lambda: client.lease(0) is not None, "the lead of the only agent")
        yield agent


@contextmanager
def member(folder: Path, name: str, **options: Any) -> Iterator[Running]:
    """An agent called `name`, on the ledger in `folder`; with a lease that survives a busy machine."""
    config = configured(folder, name, **{"lease": 5.0, **options})
    with running(config, AgentOptions(socket=f"{folder}/{name}.sock")) as agent:
        agent.await_ready()
        yield agent


class Group:
    """Two agents, and the host of one of them: roles of either, and ways to move a role."""

    def __init__(self, both: list[AgentProcess]) -> None:
        self.here = leader_of(0, both)
        (self.other,) = (agent for agent in both if agent is not self.here)
        with self.here.client() as client:
            owners = [client.owner_of_role(role).name for role in range(PARTITIONS)]
        self.ours, self.theirs = (
            [role for role, owner in enumerate(owners) if owner == agent.name] for agent in (self.here, self.other)
        )
        self.role, self.second, *_ = self.ours  # The first is 0.
        self.elsewhere = self.theirs[0]
        self._moved: set[int] = set()

    def pin(self, role: int, agent: AgentProcess) -> None:
        """Send it to the same agent each time, which has the pins recorded in this order. A pin that the group already
        shows may be recorded late: after the next one, if that is sent to another agent."""
        self._moved.add(role)

        def is_pinned() -> bool:
            # On a busy machine the ledger may show it too late. The error says what to do then: repeat it.
            with suppress(LedgerUnavailable), self.other.client() as client:
                client.pin(role, agent.name)
                return True
            return False

        until(is_pinned, f"the pin of role {role}")

    def take_away(self) -> None:
        """Make the other agent lead our role: soon, even if some block still works."""
        self.pin(self.role, self.other)

    def give_back(self) -> None:
        for role in sorted(self._moved):
            agent = self.here if role in self.ours else self.other
            self.pin(role, agent)
            leader_of(role, [agent])
        self._moved.clear()


@pytest.fixture(scope="module")
def _two_agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    # The drain timeout is short: most tests are about what happens after it.
    with agents(tmp_path_factory.mktemp("agents"), "a", "b", drain_timeout=0.3) as both:
        yield Group(both)


@pytest.fixture
def group(_two_agents: Group, neli_default: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    """Two agents. The connection `neli_default` is to the one that leads role 0."""
    monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", _two_agents.here.connection)
    yield _two_agents
    _two_agents.give_back()


TURNS = 5
"""After this many answers, an agent has noticed that a connection was closed before them."""


def open_streams(agent: Running | AgentProcess) -> int:
    """How many streams the agent has open, by its own count: one for each role that is held or followed."""
    with over_unix(str(agent.options.socket if isinstance(agent, Running) else agent.socket)) as client:
        lines = [client.get("/metrics").text.splitlines() for _ in range(TURNS)][-1]
    return next(int(float(line.split()[1])) for line in lines if line.startswith("neli_streams "))


@pytest.fixture
def neli_default(agent: Running, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of the connection to `agent`."""
    monkeypatch.setenv("AIRFLOW_CONN_NELI_DEFAULT", spelled(address=f"unix:{agent.options.socket}"))
    return "neli_default"


@pytest.fixture
def ledger(agent: Running, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a connection to the ledger of `agent`."""
    address = f"sqlite://{Path(agent.options.socket or '').parent}/ledger.db"
    monkeypatch.setenv("AIRFLOW_CONN_LEDGER", spelled(address=address))
    return "ledger"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, list[Any]]:
    """Metric of Airflow -> its values, and the tags of each."""
    from airflow.providers.common.compat.sdk import Stats  # noqa: PLC0415 - as above.

    found: defaultdict[str, list[Any]] = defaultdict(list)
    for kind in ("incr", "gauge", "timing"):
        monkeypatch.setattr(Stats, kind, lambda name, value=1, *, tags=None: found[name].append((value, tags)))
    return found


@pytest.fixture
def dag_test(airflow_home: Path, neli_default: str) -> DagTest:
    """Runs a Dag in this process and thread, like `dag.test()`; returns the run when it has ended."""
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db  # noqa: PLC0415 - as above.

    def run(dag: "DAG", *, conf: Mapping[str, Any] | None = None) -> "DagRun":
        with warnings.catch_warnings():
            # Airflow's own warnings: its migration of old names, and notices to Airflow from SQLAlchemy and FastAPI.
            warnings.simplefilter("ignore")
            # `dag.test()` knows only Dags in the Dag folder, and ours are in the tests.
            bag = BundleDagBag(airflow_home / "dags", bundle_path=airflow_home / "dags", bundle_name=BUNDLE)
            bag.bag_dag(dag)
            sync_bag_to_db(bag, BUNDLE, None)
            ended: DagRun = dag.test(run_conf=None if conf is None else dict(conf))
        return ended

    return run


def states(run: "DagRun") -> dict[str, str]:
    return {
        one.task_id if one.map_index < 0 else f"{one.task_id}[{one.map_index}]": str(one.state)
        for one in run.get_task_instances()
    }
