"""Addresses: which driver, and where. `open.py` opens what they name.

sqlite:///var/lib/ledger.db        one file, from the root         sqlite:ledger.db   from the working directory
                                   sqlite:///ledger.db is refused: to SQLAlchemy's users it means the latter
memory://jobs                      all members in this process that use this name share one log, until it ends
kafka://host:9092,host:9092/jobs   one topic of one partition; further settings: `kafka/address.py`
postgresql://host/app?group=jobs   rows of one table; sockets, services, SQLAlchemy's words: `postgresql/address.py`
redis://host:6379/jobs             one stream; also rediss, redis+unix, redis+sentinel: `redis/address.py`

`peers://a:7801,b:7801,c:7801/jobs` does not name a ledger: protocols whose members elect among themselves have none.
`peers/address.py` parses it. This module knows that it contains no secrets, and how it names a group.

An address also names a group. One group has many spellings: a relative path, another order of servers, a password, a
setting of one member. `group_name` has one spelling for all of them, so an agent and its clients can compare theirs.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import replace
from os.path import realpath

from neli_router.drivers.ledgers.kafka import address as kafka_address
from neli_router.drivers.ledgers.postgresql import address as postgresql_address
from neli_router.drivers.ledgers.postgresql.address import PostgresqlAddress
from neli_router.drivers.ledgers.redis import address as redis_address
from neli_router.drivers.ledgers.redis.address import RedisAddress
from neli_router.drivers.peers import address as peers_address
from neli_router.errors import ConfigError

__all__ = ["group_name", "harmless_start", "owners_problems", "problems_of", "public_address", "unknown"]

_PEERS = re.compile(
    r"(//)?[A-Za-z0-9._:,\[\]-]+/[A-Za-z0-9._-]+"
    r"(\?(((me|bind)=[A-Za-z0-9._:\[\]-]*|(key_file|state)=/[A-Za-z0-9._:/\[\]-]*)(&|$))*)?"
)
"""A well-formed list of peers: places, and names of files. A text that is not a path may be the key itself."""

_SCHEMES = ("kafka", "memory", "postgresql", *redis_address.SCHEMES, "sqlite")
"""Messages offer these. Other spellings of postgresql are understood, too."""

_HARMLESS = {
    "kafka": kafka_address.HARMLESS,
    **dict.fromkeys(postgresql_address.SCHEMES, postgresql_address.HARMLESS),
    **dict.fromkeys(redis_address.SCHEMES, redis_address.HARMLESS),
}
"""For each scheme of a server, the options that may be shown."""

_EXAMPLES = (
    "sqlite:///var/lib/jobs/ledger.db, kafka://localhost:9092/jobs, postgresql://localhost/app?group=jobs, "
    "redis://localhost:6379/jobs or memory://jobs"
)


def problems_of(address: str) -> list[str]:
    """A sentence for each thing that is wrong with `address`."""
    scheme, colon, rest = address.partition(":")
    shown = public_address(address)
    if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return [f"ledger={shown!r:.200} does not say what kind of ledger it is: write {_EXAMPLES}"]
    if scheme not in (*_SCHEMES, *_HARMLESS):
        return [unknown("kind of ledger", scheme, _SCHEMES)]
    if scheme not in ("memory", "sqlite"):
        return [f"ledger={shown!r:.200}: {problem}" for problem in _problems_on_servers(scheme, rest)]
    host, slashes, place = "", rest.startswith("//"), rest.removeprefix("//")
    if scheme == "sqlite" and slashes and not place.startswith("/"):
        host = place.partition("/")[0]
    if scheme == "sqlite" and ":memory:" in place:
        what = "would be in memory, where no other connection finds it"
        return [f"ledger={shown!r:.200} {what}: name a file, or write memory://jobs for the members of one process"]
    file = place.partition("?")[0]
    if scheme == "sqlite" and slashes and file.startswith("/") and file.count("/") == 1 and file != "/":
        # SQLAlchemy's users mean a file in the working directory. Given the rights, we would create a different one.
        instead = f"sqlite:{file[1:]} for one in the working directory, or sqlite:{file} if you mean that"
        return [f"ledger={shown!r:.200} would be the file {file}, in the root folder: write {instead}"]
    if host or not place or not place.isprintable():
        what = f"names the host {harmless_start(host)!r}, and a file has none" if host else "does not say where it is"
        return [f"ledger={shown!r:.200} {what}: write {_EXAMPLES}"]
    if scheme == "sqlite" and "?" in place:
        return [f"ledger={shown!r:.200} has options, and a file takes none: take away the ? and what follows it"]
    return []


def public_address(address: str) -> str:
    """A ledger's address for people, without secrets.

    If the address can be parsed, this hides the user, the password and every option that may be secret. If it cannot,
    it hides everything from the first character that people put before a password: the password may be anywhere.
    """
    scheme, colon, rest = address.partition(":")
    place, mark, query = rest.partition("?")
    if scheme == "sqlite" and "@" not in place.removeprefix("//").partition("/")[0]:
        # A file has no password, and its name may contain an @. Other programs' file addresses have options.
        return f"{scheme}{colon}{place}{mark and '?***'}"
    if scheme == "peers" and _is_read(scheme, rest):
        return address
    if not _is_read(scheme, rest):
        start = f"{scheme}:" if colon and scheme in (*_SCHEMES, *_HARMLESS) else ""
        return f"{start}{harmless_start(address.removeprefix(start))}"
    authority, slash, behind = place.removeprefix("//").partition("/")
    _, at, servers = authority.rpartition("@")
    harmless = {*_HARMLESS.get(scheme, ()), ""}
    options = "&".join(option if option.partition("=")[0] in harmless else "***" for option in query.split("&"))
    return f"{scheme}://{'***@' if at else ''}{servers}{slash}{behind}{mark}{options}"


def group_name(address: str) -> str:
    """The address of a group as its agent and all clients spell it, without secrets and settings.

    Raises ConfigError for an address with problems.
    """
    scheme, _, rest = address.partition(":")
    place = rest.removeprefix("//").partition("?")[0]
    if scheme == "peers":
        # Only a peer needs a key, and a folder for its votes.
        listed, problems = peers_address.parse(f"{place}?key_file=/&state=/")
        if listed is None:
            raise ConfigError(problems)
        return listed.public
    # Kafka's settings name no group, and a client may not have the file that one of them names.
    if problems := problems_of(f"kafka:{place}" if scheme == "kafka" else address):
        raise ConfigError(problems)
    if scheme == "sqlite":
        return f"sqlite://{realpath(place)}"
    if scheme == "kafka":
        servers, _, group = place.rpartition("@")[2].partition("/")
        return f"kafka://{','.join(sorted(servers.lower().split(',')))}/{group}"
    if scheme == "memory":
        return public_address(address)
    at, _ = _parsed(scheme, rest)
    assert at is not None, "an address with problems was refused"
    # The name of a folder keeps its capitals.
    places = sorted((host if host.startswith("/") else host.lower(), port) for host, port in at.servers)
    return replace(at, servers=tuple(places)).public


def _problems_on_servers(scheme: str, rest: str) -> list[str]:
    return kafka_address.parse(rest)[1] if scheme == "kafka" else _parsed(scheme, rest)[1]


def _parsed(scheme: str, rest: str) -> tuple[PostgresqlAddress | RedisAddress | None, list[str]]:
    if scheme in postgresql_address.SCHEMES:
        return postgresql_address.parse(scheme, rest)
    return redis_address.parse(scheme, rest)


def _is_read(scheme: str, rest: str) -> bool:
    if scheme == "peers":
        return _PEERS.fullmatch(rest) is not None
    if scheme == "memory":
        return harmless_start(rest) == rest
    return scheme in _HARMLESS and not _problems_on_servers(scheme, rest)


def harmless_start(text: str) -> str:
    """The text before the first character that may begin a secret, or nothing if an @ implies a secret before it.

    Such a character may be encoded, like %3A and %40.
    """
    slashes = "//" if text.startswith("//") else ""
    found = re.match(r"[^?&;:@%]*", text.removeprefix(slashes))
    shown = found.group() if found else ""
    is_all = slashes + shown == text
    return slashes + ("" if "@" in text or "%40" in text else shown) + ("" if is_all else "***")


def owners_problems(option: str, url: object) -> list[str]:
    """A sentence for each thing that is wrong with the address of an owner store."""
    if not isinstance(url, str):
        return [f"{option} must be an address such as redis://localhost:6379/jobs, got a {type(url).__name__}"]
    scheme, _, rest = url.partition(":")
    shown = public_address(url)
    if scheme not in (*postgresql_address.SCHEMES, *redis_address.SCHEMES):
        examples = "redis://localhost:6379/jobs or postgresql://localhost/app?group=jobs"
        return [f"{option}={shown!r:.200} is not an address in Redis or PostgreSQL: write {examples}"]
    return [f"{option}={shown!r:.200}: {problem}" for problem in _parsed(scheme, rest)[1]]


def unknown(what: str, name: object, known: Iterable[str], within: str = "") -> str:
    """A sentence that says the name is unknown, and which one was probably meant."""
    known = sorted(known)
    nearest = difflib.get_close_matches(str(name), known, 1, cutoff=0.5)
    guess = f"did you mean {within}{nearest[0]}? " if nearest else ""
    choice = f"choose from {', '.join(known)}" if len(known) > 1 else f"choose {known[0]}"
    return f"{within}{name!s:.60} is not a known {what}: {guess}{choice[0].upper() if guess else choice[0]}{choice[1:]}"
