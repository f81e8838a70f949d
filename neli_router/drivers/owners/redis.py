"""Owners in Redis: members write there what they lead, and routers read it and follow its changes.

    publish --SAY, one script--> hashes --PUBLISH--> follow (a separate connection, which only listens)
    table   --READ, one script--> the whole table in one round trip

`redis_layout.py` describes how owners are stored, and why. The first use opens a store, and the first use after a
failure opens it again. News between two connections never arrive, so the first `table` after that returns everything,
whatever version was known.
"""

import contextlib
import os
import select
import threading
import time
from typing import Any

from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.redis.address import RedisAddress
from neli_router.drivers.ledgers.redis.link import Link
from neli_router.drivers.owners.base import Claim, Listing, OwnersChange, Receipt, Version
from neli_router.drivers.owners.redis_layout import READ, SAY, channel, keys, listing, mismatch, news, receipt, say
from neli_router.errors import LedgerUnavailable, LedgerUnusable

__all__ = ["RedisOwners"]

PURPOSE = "the table of owners"

MESSAGES_MAX = 1000
"""Messages taken in one go. The rest waits in the socket."""


class RedisOwners:
    """The owners of one group. `purpose` appears in errors."""

    def __init__(self, at: RedisAddress, *, purpose: str = PURPOSE) -> None:
        self._at, self._purpose = at, purpose
        self._keys = keys(at.group)
        self._link: Link | None = None
        self._listening: Link | None = None
        self._heard: list[OwnersChange] = []
        self._closing = threading.RLock()  # Reentrant, so a signal handler may call `wake` during `close`.
        self._waking: tuple[int, int] | None = os.pipe()
        for descriptor in self._waking:
            os.set_blocking(descriptor, False)  # A full pipe wakes as well as one more byte would.
        self._process = os.getpid()

    @property
    def address(self) -> str:
        return self._at.public

    def publish(self, layout: Layout, claim: Claim) -> Receipt:
        answer = self._ask("EVAL", SAY, 3, *self._keys, *say(self._at.group, layout, claim))
        return receipt(answer, self._at.group)

    def table(self, known: Version | None = None) -> Listing:
        if self._listening is None:
            self._listen()
            known = None
        version = "" if known is None else f"{known.since}:{known.revision}"
        return listing(self._ask("EVAL_RO", READ, 3, *self._keys, version), self._at.group)

    def follow(self, timeout: float) -> list[OwnersChange]:
        give_up_at = time.monotonic() + timeout
        link = self._require_listening()
        waiting = select.poll()
        waiting.register(link.descriptor, select.POLLIN)
        if self._waking is not None:
            waiting.register(self._waking[0], select.POLLIN)
        while True:
            self._hear(link)  # First, because messages that came with an earlier one make no descriptor readable.
            patience = give_up_at - time.monotonic()
            if self._heard or patience <= 0:
                break
            rung = [descriptor for descriptor, _ in waiting.poll(patience * 1000)]
            if self._waking is not None and self._waking[0] in rung:
                os.read(self._waking[0], 4096)
                break
        heard, self._heard = self._heard, []
        return heard

    def wake(self) -> None:
        if os.getpid() != self._process:
            return  # A forked child shares the pipe, and would wake its parent's reader.
        # Under the lock, because the number of a closed descriptor may already stand for another file.
        with self._closing, contextlib.suppress(BlockingIOError):
            if self._waking is not None:
                os.write(self._waking[1], b"!")

    def close(self) -> None:
        self._drop()
        if os.getpid() != self._process:
            return
        with self._closing:
            waking, self._waking = self._waking, None
            for descriptor in waking or ():
                os.close(descriptor)

    def _ask(self, *command: str | int) -> Any:
        try:
            if self._link is None:
                self._link = Link(self._at, self._purpose, opening=True)
            (answer,) = self._link.try_each([command])
            if (refused := mismatch(answer, self._at.group)) is not None:
                raise refused
            self._link.require(answer)
        except (LedgerUnavailable, LedgerUnusable):
            self._drop()
            raise
        return answer

    def _listen(self) -> None:
        """Begin to hear of changes. A `table` that is read afterwards misses none of them."""
        try:
            self._listening = Link(self._at, self._purpose, opening=True)
            self._listening.ask(("SUBSCRIBE", channel(self._at.group)))
        except (LedgerUnavailable, LedgerUnusable):
            self._drop()
            raise

    def _require_listening(self) -> Link:
        if self._listening is None:
            raise LedgerUnavailable(f"{self._purpose} of {self.address} was wanted", "it is not open", "ask for it")
        return self._listening

    def _hear(self, link: Link) -> None:
        try:
            while len(self._heard) < MESSAGES_MAX and link.pending:
                message = link.take()
                if isinstance(message, list) and message[0] == b"message":
                    self._heard.append(news(message[2], self._at.group))
        except (LedgerUnavailable, LedgerUnusable):
            self._drop()
            raise

    def _drop(self) -> None:
        for link in (self._link, self._listening):
            if link is not None:
                link.close()
        self._link = self._listening = None
        self._heard = []
