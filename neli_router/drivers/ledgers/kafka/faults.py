"""Translate the errors of librdkafka: can the fault heal on its own, and what should be done?

    brokers away, timed out, no leader, too few replicas  --> LedgerUnavailable     retried forever
    no right to read or write, wrong password             --> LedgerUnavailable     the right may be given back
    message too large                                     --> RecordTooLong         all others are taken
    unknown setting, no such topic                        --> LedgerUnusable        trying again will not help

librdkafka logs to standard error by default. SILENT hands its lines to Python's logging, under the name
`neli_router.drivers.ledgers.kafka`, where they show only if asked for.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, Message

from neli_router.drivers.ledgers.kafka.address import KafkaAddress
from neli_router.errors import LedgerError, LedgerUnavailable, LedgerUnusable, RecordTooLong
from neli_router.protocols.protocol import RECORD_MAX

__all__ = [
    "DENIED",
    "LOST",
    "REFUSED",
    "SILENT",
    "TOO_LONG",
    "UNKNOWN",
    "answer",
    "explain",
    "is_fatal",
    "sorted_out",
    "told",
]

Answer = TypeVar("Answer")

_logger = logging.getLogger("neli_router.drivers.ledgers.kafka")
_logger.addHandler(logging.NullHandler())

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

REFUSED = (
    KafkaError._AUTHENTICATION,  # noqa: SLF001
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._SSL,  # noqa: SLF001
)
"""The broker does not let us in."""

SILENT: Mapping[str, object] = {"logger": _logger}

_RIGHTS = "grant this user Describe, DescribeConfigs, Read, Write and Delete on the topic, and Create to make it"
_REPLICAS = "bring brokers back: fewer are in sync than min.insync.replicas asks for"
_REMEDIES: Mapping[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _RIGHTS,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _RIGHTS,
    KafkaError.GROUP_AUTHORIZATION_FAILED: "grant this user Describe on the consumer group named like the topic",
    KafkaError._AUTHENTICATION: "check sasl.username, sasl.password and sasl.mechanism",  # noqa: SLF001 - its public name.
    KafkaError.SASL_AUTHENTICATION_FAILED: "check sasl.username, sasl.password and sasl.mechanism",
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


def answer(asked: Future[Answer], timeout: float) -> Answer:
    """The answer. Raises KafkaException if the answer is an error, or if none comes in time."""
    try:
        return asked.result(timeout)
    except TimeoutError as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no broker answered")) from error  # noqa: SLF001


def sorted_out(
    messages: list[Message], complain: Callable[[KafkaError], None]
) -> tuple[list[Message], KafkaError | None]:
    """The records among a consumer's messages, and the error if there was nothing at its position.

    `complain` gets all other errors.
    """
    records, lost = [], None
    for message in messages:
        error = message.error()
        if error is None:
            records.append(message)
        elif error.code() in LOST:
            lost = error
        else:
            complain(error)
    return records, lost


def is_fatal(error: KafkaError) -> bool:
    """Whether the client that reports this error must be replaced. It says so in one of two ways, never in both."""
    return error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001


def told(error: KafkaError) -> str:
    """The error in one line. librdkafka puts no secrets into its texts."""
    return f"{error.name().lower().lstrip('_').replace('_', ' ')} ({error.str()})"


def explain(error: KafkaError, at: KafkaAddress, purpose: str) -> LedgerError:
    """The exception to raise for `error`, which occurred during `purpose`."""
    if error.code() in _FINAL:
        return LedgerUnusable(f"{purpose} of {at.public} was wanted", told(error), "correct the address or the topic")
    if error.code() in TOO_LONG:
        return RecordTooLong(
            f"{purpose} of {at.public} was wanted",
            told(error),
            f"set max.message.bytes={RECORD_MAX} on the topic {at.topic}, and no lower limit on the brokers",
        )
    remedy = _REMEDIES.get(error.code(), "check the brokers and the network to them; it will be tried again")
    return LedgerUnavailable(f"{purpose} of {at.public} was wanted", told(error), remedy)
