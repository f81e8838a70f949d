"""A local Airflow, to try things on: the Dags of a folder, two hosts' agents on one ledger. It leaves nothing behind.

    make airflow --fork--> guardian --own session--> the same program, within: logs what it does, and watches
       |                      |                        |-- agent alpha --SQLite ledger-- agent bravo
       | Ctrl-C, SIGTERM,     | kills all of it,       |     ^ AIRFLOW_CONN_NELI_DEFAULT
       | kill -9, an error    | orphans, too           |-- airflow db migrate, and then
       '--------------------->'                        '-- api-server, scheduler, dag-processor, triggerer

    python -m neli_router.lab.local_airflow [--port 8080] [--dags FOLDER] [--keep FOLDER]

Airflow's own `standalone` leaves children behind: when a scheduler is killed, its workers live on, and so may processes
that tasks have started. The guardian of `neli run` solves exactly this. Orphans become its children (on Linux), and it
kills until none is left, both when it is asked to and when this program dies, however that happens. No process gets a
graceful shutdown: the home, the ledger and the group are thrown away, unless `--keep` names a place for them.

Everything listens on loopback only: the API server, and the agents on sockets in the home. `serve-logs` would listen on
all interfaces, so it is left out; logs of the same host are read from their files.

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
from neli_router.agent.client.client import Client
from neli_router.core.exit_codes import EXIT_BROKEN, EXIT_DONE, EXIT_USAGE
from neli_router.core.keyspace import Layout, Role
from neli_router.errors import ConfigError, NeliError, how_to_install
from neli_router.hosts.guardian import guardian
from neli_router.lab.demo.place import a_folder

__all__ = ["PARTS", "LocalAirflow", "main"]

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

    def __init__(self, home: Path, dags: Path, port: int) -> None:
        self._began_at = time.monotonic()
        self._home, self._dags, self._ledger = home, dags, f"sqlite://{home}/ledger.db"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        """Processes that must keep running."""
        connections = {
            "NELI_DEFAULT": {"conn_type": "neli", "extra": {"address": self._address(HERE)}},
            "SPARK_DEFAULT": {"conn_type": "spark", "host": "local[1]"},  # A job takes one core of this machine.
        }
        self._airflow = LocalAirflow(
            home,
            dags,
            port,
            environment={f"AIRFLOW_CONN_{name}": json.dumps(one) for name, one in connections.items()},
            settings={"NELI__PARTITIONS": str(PARTITIONS)},
        )

    def run(self) -> None:
        """Start everything and watch it. Never returns; raises NeliError when a part ends."""
        self._tell(f"the home is {self._home}: database, ledger and logs")
        self._start_agents()
        self._tell("making Airflow's database")
        self._migrate()
        self._tell(f"starting Airflow's parts: {', '.join(PARTS)}")
        for part in PARTS:
            self._processes[part] = self._started(part, self._airflow.part(part), self._airflow.environment)
        self._await(lambda: self._airflow.are_healthy(*PARTS), "all parts of Airflow to be healthy")
        self._tell(f"reading the Dags in {self._dags}")
        self._await_dags()
        self._welcome()
        self._watch()

    # The start

    def _start_agents(self) -> None:
        for name in NAMES:
            options = {
                "--ledger": self._ledger,
                "--name": name,
                "--socket": str(self._socket(name)),
                "--lease": str(LEASE),
                "--layout-partitions": str(PARTITIONS),
            }
            words = [word for option in options.items() for word in option]
            command = [sys.executable, "-P", "-c", SERVE, "agent", *words]
            self._processes[name] = self._started(name, command, _environment())
        with Client(self._address(THERE)) as client:
            self._await(lambda: self._owners(client) == set(NAMES), "two agents to share the partitions")
            client.pin(Layout(partitions=PARTITIONS).partition_of_role(ROLE), THERE)
            self._await(lambda: self._owners(client, ROLE) == {THERE}, f"{THERE} to lead the role {ROLE!r}")
        self._tell(f"two hosts' agents share {PARTITIONS} partitions: {HERE}, which this Airflow asks, and {THERE}")

    def _owners(self, client: Client, *roles: Role) -> set[str | None]:
        """The owners of `roles`, or of all partitions; empty while one has no owner."""
        with suppress(NeliError):  # The agent is starting, or a takeover is under way.
            return {client.owner_of_role(role).name for role in roles or range(PARTITIONS)}
        return set()

    def _migrate(self) -> None:
        migration = self._started("db-migrate", self._airflow.command_line("db", "migrate"), self._airflow.environment)
        self._await(lambda: migration.poll() is not None, "the database to be there")
        if migration.returncode:
            raise self._failed("db-migrate", migration)

    def _await_dags(self) -> None:
        wanted = {path.name for path in self._dags.glob("*.py")}
        errors: dict[str, str] = {}
        give_up_at = time.monotonic() + DAGS_MAX

        def are_read() -> bool:
            with suppress(OSError, HTTPException):  # It is slow: ask again.
                token = self._airflow.log_in("admin")
                dags = self._airflow.ask("/api/v2/dags?limit=1000", token=token)["dags"]
                found = self._airflow.ask("/api/v2/importErrors?limit=100", token=token)["import_errors"]
                errors.update({one["filename"]: one["stack_trace"] for one in found})
                if wanted <= {Path(path).name for path in (*(dag["fileloc"] for dag in dags), *errors)}:
                    return True
            return time.monotonic() > give_up_at

        self._await(are_read, "the Dags to be read")
        for name, trace in errors.items():
            self._tell(f"{name} cannot be imported: {trace.strip().rpartition(chr(10))[2]}")

    def _welcome(self) -> None:
        pid = self._processes[THERE].pid
        lines = [
            "",
            f"Airflow is ready at {self._airflow.url}",
            f"  login         user admin, password {self._airflow.passwords['admin']}",
            f"  who leads     {self._airflow.url}/plugin/neli",
            f"  ledger        {self._ledger}",
            *(f"  agent {name}   process {self._processes[name].pid}" for name in NAMES),
        ]
        steps = NEXT.format(here=HERE, there=THERE, pid=pid, lease=LEASE) if self._dags == _our_dags() else "\n"
        _say("\n".join(lines) + f"\n{steps}Ctrl-C ends all of it.\n")

    # Afterwards

    def _watch(self) -> None:
        while True:
            for name in NAMES:
                if name in self._processes and self._processes[name].poll() is not None:
                    del self._processes[name]
                    self._tell_of_takeover(name)
            self._look()
            time.sleep(LOOK_EVERY)

    def _tell_of_takeover(self, name: str) -> None:
        began_at, others = time.monotonic(), [other for other in NAMES if other in self._processes]
        self._tell(f"the agent of {name} has ended")
        if name == HERE:
            self._tell(f"it was the one that this Airflow asks: from now on its tasks wait for {name}, or fail")
        if others:
            with Client(self._address(others[0])) as client:
                self._await(lambda: self._owners(client) == set(others), f"{others[0]} to lead all partitions")
            self._tell(f"{others[0]} leads all {PARTITIONS} partitions, {time.monotonic() - began_at:.1f} s later")

    # Processes

    def _started(self, name: str, command: list[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        with self._log(name).open("ab") as out:
            return subprocess.Popen(  # noqa: S603 - Airflow, or our own agent.
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

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


def _our_dags() -> Path:
    return Path(__file__).resolve().parents[2] / "dags"


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()  # Pipes and files get each line immediately, too.


def _check(dags: Path, port: int) -> None:
    """Raise ConfigError or ImportError for problems that without this only show up in some process's log."""
    require_airflow()
    try:
        import_module("neli_router.agent.server.server")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == OURS:
            raise  # A defect of ours, which no installation would fix.
        raise ImportError(f"the agents need the package {error.name}: {how_to_install('agent')}") from error
    problems = []
    if not dags.is_dir():
        problems.append(f"a folder of Dags was wanted, but {dags} is none: name one with --dags, or use a clone's")
    try:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As servers do; a listener still refuses it.
            trial.bind((LOOPBACK, port))
    except (OSError, OverflowError) as error:
        problems.append(
            f"the port {port} of {LOOPBACK} was wanted, but it cannot be had ({error}): end the program that listens "
            "there, perhaps another `make airflow`, or choose another port (make airflow PORT=8081)"
        )
    if problems:
        raise ConfigError(problems)


def main() -> int:
    """Run the program. Returns 0 when it was asked to end, 1 if a part ended, 2 if it cannot run like this."""
    parser = ArgumentParser("python -m neli_router.lab.local_airflow", description="A local Airflow with two agents.")
    parser.add_argument("--port", type=int, default=PORT, help="of Airflow's page and API [%(default)s]")
    parser.add_argument("--dags", type=Path, default=_our_dags(), help="the folder of Dags [a clone's dags/]")
    parser.add_argument("--keep", type=Path, help="an empty folder, to keep the database and the logs in")
    parser.add_argument("--within", type=Path, help=SUPPRESS)
    options = parser.parse_args()
    try:
        if options.within is None:
            return _guarded(options.dags.resolve(), options.port, options.keep)
        _Local(options.within, options.dags, options.port).run()
    except (ConfigError, ImportError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    except NeliError as error:
        sys.stderr.write(f"{error}\n")
    return EXIT_BROKEN


def _guarded(dags: Path, port: int, keep: Path | None) -> int:
    """Run this program again, under a guardian, until it ends or we are asked to end."""
    _check(dags, port)
    code: int = EXIT_BROKEN
    stopping = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    hand = guardian()  # Before anything here starts a thread.
    with a_folder(keep, "neli-airflow-") as home:
        for number in stopping:
            signal.signal(number, signal.default_int_handler)
        again = ["--within", str(home), "--dags", str(dags), "--port", str(port)]
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
