"""Whatever has an address is opened here: ledgers, consumer groups and stores of owners.

A driver is imported only when something of its kind is opened. So a program loads only the client libraries that it
uses, and the others need not be installed. Links between peers need no library: see `peers/udp.py`.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from neli_router.drivers.addresses import owners_problems
from neli_router.drivers.consumer_groups.address import GroupAddress
from neli_router.drivers.consumer_groups.base import GroupLook, GroupSubscription
from neli_router.drivers.ledgers.base import Appender, Ledger
from neli_router.drivers.ledgers.kafka import address as kafka_address
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.drivers.ledgers.postgresql import address as postgresql_address
from neli_router.drivers.ledgers.redis import address as redis_address
from neli_router.drivers.owners.base import OwnersSource
from neli_router.errors import ConfigError, MissingExtra

__all__ = [
    "delete_ledger",
    "look_at_group",
    "needing",
    "open_appender",
    "open_ledger",
    "owners_at",
    "require_driver",
    "subscribe",
]

Address = TypeVar("Address")

_IN_KAFKA, _IN_REDIS, _GROUP_IN_KAFKA = "a ledger in Kafka", "a ledger in Redis", "a consumer group in Kafka"
_IN_POSTGRESQL = "a ledger in PostgreSQL"


def open_ledger(address: str, *, create: bool, patience: float) -> Ledger:
    """The ledger at `address`, which has no problems. `patience`: see the drivers that wait for a broker or a lock."""
    scheme, _, rest = address.partition(":")
    match scheme:
        case "memory":
            with _naming:  # No need to look for it: it is always created.
                return MemoryLedger(_logs.setdefault(rest.removeprefix("//"), MemoryLog()))
        case "sqlite":
            from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger, busy_within  # noqa: PLC0415 - a program pays for its driver only.

            return SqliteLedger(rest.removeprefix("//"), create=create, busy_max=busy_within(patience))
        case "kafka":
            with needing("kafka", _IN_KAFKA):
                from neli_router.drivers.ledgers.kafka.ledger import KafkaLedger  # noqa: PLC0415 - it may not be installed.
            return KafkaLedger(_parsed(kafka_address.parse(rest)), create=create, patience=patience)
        case _ if scheme in postgresql_address.SCHEMES:
            with needing("postgresql", _IN_POSTGRESQL):
                from neli_router.drivers.ledgers.postgresql.ledger import PostgresqlLedger  # noqa: PLC0415 - as above.
            return PostgresqlLedger(_parsed(postgresql_address.parse(scheme, rest)), create=create)
        case _:
            with needing("redis", _IN_REDIS):
                from neli_router.drivers.ledgers.redis.ledger import RedisLedger  # noqa: PLC0415 - as above.
            return RedisLedger(_parsed(redis_address.parse(scheme, rest)), create=create)


def open_appender(address: str, *, patience: float) -> Appender | None:
    """A connection that only appends to the ledger at `address`, whose driver is installed. None if opening the ledger
    takes no longer. Raises LedgerError."""
    scheme, _, rest = address.partition(":")
    if scheme == "kafka":
        from neli_router.drivers.ledgers.kafka.ledger import KafkaAppender  # noqa: PLC0415 - as above.

        return KafkaAppender(_parsed(kafka_address.parse(rest)), patience=patience)
    if scheme in redis_address.SCHEMES:
        from neli_router.drivers.ledgers.redis.ledger import RedisAppender  # noqa: PLC0415 - as above.

        return RedisAppender(_parsed(redis_address.parse(scheme, rest)))
    if scheme in postgresql_address.SCHEMES:
        from neli_router.drivers.ledgers.postgresql.ledger import PostgresqlAppender  # noqa: PLC0415 - as above.

        return PostgresqlAppender(_parsed(postgresql_address.parse(scheme, rest)))
    return None


def require_driver(address: str) -> None:
    """Import the driver of the ledger at `address`. Raises MissingExtra if its client library is not installed."""
    scheme = address.partition(":")[0]
    if scheme == "sqlite":
        import neli_router.drivers.ledgers.sqlite.ledger  # noqa: PLC0415 - as above.
    elif scheme == "kafka":
        with needing("kafka", _IN_KAFKA):
            import neli_router.drivers.ledgers.kafka.ledger  # noqa: PLC0415 - as above.
    elif scheme in redis_address.SCHEMES:
        with needing("redis", _IN_REDIS):
            import neli_router.drivers.ledgers.redis.ledger  # noqa: PLC0415 - as above.
    elif scheme in postgresql_address.SCHEMES:
        with needing("postgresql", _IN_POSTGRESQL):
            import neli_router.drivers.ledgers.postgresql.ledger  # noqa: F401, PLC0415 - as above.


def delete_ledger(address: str) -> list[str]:
    """Delete the ledger at `address`, which has no problems: files, a topic, a stream or rows. Returns their names.

    Its members, if there are any, stop and log why. A ledger in memory ends with its process. Raises LedgerError.
    """
    scheme, _, rest = address.partition(":")
    assert scheme != "memory", "no other process could have asked for it"
    match scheme:
        case "sqlite":
            from neli_router.drivers.ledgers.sqlite.file import delete_file  # noqa: PLC0415 - as above.

            return delete_file(Path(rest.removeprefix("//")))
        case "kafka":
            with needing("kafka", _IN_KAFKA):
                from neli_router.drivers.ledgers.kafka.topic import delete_topic  # noqa: PLC0415 - as above.
            return [delete_topic(_parsed(kafka_address.parse(rest)))]
        case _ if scheme in postgresql_address.SCHEMES:
            with needing("postgresql", _IN_POSTGRESQL):
                from neli_router.drivers.ledgers.postgresql.ledger import delete_rows  # noqa: PLC0415 - as above.
            return [delete_rows(_parsed(postgresql_address.parse(scheme, rest)))]
        case _:
            with needing("redis", _IN_REDIS):
                from neli_router.drivers.ledgers.redis.ledger import delete_stream  # noqa: PLC0415 - as above.
            return [delete_stream(_parsed(redis_address.parse(scheme, rest)))]


def subscribe(address: GroupAddress, *, session: float, drain_timeout: float) -> GroupSubscription:
    """A consumer in the group at `address`. Raises LedgerUnusable, LedgerUnavailable or GroupMismatch."""
    with needing("kafka", _GROUP_IN_KAFKA):
        from neli_router.drivers.consumer_groups.kafka import KafkaSubscription  # noqa: PLC0415 - as above.
    # The broker waits for the program to finish, and a little longer for us to report it.
    return KafkaSubscription(address, session=session, patience=max(session, drain_timeout + session))


def look_at_group(address: GroupAddress, session: float) -> GroupLook:
    """The topic and the group at `address`, without joining or creating anything. Raises LedgerMissing, and the errors
    of `subscribe`."""
    with needing("kafka", _GROUP_IN_KAFKA):
        from neli_router.drivers.consumer_groups.kafka import look_at_group as look  # noqa: PLC0415 - as above.
    return look(address, session)


def owners_at(url: str) -> OwnersSource:
    """The store of owners at `url`. Raises ConfigError, and MissingExtra if its client is not installed."""
    if problems := owners_problems("url", url):
        raise ConfigError(problems)
    scheme, _, rest = url.partition(":")
    if scheme in postgresql_address.SCHEMES:
        with needing("postgresql", "owners in PostgreSQL"):
            from neli_router.drivers.owners.postgresql import PostgresqlOwners  # noqa: PLC0415 - as above.
        place = _parsed(postgresql_address.parse(scheme, rest))
        return OwnersSource(place.public, lambda: PostgresqlOwners(place))
    with needing("redis", "owners in Redis"):
        from neli_router.drivers.owners.redis import RedisOwners  # noqa: PLC0415 - as above.
    at = _parsed(redis_address.parse(scheme, rest))
    return OwnersSource(at.public, lambda: RedisOwners(at))


@contextmanager
def needing(extra: Literal["kafka", "postgresql", "redis"], purpose: str) -> Iterator[None]:
    """Around an import: raise MissingExtra, with the remedy, if the client library of `extra` is not installed."""
    library, module = {
        "kafka": ("confluent-kafka", "confluent_kafka"),
        "postgresql": ("psycopg", "psycopg"),
        "redis": ("redis-py", "redis"),
    }[extra]
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(module):
            raise
        raise MissingExtra.of(library, f"for {purpose}", extra) from None


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
