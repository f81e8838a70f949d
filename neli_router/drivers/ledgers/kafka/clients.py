"""Clients of the brokers: the settings that all of them share, and a client that only asks questions.

    asking(address, "the opening") --finds a broker--> AdminClient, for topics and groups
                                   '--none, refused--> LedgerUnavailable, with the reason

librdkafka retries forever, and its own errors do not give the reason, such as a wrong password or a refused connection.
Those reasons arrive through a callback, so the callback is served while a broker is looked for.

In a forked child, a client must never be freed: librdkafka would then wait for threads that do not exist, or crash. So
a child keeps the owners of all clients that its parent had, and never collects what was garbage in its parent.
"""

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from neli_router.drivers.ledgers.kafka.address import KafkaAddress
from neli_router.drivers.ledgers.kafka.faults import REFUSED, SILENT, explain
from neli_router.drivers.ledgers.kafka.topic import ASK_MAX
from neli_router.errors import LedgerUnavailable

__all__ = ["COMMON", "asking", "keep_in_children", "serve"]

COMMON: Mapping[str, Any] = {
    "allow.auto.create.topics": False,  # A topic that was deleted must not come back with a broker's defaults.
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.fast.interval.ms": 50,  # How often to ask for a partition's new leader,
    "topic.metadata.refresh.interval.ms": 10_000,  # and how often even if the old one said nothing.
    "socket.timeout.ms": 3000,  # A broker that is frozen, not dead, is given up after this. The default is a minute.
    "log_level": 0,
    **SILENT,
}

LOOK_FIRST = 0.25
"""Seconds of the first look for a broker. Each look takes twice as long as the one before, because a broker may be so
busy that it answers none of the short ones. Between looks, the client's complaints are heard."""


@contextmanager
def asking(address: KafkaAddress, purpose: str) -> Iterator[AdminClient]:
    """A client for questions about topics. Its errors are raised as LedgerError."""
    refused: KafkaError | None = None
    away: KafkaError | None = None
    all_away = False

    def complained(error: KafkaError) -> None:
        nonlocal refused, away, all_away
        if error.code() in REFUSED:
            refused = error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - its public name.
            all_away = True
        else:
            away = error

    def find() -> None:
        """Wait until a broker answers. Raises KafkaException, with the reason, as soon as no broker can be reached."""
        give_up_at, look = time.monotonic() + ASK_MAX, LOOK_FIRST
        while True:
            try:
                admin.list_topics(address.topic, timeout=min(look, max(LOOK_FIRST, give_up_at - time.monotonic())))
            except KafkaException as error:
                admin.poll(0)
                if all_away or refused is not None or time.monotonic() >= give_up_at:
                    # The client's own error does not give the reason, such as a refused connection.
                    raise KafkaException(refused or away or error.args[0]) from error
                look *= 2
            else:
                return

    try:
        admin = AdminClient({**COMMON, **address.client, "error_cb": complained})  # type: ignore[dict-item]
        find()
        try:
            yield admin
        except LedgerUnavailable as error:
            admin.poll(0)
            if refused is None:
                raise
            # Without this, a client with a wrong password would only see a timeout.
            raise explain(refused, address, purpose) from error
    except KafkaException as error:
        raise explain(error.args[0], address, purpose) from error


_owners: WeakSet[Any] = WeakSet()
_kept: list[Any] = []
"""In a child: the owners that its parent had."""


def keep_in_children(owner: object) -> None:
    """Never free the clients of `owner` in a child of this process."""
    _owners.add(owner)


def _keep() -> None:
    _kept.extend(_owners)
    gc.freeze()


def serve(call: Callable[[float], object], timeout: float) -> None:
    """Let the producer report deliveries. Raises KafkaException if the producer is broken for good.

    A broken producer has that error set already while it still reports deliveries, and Python then raises SystemError.
    """
    try:
        call(timeout)
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


os.register_at_fork(after_in_child=_keep)
