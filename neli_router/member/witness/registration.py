"""The registration: a member asks the agent of its host to report the member's death.

    NONE --there is a socket: ask--> ASKED --"registered"--> WITNESSED
      ^                                '-- refused, or silent --.   '-- the connection ended: the agent did --.
      '----------------- ask again after a while ---------------+---------------------------------------------'

The first time, the member waits for the answer: at most a tenth of a second, and only where a socket takes connections.
So its Join names the agent as its witness. After that, nothing waits: connecting, asking and reading are calls of
microseconds on a socket that never blocks, made once a second. A Beat costs one comparison of numbers.

**The connection** stays open. When it ends, the member knows that its agent is gone, and asks the next agent. The end
of a connection proves nothing to the agent: the kernel closes the files of a dying process before all of its threads
have ended.

**The proof.** The agent watches the process that the kernel names as the peer of this connection. But a program may
forward bytes, from this host or another one (socat, ssh), and then the peer is that program: when it ended, a living
member would be certified. So the connection has a name of its own, which begins with the life being registered. A
forwarding program has another name, or none, and is refused.

**The secret** goes only to the agent, so a socket that another user may have created gets no request (`distrust`).
"""

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Annotated

import msgspec

from neli_router.config.agent_address import Address, default_address, distrust, parse
from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.errors import ConfigError
from neli_router.member.witness.base import OwnLife, Witness
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Certify, Name
from neli_router.protocols.protocol import Notice

__all__ = ["Registration", "WitnessAsked", "WitnessView", "is_named_after"]

ANSWER_MAX = 0.1
"""Seconds that a start waits for an agent that took the connection. A busy agent answers in a few milliseconds, and a
start must not depend on an agent that hangs."""

PATIENCE = 2.0
"""Seconds until the member gives up on an answer that nothing waits for any longer."""

LOOK_EVERY = 1.0
"""Seconds between two looks at the connection, and between two attempts to connect. A lower value finds a restarted
agent sooner, and costs some microseconds each time."""

REFUSED_PAUSE = 10.0
"""Seconds until an agent that refused is asked again. It may serve another ledger, or have no room at the moment."""

ANSWER_SIZE_MAX = 16384
"""Bytes: a head and one line of JSON."""


class WitnessAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`ledger` is the name of the group, by which the agent recognises its own. `member` is a name for people, too."""

    ledger: Annotated[str, msgspec.Meta(max_length=4096)]
    member: Name
    secret: str

    def __repr__(self) -> str:
        return f"WitnessAsked({self.ledger!r}, {self.member!r})"


class WitnessView(msgspec.Struct, frozen=True):
    """`agent` is the name of the agent's own member. It goes into a Join, so it must be a valid name there."""

    agent: Name


class _Refused(msgspec.Struct, frozen=True):
    found: str
    remedy: str = ""


def is_named_after(life: str, peer: object) -> bool:
    """Whether a connection with the name `peer` was made to register `life`."""
    return isinstance(peer, bytes) and peer.startswith(b"\0neli-%b-" % life.encode())


class Registration(Witness):
    """The host's agent, if there is one. If it is `wanted` by name, its absence is reported to `tell`."""

    def __init__(
        self,
        config: Config,
        member: str,
        life: OwnLife,
        tell: Callable[[Notice], None],
        *,
        wanted: bool,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.name = ""
        self._life, self._tell, self._is_wanted = life.name, tell, wanted
        self._request = _request(WitnessAsked(config.group_name, member, life.secret))
        self._link: socket.socket | None = None
        self._said = b""
        self._is_told = False
        self._look_at = self._give_up_at = inf
        self._find = partial(_place, config.group_name, environment)
        self._place, why = self._find()
        if self._place is None:
            self._tell_missing(why)
            return
        self._ask(host_clock())
        self.await_answer(ANSWER_MAX)

    def await_answer(self, patience: float) -> None:
        """Wait, at most `patience` seconds, until the agent has answered."""
        until = host_clock() + patience
        while self._link is not None and not self.name and (left := until - host_clock()) > 0:
            self._link.settimeout(left)
            self._hear(host_clock())
        if self._link is not None:
            self._link.settimeout(0)

    def look(self, state: State, incarnation: str, now: float) -> Sequence[Certify]:
        if now >= self._look_at:
            if self._link is None:
                self._ask(now)
            else:
                self._hear(now)
        return ()

    def close(self) -> None:
        self._look_at = inf
        self._let_go()

    def _ask(self, now: float) -> None:
        """Connect and send the request, without waiting."""
        self._place, _ = self._find()  # An agent that has started since may have another of the two default sockets.
        assert self._place is not None, "without a place, no look is due"
        self._look_at = now + LOOK_EVERY
        if why := distrust(self._place):
            self._tell_missing(why)
            return
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(0)
            link.bind(f"\0neli-{self._life}-{os.urandom(4).hex()}")
            link.connect(self._place.path)
            link.send(self._request)  # The socket is new, so there is room for all of it.
        except OSError as error:
            link.close()
            self._tell_missing(f"the system refused to connect: {error.strerror or error}")
            return
        self._link, self._said = link, b""
        self._look_at, self._give_up_at = now, now + PATIENCE

    def _hear(self, now: float) -> None:
        """Take what the agent has sent."""
        assert self._link is not None, "it was asked"
        try:
            said = self._link.recv(ANSWER_SIZE_MAX)
        except (BlockingIOError, TimeoutError):
            if self.name:
                self._look_at = now + LOOK_EVERY
            elif now >= self._give_up_at:
                self._lose("it took the connection and gave no answer", now + LOOK_EVERY)
            return
        except OSError:
            said = b""
        if self.name or not said:
            self._lose("it ended the connection", now if self.name else now + LOOK_EVERY)
            return
        self._said += said
        found = _answer(self._said)
        if isinstance(found, WitnessView):
            self.name, self._look_at = found.agent, now + LOOK_EVERY
            if self._is_told:
                self._is_told = False
                self._tell(Notice("witness.found", {"agent": found.agent}))
        elif isinstance(found, _Refused) or len(self._said) > ANSWER_SIZE_MAX:
            why = found.found if isinstance(found, _Refused) else "its answer has no end"
            self._lose(f"it refused: {why}", now + REFUSED_PAUSE)

    def _lose(self, why: str, again_at: float) -> None:
        self._let_go()
        self._look_at = again_at
        self._tell_missing(why)

    def _let_go(self) -> None:
        self.name = ""
        if self._link is not None:
            self._link.close()
            self._link = None

    def _tell_missing(self, why: str) -> None:
        if self._is_wanted and not self._is_told:  # Once each time: a line for each attempt would bury the first.
            self._is_told = True
            fields = {"agent": str(self._place or "none"), "why": why, "remedy": _REMEDY}
            self._tell(Notice("witness.missing", fields))


_REMEDY = (
    "start `neli agent` with this member's ledger, or set NELI_AGENT to its socket; until then the others wait for the "
    "lease when this process dies"
)


def _place(group: str, environment: Mapping[str, str]) -> tuple[Address | None, str]:
    """Where the agent listens, or why no agent can be asked."""
    try:
        place = parse(default_address(group, environment))
    except ConfigError as error:
        return None, str(error)
    if not place.path:
        return None, f"{place} is not a Unix socket, and only a Unix socket proves a process"
    return (place, "") if sys.platform == "linux" else (None, "only Linux reports reliably that a process has ended")


def _request(asked: WitnessAsked) -> bytes:
    body = msgspec.json.encode(asked)
    head = f"POST /v1/witness HTTP/1.1\r\nhost: agent\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


def _answer(said: bytes) -> WitnessView | _Refused | None:
    """The answer in what an agent has sent so far; None if it is incomplete."""
    head, _, body = said.partition(b"\r\n\r\n")
    try:
        if not head.startswith(b"HTTP/1.1 200 "):
            return msgspec.json.decode(body, type=_Refused) if body else None
        _, _, line = body.partition(b"data: ")
        view, end, _ = line.partition(b"\n\n")
        return msgspec.json.decode(view, type=WitnessView) if end else None
    except msgspec.ValidationError:
        return _Refused("it speaks another language")
    except msgspec.DecodeError:
        return None
