"""The writer: a thread that appends what the pump hands it, so that a slow server never holds the pump up.

    append --> [ payload | payload | trim ] --all that is queued, in one write--> Redis --offsets--> acknowledged

Nothing is sent twice. Records that were on their way when a connection failed may or may not have been appended. They
and the records that wait behind them are dropped, and the member that wrote them notices when it does not read them.
Keeping them for later would flood a server that comes back with an hour's heartbeats.

A new connection is asked for the anchor before anything is appended (`stream.py`). An offset that is not above all
known ones shows immediately that records were lost.
"""

import threading
from collections import deque
from collections.abc import Sequence

from redis.exceptions import ResponseError

from neli_router.drivers.ledgers.read_ahead import again
from neli_router.drivers.ledgers.redis.faults import code_of, explain
from neli_router.drivers.ledgers.redis.link import Command, Link
from neli_router.drivers.ledgers.redis.reader import CLOSE_MAX, RedisReader, defect
from neli_router.drivers.ledgers.redis.stream import RecordStream
from neli_router.errors import LedgerError, LedgerRewound, LedgerUnavailable, LedgerUnusable

__all__ = ["QUEUE_MAX", "RedisWriter"]

QUEUE_MAX = 10_000
"""Records that may wait for the server. More would only arrive later."""

BATCH_MAX = 256
"""Records in one write. If there were more, their answers would wait for each other."""

_MOVED_ON = frozenset({"READONLY", "LOADING", "MASTERDOWN", "UNBLOCKED"})
"""Another server may be the master now: make a new connection."""


class RedisWriter:
    """Appends to one stream, in order. Any thread may call any method."""

    def __init__(self, stream: RecordStream, reader: RedisReader, name: str) -> None:
        self._stream, self._reader = stream, reader
        self._changed = threading.Condition()
        self._queue: deque[bytes | int] = deque()
        """Payloads; and offsets, below which to trim."""
        self._offsets: list[int] = []
        self._trouble: LedgerError | None = None
        self._trim_trouble: LedgerError | None = None
        self._closing = self._sending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def append(self, payloads: Sequence[bytes]) -> None:
        """Queue the payloads. Raises LedgerUnavailable if the last ones that were sent could not be appended."""
        with self._changed:
            if len(self._queue) + len(payloads) > QUEUE_MAX:
                raise LedgerUnavailable(
                    f"an append to {self._stream.at.public} was wanted",
                    f"{len(self._queue)} records wait for the server already",
                    "check the server; it will be tried again",
                )
            self._queue.extend(payloads)
            self._changed.notify_all()
            if self._trouble is not None:
                raise again(self._trouble)

    def trim(self, before: int) -> None:
        """Queue a trim. Raises LedgerUnavailable if the last one was refused."""
        with self._changed:
            self._queue.append(before)
            self._changed.notify_all()
            if (refused := self._trim_trouble) is not None:
                raise LedgerUnavailable(refused.wanted, refused.found, refused.remedy)

    def settle(self, timeout: float) -> None:
        """Wait until everything queued has been sent, at most `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._queue or self._sending), timeout)

    def acknowledged(self) -> list[int]:
        with self._changed:
            offsets, self._offsets = self._offsets, []
            return offsets

    def close(self) -> None:
        """Append what is queued, such as a Leave, if that is quickly done."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(CLOSE_MAX)

    def _run(self) -> None:
        link: Link | None = None
        try:
            while batch := self._next():
                try:
                    if link is None:
                        link = Link(self._stream.at, "an append")
                        self._reader.require_same(link)
                    if not self._send(link, batch):
                        continue
                except (LedgerRewound, LedgerUnusable) as fault:
                    self._reader.fail(fault)
                except LedgerError as trouble:
                    with self._changed:
                        self._trouble = trouble
                        self._queue.clear()
                if link is not None:
                    link.close()
                link = None
        except BaseException as error:
            self._reader.fail(defect(error))
            raise
        finally:
            if link is not None:
                link.close()

    def _next(self) -> list[bytes | int]:
        """The records and trims to send now; nothing if the thread should end."""
        with self._changed:
            self._sending = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._queue or self._closing)
            if self._reader.fault is not None:
                return []
            batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
            self._sending = bool(batch)
            return batch

    def _send(self, link: Link, batch: list[bytes | int]) -> bool:
        """Append `batch`. Returns whether another connection is needed afterwards."""
        last = self._reader.highest  # Before anything is sent: the reader may read our records before the answer comes.
        must_exist = last > 0
        commands: list[Command] = [
            self._stream.trim(one) if isinstance(one, int) else self._stream.append(one, must_exist=must_exist)
            for one in batch
        ]
        trouble, offsets, moved_on = None, [], False
        for one, answer in zip(batch, link.try_each(commands), strict=True):
            if isinstance(answer, ResponseError):
                moved_on |= code_of(answer) in _MOVED_ON
                refused = self._refusal(answer)
                if isinstance(one, int):
                    self._trim_trouble = refused
                elif isinstance(refused, LedgerUnusable):
                    raise refused
                else:
                    trouble = refused
            elif isinstance(one, int):
                self._trim_trouble = None
            elif answer is None:
                raise self._stream.rewound("it is gone, with all its records")
            else:
                offset = self._stream.offset(answer)
                if offset <= last:
                    raise self._stream.rewound(f"offset {offset} was given again")
                offsets.append(last := offset)
        with self._changed:
            self._offsets.extend(offsets)
            self._trouble = trouble
        if offsets:
            self._reader.saw(offsets[-1])
        return moved_on

    def _refusal(self, error: ResponseError) -> LedgerError:
        if "equal or smaller" in str(error):
            return LedgerUnusable(
                f"the stream {self._stream.key.decode()} with places 0-1, 0-2, 0-3 ... was wanted",
                "its last place has another form: another program added to it with `*`",
                "use another group, and let only members write to its stream",
            )
        return explain(error, self._stream.at, "an append")
