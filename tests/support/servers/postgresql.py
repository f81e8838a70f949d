"""A private PostgreSQL: created in a temporary folder, reached through its Unix socket, ended by its process number.

    initdb --> folder/data       postgres -k folder --> folder/.s.PGSQL.5432       SIGINT --> gone, with the folder
                                                                                   we are killed --> gone, too

PostgreSQL refuses to run as root, so root becomes the user that Debian created for it, or the user `nobody`. On a
machine without PostgreSQL, the tests that need it are skipped; with CI=true, that is a failure.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from neli_router.hosts.leash import leashed
from tests.support.waiting import PATIENCE, until

__all__ = ["postgresql"]


@contextmanager
def postgresql() -> Iterator[str]:
    """How to connect to it, in libpq's words."""
    programs = _programs()
    user = _user()
    # Not pytest's folder: other users cannot enter it, and a socket's path may have at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    try:
        if user is not None:
            os.chown(folder, user, -1)
        data = str(folder / "data")
        made = subprocess.run(
            [programs / "initdb", "-D", data, "-U", "neli", "--auth=trust", "--no-locale", "-E", "UTF8", "--no-sync"],
            cwd=folder,
            user=user,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert 0 == made.returncode, made.stderr
        settings = {"listen_addresses": "", "unix_socket_directories": str(folder), "fsync": "off"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (folder / "log").open("w") as log:
            server = subprocess.Popen(
                [*_prefix(user), str(programs / "postgres"), "-D", data, *options],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            address = f"host={folder} user=neli dbname=postgres"
            until(lambda: _answers(server, address, folder / "log"), "PostgreSQL")
            yield address
        finally:
            server.send_signal(signal.SIGINT)  # Its "fast" shutdown, which does not wait for clients.
            try:
                server.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    found = shutil.which("initdb")
    places = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not places:
        if os.environ.get("CI") == "true":
            pytest.fail("PostgreSQL is not installed, and in CI nothing that needs it may be skipped")
        pytest.skip("PostgreSQL is not installed")
    return places[-1]


def _user() -> int | None:
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall()}
    return names.get("postgres", names.get("nobody"))


def _prefix(user: int | None) -> list[str]:
    """The prefix of a command that runs it as that user and ends it with this process.

    SIGQUIT stops PostgreSQL immediately.
    """
    if user is None:
        return leashed([], by=signal.SIGQUIT)
    # The kernel forgets a leash when the user changes, and another user may not be able to reach our Python.
    return ["setpriv", f"--reuid={user}", "--clear-groups", "--pdeathsig=QUIT"]


def _answers(server: subprocess.Popen[bytes], address: str, log: Path) -> bool:
    assert server.poll() is None, log.read_text()
    with suppress(psycopg.OperationalError):
        psycopg.connect(address).close()
        return True
    return False
