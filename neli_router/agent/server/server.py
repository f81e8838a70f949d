"""The server: a member of the group, and the sockets on which its host's programs ask it.

    BINDING --sockets are ours--> JOINING --member opened--> SERVING --SIGTERM, SIGINT--> DRAINING --> over, 0
       '-- held by another: 5        '-- refused: 5, 2          |                            | again: immediately
                                                                |-- its socket is gone: made again, or over, 5
                                                                |-- its store of owners cannot be used --> over, 5
                                                                |-- SIGHUP: new token, weight and log level
                                                                '-- the member ended on its own --> over, 5

Sockets come first. An agent that cannot be reached must not join, because it would be given partitions that no program
can use. A port can be reached by other users, so a separate process serves it: the door.

While it drains it still answers: each client that leads gets `revoked`, finishes, and closes its stream; then its role
is handed over, and the agent ends. That takes as long as the programs take, at most `drain_timeout`.
"""

import asyncio
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

import uvicorn

from neli_router.agent.server.app import App
from neli_router.agent.server.connections import (
    AgentTraffic,
    Connection,
    HttpServer,
    descriptors_free,
    room_for_connections,
)
from neli_router.agent.server.door import KNOWN_MAX, DoorProcess, DoorSettings
from neli_router.agent.server.exchange import RESTING_MAX
from neli_router.agent.server.hub import Hub
from neli_router.agent.server.idleness import give_way_when_idle
from neli_router.agent.server.lives import LIVES_MAX, Lives
from neli_router.agent.server.metrics import Delays, MetricsSnapshot, render
from neli_router.agent.server.requests import Guard
from neli_router.agent.server.sockets import OwnSocket, listen_tcp, listen_unix
from neli_router.config.agent_address import parse_place, spell_place, token_problem
from neli_router.config.agent_options import AgentOptions
from neli_router.config.config import Config
from neli_router.config.options import in_shell
from neli_router.config.protocols import BORROWED
from neli_router.config.reload import Reload, Reloaded
from neli_router.core import logs
from neli_router.core.exit_codes import EXIT_DONE, EXIT_REFUSED, EXIT_USAGE
from neli_router.errors import ConfigError, LedgerError, NeliError, StaleTable
from neli_router.member.async_member import AsyncMember, opened_in_thread
from neli_router.member.member import Member
from neli_router.member.wishes import WISH_MAX
from neli_router.protocols.protocol import Event, Fenced
from neli_router.router.router import Router
from neli_router.status.chronicle import Chronicle
from neli_router.status.group_view import GroupView
from neli_router.status.ledgerless import OwnersChronicle, PeersChronicle

__all__ = ["Agent", "Changes", "run"]

LOOK_EVERY = 1.0
"""Seconds between two checks that its socket, and its store of owners, are still there."""

DESCRIPTORS_MIN = 64
"""Open files without which no agent starts: with only about twenty, it would fail with errors of any kind."""

CLIENTS_FEW = 256
"""An agent with room for fewer clients logs a warning: more programs than that may well ask at the same time."""

OPEN_MAX = 1.0
"""Seconds for the member to open its ledger, before the agent answers. A signal has to wait for that, too, and an agent
that does not answer cannot report why its ledger is out of reach."""


class Changes:
    """The changes that a SIGHUP makes while an agent runs, on its loop. `token` is the one that is valid now.

    If anything is wrong with the new configuration, the agent keeps the old one: a typo in a file must not end the
    leases of a host. The weight is a wish to the group, owed as long as the ledger is out of reach.
    """

    def __init__(self, token: str | None, *, on_token: Callable[[], None] = lambda: None) -> None:
        self.token, self._on_token = token, on_token
        self._owed_weight: int | None = None
        """A weight that could not be wished because the ledger was out of reach. The next SIGHUP finds no change in the
        file, so without this the wish would never be made."""

    async def take(self, reload: Reload, member: AsyncMember) -> None:
        """Read the configuration again and apply it. Raises nothing; the outcome is in the log."""
        log = logs.logger()
        try:
            found = await asyncio.to_thread(reload)
            weight = await self._do(found, member)
        except (NeliError, ValueError) as error:
            log.warning("agent.reload_refused", why=str(error))
        else:
            told = {"weight": weight, "log_level": found.log_level, "token": found.token and "another"}
            changed = {name: value for name, value in told.items() if value is not None}
            log.info("agent.reloaded", **(changed or {"changed": "nothing"}))

    async def _do(self, found: Reloaded, member: AsyncMember) -> int | None:
        """Apply it. Returns the weight that was new, or owed."""
        if found.token is not None and (problem := token_problem(found.token)):
            raise ConfigError([f"the token {problem}"])
        if found.log_level is not None:
            logging.getLogger("neli_router").setLevel(found.log_level.upper())
        if found.token is not None:
            self.token = found.token
            self._on_token()
        weight = self._owed_weight if found.weight is None else found.weight
        if weight is not None:
            await self._weigh(weight, member)
        return weight

    async def _weigh(self, weight: int, member: AsyncMember) -> None:
        """Use `weight` from now on. The weight that the member joined with needs no wish."""
        group = GroupView(member.state)
        wanted = None if group.own_weight(member.incarnation) == weight else weight
        if group.wished_weight(member.name) != wanted:
            try:
                await member.operator.weigh(member.name, wanted, timeout=WISH_MAX)
            except LedgerError:
                self._owed_weight = weight
                raise
        self._owed_weight = None


class Agent:
    """One agent, on one loop. `serve` runs it; everything else belongs to that loop, too."""

    def __init__(self, config: Config, options: AgentOptions, *, reload: Reload | None = None) -> None:
        if not options.socket and options.listen is None:
            raise ConfigError(["the agent would listen nowhere: name a socket, or an address to listen on"])
        if config.protocol_name in BORROWED and config.ownership is None:
            # An agent that shows only its own share would lead an operator to think that the rest has no owner.
            problem = (
                f"an agent answers for the whole group, and a member of {config.protocol_name!r} knows only what it "
                "leads itself: give all members the same --ownership redis://host:6379/group (NELI_OWNERSHIP, or "
                "ownership in neli.toml), where each publishes what it leads"
            )
            raise ConfigError([problem])
        if options.idle_after is not None and not config.has_ledger:
            problem = (
                f"agent.idle_after={options.idle_after:g} needs a group with a ledger: with {config.protocol_name!r} "
                "a member has no weight to give up. Stop the agent when its job has ended"
            )
            raise ConfigError([problem])
        self.config, self.options = config, options
        self._known_max = 0 if options.listen is None else max(1, min(KNOWN_MAX, descriptors_free() // 4))
        self.chronicle = Chronicle()
        if not config.has_ledger:
            kind = PeersChronicle if config.ownership is None else OwnersChronicle
            self.chronicle = kind(config.layout, lease=config.lease, guarantee=config.guarantee)
        self._lives_max = max(1, min(LIVES_MAX, descriptors_free() // 8))
        self.traffic = AgentTraffic(room_for_connections(self._known_max + self._lives_max))
        self._reload, self._changes = reload, Changes(options.token, on_token=self._tell_door)
        self._stopping = asyncio.Event()
        self.member: Member
        """The member. Like all that asks it, it is there once the agent has `started`."""
        self.hub: Hub
        self.lives: Lives
        """The members whose deaths it certifies."""
        self._member: AsyncMember | None = None
        self._own: OwnSocket | None = None
        self._version, self._delays, self._fenced = version("neli-router"), Delays(self.chronicle.beat_delays), 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.door: DoorProcess | None = None
        """Serves the agent's port, if it has one."""
        self.started = asyncio.Event()
        """Set once the agent answers."""
        self.tcp_address: str | None = None
        """The address of the port that the agent listens on."""

    def snapshot(self) -> MetricsSnapshot:
        """The current numbers of its metrics."""
        return MetricsSnapshot.of(self.hub, self.lives, self._delays, fenced=self._fenced, version=self._version)

    async def serve(self) -> None:
        """Bind, join and answer, until `stop` or until the member ends. Raises the error that prevented or ended it."""
        with self._listeners() as (own, port):
            self.member = await self._open()
            member = self._member = await AsyncMember(self.member).open()
            try:
                await self._answer(member, own, port)
            finally:
                await member.close(timeout=0)

    def stop(self) -> None:
        """Drain, hand over and leave. The second call ends it immediately."""
        if self._stopping.is_set() and self._member is not None:
            logs.logger().warning("agent.stopping_at_once")
            self._keep(self._member.close(timeout=0))
        self._stopping.set()

    def reload(self) -> None:
        """Read the configuration again."""
        if self._reload is not None and self._member is not None:
            self._keep(self._changes.take(self._reload, self._member))

    # Its life

    @contextmanager
    def _listeners(self) -> Iterator[tuple[socket.socket | None, socket.socket | None]]:
        """Its user's own socket, and its port."""
        with ExitStack() as stack:
            own = port = None
            if self.options.socket:
                self._own = stack.enter_context(listen_unix(self.options.socket))
                own = self._own.listener
            if self.options.listen is not None:
                place = parse_place(self.options.listen)
                assert place is not None, "AgentOptions let nothing else through"
                port = stack.enter_context(listen_tcp(*place))
                self.tcp_address = spell_place(*port.getsockname()[:2])
            yield own, port

    async def _open(self) -> Member:
        member = await opened_in_thread(self._made)
        self.chronicle.own = lambda: member.incarnation
        if isinstance(chronicle := self.chronicle, OwnersChronicle | PeersChronicle):
            member.engine.oversee(lambda _: chronicle.look(member.engine.membership.outlook))
        return member

    def _made(self) -> Member:
        if isinstance(self.chronicle, OwnersChronicle):
            # Before anything else: an agent that cannot stay would make the broker move partitions twice.
            with suppress(StaleTable), closing(Router(self.config, timeout=OPEN_MAX)):
                pass  # Opening it raises any error that will not go away.
        return Member(
            # Its clients continue under its leases after it has died, and only its child process knows until when.
            _without_witness(self.config),
            on_event=self._on_event,
            timeout=OPEN_MAX,
            wait=True,
            tap=self.chronicle,
            owners_tap=self.chronicle if isinstance(self.chronicle, OwnersChronicle) else None,
        )

    async def _answer(self, member: AsyncMember, own: socket.socket | None, port: socket.socket | None) -> None:
        hub = self.hub = Hub(self.config, self.member, self.chronicle, self.traffic)
        lives = self.lives = Lives(self.config, self.member, room=self._lives_max)
        app = App(member, hub, lives, lambda: render(self.snapshot()), self._version)
        server = HttpServer(Guard(app, self.traffic), partial(Connection, self.traffic), self.started)
        hub.open()
        serving = asyncio.create_task(server.serve(sockets=[own] if own is not None else []))
        if port is not None:
            self.door = DoorProcess(port, self._door_settings, partial(self._admit, server))
            self.door.open()
        keeping = asyncio.create_task(self._keep_up(server, member))
        try:
            await _first(self.started.wait(), serving)
            logs.logger().info(
                "agent.started", member=member.name, socket=self.options.socket or None, tcp=self.tcp_address
            )
            self._tell_room()
            if hub.is_alone:
                logs.logger().info(
                    "agent.answers_by_belief",
                    why="nothing is written down in this group: owners are those that this agent's member believes in, "
                    "and another agent may believe otherwise for a moment. Route by them; only a lease lets one act",
                )
            if self.options.idle_after is None:
                _compare_weight(member, self.config.weight)
            await _first(self._stopping.wait(), _ended(member), serving, keeping)
            await self._drain(member)
        finally:
            keeping.cancel()
            hub.close()
            lives.close()
            server.should_exit = True
            await serving
            if self.door is not None:
                await self.door.close()  # Only now, because it carries the last messages to our clients.
            logs.logger().info("agent.stopped", member=member.name)
        self.member.wait(timeout=0)  # Raises the error that ended the member, if the agent did not end it.
        if keeping.done() and not keeping.cancelled():
            keeping.result()  # Raises the reason why it no longer has a socket, or owners.

    def _tell_room(self) -> None:
        if (room := self.traffic.room) < CLIENTS_FEW:
            logs.logger().warning(
                "agent.few_descriptors",
                clients_at_most=room,
                why=f"this process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} open files; a client more "
                "is answered 503, and `neli run` and leaders are clients, too",
                remedy="raise `ulimit -n` (LimitNOFILE= of systemd) to 1024 or more",
            )

    async def _keep_up(self, server: HttpServer, member: AsyncMember) -> None:
        """Run until the agent ends. Raises NeliError when it cannot go on."""
        tasks = [self._look_after(server)]
        if self.options.idle_after is not None:
            tasks.append(give_way_when_idle(member, self.hub.demand, self.options.idle_after))
        await asyncio.gather(*tasks)

    async def _look_after(self, server: HttpServer) -> None:
        """Check its socket and its store of owners. Raises NeliError when it cannot keep one of them any longer."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            if isinstance(self.chronicle, OwnersChronicle) and (lost := self.member.router.feed.error) is not None:
                logs.logger().error("agent.owners_lost", why=str(lost))
                raise lost
            try:
                again = None if self._own is None else self._own.restored()
            except NeliError as error:
                logs.logger().error("agent.socket_lost", socket=self.options.socket, why=str(error))
                raise
            if again is not None:
                await server.listen_also(again)
                logs.logger().warning("agent.socket_restored", socket=self.options.socket)

    async def _drain(self, member: AsyncMember) -> None:
        if not member.closed:
            patience = f"{self.config.drain_timeout:g} s"
            logs.logger().info("agent.draining", member=member.name, led=len(member.led), at_most=patience)
            await member.close()

    def _admit(self, server: HttpServer, client: socket.socket) -> None:
        """Serve a client of the door, which has already checked its token."""
        # In addition to known clients, the door has two questions and one stream at a time, and some idle connections.
        most = self._known_max + 3 + RESTING_MAX
        if server.should_exit or len(self.traffic.connections) - self.traffic.counted > most:
            client.close()
        else:
            self._keep(server.admit(client, self.traffic))

    def _door_settings(self) -> DoorSettings:
        return DoorSettings(self._changes.token, self.options.allow_remote, self._known_max, self.config.group_name)

    def _tell_door(self) -> None:
        if self.door is not None:
            self.door.tell()

    def _on_event(self, event: Event) -> None:
        """Called on a thread of the member."""
        if isinstance(event, Fenced):
            self._fenced += 1

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def run(config: Config, options: AgentOptions, *, reload: Reload | None = None) -> int:
    """Be the agent of this process until a signal ends it. Returns the exit code. Errors go to standard error."""

    async def main() -> None:
        agent, loop = Agent(config, options, reload=reload), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, agent.stop)
        loop.add_signal_handler(signal.SIGHUP, agent.reload)
        await agent.serve()

    settings = uvicorn.Config(main, log_config=None)  # Only to find the fastest loop on this host.
    try:
        _raise_descriptors()
        with asyncio.Runner(loop_factory=settings.get_loop_factory()) as runner:
            runner.run(main())
    except ConfigError as error:
        sys.stderr.write(f"Error: {in_shell(str(error))}\n")
        return EXIT_USAGE
    except NeliError as error:
        kind = "" if type(error) is NeliError else f"{type(error).__name__}: "
        sys.stderr.write(f"Error: {kind}{error}\n")
        return EXIT_REFUSED
    return EXIT_DONE


async def _first(*waits: Any) -> None:
    """Wait until one of them is over. Tasks among them continue."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, wait in zip(tasks, waits, strict=True):
            if task is not wait:
                task.cancel()


async def _ended(member: AsyncMember) -> None:
    with suppress(Exception):  # It is raised after the agent has notified its clients.
        await member.wait()


def _compare_weight(member: AsyncMember, weight: int) -> None:
    """Log a warning if the group gives the member another weight than its configuration does.

    A wish outlives the process that made it, and a SIGHUP makes one, too. Without this warning, an operator who edits
    the file and restarts the agent would look for the reason in the file.
    """
    counts = GroupView(member.state).wished_weight(member.name)
    if counts not in (None, weight):
        remedy = f"neli weigh {member.name} --undo"
        logs.logger().warning("agent.weight_overruled", weight=weight, counts_with=counts, remedy=remedy)


def _raise_descriptors() -> None:
    """Raise the limit of file descriptors as far as this process may: each client takes one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    least, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if least != resource.RLIM_INFINITY and least < DESCRIPTORS_MIN:
        raise NeliError(
            f"at least {DESCRIPTORS_MIN} open files were wanted, for the ledger, the sockets and a client",
            f"this process may have {least}",
            "raise `ulimit -n` (LimitNOFILE= of systemd) to 1024 or more",
        )


def _without_witness(config: Config) -> Config:
    """The configuration of a member whose death only its own child process may report."""
    if not config.has_ledger or config.induction.witness == "child":
        return config
    return replace(config, protocol=replace(config.induction, witness="none"))
