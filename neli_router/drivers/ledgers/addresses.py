"""Ledger addresses: which driver, and where. A driver is imported only when one of its ledgers is opened.

sqlite:///var/lib/ledger.db        one file, from the root         sqlite:ledger.db   from the working directory
                                   sqlite:///ledger.db is refused: to SQLAlchemy's users it means the latter
memory://jobs                      all members in this process that use this name share one log, until it ends
kafka://host:9092,host:9092/jobs   one topic of one partition; further settings: `kafka/address.py`
redis://host:6379/jobs             one stream; also rediss, redis+unix, redis+sentinel: `redis/address.py`

`peers://a:7801,b:7801,c:7801/jobs` does not name a ledger: protocols whose members elect among themselves have none.
`peers/address.py` parses it. This module knows only that it contains no secrets.
"""

import difflib
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.ledgers.kafka import address as kafka_address
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.drivers.ledgers.redis import address as redis_address
from neli_router.errors import MissingExtra

__all__ = [
    "delete_ledger",
    "harmless_start",
    "needing",
    "open_ledger",
    "owners_problems",
    "problems_of",
    "public_address",
    "require_driver",
    "unknown",
]

Address = TypeVar("Address")

_PEERS = re.compile(
    r"(//)?[A-Za-z0-9._:,\[\]-]+/[A-Za-z0-9._-]+"
    r"(\?(((me|bind)=[A-Za-z0-9._:\[\]-]*|(key_file|state)=/[A-Za-z0-9._:/\[\]-]*)(&|$))*)?"
)
"""A well-formed list of peers: places, and names of files. A text that is not a path may be the key itself."""

_SCHEMES = ("kafka", "memory", *redis_address.SCHEMES, "sqlite")

_IN_KAFKA, _IN_REDIS = "a ledger in Kafka", "a ledger in Redis"

_EXAMPLES = (
    "sqlite:///var/lib/jobs/ledger.db, kafka://localhost:9092/jobs, redis://localhost:6379/jobs or memory://jobs"
)


def problems_of(address: str) -> list[str]:
    """A sentence for each thing that is wrong with `address`."""
    scheme, colon, rest = address.partition(":")
    shown = public_address(address)
    if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return [f"ledger={shown!r:.200} does not say what kind of ledger it is: write {_EXAMPLES}"]
    if scheme not in _SCHEMES:
        return [unknown("kind of ledger", scheme, _SCHEMES)]
    if scheme == "kafka":
        return [f"ledger={shown!r:.200}: {problem}" for problem in kafka_address.parse(rest)[1]]
    if scheme in redis_address.SCHEMES:
        return [f"ledger={shown!r:.200}: {problem}" for problem in redis_address.parse(scheme, rest)[1]]
    host, slashes, place = "", rest.startswith("//"), _place(rest)
    if scheme == "sqlite" and slashes and not place.startswith("/"):
        host = place.partition("/")[0]
    if scheme == "sqlite" and slashes and place.startswith("/") and place.count("/") == 1 and place != "/":
        # SQLAlchemy's users mean a file in the working directory. Given the rights, we would create a different one.
        instead = f"sqlite:{place[1:]} for one in the working directory, or sqlite:{place} if you mean that"
        return [f"ledger={shown!r:.200} would be the file {place}, in the root folder: write {instead}"]
    if host or not place or not place.isprintable():
        what = f"names the host {harmless_start(host)!r}, and a file has none" if host else "does not say where it is"
        return [f"ledger={shown!r:.200} {what}: write {_EXAMPLES}"]
    if scheme == "sqlite" and "?" in place:
        return [f"ledger={shown!r:.200} has options, and a file takes none: take away the ? and what follows it"]
    return []


def open_ledger(address: str, *, create: bool, patience: float) -> Ledger:
    """The ledger at `address`, which has no problems. `patience`: see the drivers whose records wait for a broker."""
    scheme, _, rest = address.partition(":")
    match scheme:
        case "memory":
            with _naming:  # No need to look for it: it is always created.
                return MemoryLedger(_logs.setdefault(_place(rest), MemoryLog()))
        case "sqlite":
            from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger  # noqa: PLC0415 - a program pays for its driver only.

            return SqliteLedger(_place(rest), create=create)
        case "kafka":
            with needing("kafka", _IN_KAFKA):
                from neli_router.drivers.ledgers.kafka.ledger import KafkaLedger  # noqa: PLC0415 - it may not be installed.
            return KafkaLedger(_parsed(kafka_address.parse(rest)), create=create, patience=patience)
        case _:
            with needing("redis", _IN_REDIS):
                from neli_router.drivers.ledgers.redis.ledger import RedisLedger  # noqa: PLC0415 - as above.
            return RedisLedger(_parsed(redis_address.parse(scheme, rest)), create=create)


def require_driver(address: str) -> None:
    """Raise MissingExtra if the client library that the ledger at `address` needs is not installed."""
    scheme = address.partition(":")[0]
    if scheme == "kafka":
        with needing("kafka", _IN_KAFKA):
            import neli_router.drivers.ledgers.kafka.ledger  # noqa: PLC0415 - as above.
    elif scheme in redis_address.SCHEMES:
        with needing("redis", _IN_REDIS):
            import neli_router.drivers.ledgers.redis.ledger  # noqa: F401, PLC0415 - as above.


def delete_ledger(address: str) -> list[str]:
    """Delete the ledger at `address`, which has no problems: files, a topic or a stream. Returns their names.

    Its members, if there are any, stop and log why. A ledger in memory ends with its process. Raises LedgerError.
    """
    scheme, _, rest = address.partition(":")
    assert scheme != "memory", "no other process could have asked for it"
    match scheme:
        case "sqlite":
            from neli_router.drivers.ledgers.sqlite.file import delete_file  # noqa: PLC0415 - as above.

            return delete_file(Path(_place(rest)))
        case "kafka":
            with needing("kafka", _IN_KAFKA):
                from neli_router.drivers.ledgers.kafka.ledger import delete_topic  # noqa: PLC0415 - as above.
            return [delete_topic(_parsed(kafka_address.parse(rest)))]
        case _:
            with needing("redis", _IN_REDIS):
                from neli_router.drivers.ledgers.redis.ledger import delete_stream  # noqa: PLC0415 - as above.
            return [delete_stream(_parsed(redis_address.parse(scheme, rest)))]


@contextmanager
def needing(extra: Literal["kafka", "redis"], purpose: str) -> Iterator[None]:
    """Around an import: raise MissingExtra, with the remedy, if the client library of `extra` is not installed."""
    library, module = {"kafka": ("confluent-kafka", "confluent_kafka"), "redis": ("redis-py", "redis")}[extra]
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(module):
            raise
        raise MissingExtra.of(library, f"for {purpose}", extra) from None


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
        start = f"{scheme}:" if colon and scheme in _SCHEMES else ""
        return f"{start}{harmless_start(address.removeprefix(start))}"
    authority, slash, behind = place.removeprefix("//").partition("/")
    _, at, servers = authority.rpartition("@")
    options = "&".join(option if _is_harmless(option) else "***" for option in query.split("&"))
    return f"{scheme}://{'***@' if at else ''}{servers}{slash}{behind}{mark}{options}"


def _is_read(scheme: str, rest: str) -> bool:
    if scheme == "kafka":
        return not kafka_address.parse(rest)[1]
    if scheme in redis_address.SCHEMES:
        return not redis_address.parse(scheme, rest)[1]
    if scheme == "peers":
        return _PEERS.fullmatch(rest) is not None
    return scheme == "memory" and harmless_start(rest) == rest


def harmless_start(text: str) -> str:
    """The text before the first character that may begin a secret, or nothing if an @ implies a secret before it.

    Such a character may be encoded, like %3A and %40.
    """
    slashes = "//" if text.startswith("//") else ""
    found = re.match(r"[^?&;:@%]*", text.removeprefix(slashes))
    shown = found.group() if found else ""
    is_all = slashes + shown == text
    return slashes + ("" if "@" in text or "%40" in text else shown) + ("" if is_all else "***")


def _is_harmless(option: str) -> bool:
    return option.partition("=")[0] in {*kafka_address.HARMLESS, *redis_address.HARMLESS, ""}


def owners_problems(option: str, url: object) -> list[str]:
    """A sentence for each thing that is wrong with the address of an owner store."""
    if not isinstance(url, str):
        return [f"{option} must be an address such as redis://localhost:6379/jobs, got a {type(url).__name__}"]
    scheme, _, rest = url.partition(":")
    shown = public_address(url)
    if scheme not in redis_address.SCHEMES:
        return [f"{option}={shown!r:.200} is not an address in Redis: write redis://localhost:6379/jobs"]
    return [f"{option}={shown!r:.200}: {problem}" for problem in redis_address.parse(scheme, rest)[1]]


def unknown(what: str, name: object, known: Iterable[str], within: str = "") -> str:
    """A sentence that says the name is unknown, and which one was probably meant."""
    known = sorted(known)
    nearest = difflib.get_close_matches(str(name), known, 1, cutoff=0.5)
    guess = f"did you mean {within}{nearest[0]}? " if nearest else ""
    choice = f"choose from {', '.join(known)}" if len(known) > 1 else f"choose {known[0]}"
    return f"{within}{name!s:.60} is not a known {what}: {guess}{choice[0].upper() if guess else choice[0]}{choice[1:]}"


def _place(rest: str) -> str:
    return rest.removeprefix("//")


def _parsed(found: tuple[Address | None, list[str]]) -> Address:
    assert found[0] is not None, "an address with problems is refused before it is used"
    return found[0]


_logs: dict[str, MemoryLog] = {}
_naming = threading.Lock()


def _forget_logs() -> None:
    """In a forked child: it cannot share the parent's logs, and the thread that held the lock does not exist."""
    global _naming  # noqa: PLW0603 - a lock that a fork left locked can only be replaced.
    _naming = threading.Lock()
    _logs.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_logs)
