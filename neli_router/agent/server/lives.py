"""The lives: members of this host whose deaths this agent certifies to the group.

    POST /v1/witness --proved--> WATCHED --the last thread of its process has ended--> DEAD --Certify each seat--.
          '-- refused              |   ^                                                ^ |                      |
                                   |   '-- its connection ended: that proves nothing    | '-- has a seat again ---'
                                   '-- no connection and no seat for a while            '-- again, until the ledger
                                         '--> forgotten                                     shows none for two leases

A *life* is one Member of one process; all its incarnations start with the name of the life. Its process shows the
secret of the life, and the kernel identifies that process (`HostProcess.peer_of`). When the last thread of the process
has ended, the agent's own member writes a certificate for each seat of the life, and the others take over immediately.

**Why a living member is never certified.** A pidfd becomes readable when the last thread ends, and never before. The
process is the one that made the connection. A connection that is not named after the life was made by a program that
passes bytes on, such as this agent's door, and is refused. If several processes showed one secret (a fork has its
parent's memory), all of them must have ended. The end of a connection proves nothing: a dying process closes its files
while threads of it may still run, and a fork keeps them open.

**Why every dead member is certified.** A Join may be in flight when its process dies, an append may be lost, and the
ledger may be unreachable. So the agent keeps watching the table until it has read it for two leases without a seat of
the life. A Join that takes longer creates a member that expires after a lease, as it would without a witness.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from math import inf
from typing import Any, cast

from neli_router.agent.server.connections import Channel, Connection, connection_of, event
from neli_router.agent.server.requests import Request, RequestRefused, bad_request, body_of, decoded
from neli_router.config.config import Config
from neli_router.core import logs
from neli_router.core.clock import host_clock
from neli_router.errors import BeyondProtocol, Unsupported
from neli_router.hosts.process import HostProcess
from neli_router.member.member import Member
from neli_router.member.witness.base import OwnLife, life_of
from neli_router.member.witness.registration import WitnessAsked, WitnessView, is_named_after

__all__ = ["LIVES_MAX", "Lives"]

EXAMPLE = '{"ledger": "sqlite:jobs.db", "member": "worker-1", "secret": "..."}'

LIVES_MAX = 1024
"""The largest number of members in a group. Each life takes two file descriptors."""

PROCESSES_MAX = 4
"""Processes that may show the secret of one life. Registrations by one process whose connections ended count, too. A
process that closes files it did not open registers again and again; it is watched all the same."""

LOOK_EVERY = 1.0
"""Seconds between two looks while all processes live, to find lives that can be forgotten."""

LOOK_OFTEN = 0.02
"""The same while a process has just died. Its Join may still arrive, and takeovers wait for each certificate."""

JUST = 3.0
"""Seconds. A Join is seldom in flight for longer, and with a long lease the agent must not look often for hours."""

REPEAT_AFTER = 0.5
"""Seconds until a certificate that the ledger does not show is written again. Usually it appears in milliseconds."""

LEASES_KEPT = 2
"""A dead life is forgotten after the ledger has shown no seat of it for this many leases."""

UNCONNECTED_MAX = 5.0
"""Seconds after which a living process without a connection and without a seat is forgotten. It has left, or reconnects
within a second or two."""


@dataclass(eq=False, slots=True)
class _WatchedLife:
    member: str
    """The name that it gives itself, for the log."""
    wanted_at: float
    """When there was last a reason to keep the life."""
    processes: list[HostProcess] = field(default_factory=list)
    """The processes that showed its secret and are alive."""
    channels: set[Channel] = field(default_factory=set)
    written: dict[str, float] = field(default_factory=dict)
    """Incarnation -> when its certificate was last written."""


class Lives:
    """The lives that one agent watches, at most `room`. Belongs to its loop."""

    def __init__(self, config: Config, member: Member, *, room: int) -> None:
        self._config, self._member, self._room = config, member, room
        self._loop = asyncio.get_running_loop()
        self._lives: dict[str, _WatchedLife] = {}
        self._written_at = -inf
        self._timer: asyncio.TimerHandle | None = None
        self.certificates = 0
        """How many incarnations were certified."""

    def __len__(self) -> int:
        """Counts dead ones, too: a Join of theirs may still arrive."""
        return len(self._lives)

    @property
    def witnessed(self) -> int:
        """How many living members this agent would certify if they died."""
        return sum(bool(watched.processes) for watched in self._lives.values())

    async def witness(self, request: Request) -> None:
        """Answer a registration, and keep its connection."""
        asked = decoded(WitnessAsked, await body_of(request.receive), EXAMPLE)
        life, connection = OwnLife.shown_by(asked.secret).name, connection_of(request.scope)
        process = self._proved(life, asked.ledger, connection)
        watched, channel = self._watch(life, asked.member, process), Channel(connection)
        watched.channels.add(channel)
        try:
            channel.put(event("registered", WitnessView(self._member.name)))
            await channel.carry(request.send)
        finally:
            watched.channels.discard(channel)

    def close(self) -> None:
        """End all connections and stop watching. Safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
        for life in list(self._lives):
            self._forget(life)

    def _proved(self, life: str, ledger: str, connection: Connection) -> HostProcess:
        """The process that registers `life`. Raises RequestRefused and BeyondProtocol."""
        wanted, config = "a witness of this member's end was wanted", self._config
        if not config.has_ledger:
            raise BeyondProtocol(
                wanted,
                f"in a group of the protocol {config.protocol_name!r} {config.options.sharer}, and miss the silent",
                "leave it to them; choose the protocol 'induction' for a group that takes certificates",
            )
        if ledger != config.group_name:
            found = f"this agent's group is {config.group_name}, and the member's is {ledger}"
            raise bad_request(wanted, found, "ask an agent of its own group")
        if sum(len(watched.processes) for watched in self._lives.values()) >= self._room:
            found, remedy = f"{self._room} are registered", "raise `ulimit -n` of the agent, or start fewer members"
            raise RequestRefused("Crowded", wanted, found, remedy)
        if life in self._lives and len(self._lives[life].processes) >= PROCESSES_MAX:
            found, remedy = f"it was registered {PROCESSES_MAX} times, and is watched", "keep the connection open"
            raise RequestRefused("Crowded", wanted, found, remedy)
        peer = cast("Any", connection.transport.get_extra_info("socket"))
        try:
            if not is_named_after(life, peer.getpeername()):
                found = "another program made this connection and passes bytes on, and only that one could be watched"
                raise bad_request(wanted, found, "let the member connect to the agent's own socket itself")
            return HostProcess.peer_of(peer)
        except (OSError, Unsupported) as error:
            found = f"the kernel does not say which process it is ({error})"
            raise bad_request(wanted, found, "use Linux 6.5 or newer, or run both in one PID namespace") from None

    def _watch(self, life: str, member: str, process: HostProcess) -> _WatchedLife:
        # When full, most are dead: a program dies again and again while the ledger is unreachable.
        if len(self._lives) >= 2 * self._room:
            self._forget(next(other for other, watched in self._lives.items() if not watched.processes))
        watched = self._lives.setdefault(life, _WatchedLife(member, host_clock()))
        watched.processes.append(process)
        self._loop.add_reader(process.fileno(), self._ended, watched, process)
        if self._timer is None:
            self._look()
        return watched

    def _ended(self, watched: _WatchedLife, process: HostProcess) -> None:
        if process.has_ended():
            self._let_go(watched, process)
            self._look()

    def _look(self) -> None:
        """Write the certificates that are due, and forget what is over."""
        if self._timer is not None:
            self._timer.cancel()
        now, seats = host_clock(), defaultdict[str, list[str]](list)
        for incarnation in self._member.state.members:
            seats[life_of(incarnation)].append(incarnation)
        was_read = self._member.router.at.age < self._config.lease
        for life, watched in list(self._lives.items()):
            lives = bool(watched.processes)
            if life in seats or (watched.channels if lives else not was_read):
                watched.wanted_at = now
            elif now - watched.wanted_at > (UNCONNECTED_MAX if lives else LEASES_KEPT * self._config.lease):
                self._forget(life)
            for incarnation in () if lives else seats.get(life, ()):
                self._certify(incarnation, watched, now)
        if self._lives:
            has_just_died = any(not one.processes and now - one.wanted_at < JUST for one in self._lives.values())
            self._timer = self._loop.call_later(LOOK_OFTEN if has_just_died else LOOK_EVERY, self._look)
        else:
            self._timer = None

    def _certify(self, incarnation: str, watched: _WatchedLife, now: float) -> None:
        # While the ledger is unreachable, one try is enough: each may delay the thread that also keeps our own lease.
        last = self._written_at if self._member.engine.membership.obstacle else watched.written.get(incarnation, -inf)
        if now - last < REPEAT_AFTER:
            return
        self._member.engine.certify(incarnation)  # Before logging: the others are waiting for it.
        if incarnation not in watched.written:
            self.certificates += 1
            logs.logger().warning("member.certified", of=watched.member, incarnation=incarnation)
        self._written_at = watched.written[incarnation] = now

    def _forget(self, life: str) -> None:
        watched = self._lives.pop(life)
        for process in list(watched.processes):
            self._let_go(watched, process)
        for channel in list(watched.channels):
            channel.end()

    def _let_go(self, watched: _WatchedLife, process: HostProcess) -> None:
        self._loop.remove_reader(process.fileno())
        process.close()
        watched.processes.remove(process)
