"""What is asked about a topic while it is in use, over a connection of its own.

    tip, watermarks --ListOffsets-->   what is there, as of when it was asked
    leader --Metadata-->               who would know
    changed_identity --Describe-->     is it still the topic that was opened?
    drop --DeleteRecords-->            what no newcomer needs any more

The client that fetches cannot be asked: its broker answers one question after another, so this one would stand behind
a fetch that waits for records; and confluent-kafka lets one thread at a time into a client, for as long as it polls.
"""

from collections.abc import Callable
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from neli_router.ledgers.kafka.faults import answer
from neli_router.ledgers.kafka.topic import topic_id

__all__ = ["Questions"]

_EARLIEST = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class Questions:
    """About the one partition of `topic`. Each call may come from any thread, and raises KafkaException."""

    def __init__(self, admin: AdminClient, topic: str, identity: str) -> None:
        self._admin, self._topic, self._identity = admin, topic, identity

    def watermarks(self, timeout: float) -> tuple[int, int]:
        """The lowest offset retained, and the one that the next record will have."""
        return self._offset(_EARLIEST, timeout), self.tip(timeout)

    def tip(self, timeout: float) -> int:
        return self._offset(_LATEST, timeout)

    def leader(self, timeout: float) -> int:
        """The number of the broker that leads the partition; -1 if none does."""
        partition = self._admin.list_topics(self._topic, timeout=timeout).topics[self._topic].partitions.get(0)
        return -1 if partition is None else partition.leader

    def changed_identity(self, timeout: float) -> str:
        """How the topic is another one than the one that was opened, or nothing."""
        now = topic_id(self._admin, self._topic, timeout)
        return "" if now == self._identity else f"the topic was deleted and made anew ({self._identity} became {now})"

    def drop(self, before: int, done: Callable[[Future[object]], None]) -> None:
        """Let go of the records below `before`, which must not be above the tip; returns at once."""
        for future in self._admin.delete_records([TopicPartition(self._topic, 0, before)]).values():
            future.add_done_callback(done)

    def _offset(self, spec: OffsetSpec, timeout: float) -> int:
        (asked,) = self._admin.list_offsets({TopicPartition(self._topic, 0): spec}, request_timeout=timeout).values()
        offset = int(answer(asked, timeout).offset)
        if offset < 0:  # What librdkafka answers, without an error, for a partition whose broker said nothing.
            raise KafkaException(KafkaError(KafkaError._NO_OFFSET, "no broker knows the offset"))  # noqa: SLF001
        return offset
