"""For testing your own code: a group in memory, in one process and one thread, with a clock that the test controls.

    test --advance, settle, any call that waits--> clock --> members take turns, handlers run --> the test goes on
                                                     ^------- nothing else moves it ------'

    host --boots--> Member, and is its runtime: it keeps the member's loops, and the group turns them
      '---holds---> connection, which can be cut ---> the group's one log

    >>> from neli_router import testing
    >>> with testing.group("a", "b", partitions=8, lease=1.0) as group:
    ...     group.settle()
    ...     lease = group["a"].lease("customer-3")
    ...     print("before:", group.owner("customer-3"), lease.holds())
    ...     group.pause("a")  # The whole process stands still, as a virtual machine does while it is moved ...
    ...     group.advance(3.0)
    ...     group.resume("a")  # ... and goes on as if nothing had happened.
    ...     print("after:", group.owner("customer-3"), lease.holds())
    before: a True
    after: b False

With `protocol="neli"` or `"fast-neli"`, a broker in memory shares the partitions out. If a member is killed, paused or
cut off, others get its partitions after a session. With `protocol="term"` or `"gossip"`, the members named in `group`
are the peers, and elect leaders among themselves over a lossless network in memory. Each has a disk that survives a
kill. `cut` separates one from all others. In all four, the group's router shows what its members lead, like a router
backed by an owner store. The rest is the same:

    >>> with testing.group("a", "b", "c", protocol="term", partitions=6) as group:
    ...     group.settle()
    ...     lost = group["a"].led
    ...     group.kill("a")
    ...     group.settle()
    ...     print(len(lost), "taken over:", lost.keys() <= group["b"].led.keys() | group["c"].led.keys())
    2 taken over: True

The members are real: they run the protocol, barrier and leases that you ship; only their threads are missing. The work
of their threads is done when the clock is turned, member by member, always in the same order, so a test that passes
once always passes. No test waits for real time, and a lease of an hour is over in a moment.

Handlers run in the test's thread. A handler that takes time calls `advance` itself. If a handler raises, its member
leaves, and the call that turned the clock raises the error. Do not share a group between threads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from math import inf
from random import Random
from threading import Condition
from typing import Any

from neli_router.config.config import Config
from neli_router.config.protocols import BORROWED, ELECTED, ProtocolOptions
from neli_router.core.keyspace import Layout, Role
from neli_router.drivers.consumer_groups.base import GroupSubscription
from neli_router.drivers.consumer_groups.memory import MemoryBroker, MemorySubscription
from neli_router.drivers.ledgers.base import Entry, Ledger
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.drivers.ledgers.pump import Pump
from neli_router.drivers.owners.base import Card, Holding
from neli_router.drivers.peers.base import PeerLink
from neli_router.drivers.peers.memory import MemoryLink, MemoryNetwork
from neli_router.errors import Closed, LedgerUnavailable, NoOwner
from neli_router.member.engine import Engine
from neli_router.member.member import Member
from neli_router.member.runtime import Loop, Runtime
from neli_router.member.witness.base import NO_WITNESS, OwnLife, Witness
from neli_router.protocols.consumer_group.settings import GroupSettings
from neli_router.protocols.induction.observer import Observer
from neli_router.protocols.protocol import Event, Handler, Notice
from neli_router.router.feed import Feed, Reading
from neli_router.router.ledger_reader import LedgerReadings
from neli_router.router.owners_reader import table_of_owners
from neli_router.router.router import Router
from neli_router.router.table import Table

__all__ = ["Group", "group"]

STEP_MIN = 1e-4
"""The smallest step of the clock, so that a deadline which has already passed cannot stop it."""

ROUNDS_MAX = 10_000
"""Rounds of turns at one moment. No protocol needs more than a handful; a handler that never rests would use all."""

SETTLE_LEASES = 30
"""For how many leases, beyond the drain timeout, a group may take to settle. It takes four or five."""

CALM_LEASES = 5
"""After how many leases without a change of leader a group of peers counts as settled. A preferred peer gets its
partitions back after three or four."""

PATIENCE_LEASES = 100
"""For how many leases, beyond the drain timeout, a call without a timeout waits before it fails."""

FIRST_PORT = 7801
"""The first port of the peers' addresses. Nothing listens there."""

BASE = 1_700_000_000_000_000
"""The wall clock at the start, in microseconds; visible only in terms."""


class Group:
    """Members by name, as in `group["a"]`, and the faults that a test can inject. Created by `group`."""

    def __init__(self, names: Sequence[str], *, seed: int, options: Mapping[str, Any]) -> None:
        sizes = {name: options[name] for name in Layout.__struct_fields__ if name in options}
        rest = {name: value for name, value in options.items() if name not in sizes}
        protocol = rest.get("protocol")
        name_of = protocol.name if isinstance(protocol, ProtocolOptions) else protocol
        elects = name_of in ELECTED
        self._places = {name: f"127.0.0.1:{FIRST_PORT + i}" for i, name in enumerate(names)} if elects else {}
        ledger = "kafka://memory/test" if name_of in BORROWED else "memory://test"
        ledger = f"peers://{','.join(self._places.values())}/test" if elects else ledger
        self.config = Config.of({"ledger": ledger, "layout": sizes, **rest})
        self.network = MemoryNetwork(len(self._places))
        """Connects the peers of `term` and `gossip`."""
        self.broker = MemoryBroker(
            self.config.layout.partitions, clock=lambda: self.now, wall=lambda: BASE / 1e6 + self.now
        )
        """Shares the partitions of `neli` and `fast-neli` out."""
        self.now = 0.0
        """Seconds since the group was made."""
        self.log = MemoryLog()
        """The ledger's records, for a ledger of your own."""
        self.told: dict[str, list[Event]] = {}
        """The events that each member's program received, by name; a restart appends to the same list."""
        self.random = Random(seed)
        """The source of all incarnations, so that the same seed gives the same run."""
        self._hosts: dict[str, _Host] = {}
        self.raised: list[BaseException] = []
        """Errors raised by handlers and not yet re-raised by a call."""
        self.outage = False
        """While this is set, no member can reach the ledger or any peer."""
        self._turning = 0
        self._shown: tuple[dict[str, Card], dict[int, Holding]] = {}, {}
        self._shown_at, self._changed_at = 0, 0.0
        self._table: Table | None = None
        readings = LedgerReadings()
        self._feed = feed = Feed(
            self.config.public_ledger, max_age=None, clock=lambda: self.now, watched=False, tell=lambda _: None
        )
        self.router = Router(feed, wait=False)
        """A router outside all members, like a client's."""
        self._reader = Pump(
            _Connection(self.log, lambda: False),
            Observer,
            clock=lambda: self.now,
            pause=lambda _: None,
            publish=lambda observer, _: feed.publish(
                readings.of(observer.state, "memory://test", read_at=self.now, heard_at=observer.heard_at)
            ),
            tell=lambda _: None,
        )

    # Members

    def __getitem__(self, name: str) -> Member:
        return self._host(name).member

    def join(self, name: str, /, *, on_event: Handler | None = None, **options: Any) -> Member:
        """Add a member, with options of its own, and return it once started; `settle` lets the group admit it.

        The option `name` gives it another name within the group; the argument `name` then applies only here.
        """
        if name in self._hosts and not self[name].closed:
            raise ValueError(f"member {name!r} is in this group already: kill it, restart it, or choose another name")
        place = self._place(name)
        ledger = self.config.ledger if place is None else f"{self.config.ledger}?me={self._places[name]}"
        shared = {option.name: getattr(self.config, option.name) for option in fields(self.config)}
        config = Config.of({**shared, "name": name, "ledger": ledger, **options})
        told = self.told.setdefault(name, [])
        self._hosts[name] = host = _Host(self, config, on_event, told, place)
        return host.member

    def kill(self, name: str) -> None:
        """The process dies: none of its code runs again, and the Member object is void."""
        self._host(name).kill()

    def restart(self, name: str) -> Member:
        """Kill the member if it is still alive, and start another process under the same name."""
        host = self._host(name)
        host.kill()
        host.boot()
        return host.member

    def pause(self, name: str) -> None:
        """The process stands still, as after SIGSTOP, while time goes on without it."""
        self._host(name).paused = True

    def resume(self, name: str) -> None:
        """The process continues, and learns in its next turn what it missed."""
        self._host(name).paused = False

    def cut(self, name: str) -> None:
        """The member can no longer reach the ledger or its peers."""
        self._host(name).is_cut = True

    def heal(self, name: str) -> None:
        """The member can reach the ledger and its peers again."""
        self._host(name).is_cut = False

    # Time

    def advance(self, seconds: float) -> None:
        """Turn the clock by `seconds`, stopping whenever a member has something to do."""
        end = self.now + seconds
        self._rest()
        while self.now < end:
            self._move(end)
            self._rest()

    def settle(self) -> None:
        """Turn the clock until every living member leads what it should. Raises AssertionError if it never does."""
        limit = SETTLE_LEASES * self.config.lease + self.config.drain_timeout
        if not self.wait(self._is_settled, limit):
            raise AssertionError(f"the group did not settle within {limit:g} s: {self._spelled()}")

    def wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Turn the clock until `ready()`, by at most `timeout` seconds; return whether it became true."""
        patience = PATIENCE_LEASES * self.config.lease + self.config.drain_timeout if timeout is None else timeout
        give_up_at = self.now + patience
        self._rest()
        while not ready():
            if self.now >= give_up_at:
                if timeout is None:
                    raise AssertionError(f"gave up waiting after {patience:g} s: {self._spelled()}")
                return False
            self._move(give_up_at)
            self._rest()
        return True

    # Questions

    def owner(self, role: Role) -> str | None:
        """The name of the member that a router would now send a key or role to; None if it would find no owner."""
        self._rest()
        try:
            return self.router.owner_of_role(role).name
        except NoOwner:
            return None

    # How

    def _host(self, name: str) -> "_Host":
        if name not in self._hosts:
            raise KeyError(f"there is no member {name!r} in this group: there is {', '.join(self._hosts) or 'none'}")
        return self._hosts[name]

    def _place(self, name: str) -> int | None:
        """The member's place in the list of peers; None if the group has no such list."""
        if not self._places:
            return None
        if name not in self._places:
            raise ValueError(
                f"member {name!r} is not one of the peers: {', '.join(self._places)}. Name all peers in `group`"
            )
        return list(self._places).index(name)

    def _move(self, limit: float) -> None:
        """Turn the clock to the next time that a member has something to do, at most to `limit`."""
        loops = [loop for host in self._hosts.values() if not host.paused for loop in host.loops]
        upcoming = min((loop.deadline for loop in loops), default=inf)
        self.now = min(max(upcoming, self.now + STEP_MIN), limit)

    def _rest(self) -> None:
        """Let every member do all that it can do at this moment."""
        for _ in range(ROUNDS_MAX):
            if not self._round():
                break
        else:
            raise AssertionError(f"the group never rests at {self.now:g} s: {self._spelled()}")
        for host in self._hosts.values():
            host.member.router.feed.check()
        if self.raised and not self._turning:
            raise self.raised.pop(0)

    def _round(self) -> bool:
        tip, busy = self.log.tip, False
        for host in list(self._hosts.values()):
            for loop in list(host.loops):
                # In the meantime a handler may have turned the clock, and killed or paused the next host.
                if loop in host.loops and not host.paused:
                    busy |= self._turn(loop)
        if not self.config.has_ledger:
            self._show_owners()
            return busy or any(host.has_mail for host in self._hosts.values())
        self._reader.turn()
        return busy or self.log.tip != tip

    def _turn(self, loop: Loop) -> bool:
        self._turning += 1
        try:
            return loop.turn()
        finally:
            self._turning -= 1

    def _show_owners(self) -> None:
        """Show what each member leads, as it would publish it to an owner store."""
        members = [host.member for host in self._hosts.values() if host.loops and not host.paused]
        holders = {it.incarnation: Card(str(it.name), "") for it in members}
        holdings = {i: Holding(term, it.incarnation) for it in members for i, term in it.led.items()}
        if (holders, holdings) != self._shown:
            self._shown = holders, holdings
            self._shown_at, self._changed_at = self._shown_at + 1, self.now
            address = self.config.public_ledger
            self._table = table_of_owners(address, self.config.layout, self._shown_at, holders, holdings)
        self._feed.publish(Reading(self._table, self._shown_at, self.now))

    def _is_calm(self) -> bool:
        """Whether members that are up lead everything, and no leader has changed for long enough that none will."""
        led = sum(len(host.member.led) for host in self._hosts.values() if host.is_up)
        is_calm = self.now >= self._changed_at + CALM_LEASES * self.config.lease
        return is_calm and led == self.config.layout.partitions

    def _is_settled(self) -> bool:
        if not self.config.has_ledger:
            return self._is_calm() or not any(host.is_up for host in self._hosts.values())
        up = {host.member.incarnation: host.member for host in self._hosts.values() if host.is_up}
        state = self._reader.machine.state
        owned: dict[str | None, set[int]] = {}
        for partition, owner in enumerate(state.owners):
            owned.setdefault(owner, set()).add(partition)
        return not up or (
            up.keys() == state.seats.keys()
            and state.owners == state.targets
            and all(owned.get(incarnation, set()) == member.led.keys() for incarnation, member in up.items())
        )

    def _spelled(self) -> str:
        """Which members lead how much, for the message of a failed test."""
        return ", ".join(f"{name} {host.spelled()}" for name, host in self._hosts.items()) or "it has no member"

    def close(self) -> None:
        """End the whole group. Called by `group`."""
        for host in self._hosts.values():
            host.kill()
        self.router.close()


@contextmanager
def group(*names: str, on_event: Mapping[str, Handler] | None = None, seed: int = 0, **options: Any) -> Iterator[Group]:
    """A group with these members, all started and not yet admitted: see `settle`.

    `options` are the options of `Config` and of its layout: partitions, slots, tags. `on_event` maps members to
    handlers.
    """
    made = Group(names, seed=seed, options=options)
    try:
        for name in names:
            made.join(name, on_event=(on_event or {}).get(name))
        yield made
    finally:
        made.close()


class _Connection(MemoryLedger):
    """A member's connection to the ledger: a test can cut it, and reading never waits for real time."""

    address = "memory://test"

    def __init__(self, log: MemoryLog, is_cut: Callable[[], bool]) -> None:
        super().__init__(log)
        self._is_cut = is_cut

    def read(self, timeout: float) -> list[Entry]:
        return super().read(0.0)

    def _require_open(self) -> None:  # Every call that needs the log begins with this one.
        if self._is_cut():
            raise LedgerUnavailable("the ledger in memory was wanted", "the test has cut it off", "heal it")
        super()._require_open()


class _Host(Runtime):
    """The machine that one member runs on, and the member's runtime."""

    is_turned = True

    def __init__(
        self, group: Group, config: Config, on_event: Handler | None, told: list[Event], place: int | None
    ) -> None:
        self._group, self._config, self._on_event, self._told, self._place = group, config, on_event, told, place
        self._link: MemoryLink | None = None
        self._subscription: MemorySubscription | None = None
        self.loops: list[Loop] = []
        self.paused = self.is_cut = False
        self.boot()

    def boot(self) -> None:
        self.paused = self.is_cut = False
        self.member = Member(self._config, on_event=self._tell, runtime=self)

    def kill(self) -> None:
        if self._link is not None:
            self._link.close()
        dead, self.loops = self.loops, []
        for loop in dead:
            if isinstance(loop, Engine):
                loop.membership.make_void(
                    Closed(f"member {self._config.name} was needed", "the test killed it", "restart it")
                )
                loop.feed.close()

    @property
    def is_up(self) -> bool:
        """Whether it can be expected to take part."""
        return not self.paused and not self.is_cut and not self.member.closed

    @property
    def has_mail(self) -> bool:
        """Whether there is mail waiting and a running member to take it."""
        ends = self._link, self._subscription
        return bool(self.loops) and not self.paused and any(end is not None and end.has_mail for end in ends)

    def spelled(self) -> str:
        plight = "paused" if self.paused else "cut off" if self.is_cut else "up" if self.loops else "killed"
        return f"is {plight} as {self.member!r}"

    def _tell(self, event: Event) -> None:
        self._told.append(event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except BaseException as error:
                self._group.raised.append(error)
                raise

    # The member's runtime

    def clock(self) -> float:
        return self._group.now

    def wall(self) -> int:
        return BASE + int(self._group.now * 1e6)

    def rng(self) -> Random:
        return Random(self._group.random.getrandbits(64))

    def witness(
        self, config: Config, name: str, life: OwnLife, ledger: Ledger, tell: Callable[[Notice], None]
    ) -> Witness:
        return NO_WITNESS  # All members are in one process, and `kill` only stops turning them.

    def subscription(self, config: Config, settings: GroupSettings) -> GroupSubscription:
        session = settings.session_timeout
        self._subscription = MemorySubscription(
            self._group.broker,
            session=session,
            patience=session + config.drain_timeout,
            is_cut=lambda: self.is_cut or self._group.outage,
        )
        return self._subscription

    def link(self, config: Config) -> PeerLink:
        assert self._place is not None, "the group knows its peers"
        self._link = self._group.network.open(self._place, self.clock, lambda: self.is_cut or self._group.outage)
        return self._link

    def ledger(self, config: Config) -> Ledger:
        connection = _Connection(self._group.log, lambda: self.is_cut or self._group.outage)
        connection.start()  # Raises if the ledger is unreachable.
        return connection

    def start(self, loop: Loop) -> None:
        self.loops.append(loop)

    def pause(self, seconds: float) -> None:
        """Does nothing: the clock stands still, and the next turn is the next try."""

    def wait(self, changed: Condition, ready: Callable[[], bool], timeout: float | None) -> bool:
        return self._group.wait(ready, timeout)
