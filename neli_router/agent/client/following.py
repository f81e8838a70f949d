"""Following: the thread behind a `leading` block, which listens to the agent and asks for the lease at each news.

    agent --acquired, renewed, revoked, fenced--> thread --told, confirmed--> hold --news--> caller, listeners
      ^                                             |
      '------------------ lease? -------------------'

    LISTENING --the stream broke--> LISTENING AGAIN --broke before it said a word--> OVER
        '-------- lost, ended, or closed by the caller -------------------------------^

Its end is the release: the agent hands the role over when the stream is gone, or keeps it as its own.
"""

import threading
import time
from collections.abc import Callable
from math import inf
from typing import Any, Protocol, TypeVar

from neli_router.agent.address import Address
from neli_router.agent.client import calls
from neli_router.agent.client.calls import Call
from neli_router.agent.client.endpoint import Stream
from neli_router.agent.client.leases import WAIT_MAX, AgentLease, Hold
from neli_router.agent.wire import LeaseView
from neli_router.errors import NeliError, NoAgent
from neli_router.keyspace import Role

__all__ = ["CONFIRM_MAX", "PAUSE", "Asker", "Following", "hung_up", "idle"]

CONFIRM_MAX = 1.0
"""How long the thread waits for an answer about the lease: what the stream says meanwhile, such as that it was fenced,
has to wait as long."""

PAUSE = 0.02
"""Seconds before a broken stream is asked for again, so that an agent which always breaks it is not asked all the time.
It is a part of a lease that nobody renews."""

JOIN_MAX = 1.0
"""How long closing waits for the thread, which has nothing left to do."""

Answer = TypeVar("Answer")


class Asker(Protocol):
    """What is needed of a client."""

    @property
    def address(self) -> Address: ...

    @property
    def closed(self) -> bool: ...

    def call(self, call: Call[Answer], *, timeout: float | None = None) -> Answer:
        """Ask, and decode the answer."""

    def stream(self, call: Call[Answer]) -> Stream[Answer]:
        """Ask for a stream."""


class Following:
    """One block's stream. Made, asked and closed by the block's thread."""

    def __init__(self, asker: Asker, role: Role) -> None:
        self._asker, self._role = asker, role
        self._call = calls.leadership(role)
        self.hold = Hold(role)
        self._changed = threading.Condition()
        self._stream: Stream[Any] | None = None
        self._closed = False
        self.has_heard = False
        """Whether an agent ever said anything."""
        self.is_over = False
        """Whether nothing more will be heard."""
        self.trouble: NeliError | None = None
        """Why not, if somebody else is to blame."""
        self._thread = threading.Thread(target=self._run, name="neli-leading", daemon=True)
        self._thread.start()

    def await_lease(self, timeout: float | None) -> AgentLease:
        """Wait until it is held. Raises NotLeading, NoAgent, or what the agent refused with."""
        hold = self.hold
        give_up_at = inf if timeout is None else hold.clock() + timeout
        self.until(lambda: hold.is_held or self.is_over, lambda: max(0.0, min(WAIT_MAX, give_up_at - hold.clock())))
        if hold.is_held:
            return AgentLease(hold, self.until)
        if self.trouble is not None:
            raise self.trouble
        raise hold.not_leading(timeout)

    def until(self, ready: Callable[[], bool], patience: Callable[[], float]) -> bool:
        """Wait for `ready()`, looking again after `patience()` seconds at the latest, which is 0 to give up."""
        with self._changed:
            while not ready():
                seconds = patience()
                if seconds <= 0:
                    return ready()
                self._changed.wait(seconds)
        return True

    def close(self) -> None:
        """Give the role back: after this the lease does not hold."""
        with self._changed:
            self._closed = True
            self.hold.lose("its block has ended")
            if self._stream is not None:
                self._stream.close()
        self._thread.join(JOIN_MAX)

    def _run(self) -> None:
        try:
            while self._listen() and self.hold.remaining() > 0:
                with self._changed:
                    self._changed.wait(PAUSE)  # It broke, and there is something to save.
        except NeliError as error:
            self.trouble = error
        finally:
            self.is_over = True
            if self._asker.closed:
                # Closing it has told the agent that the role is free.
                self.hold.lose("its client was closed")
            self._news()

    def _listen(self) -> bool:
        """Follow one stream to its end. Whether it broke after it had said something."""
        heard = False
        try:
            with self._asker.stream(self._call) as stream:
                with self._changed:
                    self._stream = stream
                    if self._closed:
                        return False
                for name, view in stream.events():
                    heard = self.has_heard = True
                    self._tell(name, view)
                    if self.hold.is_lost or name == "ended":
                        break
                else:
                    self.trouble = hung_up(self._asker.address)
                    return not self._closed
                if name == "ended":
                    self.trouble = hung_up(self._asker.address, view.why)
        except NoAgent as error:
            if self._closed or not heard:
                raise
            self.trouble = error  # Whoever has no lease yet is told; whoever has one only needs another stream.
            return True
        return False

    def _tell(self, name: str, view: LeaseView) -> None:
        must_ask = self.hold.told(name, view)
        if name != "renewed":
            self._news()
        if must_ask:
            asked_at = self.hold.clock()
            try:
                answer = self._asker.call(calls.lease(self._role), timeout=CONFIRM_MAX)
            except NeliError:
                return  # The next renewal asks again, and until then the lease is what it was.
            self.hold.confirmed(answer, asked_at)
            self._news()

    def _news(self) -> None:
        with self._changed:
            self._changed.notify_all()
        for listener in self.hold.listeners:
            listener()


def hung_up(address: Address, why: str = "") -> NoAgent:
    """What is raised when the agent ended a stream while leadership was waited for."""
    return NoAgent(
        f"the agent at {address} was to say when this host leads",
        f"it ended the conversation{f' ({why})' if why else ''}",
        "it may be leaving or starting anew: ask again in a moment",
    )


def idle(ready: Callable[[], bool], patience: Callable[[], float]) -> bool:
    """The `until` of a lease that nobody follows: only time can end it."""
    while not ready():
        seconds = patience()
        if seconds <= 0:
            return ready()
        time.sleep(seconds)
    return True
