"""Parse the address of a group in Redis.

    redis://[USER:PASSWORD@]HOST:PORT/GROUP[?db=0]        one server; `rediss://` speaks TLS
    redis+unix://[USER:PASSWORD@]/run/redis.sock?group=GROUP
    redis+sentinel://[USER:PASSWORD@]HOST:26379,HOST:26379/GROUP?service=mymaster
                                                  |
                                                  '--> all keys of the group begin with GROUP and a colon

    ?db=3                                         the database's number
    ?ca=FILE  ?cert=FILE&key=FILE                 TLS: the authority to trust, and our certificate
    ?sentinel_user=NAME&sentinel_password=WORD    for the sentinels, if they ask; USER and PASSWORD are for the server

`PASSWORD@` alone is the default user's password. In USER and PASSWORD, write everything but letters and digits as %XX.

A ledger and an ownership cache have addresses of the same form. This module connects to nothing, and no message about
an address ever shows the part before its @.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from neli_router.drivers.ledgers.places import GROUP, SERVER, spelled

__all__ = ["SCHEMES", "RedisAddress", "parse"]

SCHEMES = ("redis", "redis+sentinel", "redis+unix", "rediss", "rediss+sentinel")

PORT = 6379
SENTINEL_PORT = 26379

DATABASE_MAX = 2**31 - 1

HARMLESS = frozenset({"ca", "cert", "db", "group", "service"})
"""Options that may be shown: numbers, names and paths."""

TLS_ONLY = ("ca", "cert", "key")
SENTINEL_ONLY = ("sentinel_password", "sentinel_user", "service")


@dataclass(frozen=True)
class RedisAddress:
    """Where a group is. `user`, `password` and `options` may be secrets: they are never shown."""

    scheme: str
    group: str
    servers: tuple[tuple[str, int], ...] = ()
    path: str = ""
    """The path of the Unix socket, if there is one."""
    database: int = 0
    service: str = ""
    """The sentinels' name for the master, if they are asked for it."""
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def tls(self) -> bool:
        return self.scheme.startswith("rediss")

    @property
    def public(self) -> str:
        """For people: contains no secrets."""
        said = {"db": str(self.database)} if self.database else {}
        if self.path:
            said, place = {"group": self.group, **said}, self.path
        else:
            place = f"{spelled(self.servers)}/{self.group}"
        if self.service:
            said["service"] = self.service
        query = "&".join(f"{name}={value}" for name, value in said.items())
        return f"{self.scheme}://{place}{'?' if query else ''}{query}"


def parse(scheme: str, rest: str) -> tuple[RedisAddress | None, list[str]]:
    """The address in `rest`, the text after `scheme:`, or a sentence for each thing that is wrong with it."""
    problems: list[str] = []
    place, _, query = rest.removeprefix("//").partition("?")
    said = dict(parse_qsl(query, keep_blank_values=True))
    unix, sentinel = scheme.endswith("+unix"), scheme.endswith("+sentinel")
    authority, slash, behind = place.partition("/")
    who, at, servers = authority.rpartition("@")
    if "@" in behind:  # A slash in a password would end up in a message as the name of a group.
        return None, ["there is an @ after the first slash: in USER and PASSWORD, write / as %2F and @ as %40"]
    group, path, places = behind, "", []
    if unix:
        group, path = said.pop("group", ""), slash + behind
        if servers or len(path) < 2 or not path.isprintable():
            problems.append(f"a socket's path was wanted, as in {scheme}:///run/redis.sock?group=jobs")
    else:
        places = _servers(servers, SENTINEL_PORT if sentinel else PORT)
        if not places or (len(places) > 1 and not sentinel):
            wanted = (
                "sentinels were wanted as HOST:PORT,HOST:PORT" if sentinel else "one server was wanted as HOST:PORT"
            )
            problems.append(f"{wanted} after {scheme}://")
    if not GROUP.fullmatch(group):
        shape = f"{scheme}:///run/redis.sock?group=jobs" if unix else f"{scheme}://localhost/jobs"
        problems.append(f"a group was wanted, as in {shape}: 1 to 200 letters, digits and ._-{{}}")
    database = said.pop("db", "0")
    if not re.fullmatch(r"[0-9]{1,10}", database) or int(database) > DATABASE_MAX:
        problems.append("db must be the number of a database, 0 or more")
        database = "0"
    if sentinel and not said.get("service"):
        problems.append("the sentinels were to be asked for a master: say which, as in ?service=mymaster")
    known = (TLS_ONLY if scheme.startswith("rediss") else ()) + (SENTINEL_ONLY if sentinel else ())
    offered = ", ".join(sorted((*known, "db", *(("group",) if unix else ()))))
    for number, name in enumerate(dict(parse_qsl(query, keep_blank_values=True)), start=1):
        if name in said and name not in known:  # Its name is not shown: it may be the rest of a password with an &.
            nearest = difflib.get_close_matches(name, known, 1)
            guess = f"did you mean {nearest[0]}? " if nearest else ""
            problems.append(f"option {number} is unknown in {scheme}: {guess}There is {offered}; in a value, & is %26")
    if ("cert" in said) != ("key" in said):
        problems.append("cert and key belong together: give both files, or neither")
    if problems:
        return None, problems
    user, colon, password = who.partition(":")
    if at and not colon:
        user, password = "", user
    service = said.pop("service", "")
    found = RedisAddress(
        scheme, group, tuple(places), path, int(database), service, unquote(user), unquote(password), said
    )
    return found, []


def _servers(text: str, port: int) -> list[tuple[str, int]]:
    """Hosts and ports, or nothing if one of them is malformed."""
    places = []
    for server in text.split(","):
        match = SERVER.fullmatch(server)
        if match is None or not 0 < int(match[2] or port) < 2**16:
            return []
        places.append((match[1].strip("[]"), int(match[2] or port)))
    return places
