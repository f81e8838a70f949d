"""Where `neli ticks` puts the ticks of its market: into numbered files, or into a topic as JSON.

    ticks --append--> FOLDER/00000001.parquet, ...                        each interval becomes a file
                  '-> kafka://HOST:PORT/TOPIC, in the lane of its instrument    each tick becomes a message

`neli_router.spark.feeds` says how a job reads them, a step at a time.
"""

import msgspec
import pyarrow as pa

from neli_router.core.keyspace import Layout
from neli_router.errors import NeliError
from neli_router.spark.feeds import NumberedFiles, Topic, kafka

__all__ = ["TickTopic", "feed_at"]

SEND_MAX = 60.0
"""Seconds within which the broker must acknowledge what it was sent."""

BATCH = 10_000
"""Messages between two flushes. The producer's queue holds ten times as many, so it is never full."""


class TickTopic(Topic):
    """A topic of ticks: JSON objects under the names of their instruments."""

    def __init__(self, address: str, layout: Layout) -> None:
        super().__init__(address)
        self._layout = layout

    def append(self, ticks: pa.Table) -> None:
        """Append `ticks`, each as a message with its key and one JSON object. Returns when the broker has them all."""
        lanes, lost, places = self.lanes(), list[str](), dict[str, int]()
        producer = kafka().Producer({**self.client, "enable.idempotence": True, "linger.ms": 20})

        def delivered(error: object, _: object) -> None:
            if error is not None:
                lost.append(str(error))

        for batch in ticks.to_batches(BATCH):
            columns = batch.set_column(2, "at", batch["at"].cast(pa.int64()))
            for tick in columns.to_pylist():
                name = tick["instrument"]
                place = places.get(name)
                if place is None:
                    place = places[name] = self._layout.partition(name) % lanes
                value = msgspec.json.encode(tick)
                producer.produce(self.name, value, key=name, partition=place, on_delivery=delivered)
            if left := producer.flush(SEND_MAX):
                lost.append(f"{left} were not acknowledged within {SEND_MAX:g} s")
            if lost:
                raise NeliError(
                    f"ticks were to be appended to {self.shown}",
                    lost[0],
                    "see to the broker, and begin with a new topic",
                )


def feed_at(address: str, layout: Layout) -> NumberedFiles | TickTopic:
    """The feed at `kafka://HOST:PORT/TOPIC`, or in the folder of that name. Raises ConfigError."""
    return TickTopic(address, layout) if address.startswith("kafka:") else NumberedFiles(address)
