"""Clients of the brokers: the settings that all share, a client that only asks questions, and what their errors mean.

    asking(address, "the opening") --finds a broker--> AdminClient, for topics and groups
                                   '--none, refused--> LedgerUnavailable, with the reason

Even a missing right is LedgerUnavailable: it may be given back. An unknown setting and the like are LedgerUnusable, and
so is a rejected login before anything was opened.

librdkafka retries forever, and its own errors do not give the reason, such as a wrong password or a refused connection.
Those reasons arrive through a callback, so the callback is served while a broker is looked for. Its log lines go to
Python's logging, under the name `neli_router.drivers.ledgers.kafka`, where they show only if asked for.

In a forked child, a client must never be freed: librdkafka would then wait for threads that do not exist, or crash. So
a child keeps the owners of all clients that its parent had, and never collects what was garbage in its parent.
"""

import gc
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakSet

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from neli_router.drivers.ledgers.kafka.address import KafkaAddress
from neli_router.errors import LedgerError, LedgerUnavailable, LedgerUnusable, RecordTooLong
from neli_router.protocols.protocol import RECORD_MAX

__all__ = [
    "ASK_MAX",
    "COMMON",
    "DENIED",
    "LOST",
    "TOO_LONG",
    "UNKNOWN",
    "answer",
    "asking",
    "explain",
    "is_fatal",
    "keep_in_children",
    "serve",
    "told",
]

Answer = TypeVar("Answer")

ASK_MAX = 10.0
"""Seconds for each question to the brokers. They are asked when a handle is opened, never while a member leads."""

_logger = logging.getLogger("neli_router.drivers.ledgers.kafka")
_logger.addHandler(logging.NullHandler())

COMMON: Mapping[str, Any] = {
    "allow.auto.create.topics": False,  # A topic that was deleted must not come back with a broker's defaults.
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.fast.interval.ms": 50,  # How often to ask for a partition's new leader,
    "topic.metadata.refresh.interval.ms": 10_000,  # and how often even if the old one said nothing.
    "socket.timeout.ms": 3000,  # A broker that is frozen, not dead, is given up after this. The default is a minute.
    "log_level": 0,
    "logger": _logger,
}

LOOK_FIRST = 0.25
"""Seconds of the first look for a broker. Each look takes twice as long as the one before, because a broker may be so
busy that it answers none of the short ones. Between looks, the client's complaints are heard."""

# Names with an underscore stand for librdkafka's own errors, and are public.
LOST = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION)  # noqa: SLF001
"""There is nothing at the position that was asked for."""

UNKNOWN = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
)
"""The topic does not exist, or a different one has its name."""

DENIED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
"""The broker lets us in, but this user lacks a right."""

REJECTED = (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED)  # noqa: SLF001
"""The broker does not accept the user or the password."""

REFUSED = (*REJECTED, KafkaError._SSL)  # noqa: SLF001
"""The broker does not let us in."""

_RIGHTS = "grant this user Describe, DescribeConfigs, Read, Write and Delete on the topic, and Create to make it"
_REPLICAS = "bring brokers back: fewer are in sync than min.insync.replicas asks for"
_REMEDIES: Mapping[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _RIGHTS,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _RIGHTS,
    KafkaError.GROUP_AUTHORIZATION_FAILED: "grant this user Describe on the consumer group named like the topic",
    **dict.fromkeys(REJECTED, "check sasl.username, sasl.password and sasl.mechanism"),
    KafkaError._SSL: "check security.protocol, ssl.ca.location and the brokers' certificates",  # noqa: SLF001
    KafkaError.NOT_ENOUGH_REPLICAS: _REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _REPLICAS,
}

TOO_LONG = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
"""The broker, or this client, does not accept a record of that length."""

_FINAL = {
    KafkaError._INVALID_ARG,  # noqa: SLF001
    KafkaError._UNSUPPORTED_FEATURE,  # noqa: SLF001
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.POLICY_VIOLATION,
}


@contextmanager
def asking(address: KafkaAddress, purpose: str) -> Iterator[AdminClient]:
    """A client for questions about topics. Its errors are raised as LedgerError."""
    refused: KafkaError | None = None
    away: KafkaError | None = None
    all_away = False
    is_known = False

    def complained(error: KafkaError) -> None:
        nonlocal refused, away, all_away, is_known
        if error.code() in REFUSED:
            refused = error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - its public name.
            all_away = True
        else:
            away = error
            # The error of a resolver that is only away for a moment has other words.
            is_known |= error.code() != KafkaError._RESOLVE or "not known" not in error.str()  # noqa: SLF001 - as above.

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
            raise explain(refused, address, purpose, opening=True) from error
    except KafkaException as error:
        known = is_known or away is None
        raise explain(error.args[0], address, purpose, is_known=known, opening=True) from error


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


def answer(asked: Future[Answer], timeout: float) -> Answer:
    """The answer. Raises KafkaException if the answer is an error, or if none comes in time."""
    try:
        return asked.result(timeout)
    except TimeoutError as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no broker answered")) from error  # noqa: SLF001


def is_fatal(error: KafkaError) -> bool:
    """Whether the client that reports this error must be replaced. It says so in one of two ways, never in both."""
    return error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001


def told(error: KafkaError) -> str:
    """The error in one line. librdkafka puts no secrets into its texts."""
    return f"{error.name().lower().lstrip('_').replace('_', ' ')} ({error.str()})"


def explain(
    error: KafkaError, at: KafkaAddress, purpose: str, *, is_known: bool = True, opening: bool = False
) -> LedgerError:
    """The exception to raise for `error`, which occurred during `purpose`. `is_known` is False if no resolver knows any
    of the hosts. When `opening`, a rejected login is final: it may be mistyped."""
    wanted, remedy = (
        f"{purpose} of {at.public} was wanted",
        _REMEDIES.get(error.code(), "correct the address or the topic"),
    )
    if error.code() in _FINAL or not is_known or (opening and error.code() in REJECTED):
        return LedgerUnusable(
            wanted, told(error), remedy if is_known else "correct the names of the hosts in the address"
        )
    if error.code() in TOO_LONG:
        more_room = f"set max.message.bytes={RECORD_MAX} on the topic {at.topic}, and no lower limit on the brokers"
        return RecordTooLong(wanted, told(error), more_room)
    return LedgerUnavailable(
        wanted, told(error), _REMEDIES.get(error.code(), "check the brokers and the network to them")
    )
