"""A ledger in Redis: a group's records are one stream, whose order is the order that members agree on.

    append --_RedisWriter (a thread), XADD 0-*--> stream GROUP:ledger --XREAD BLOCK--> RedisReader (a thread) --> read
                                                 0-1 0-2 0-3 ...  an offset is the second part

The pump must fence a member in time, so it never waits for Redis, except to open the ledger and to ask where it starts
and ends: it hands records over and takes them. `stream.py` takes no silence for peace, and notices lost records even if
new ones already stand in their places. `link.py` follows a failover, and sends nothing twice.

**The writer** is a thread, so that a slow server never holds the pump up.

    append --> [ payload | payload | trim ] --all that is queued, in one write--> Redis --offsets--> acknowledged

Records that were on their way when a connection failed may or may not have been appended. They and the records that
wait behind them are dropped, and the member that wrote them notices when it does not read them. Keeping them for later
would flood a server that comes back with an hour's heartbeats. A new connection is asked for the anchor before anything
is appended. An offset that is not above all known ones shows immediately that records were lost.

**Promises** depend on how the server is set up. Redis never promises NEVER_REWINDS, because a master acknowledges a
record before its replicas have it. So a failover takes the newest records with it. And a master that is cut off from
its sentinels goes on acknowledging to the members on its side, while the sentinels promote another one. No setting
changes that, so an `exclusive` group on Redis needs its user to accept rewinds explicitly (`accept_rewinds`). Lost
records are noticed in any case.

If an operator denies INFO and CONFIG, the driver promises nothing, and says so.
"""

import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from redis.exceptions import ResponseError

from neli_router.core.closing import anew
from neli_router.drivers.ledgers.base import Promise
from neli_router.drivers.ledgers.read_ahead import ReadAheadLedger
from neli_router.drivers.ledgers.redis.address import RedisAddress
from neli_router.drivers.ledgers.redis.link import ANSWER_MAX, Command, Link, code_of, explain
from neli_router.drivers.ledgers.redis.stream import CLOSE_MAX, FIRST, Extent, RecordStream, RedisReader, defect
from neli_router.errors import LedgerError, LedgerMissing, LedgerRewound, LedgerUnavailable, LedgerUnusable

__all__ = ["RedisAppender", "RedisLedger", "delete_stream"]

QUEUE_MAX = 10_000
"""Records that may wait for the server. More would only arrive later."""

BATCH_MAX = 256
"""Records in one write. If there were more, their answers would wait for each other."""

_MOVED_ON = frozenset({"READONLY", "LOADING", "MASTERDOWN", "UNBLOCKED"})
"""Another server may be the master now: make a new connection."""

_SETTINGS = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "min-replicas-to-write")

_FAILOVER = (
    "Redis copies to its replicas after it has acknowledged: a failover may lose the newest records, and then the "
    "group stops and says so"
)


class RedisLedger(ReadAheadLedger):
    """One handle of a group's stream. Used by one thread at a time, except for `wake`.

    `create=False` refuses a stream that does not exist. Redis creates a stream with its first record.
    """

    _reader: RedisReader
    _writer: "_RedisWriter"

    def __init__(self, address: RedisAddress, *, create: bool = True) -> None:
        super().__init__(address.public)
        self._stream = RecordStream(address)
        with closing(Link(address, "the opening", opening=True)) as link:
            extent = self._stream.extent(link)
            if not (create or extent.exists):
                raise LedgerMissing(
                    f"the ledger {address.public} was wanted",
                    f"there is no key {self._stream.key.decode()}",
                    "correct the address, or start a member, which makes it",
                )
            self.promises, self.doubts = _examine(link)
        self._reader = RedisReader(self._stream, extent, f"neli-redis-reader-{address.group}")
        self._writer = _RedisWriter(self._stream, self._reader, f"neli-redis-writer-{address.group}")

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        self._require_open()
        self._reader.require_sound()
        if payloads:
            self._writer.append(payloads)

    def seek(self, offset: int) -> None:
        self._reader.seek(max(FIRST, offset))  # Nothing was ever below the first offset, so nothing is missed there.

    def start(self) -> int:
        return self._extent().first

    def tip(self) -> int:
        return self._extent().tip

    def trim(self, before: int) -> None:
        self._require_open()
        self._reader.require_sound()
        self._writer.trim(before)

    def _extent(self) -> Extent:
        """Where the stream begins and ends, as of now."""
        self._require_open()
        self._reader.require_sound()
        self._writer.settle(ANSWER_MAX)  # After that, the requested trims are done.
        highest = self._reader.highest
        with closing(Link(self._stream.at, "the start and the tip")) as link:
            extent = self._stream.extent(link)
        if extent.tip <= highest:
            self._reader.fail(self._stream.rewound(f"it ends at {extent.tip}, and offset {highest} was there"))
            self._reader.require_sound()
        self._reader.saw(extent.tip - 1)
        return extent


class RedisAppender:
    """See `Appender`."""

    def __init__(self, at: RedisAddress) -> None:
        self._stream, self._link = RecordStream(at), Link(at, "a certificate")
        self.keep, self.close = self._link.require_master, self._link.close

    def append(self, payloads: Sequence[bytes]) -> bool:
        return None not in self._link.ask(*(self._stream.append(one, must_exist=True) for one in payloads))


class _RedisWriter:
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
                    "check the server",
                )
            self._queue.extend(payloads)
            self._changed.notify_all()
            if self._trouble is not None:
                raise anew(self._trouble)

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


def delete_stream(address: RedisAddress) -> str:
    """Delete the group's stream with all its records, and return its key. Raises LedgerError.

    This does not touch the table of owners that members keep in Redis, nor the fences.
    """
    stream = RecordStream(address)
    with closing(Link(address, "the deletion", opening=True)) as link:
        (deleted,) = link.ask(("DEL", stream.key))
    key = stream.key.decode()
    if not deleted:
        raise LedgerMissing(
            f"the stream {key} of {address.public} was to be deleted",
            "there is none",
            "correct the address, or there is nothing to do",
        )
    return key


def _examine(link: Link) -> tuple[frozenset[Promise], tuple[str, ...]]:
    """The promises and the doubts of the server that `link` leads to."""
    shared = frozenset() if link.at.path else frozenset({Promise.MULTI_HOST})
    replication, *said = link.try_each([("INFO", "replication"), ("CONFIG", "GET", *_SETTINGS)])
    doubts = []
    if isinstance(said[0], ResponseError):
        doubts.append(
            "how this Redis is set up cannot be seen: let the user run CONFIG GET, or make sure that appendonly is yes "
            "and maxmemory-policy is noeviction"
        )
        settings: Mapping[str, str] = {}
    else:
        settings = {_text(name): _text(value) for name, value in zip(said[0][::2], said[0][1::2], strict=True)}
        doubts += _of_disk(settings) + _of_memory(settings)
    connected = "" if isinstance(replication, ResponseError) else _text(replication)
    if re.search(r"^connected_slaves:0*[1-9]", connected, re.MULTILINE) or link.at.service:
        doubts.append(_FAILOVER)
        if settings.get("min-replicas-to-write") == "0":
            doubts.append(
                "min-replicas-to-write is 0: a master that is cut off from its replicas goes on taking records that "
                "the next failover drops, and members on both sides may lead meanwhile; set it to 1"
            )
    durable = settings.get("appendonly") == "yes" and settings.get("appendfsync") == "always"
    return shared | ({Promise.DURABLE} if durable else set()), tuple(doubts)


def _of_disk(settings: Mapping[str, str]) -> list[str]:
    if settings.get("appendonly") != "yes":
        return ["appendonly is no: a restart loses records, and then the group stops and says so; set it to yes"]
    if (sync := settings.get("appendfsync")) != "always":
        lost = "the records of a second or two" if sync == "everysec" else "all that its host had not written yet"
        return [f"appendfsync is {sync}: a crash may lose {lost}, and then the group stops and says so"]
    return ["one disk has all records: if it is lost without a replica, so is the group's ledger"]


def _of_memory(settings: Mapping[str, str]) -> list[str]:
    policy = settings.get("maxmemory-policy", "noeviction")
    if settings.get("maxmemory", "0") == "0":
        return []
    if policy.startswith("allkeys"):
        return [f"maxmemory-policy is {policy}: Redis may drop the whole ledger for room; set it to noeviction"]
    return [f"maxmemory is {settings['maxmemory']} bytes: when they are full, nothing can be appended"]


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
