"""A real PostgreSQL for tests: the distribution's programs, data of its own, and killed, frozen and restarted by tests.

    with Postgresql.started() as server:                     on a free port of loopback and on a Unix socket
        server.url("jobs")                                   "postgresql://neli@127.0.0.1:4711/postgres?group=jobs"
        server.unix_url("jobs")                              the same over the socket
        server.kill()                                        SIGKILL to all its processes; .freeze(), .thaw(), .start()
        server.ask("SELECT 1")                               [(1,)]
        with server.standby() as standby:                    follows it by streaming replication
            standby.promote()                                from now on, it takes writes
            server.follow(standby)                           the killed server comes back as its standby
    Postgresql.started(settings=DURABLE)                     any setting of postgresql.conf

A restarted server keeps its port and its folder. It syncs nothing to disk unless its settings say so, but no test ends
the power: after a kill, the data of the system's cache is still there.

Each client has a process of its own, in a session of its own. A signal for all of them stops the postmaster first, so
that it cannot start another one meanwhile.

PostgreSQL refuses to run as root. Root becomes the user that Debian created for it, or the user `nobody`.

`python -m tests.support.servers.postgresql` starts one to experiment with, until Ctrl-C.
"""

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, Unpack

from neli_router.hosts.descendants import children
from neli_router.lab.private_postgresql import forget_segment, owner, programs
from neli_router.lab.processes.group import send
from tests.support.processes.forked import lives
from tests.support.servers.process import Options, ServerProcess, free_port, until_asked_to_end
from tests.support.waiting import until

__all__ = ["DURABLE", "Postgresql", "missing", "program"]

DURABLE: Mapping[str, str] = {"fsync": "on", "synchronous_commit": "on"}
"""With these settings, PostgreSQL's own, a server without power loses nothing that it acknowledged."""

USER = "neli"


def missing() -> str:
    """Why PostgreSQL cannot run here; empty if it can."""
    if programs() is None:
        return "PostgreSQL's initdb cannot be found: apt-get install postgresql"
    return "" if find_spec("psycopg") else "its client cannot be imported: pip install 'psycopg[binary]'"


class Postgresql(ServerProcess):
    """One server. It keeps its port, its socket and its folder when it is restarted.

    `prefix` goes before its command, such as `ip netns exec NAME`; the server then listens on `host` there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
        prefix: tuple[str, ...] = (),
    ) -> None:
        self.folder, self.host, self.port, self._prefix = folder, host, free_port(), prefix
        super().__init__(folder / "log")
        self._frozen: list[int] = []
        self._given = settings or {}
        self.settings = {
            "listen_addresses": host,
            "port": str(self.port),
            "unix_socket_directories": str(folder),
            "fsync": "off",
            **self._given,
        }

    @classmethod
    @contextmanager
    def started(cls, **options: Unpack[Options]) -> Iterator[Self]:
        """A context with a server that answers, made with these options; it is removed at the end."""
        with _folder() as folder:
            server = cls(folder, **options)
            subprocess.run(["/bin/cp", "-a", _new_data(), folder / "data"], check=True)
            try:
                server.start()
                yield server
            finally:
                server.stop()

    @property
    def database(self) -> str:
        """For libpq."""
        return f"postgresql://{USER}@{self.host}:{self.port}/postgres"

    def url(self, group: str, *others: Self) -> str:
        """The address of `group`, on this server or on any of the `others`."""
        hosts = ",".join(f"{server.host}:{server.port}" for server in (self, *others))
        return f"postgresql://{USER}@{hosts}/postgres?group={group}"

    def unix_url(self, group: str) -> str:
        return f"postgresql://{USER}@/postgres?host={self.folder}&port={self.port}&group={group}"

    def start(self) -> None:
        options = [word for name, value in self.settings.items() for word in ("-c", f"{name}={value}")]
        # The kernel forgets a leash when the user changes. SIGQUIT stops all processes immediately.
        leash = ["setpriv", *_as_user(), "--pdeathsig=QUIT"] if shutil.which("setpriv") else []
        self.begin([*self._prefix, *leash, program("postgres"), "-D", str(self.folder / "data"), *options])
        self.wait()

    def wait(self) -> None:
        until(self._answers, "PostgreSQL")

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows that a superuser gets, over the Unix socket; each call is a session of its own."""
        import psycopg  # noqa: PLC0415 - a machine without it has no tests of PostgreSQL.

        with psycopg.connect(
            host=str(self.folder), port=self.port, user=USER, dbname="postgres", autocommit=True
        ) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _answers(self) -> bool:
        from psycopg import OperationalError  # noqa: PLC0415 - as above.

        assert self.running, self.log()
        with suppress(OperationalError):
            return bool(self.ask("SELECT 1"))
        return False

    def freeze(self) -> None:
        """Stop all its processes."""
        super().freeze()  # Then the postmaster starts no other.
        for pid in children(self.pid):
            self._frozen.append(pid)
            _send(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        while self._frozen:
            _send(self._frozen.pop(), signal.SIGCONT)
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End all its processes by SIGKILL. They clean up nothing, and say goodbye to no client."""
        if self._process is None:
            return
        self.freeze()
        frozen, self._frozen = self._frozen, []
        super().kill()
        for pid in frozen:
            _send(pid, signal.SIGKILL)
        # A server refuses to start while the processes of the one before it use its memory.
        until(lambda: not any(map(lives, frozen)), "the end of all processes")
        # The next start would delete it, but there may be none, and a machine has 4,096 at most.
        forget_segment(self.folder / "data")

    def stop(self) -> None:
        """Its "fast" shutdown, which does not wait for clients."""
        if self.running:
            self.thaw()
        self._end(signal.SIGINT)

    @contextmanager
    def standby(self, *, synchronous: bool = False) -> Iterator[Self]:
        """A context with a second server, which has all that this one has; it is removed at the end."""
        with _folder() as folder:
            standby = type(self)(folder, settings=self._given, host=self.host, prefix=self._prefix)
            try:
                standby.follow(self, synchronous=synchronous)
                yield standby
            finally:
                standby.stop()

    def follow(self, primary: Self, *, synchronous: bool = False) -> None:
        """Start as a standby of `primary`, with a copy of its data in place of the server's own.

        If it is `synchronous`, `primary` acknowledges nothing that the standby has not stored. The copy has that
        setting, too: once it is promoted, it acknowledges nothing until it has a standby of its own.
        """
        if synchronous:
            # By its name: under '*', the program that makes the copy would count as a standby.
            primary.ask("ALTER SYSTEM SET synchronous_standby_names = 'walreceiver'")
            primary.ask("SELECT pg_reload_conf()")
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        source = ("-h", str(primary.folder), "-p", str(primary.port), "-U", USER)
        _run("pg_basebackup", *source, "-D", "data", "-R", "-X", "stream", "-c", "fast", "--no-sync", cwd=self.folder)
        self.start()
        until(lambda: primary.is_followed(synchronous=synchronous), "a standby that follows")

    def end(self) -> str:
        """The end of what a primary has stored."""
        ((end,),) = self.ask("SELECT pg_current_wal_flush_lsn()::text")
        return str(end)

    def is_followed(self, *, synchronous: bool) -> bool:
        """Whether a standby of that kind has stored everything that this server had when it was asked."""
        kind = "sync" if synchronous else "async"
        follows = f"state = 'streaming' AND sync_state = '{kind}' AND flush_lsn >= '{self.end()}'"
        return bool(self.ask(f"SELECT pid FROM pg_stat_replication WHERE {follows}"))

    def promote(self) -> None:
        """Make a standby a server of its own, which takes writes."""
        self.ask("SELECT pg_promote()")
        assert [(False,)] == self.ask("SELECT pg_is_in_recovery()")


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder that belongs to PostgreSQL's user."""
    # Not pytest's folder: other users cannot enter it, and a socket's path may have at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="neli-pg-"))
    try:
        if (user := owner()) is not None:
            os.chown(folder, user, -1)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def _new_data() -> Path:
    """The data of a new server, made once in this process: a copy takes a tenth of the time."""
    made = ExitStack()
    atexit.register(made.close)
    folder = made.enter_context(_folder())
    _run("initdb", "-D", "data", "-U", USER, "--auth=trust", "--no-locale", "-EUTF8", "--no-sync", cwd=folder)
    with (folder / "data" / "pg_hba.conf").open("a") as rights:  # It trusts only loopback without these.
        rights.write("host all all all trust\nhost replication all all trust\n")
    return folder / "data"


def _run(name: str, *words: str, cwd: Path) -> None:
    done = subprocess.run(
        [program(name), *words],
        cwd=cwd,
        user=owner(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def program(name: str) -> str:
    """The path of one of the distribution's programs."""
    folder = programs()
    assert folder is not None, "it is not installed"
    return str(folder / name)


def _as_user() -> list[str]:
    user = owner()
    return [] if user is None else [f"--reuid={user}", "--clear-groups"]


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        send(number, pid)


def main() -> None:
    if why := missing():
        sys.exit(f"a PostgreSQL was wanted, but {why}")
    with until_asked_to_end(), Postgresql.started(settings=DURABLE) as server:
        print(f"PostgreSQL at {server.url('jobs')} and {server.unix_url('jobs')} (Ctrl-C ends it)", flush=True)  # noqa: T201
        signal.pause()


if __name__ == "__main__":
    main()
