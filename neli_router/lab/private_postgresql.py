"""A private PostgreSQL, from the machine's own programs: reached through its Unix socket, and thrown away at the end.

    initialise: initdb --> FOLDER/data         serve: postgres --> FOLDER/.s.PGSQL.5432         SIGKILL --> gone

PostgreSQL refuses to run as root. So root becomes the user that the distribution created for it, or the user `nobody`,
and gives the folder to that user. No other user may enter the folder, and nothing asks for a password.

It keeps PostgreSQL's own durability: without fsync, a group would refuse it as its ledger. Its shared memory is in the
folder, except for one segment. The kernel would keep that if all processes are killed, so
`forget_segment` marks it to go with the last of them.
"""

import os
import pwd
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from neli_router.errors import how_to_install

__all__ = ["USER", "PrivatePostgresql", "forget_segment", "owner", "programs"]

USER = "neli"

SETTINGS = {"listen_addresses": "", "dynamic_shared_memory_type": "mmap"}


class PrivatePostgresql:
    """The command lines of its programs. The caller starts and ends them, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._data = folder, folder / "data"

    @classmethod
    def problems(cls) -> list[str]:
        """Why there can be none on this machine."""
        found = []
        if programs() is None:
            found.append("a PostgreSQL was wanted, but initdb was not found: install the server, such as postgresql")
        try:
            import psycopg  # noqa: F401, PLC0415 - only for those who ask for it.
        except ModuleNotFoundError:
            found.append(f"a PostgreSQL needs the package psycopg: {how_to_install('postgresql')}")
        return found

    def initialise(self) -> list[str]:
        """The command line that makes its data."""
        if (user := owner()) is not None:
            os.chown(self.folder, user, -1)
        options = ["-U", USER, "--auth=trust", "--no-locale", "-E", "UTF8", "--no-sync"]
        return _as_owner("initdb", "-D", str(self._data), *options)

    def serve(self) -> list[str]:
        """The command line of the server."""
        settings = {**SETTINGS, "unix_socket_directories": str(self.folder)}
        return _as_owner("postgres", "-D", str(self._data), *(f"--{name}={value}" for name, value in settings.items()))

    def is_ready(self) -> bool:
        import psycopg  # noqa: PLC0415 - as above.

        with suppress(psycopg.OperationalError):
            self.run("postgres", "SELECT 1")
            return True
        return False

    def forget(self) -> None:
        forget_segment(self._data)

    def run(self, database: str, *statements: str) -> None:
        """Run statements, each in a transaction of its own. Raises psycopg's errors."""
        with self.connect(database) as connection:
            for statement in statements:
                connection.execute(statement)

    def connect(self, database: str) -> Any:
        """A connection of psycopg that commits each statement."""
        import psycopg  # noqa: PLC0415 - as above.

        return psycopg.connect(f"host={self.folder} user={USER} dbname={database}", autocommit=True)

    def address(self, database: str) -> str:
        """For SQLAlchemy."""
        return f"postgresql+psycopg://{USER}@/{database}?host={self.folder}"


def forget_segment(data: Path) -> None:
    """Let the kernel delete the segment of the server with these data when the last process ends."""
    segment = (data / "postmaster.pid").read_text().splitlines()[6].split()[1]
    with suppress(FileNotFoundError):
        subprocess.run(["ipcrm", "-m", segment], check=False)  # noqa: S603, S607 - a number.


def programs() -> Path | None:
    """The folder of the newest release. Debian keeps its programs apart, and not on the path."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    places = Path("/usr/lib/postgresql").glob("*/bin")
    return max(places, key=lambda place: float(place.parent.name), default=None)


def owner() -> int | None:
    """The user that root becomes; None for everyone else."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall()}
    return names.get("postgres", names.get("nobody"))


def _as_owner(program: str, *arguments: str) -> list[str]:
    user, folder = owner(), programs()
    assert folder is not None, "its problems were looked at"
    become = [] if user is None else ["setpriv", f"--reuid={user}", "--clear-groups"]
    return [*become, str(folder / program), *arguments]
