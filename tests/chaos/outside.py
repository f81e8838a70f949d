"""An outside producer: not a member, it appends to the group's topic, and remembers what was acknowledged.

    produce "outside 17" --acks=all--> offset 4711     kept, to be looked for at the end
                             '-- when was the first record accepted that was produced after a moment?

Its records do not belong to the protocol, so every member skips them alike.
"""

import threading

from confluent_kafka import KafkaError, Message, Producer

from neli_router.core.clock import host_clock
from neli_router.core.closing import Closing

__all__ = ["Outside"]

EVERY = 0.05
"""Seconds between two records. Members log each foreign record, so a flood would only measure the logging."""

ACCEPT_MAX = 180.0


class Outside(Closing):
    """Appends from its own thread, from its construction until `close`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: dict[int, bytes] = {}
        """Offset -> the payload acknowledged there."""
        self._accepted: list[tuple[float, float]] = []
        """When each acknowledged record was produced, and when its acknowledgement arrived."""
        self._topic = topic
        self._changed = threading.Condition()
        self._over = False
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 0,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 20,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "topic.metadata.refresh.fast.interval.ms": 20,
                "message.timeout.ms": int(ACCEPT_MAX * 1000),
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, name="outside", daemon=True)
        self._thread.start()

    def accepted_after(self, moment: float) -> float:
        """When the first record was acknowledged that was produced after `moment`. Waits for it."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._first_after(moment), ACCEPT_MAX)
        assert found is not None, f"no append succeeded within {ACCEPT_MAX} s"
        return found

    def close(self) -> None:
        self._over = True
        self._thread.join()

    def _first_after(self, moment: float) -> float | None:
        return min((heard_at for produced_at, heard_at in self._accepted if produced_at > moment), default=None)

    def _run(self) -> None:
        number = 0
        while not self._over:
            number += 1
            self._produce(f"outside {number}".encode())
            next_at = host_clock() + EVERY
            while (rest := next_at - host_clock()) > 0:
                self._producer.poll(rest)  # It returns as soon as something was delivered.
        self._producer.flush(ACCEPT_MAX)

    def _produce(self, payload: bytes) -> None:
        produced_at = host_clock()

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is None and offset is not None:
                with self._changed:
                    self.acknowledged[offset] = payload
                    self._accepted.append((produced_at, host_clock()))
                    self._changed.notify_all()

        self._producer.produce(self._topic, payload, partition=0, on_delivery=delivered)
