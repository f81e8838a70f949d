"""A local Airflow, to try things on: the Dags of a folder, two hosts' agents on one ledger. It leaves nothing behind.

    make airflow --fork--> guardian --own session--> the same program, within: logs what it does, and watches
       |                      |                        |-- agent alpha --SQLite ledger-- agent bravo
       | Ctrl-C, SIGTERM,     | kills all of it,       |     ^ AIRFLOW_CONN_NELI_DEFAULT
       | kill -9, an error    | orphans, too           |-- airflow db migrate, and then
       '--------------------->'                        '-- api-server, scheduler, dag-processor, triggerer

    python -m neli_router.lab.local_airflow [--port 8080] [--dags FOLDER] [--keep FOLDER] [--ledger postgresql]

Airflow's own `standalone` leaves children behind: when a scheduler is killed, its workers live on, and so may processes
that tasks have started. The guardian of `neli run` solves exactly this. Orphans become its children (on Linux), and it
kills until none is left, both when it is asked to and when this program dies, however that happens. No process gets a
graceful shutdown: the home, the ledger and the group are thrown away, unless `--keep` names a place for them.

Everything listens on loopback only: the API server, and the agents on sockets in the home. `serve-logs` would listen on
all interfaces, so it is left out; logs of the same host are read from their files.

With `--ledger postgresql`, each host has an Airflow of its own, whose scheduler has the agent as its child:

    Airflow alpha: api-server ... scheduler --child--> agent alpha --.
                                                                      PostgreSQL: databases alpha and bravo (metadata),
    Airflow bravo: api-server ... scheduler --child--> agent bravo --'            neli (the ledger, the fence)

`nightly`, the role of most Dags, is pinned to bravo. So this Airflow, whose agent is alpha, first shows what happens
where a role is not led, and after a kill of bravo, what a takeover does.

LocalAirflow, which holds the settings and the commands of an installation, also serves the tests: they start several.
"""

import base64
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPException
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from airflow_provider import require_airflow
from neli_router import fence
from neli_router.agent.client.client import Client
from neli_router.core.exit_codes import EXIT_BROKEN, EXIT_DONE, EXIT_USAGE
from neli_router.core.keyspace import Layout, Role
from neli_router.errors import ConfigError, NeliError, how_to_install
from neli_router.hosts.guardian import guardian
from neli_router.lab.demo.place import a_folder
from neli_router.lab.private_postgresql import USER, PrivatePostgresql

__all__ = ["PARTS", "REPORTS", "LocalAirflow", "main"]

LOOPBACK = "127.0.0.1"

PARTS: Mapping[str, tuple[str, ...]] = {
    "api-server": (),
    "scheduler": ("--skip-serve-logs",),
    "dag-processor": (),
    "triggerer": ("--skip-serve-logs",),
}
"""The processes of an installation, and their options."""

SETTINGS: Mapping[str, str] = {
    "CORE__LOAD_EXAMPLES": "False",
    "CORE__EXECUTOR": "LocalExecutor",
    "CORE__TEST_CONNECTION": "Enabled",
    "CORE__PARALLELISM": "4",  # Each is a waiting process of about 50 MB.
    "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    "CORE__DEFAULT_TASK_RETRY_DELAY": "5",  # Seconds; 300 by default.
    "API__HOST": LOOPBACK,
    "API__WORKERS": "1",
    "DAG_PROCESSOR__REFRESH_INTERVAL": "2",  # Until a new file is seen; 300 by default.
    # A changed file is read immediately. This is for changes of what it imports: reading all takes a core for seconds.
    "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
    "DAG_PROCESSOR__PARSING_PROCESSES": "1",
    # The very first task waits for an API server that is still importing: a minute where all cores are taken. A worker
    # that gives up fails its task before it began. By default it does so after five tries of 5 seconds.
    "WORKERS__EXECUTION_API_TIMEOUT": "300",
    # The same for a Dag file, whose imports take seconds even on an idle machine.
    "CORE__DAGBAG_IMPORT_TIMEOUT": "300",
    "DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "300",
}
"""By section and option: for a machine with other things to do, and a user who does not want to wait."""

ANSWER_MAX = 60.0
"""Seconds to wait for an answer of the API. It is on this machine, which may be busy."""

PORT = 8080
"""Airflow's default."""

NAMES = ("alpha", "bravo")
HERE, THERE = NAMES

ROLE = "nightly"
"""The role of `dags/leader_only.py` and `dags/on_leadership_change.py`."""

PARTITIONS = 8
"""The same number as in `dags/prices_by_partition.py`."""

SQLITE, POSTGRESQL = "sqlite", "postgresql"

DATABASE = "neli"
"""The database that two installations share: their ledger, and what they write under the fence."""

REPORTS = "CREATE TABLE reports (run text, member text, term bigint)"
"""The table of `dags/fenced_report.py`."""

LEASE = 5.0
"""Seconds. While Airflow starts, an agent may wait for a core longer than a short lease tolerates."""

START_MAX = 600.0
"""Seconds for each step of the start. The longest step, starting Airflow's four parts, takes 15 on an idle machine, and
minutes on a very busy one."""

DAGS_MAX = 60.0
"""Seconds for the Dags to be read. A file in the folder may define none, so the start then continues anyway."""

LOOK_EVERY = 0.1

LAST_LINES = 20
"""Lines of a log to show when its writer has failed: about the length of Python's traceback of such a failure."""

START = "import gc; gc.set_threshold(100_000, 20); from airflow.__main__ import main; main()"
"""`airflow`, which starts faster like this: it makes many objects that stay, and Python searches them for garbage."""

SERVE = "from neli_router.commands.cli import main; main()"

OURS = "neli_router"

NEXT = """
What to do now:
  1. Trigger leader_only. Its role is led by {there}, so the gate skips the run in this Airflow.
  2. Trigger ticks_arrive. It starts a run of prices_by_partition for each partition. Those of {here} do their work;
     those of {there} wait, and with them prices_are_published.
  3. Kill the host {there}, in another terminal: kill -9 {pid}
     Within about {lease:g} s, {here} leads all. The runs that waited go on; on_leadership_change gets a run, unasked;
     and leader_only, triggered once more, does its work here.
"""

NEXT_OF_TWO = """
What to do now:
  1. Trigger leader_only in both. Its role is led by {there}: the gate skips the run in {here}'s Airflow.
  2. Trigger ticks_arrive in both. Each starts a run of prices_by_partition for each partition. Those that its host
     leads do their work; the others wait, and with them prices_are_published.
     Trigger fenced_report in both: {there} writes its row, {here} waits.
  3. Kill the host {there}, in another terminal: kill -9 {pid}
     That is its scheduler, and its agent ends with it: {here} leads all. The runs that waited there go on;
     on_leadership_change gets a run, unasked; and leader_only, triggered once more, does its work here. The row of
     {here} has the higher term, and the fence refuses lower ones from now on:
     psql -h {server} -U neli neli -c 'TABLE reports' -c 'TABLE neli_fence'
"""


class LocalAirflow:
    """An installation on loopback: its home, settings, and the commands of its parts. The caller starts and ends it."""

    def __init__(
        self,
        home: Path,
        dags: Path,
        port: int,
        *,
        roles: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`roles` maps users to roles; `settings` are options of Airflow, as SECTION__OPTION."""
        roles = roles or {"admin": "admin"}
        self.home, self.dags, self.url = home, dags, f"http://{LOOPBACK}:{port}"
        self.passwords = {user: secrets.token_hex(8) for user in roles}
        passwords = home / "passwords.json"
        passwords.touch(mode=0o600)
        passwords.write_text(json.dumps(self.passwords), encoding="utf-8")
        # Without this file, the parts would start together and each write it, with its own secrets.
        (home / "airflow.cfg").touch()
        ours = {
            **SETTINGS,
            "API__PORT": str(port),
            "API__BASE_URL": self.url,
            "API__SECRET_KEY": secrets.token_hex(32),
            "API_AUTH__JWT_SECRET": secrets.token_hex(64),  # All processes share it, and the key below.
            "CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "CORE__DAGS_FOLDER": str(dags),
            # Seconds that a transaction waits for another to end. With the default of five, many tasks that end at the
            # same moment fail on a busy machine.
            "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",  # It does not follow the port.
            "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{role}" for user, role in roles.items()),
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            **(settings or {}),
        }
        self.environment = {
            **_environment(),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",  # For `spark-submit`.
            "AIRFLOW_HOME": str(home),
            # The user's proxy is for other hosts, but tasks would use it to reach the API server.
            **{name: f"{os.environ.get(name, '')},{LOOPBACK}".lstrip(",") for name in ("NO_PROXY", "no_proxy")},
            **{f"AIRFLOW__{name}": value for name, value in ours.items()},
            **(environment or {}),
        }

    def command_line(self, *arguments: str) -> list[str]:
        """The command line of `airflow ARGUMENTS`, to run in `environment`."""
        return [sys.executable, "-P", "-c", START, *arguments]

    def part(self, name: str) -> list[str]:
        """The command line of one of PARTS."""
        return self.command_line(name, *PARTS[name])

    def are_healthy(self, *parts: str) -> bool:
        """Whether these parts are healthy, according to the API server."""
        wanted = {"metadatabase", *(part.replace("-", "_") for part in parts)} - {"api_server"}
        with suppress(OSError, HTTPException, ValueError, KeyError):
            health = self.ask("/api/v2/monitor/health")
            return all(health[part]["status"] == "healthy" for part in wanted)
        return False

    def log_in(self, user: str) -> str:
        """The token of a user."""
        asked = {"username": user, "password": self.passwords[user]}
        return str(self.ask("/auth/token", json.dumps(asked).encode())["access_token"])

    def ask(self, path: str, body: bytes | None = None, *, token: str = "") -> Any:
        """The answer of the API, decoded. Raises OSError or HTTPException if there is none."""
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        request = Request(f"{self.url}{path}", body, headers)  # noqa: S310 - to our own server.
        with build_opener(ProxyHandler({})).open(request, timeout=ANSWER_MAX) as answer:
            return json.load(answer)


class _Local:
    """One run of the program, inside the guardian: the processes it started, and what it logged."""

    def __init__(self, home: Path, dags: Path, port: int, server: Path | None) -> None:
        self._began_at = time.monotonic()
        self._home, self._dags, self._ledger = home, dags, f"sqlite://{home}/ledger.db"
        self._server = None if server is None else PrivatePostgresql(server)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """Processes that must keep running."""
        self._hosts = {name: name if server is None else f"{name}-scheduler" for name in NAMES}
        """The process that a host ends with. The user may kill it."""
        self._airflows: dict[str, LocalAirflow] = {}
        """By the start of the names of their processes."""
        if server is None:
            self._airflows[""] = self._laid_out(HERE, home, port)
            return
        self._ledger = f"postgresql:///{DATABASE}?host={server}&user={USER}&group=airflow"
        for name, its_port in zip(NAMES, _ports(port, POSTGRESQL), strict=True):
            (its_home := home / name).mkdir()
            self._airflows[f"{name}-"] = self._laid_out(name, its_home, its_port)

    def run(self) -> None:
        """Start everything and watch it. Never returns; raises NeliError when a part ends."""
        self._tell(f"the home is {self._home}: database, ledger and logs")
        if self._server is None:
            self._start_agents()
            self._share()
            self._migrate()
        else:
            self._serve(self._server)
            self._migrate()
            self._server.run("postgres", f"CREATE DATABASE {THERE} TEMPLATE {HERE}")
            self._start("scheduler")
            self._share()
        self._tell(f"starting Airflow's parts: {', '.join(PARTS)}")
        self._start(*PARTS)
        self._await(
            lambda: all(airflow.are_healthy(*PARTS) for airflow in self._airflows.values()),
            "all parts of Airflow to be healthy",
        )
        self._tell(f"reading the Dags in {self._dags}")
        for airflow in self._airflows.values():
            self._await_dags(airflow)
        self._welcome()
        self._watch()

    # The start

    def _laid_out(self, name: str, home: Path, port: int) -> LocalAirflow:
        connections: dict[str, dict[str, Any]] = {
            "NELI_DEFAULT": {"conn_type": "neli", "extra": {"address": self._address(name)}},
            "SPARK_DEFAULT": {"conn_type": "spark", "host": "local[1]"},  # A job takes one core of this machine.
        }
        agent, settings = {}, {"NELI__PARTITIONS": str(PARTITIONS)}
        if (server := self._server) is not None:
            connections["REPORTS"] = {
                "conn_type": "postgres",
                "host": str(server.folder),
                "login": USER,
                "schema": DATABASE,
            }
            agent = {f"NELI_{option}": value for option, value in self._options(name).items()}
            settings |= dict.fromkeys(
                ("DATABASE__SQL_ALCHEMY_CONN", "DATABASE__SQL_ALCHEMY_CONN_ASYNC"), server.address(name)
            )
            settings |= {"NELI__AGENT_IN": "scheduler", "NELI__LEDGER": f"metadata?dbname={DATABASE}"}
        spelled = {f"AIRFLOW_CONN_{name}": json.dumps(one) for name, one in connections.items()}
        return LocalAirflow(home, self._dags, port, environment=spelled | agent, settings=settings)

    def _serve(self, server: PrivatePostgresql) -> None:
        self._tell(f"making a PostgreSQL in {server.folder}")
        self._do("initdb", server.initialise(), _environment(), server.folder)
        self._processes[POSTGRESQL] = self._started(POSTGRESQL, server.serve(), _environment(), server.folder)
        self._await(server.is_ready, "PostgreSQL")
        server.forget()
        server.run("postgres", f"CREATE DATABASE {HERE}", f"CREATE DATABASE {DATABASE}")
        server.run(DATABASE, REPORTS)
        with server.connect(DATABASE) as connection, connection.transaction():
            fence.install(connection)

    def _start_agents(self) -> None:
        for name in NAMES:
            said = {"LEDGER": self._ledger, **self._options(name)}
            options = [
                f"--{option.lower().removeprefix('agent_').replace('_', '-')}={it}" for option, it in said.items()
            ]
            command = [sys.executable, "-P", "-c", SERVE, "agent", *options]
            self._processes[name] = self._started(name, command, _environment())

    def _options(self, name: str) -> dict[str, str]:
        """The options of an agent, as its variables are called."""
        return {
            "NAME": name,
            "AGENT_SOCKET": str(self._socket(name)),
            "LEASE": str(LEASE),
            "LAYOUT_PARTITIONS": str(PARTITIONS),
        }

    def _share(self) -> None:
        with Client(self._address(THERE)) as client:
            self._await(lambda: self._owners(client) == set(NAMES), "two agents to share the partitions")
            client.pin(Layout(partitions=PARTITIONS).partition_of_role(ROLE), THERE)
            self._await(lambda: self._owners(client, ROLE) == {THERE}, f"{THERE} to lead the role {ROLE!r}")
        self._tell(f"two hosts' agents share {PARTITIONS} partitions: {HERE} and {THERE}")

    def _owners(self, client: Client, *roles: Role) -> set[str | None]:
        """The owners of `roles`, or of all partitions; empty while one has no owner."""
        with suppress(NeliError):  # The agent is starting, or a takeover is under way.
            return {client.owner_of_role(role).name for role in roles or range(PARTITIONS)}
        return set()

    def _migrate(self) -> None:
        """Make the database of the first installation."""
        self._tell("making Airflow's database")
        airflow = next(iter(self._airflows.values()))
        self._do("db-migrate", airflow.command_line("db", "migrate"), airflow.environment)

    def _start(self, *parts: str) -> None:
        """Start those parts of all installations that do not run."""
        for prefix, airflow in self._airflows.items():
            for part in parts:
                if (name := f"{prefix}{part}") not in self._processes:
                    self._processes[name] = self._started(name, airflow.part(part), airflow.environment)

    def _await_dags(self, airflow: LocalAirflow) -> None:
        wanted = {path.name for path in self._dags.glob("*.py")}
        errors: dict[str, str] = {}
        give_up_at = time.monotonic() + DAGS_MAX

        def are_read() -> bool:
            with suppress(OSError, HTTPException):  # It is slow: ask again.
                token = airflow.log_in("admin")
                dags = airflow.ask("/api/v2/dags?limit=1000", token=token)["dags"]
                found = airflow.ask("/api/v2/importErrors?limit=100", token=token)["import_errors"]
                errors.update({one["filename"]: one["stack_trace"] for one in found})
                if wanted <= {Path(path).name for path in (*(dag["fileloc"] for dag in dags), *errors)}:
                    return True
            return time.monotonic() > give_up_at

        self._await(are_read, "the Dags to be read")
        for name, trace in errors.items():
            self._tell(f"{name} cannot be imported: {trace.strip().rpartition(chr(10))[2]}")

    def _welcome(self) -> None:
        pids = {name: self._processes[process].pid for name, process in self._hosts.items()}
        lines = [""]
        for prefix, airflow in self._airflows.items():
            lines += [
                f"Airflow {prefix.rstrip('-')}{' ' if prefix else ''}is ready at {airflow.url}",
                f"  login         user admin, password {airflow.passwords['admin']}",
                f"  who leads     {airflow.url}/plugin/neli",
            ]
        lines.append(f"  ledger        {self._ledger}")
        what, steps = ("agent", NEXT) if self._server is None else ("host ", NEXT_OF_TWO)
        lines += [f"  {what} {name}   process {pid}" for name, pid in pids.items()]
        said = {"here": HERE, "there": THERE, "pid": pids[THERE], "lease": LEASE}
        steps = steps.format(**said, server=self._server and self._server.folder) if self._dags == _our_dags() else "\n"
        _say("\n".join(lines) + f"\n{steps}Ctrl-C ends all of it.\n")

    # Afterwards

    def _watch(self) -> None:
        while True:
            for name, process in list(self._hosts.items()):
                if self._processes[process].poll() is not None:
                    del self._processes[process], self._hosts[name]
                    self._tell_of_takeover(name)
            self._look()
            time.sleep(LOOK_EVERY)

    def _tell_of_takeover(self, name: str) -> None:
        began_at, others = time.monotonic(), list(self._hosts)
        self._tell(f"the {'agent' if self._server is None else 'scheduler'} of {name} has ended")
        if name == HERE and self._server is None:
            self._tell(f"it was the one that this Airflow asks: from now on its tasks wait for {name}, or fail")
        if others:
            with Client(self._address(others[0])) as client:
                self._await(lambda: self._owners(client) == set(others), f"{others[0]} to lead all partitions")
            self._tell(f"{others[0]} leads all {PARTITIONS} partitions, {time.monotonic() - began_at:.1f} s later")

    # Processes

    def _started(
        self, name: str, command: list[str], environment: Mapping[str, str], folder: Path | None = None
    ) -> "subprocess.Popen[bytes]":
        with self._log(name).open("ab") as out:
            return subprocess.Popen(  # noqa: S603 - Airflow, PostgreSQL or our own agent.
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=folder
            )

    def _do(self, name: str, command: list[str], environment: Mapping[str, str], folder: Path | None = None) -> None:
        """Run a command to its end. Raises NeliError if it fails."""
        process = self._started(name, command, environment, folder)
        self._await(lambda: process.poll() is not None, f"the end of {name}")
        if process.returncode:
            raise self._failed(name, process)

    def _await(self, holds: Callable[[], bool], wanted: str) -> None:
        """Wait until it holds. Raises NeliError if it takes too long, or if a process ends that must keep running."""
        give_up_at = time.monotonic() + START_MAX
        while not holds():
            self._look()
            if time.monotonic() > give_up_at:
                for name in self._processes:
                    self._show_log(name)
                raise NeliError(
                    f"{wanted} was waited for",
                    f"it was not so after {START_MAX:g} s",
                    "see in the logs above what holds it up; --keep FOLDER keeps all of them",
                )
            time.sleep(LOOK_EVERY)

    def _look(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise self._failed(name, process)

    def _failed(self, name: str, process: "subprocess.Popen[bytes]") -> NeliError:
        self._show_log(name)
        return NeliError(
            f"the process {name} was wanted to do its work",
            f"it ended with code {process.returncode}",
            "see the end of its log above; --keep FOLDER keeps all of it",
        )

    def _show_log(self, name: str) -> None:
        lines = self._log(name).read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        _say("\n".join([f"--- the end of the log of {name}", *lines, "---", ""]))

    def _log(self, name: str) -> Path:
        return self._home / f"{name}.log"

    def _socket(self, name: str) -> Path:
        return self._home / f"{name}.sock"

    def _address(self, name: str) -> str:
        return f"unix:{self._socket(name)}"

    def _tell(self, text: str) -> None:
        _say(f"{time.monotonic() - self._began_at:8.1f} s  {text}\n")


def _environment() -> dict[str, str]:
    """This program's environment, without variables meant for another Airflow or another group."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW_", "_AIRFLOW", "NELI_"))}


def _ports(port: int, ledger: str) -> tuple[int, ...]:
    """The port of each installation."""
    return (port, port + 1) if ledger == POSTGRESQL else (port,)


def _our_dags() -> Path:
    return Path(__file__).resolve().parents[2] / "dags"


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()  # Pipes and files get each line immediately, too.


def _check(dags: Path, port: int, ledger: str) -> None:
    """Raise ConfigError or ImportError for problems that without this only show up in some process's log."""
    require_airflow()
    try:
        import_module("neli_router.agent.server.server")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == OURS:
            raise  # A defect of ours, which no installation would fix.
        raise ImportError(f"the agents need the package {error.name}: {how_to_install('agent')}") from error
    problems = PrivatePostgresql.problems() if ledger == POSTGRESQL else []
    if not dags.is_dir():
        problems.append(f"a folder of Dags was wanted, but {dags} is none: name one with --dags, or use a clone's")
    for number in _ports(port, ledger):
        try:
            with socket.socket() as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As servers do; a listener still refuses.
                trial.bind((LOOPBACK, number))
        except (OSError, OverflowError) as error:
            problems.append(
                f"the port {number} of {LOOPBACK} was wanted, but it cannot be had ({error}): end the program that "
                "listens there, perhaps another `make airflow`, or choose another port (make airflow PORT=8081)"
            )
    if problems:
        raise ConfigError(problems)


def main() -> int:
    """Run the program. Returns 0 when it was asked to end, 1 if a part ended, 2 if it cannot run like this."""
    parser = ArgumentParser("python -m neli_router.lab.local_airflow", description="A local Airflow with two agents.")
    parser.add_argument("--port", type=int, default=PORT, help="of Airflow's page and API [%(default)s]")
    parser.add_argument("--dags", type=Path, default=_our_dags(), help="the folder of Dags [a clone's dags/]")
    parser.add_argument("--keep", type=Path, help="an empty folder, to keep the database and the logs in")
    parser.add_argument(
        "--ledger",
        choices=(SQLITE, POSTGRESQL),
        default=SQLITE,
        help="of the agents; with postgresql, each host has an Airflow of its own, on one server [%(default)s]",
    )
    parser.add_argument("--within", type=Path, help=SUPPRESS)
    parser.add_argument("--server", type=Path, help=SUPPRESS)
    options = parser.parse_args()
    try:
        if options.within is None:
            return _guarded(options.dags.resolve(), options.port, options.ledger, options.keep)
        _Local(options.within, options.dags, options.port, options.server).run()
    except (ConfigError, ImportError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    except NeliError as error:
        sys.stderr.write(f"{error}\n")
    return EXIT_BROKEN


def _guarded(dags: Path, port: int, ledger: str, keep: Path | None) -> int:
    """Run this program again, under a guardian, until it ends or we are asked to end."""
    _check(dags, port, ledger)
    code: int = EXIT_BROKEN
    stopping = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    hand = guardian()  # Before anything here starts a thread.
    # The server may be another user's, who may not enter the home.
    with a_folder(keep, "neli-airflow-") as home, tempfile.TemporaryDirectory(prefix="neli-pg-") as server:
        for number in stopping:
            signal.signal(number, signal.default_int_handler)
        again = ["--within", str(home), "--dags", str(dags), "--port", str(port)]
        again += ["--server", server] if ledger == POSTGRESQL else []
        try:
            hand.start([sys.executable, "-P", "-m", __spec__.name, *again], os.environ, until=inf)
            is_gone = False
            while not is_gone:
                for said in hand.heard():
                    code = said.get("ended", code)
                    is_gone = "gone" in said or "failed" in said
        except KeyboardInterrupt:
            code = EXIT_DONE
        except EOFError:  # The guardian was killed.
            hand.avenge()
        finally:
            for number in stopping:
                signal.signal(number, signal.SIG_IGN)  # The home is deleted only after all processes end.
            hand.close()
    _say("\nall of it has ended\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
