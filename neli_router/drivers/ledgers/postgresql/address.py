"""Parse the address of a group in PostgreSQL.

    postgresql://[USER:PASSWORD@]HOST[:5432][,HOST[:5432]...]/DATABASE?group=GROUP     the one that takes writes is used
    postgresql:///DATABASE?host=/var/run/postgresql&group=GROUP                        the folder of a Unix socket
    postgresql:///?service=NAME&group=GROUP                                            a service file says the rest

    ?schema=neli                  the schema of our tables: each group has rows of its own in it
    ?sslmode=verify-full&...      libpq's options, by its names: see `OPTIONS`

Airflow's and SQLAlchemy's spellings mean the same: postgres, postgresql+psycopg2, postgresql+psycopg and
postgresql+asyncpg. In USER, PASSWORD and DATABASE, write everything but letters and digits as %XX.

A ledger and an ownership store have addresses of the same form. This module connects to nothing, and no message about
an address ever shows the part before its @, or an option that may be secret.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from neli_router.drivers.ledgers.places import GROUP, SERVER, spelled

__all__ = ["HARMLESS", "SCHEMES", "PostgresqlAddress", "parse"]

SCHEMES = ("postgres", "postgresql", "postgresql+asyncpg", "postgresql+psycopg", "postgresql+psycopg2")

PORT = 5432

SCHEMA = re.compile(r"(?!pg_)[a-z_][a-z0-9_]{0,62}")
"""PostgreSQL keeps names that begin with pg_ for itself."""

DATABASE = re.compile(r"[\w.$ -]+")
"""Letters of any language. Other signs are good in a name, but more often part of a password in the wrong place."""

DATABASE_MAX = 63
"""PostgreSQL cuts a longer name, counted in bytes, without a word."""

TLS = ("prefer", "require", "disable")
CHOICES = {
    "channel_binding": TLS,
    "gssencmode": TLS,
    "sslmode": ("allow", "disable", "prefer", "require", "verify-ca", "verify-full"),
}

HARMLESS = frozenset({*CHOICES, "dbname", "group", "host", "port", "schema", "service", "sslcert", "sslrootcert"})
"""Options that may be shown: numbers, names and paths."""

OPTIONS = HARMLESS | {"krbsrvname", "passfile", "password", "requirepeer", "sslcrl", "sslkey", "user"}


@dataclass(frozen=True)
class PostgresqlAddress:
    """Where a group is. `user`, `password` and `options` may be secrets: they are never shown."""

    group: str
    database: str = ""
    servers: tuple[tuple[str, int], ...] = ()
    """Each is a host, or the folder of a socket, and a port. There is none if the service file names it."""
    schema: str = "neli"
    service: str = ""
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def public(self) -> str:
        """For people: contains no secrets."""
        place, said = "", {"group": self.group}
        if any(host.startswith("/") for host, _ in self.servers):
            said |= self._where()
            if {PORT} == {port for _, port in self.servers}:
                del said["port"]
        else:
            place = spelled(self.servers)
        if self.service:
            said["service"] = self.service
        if self.schema != "neli":
            said["schema"] = self.schema
        query = "&".join(f"{name}={quote(value, safe='/,:{}')}" for name, value in said.items())
        return f"postgresql://{place}/{quote(self.database, safe='')}?{query}"

    def conninfo(self) -> str:
        """For libpq only: it contains the secrets."""
        said = {"service": self.service, "user": self.user, "password": self.password, "dbname": self.database}
        said |= {**self._where(), **self.options, "target_session_attrs": "read-write"}
        # In quotes, libpq takes all but these two signs literally.
        quoted = {name: value.replace("\\", "\\\\").replace("'", "\\'") for name, value in said.items() if value}
        return " ".join(f"{name}='{value}'" for name, value in quoted.items())

    def _where(self) -> dict[str, str]:
        """In libpq's words."""
        hosts, ports = zip(*self.servers, strict=True) if self.servers else ((), ())
        return {"host": ",".join(hosts), "port": ",".join(map(str, ports))}


def parse(scheme: str, rest: str) -> tuple[PostgresqlAddress | None, list[str]]:
    """The address in `rest`, the text after `scheme:`, or a sentence for each thing that is wrong with it."""
    place, _, query = rest.removeprefix("//").partition("?")
    authority, _, behind = place.partition("/")
    who, _, servers = authority.rpartition("@")
    if "@" in behind:  # A slash in a password would end up in a message as the name of a database.
        return None, ["there is an @ after the first slash: in USER and PASSWORD, write / as %2F and @ as %40"]
    said, problems = _options(query, scheme)
    user, _, password = who.partition(":")
    for name, value in {"user": user, "password": password, "host": servers, "dbname": behind}.items():
        if value and name in said:
            problems.append(f"{name} is given before the ? and after it: give it once")
        if value:
            said[name] = value if name == "host" else _decoded(value)
    group, schema, service = said.pop("group", ""), said.pop("schema", "neli"), said.pop("service", "")
    database, listed, ports = said.pop("dbname", ""), said.pop("host", ""), said.pop("port", "")
    places = _servers(listed, ports or str(PORT))
    if not places and (listed or ports or not service):
        problems.append(
            f"servers were wanted as HOST:PORT,HOST:PORT after {scheme}://, or the folder of a socket, as in "
            f"{scheme}:///jobs?host=/var/run/postgresql"
        )
    too_long = len(database.encode(errors="replace")) > DATABASE_MAX
    if too_long or not (DATABASE.fullmatch(database) if database else service):
        example = f"{scheme}://localhost/DATABASE?group=jobs"
        problems.append(
            f"a database was wanted, as in {example}: at most {DATABASE_MAX} bytes of letters, digits and ._-$"
        )
    if not GROUP.fullmatch(group):
        example = f"{scheme}://localhost/DATABASE?group=jobs"
        problems.append(f"a group was wanted, as in {example}: 1 to 200 letters, digits and ._-{{}}")
    if not SCHEMA.fullmatch(schema):
        problems.append("schema must be 1 to 63 lower-case letters, digits and _, without a digit or pg_ in front")
    if not service.isprintable() or not all(map(_can_be_sent, said.values())):
        problems.append("there is a character that cannot be sent: write all but letters and digits as %XX, in UTF-8")
    for name, choices in CHOICES.items():
        if name in said and said[name] not in choices:
            problems.append(f"{name} must be one of {', '.join(choices)}")
    if problems:
        return None, problems
    user, password = said.pop("user", ""), said.pop("password", "")
    return PostgresqlAddress(group, database, tuple(places), schema, service, user, password, said), []


def _options(query: str, scheme: str) -> tuple[dict[str, str], list[str]]:
    """The options in `query`, and a sentence for each that is none.

    As for libpq, a plus sign is a plus sign: a password may contain one.
    """
    said, problems = {}, []
    for number, part in enumerate(query.split("&") if query else (), start=1):
        name, equals, value = part.partition("=")
        if equals and (name := _decoded(name)) in OPTIONS:
            said[name] = _decoded(value)
        elif name == "target_session_attrs":
            problems.append("target_session_attrs cannot be chosen: a ledger is where a server takes writes")
        else:  # Its name is not shown: it may be the rest of a password with an &.
            nearest = difflib.get_close_matches(name, OPTIONS, 1)
            guess = f"did you mean {nearest[0]}? " if nearest else ""
            offered = ", ".join(sorted(OPTIONS))
            problems.append(f"option {number} is unknown in {scheme}: {guess}There is {offered}; in a value, & is %26")
    return said, problems


def _servers(listed: str, ports: str) -> list[tuple[str, int]]:
    """Hosts or folders with their ports, or nothing if one of them is malformed. All may share one of `ports`."""
    hosts, others = listed.split(","), ports.split(",")
    if len(others) == 1:
        others *= len(hosts)
    if len(hosts) != len(others):
        return []
    places = []
    for host, other in zip(hosts, others, strict=True):
        port: str | None = None
        if not host.startswith("/"):
            # An option may hold an IPv6 address without brackets.
            match = SERVER.fullmatch(f"[{host}]" if host.count(":") > 1 and "[" not in host else host)
            if match is None:
                return []
            host, port = match[1].strip("[]"), match[2]  # noqa: PLW2901 - from here on, it is only the host.
        port = port or other
        if not host.isprintable() or not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
            return []
        places.append((host, int(port)))
    return places


def _decoded(text: str) -> str:
    """Bytes that are not UTF-8 stay recognisable, and are refused."""
    return unquote(text, errors="surrogateescape")


def _can_be_sent(text: str) -> bool:
    return "\0" not in text and not re.search("[\ud800-\udfff]", text)
