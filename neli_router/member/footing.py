"""The footing: what a member stands on, and the pump that keeps it there. The engine only turns it.

    LedgerFooting     a ledger and Induction: reads what the whole group is and does
    GroupFooting      a broker's consumer group and NELI or Fast NELI: knows its own tenures, but not the others'
    PeerFooting       datagrams between the members, and an elector: knows what it leads, and who it believes leads

    pump --standing--> membership: leases and waiting calls
      |----state, outlook--> membership, feed: look-ups                a ledger's state, or the outlook on peers
      '----what was read---> tap                                       of a ledger
    witness --others' ends--> pump                                     on a ledger

A footing is opened on the engine's thread, because a driver may hang. It reports what happens by two calls, `Stepped`
and `Tell`. The ledger holds everything that its group is and does, so that member's router needs nothing else. Without
a ledger, no record of the group exists, and the router is fed by the owner store, where every member publishes what it
leads. A member among peers that has no such store uses its own beliefs: it hears who leads every partition that it
helps to elect a leader for, and each peer announces its name and the address where clients reach it.

**Use believed owners for routing only.** A member may learn of a new leader a moment later than the others. It may also
be cut off, and then within a few heartbeats it knows of no leader. So an owner in such a table is only an address to
try. The member there knows from its lease whether it leads; writes happen under that lease, and never under a term
found in this table. The same is true of a ledger's tables, with one difference: two members may believe different
things.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, ClassVar

from msgspec.structs import replace

from neli_router.config.config import Config
from neli_router.core.keyspace import Layout, spelled
from neli_router.drivers.consumer_groups.base import SubscriptionPump
from neli_router.drivers.handle import Handle
from neli_router.drivers.ledgers.pump import Pump, Tap
from neli_router.drivers.peers.base import PeerPump
from neli_router.drivers.peers.outlook import Outlook, PeerCard, decoded, encoded, news_between
from neli_router.drivers.peers.udp import my_place
from neli_router.errors import NeliError
from neli_router.hosts.process import ProcessMark
from neli_router.member.membership import Membership
from neli_router.member.runtime import Runtime
from neli_router.member.witness.base import NO_WITNESS, OwnLife, Witness
from neli_router.protocols.consumer_group.fast_neli import FastNeliMachine
from neli_router.protocols.consumer_group.machine import GroupMachine
from neli_router.protocols.consumer_group.neli import NeliMachine
from neli_router.protocols.consumer_group.settings import FastNeliSettings, NeliSettings
from neli_router.protocols.electors.events import Led, Nominate, Prefer, Rebalance
from neli_router.protocols.electors.machine import PeerMachine
from neli_router.protocols.electors.settings import GossipSettings, TermSettings
from neli_router.protocols.gossip.machine import GossipMachine
from neli_router.protocols.induction.events import Wish
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.machine import InductionMachine
from neli_router.protocols.protocol import Close, Machine, News, Notice, Released
from neli_router.protocols.term.machine import TermMachine
from neli_router.router.feed import Feed, Reading
from neli_router.router.ledger_reader import LedgerReadings
from neli_router.router.table import Owner, Peer, Table

__all__ = ["BelievedOwners", "Footing", "GroupFooting", "LedgerFooting", "PeerFooting", "Request"]

Request = Released | Close | Wish | Nominate | Prefer | Rebalance
"""A program's or an operator's request to a machine. The engine posts to each footing only what its protocol takes."""

Stepped = Callable[[float], None]
"""Called on the engine's thread with the time after each step, once the membership knows its result, and before its
effects are carried out."""

Tell = Callable[[News], None]
"""Called on the engine's thread with the machine's news for its program and its operators."""

LOOK_EVERY = 0.2
"""Seconds between two outlooks. A higher value shows changes to people later; a lower one costs time with thousands of
partitions."""

LOOK_SOON = 0.02
"""The same after another member has become leader: look-ups use the outlook, and a handover takes only a few of these.
When this member itself becomes leader, the outlook is taken before the member learns of it."""

SETTLED_SESSIONS = 10
"""For how many sessions a member of a borrowed group leads as many partitions until the group counts as settled. If it
were fewer, members that start one after another would be advised about sizes that they do not have."""

LATE_MAX = 1.0
"""Seconds, in addition to a lease, by which a step may be late: a turn waits half as long for its peers."""

STOOD_STILL = "this process got no time: it was stopped, suspended or starved, or its disk gave no answer"
"""Logged first: when such a member then reports its peers as silent, the cause is the member itself."""

WAIT = "wait for the election, or see by `neli peers` who answers"
NO_PART = "it takes no part in the election for some, and does not know who leads those"


class Footing:
    """One member's footing. `turn` and `close` belong to one thread; the rest may be called from any thread.

    The constructor of each form opens `_line`, and then `_pump`, which drives the machine.
    """

    takes: ClassVar[tuple[type, ...]]
    """The requests that its protocol takes."""

    _line: Handle
    _pump: Any

    def __init__(self, membership: Membership, stepped: Stepped, tell: Tell) -> None:
        self._membership, self._stepped, self._tell = membership, stepped, tell

    @property
    def machine(self) -> Machine[Any, Any]:
        """The machine that this footing drives."""
        machine: Machine[Any, Any] = self._pump.machine
        return machine

    def turn(self) -> None:
        """Do one bounded piece of work."""
        self._pump.turn()

    def post(self, event: Request) -> None:
        """Pass `event` to the machine soon."""
        assert isinstance(event, self.takes), "the engine refuses what this protocol does not take"
        self._pump.post(event)

    def wake(self) -> None:
        """Make a waiting `turn` return."""
        self._line.wake()

    def pledge(self, until: float, processes: Sequence[ProcessMark]) -> None:
        """Others may act on this member's leases until then, and its death is not reported earlier. If `processes` are
        named, others act only while one of these processes is alive."""
        # Without a ledger, no witness reports a death: the broker or the peers notice a member's silence.

    def close(self) -> None:
        """Release what the footing holds. May raise NeliError, and block for as long as a driver does."""
        self._line.close()

    @contextlib.contextmanager
    def _opening(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with contextlib.suppress(NeliError):  # The first failure is the one to report.
                self.close()
            raise

    def _doubt(self, doubts: Sequence[str]) -> None:
        for doubt in doubts:
            self._tell(Notice("group.doubt", {"doubt": doubt}))


class LedgerFooting(Footing):
    """The footing of a member of an `induction` group. Raises LedgerError and ConfigError.

    The witness, which will report this member's death, is chosen before the machine begins, because the Join names it.
    """

    takes = (Released, Close, Wish)
    _pump: Pump[InductionMachine]

    def __init__(
        self, config: Config, membership: Membership, stepped: Stepped, tell: Tell, *, feed: Feed, tap: Tap | None
    ) -> None:
        super().__init__(membership, stepped, tell)
        runtime = membership.runtime
        self._feed, self._readings = feed, LedgerReadings()
        self._witness: Witness = NO_WITNESS
        settings, rng = config.settings(), runtime.rng()
        life = OwnLife.begin(rng)
        self._line = ledger = runtime.ledger(config)

        def begin(state: State, now: float) -> InductionMachine:
            # Only now: an unreachable ledger is opened again and again, and each attempt would begin a life without a
            # Join.
            self._witness = witness = runtime.witness(config, settings.name, life, ledger, tell)
            wall = runtime.wall()
            return InductionMachine(settings, state, now, wall=wall, rng=rng, life=life.name, witness=witness.name)

        with self._opening():
            config.require_promises(ledger)
            self._pump = Pump(
                ledger,
                begin,
                clock=runtime.clock,
                pause=runtime.pause,
                publish=self._publish,
                tell=tell,
                explain=membership.barrier.explain,
                tap=tap,
            )
        feed.address = ledger.address

    def pledge(self, until: float, processes: Sequence[ProcessMark]) -> None:
        self._witness.pledge(until, processes)

    def close(self) -> None:
        self._witness.close()
        super().close()

    def _publish(self, machine: InductionMachine, now: float) -> None:
        membership = self._membership
        membership.standing, membership.incarnation = machine.standing, machine.incarnation
        membership.is_powerless = machine.is_powerless
        membership.state = machine.state
        if machine.caught_up:
            read_at, heard_at = self._pump.fresh_at, machine.heard_at
            self._feed.publish(self._readings.of(machine.state, self._feed.address, read_at=read_at, heard_at=heard_at))
        for certificate in self._witness.look(machine.state, machine.incarnation, now):
            self.post(Wish(certificate))
        self._stepped(now)
        if membership.watching:
            membership.notify()


class GroupFooting(Footing):
    """The footing of a member of a borrowed consumer group. Raises LedgerError, ConfigError and GroupMismatch."""

    takes = (Released, Close)
    _pump: SubscriptionPump[GroupMachine]

    def __init__(self, config: Config, membership: Membership, stepped: Stepped, tell: Tell) -> None:
        super().__init__(membership, stepped, tell)
        runtime, settings = membership.runtime, config.group_settings()
        self._settings, self._leads, self._advise_at = settings, -1, -inf
        self._line = subscription = runtime.subscription(config, settings)
        with self._opening():
            self._doubt(subscription.doubts)
            self._pump = SubscriptionPump(
                subscription,
                _machine(settings, subscription.partitions, runtime),
                clock=runtime.clock,
                wall=lambda: runtime.wall() / 1e6,
                publish=self._publish,
                tell=tell,
                explain=membership.barrier.explain,
            )
        # Now, not at the first step: the member is published to the owner store as soon as the engine has this footing.
        membership.incarnation = self._pump.machine.incarnation

    def _publish(self, machine: GroupMachine, now: float) -> None:
        self._membership.standing, self._membership.incarnation = machine.standing, machine.incarnation
        self._stepped(now)
        self._advise(len(machine.leading), now)

    def _advise(self, leads: int, now: float) -> None:
        """Log the paper's advice on sizes, once: as soon as this member has led as many partitions for a while."""
        if self._advise_at < inf and (leads != self._leads or self._membership.obstacle):
            self._leads, self._advise_at = leads, now + SETTLED_SESSIONS * self._settings.session_timeout
        elif now >= self._advise_at:
            self._advise_at = inf
            for notice in self._settings.sizing(leads):
                self._tell(notice)


def _machine(settings: NeliSettings | FastNeliSettings, partitions: int, runtime: Runtime) -> GroupMachine:
    now, rng = runtime.clock(), runtime.rng()
    if isinstance(settings, NeliSettings):
        return NeliMachine(settings, partitions, rng=rng)
    return FastNeliMachine(settings, partitions, now, rng=rng, wall_nanoseconds=1000 * runtime.wall())


class PeerFooting(Footing):
    """Raises ConfigError and PeersUnusable."""

    takes = (Released, Close, Nominate, Prefer, Rebalance)
    _pump: PeerPump[PeerMachine]

    def __init__(
        self, config: Config, membership: Membership, stepped: Stepped, tell: Tell, *, feed: Feed | None
    ) -> None:
        super().__init__(membership, stepped, tell)
        runtime = membership.runtime
        self._feed, self._owners = feed, BelievedOwners(config.public_ledger, config.layout)
        self._began = runtime.clock()
        self._look_at, self._changes = self._began, 0
        self._stepped_at = inf
        self._name, self._address = str(config.name), config.address
        self._card = PeerCard()
        self._settings = settings = config.peer_settings(my_place(config.peers))
        self._line = self._link = runtime.link(config)
        with self._opening():
            self._doubt([*settings.doubts, *self._link.doubts])
            self._pump = PeerPump(
                self._link,
                _voter(settings, self._link.memory, runtime),
                clock=runtime.clock,
                publish=self._publish,
                tell=tell,
                explain=membership.barrier.explain,
            )
        # Now, not at the first step: the member is published to the owner store as soon as the engine has this footing.
        membership.incarnation = self._pump.machine.incarnation
        self._tell_shed(self._pump.machine)  # The member may have been drained before it was restarted.
        self._introduce()

    def _publish(self, machine: PeerMachine, now: float) -> None:
        if now > self._stepped_at + self._settings.lease + LATE_MAX:
            fields = {"seconds": round(now - self._stepped_at, 1), "why": STOOD_STILL}
            self._tell(Notice("member.stood_still", fields))
        self._stepped_at = now
        standing, membership = machine.standing, self._membership
        changes = machine.transitions.total() + machine.leader_changes
        if (
            now >= self._look_at
            or (changes != self._changes and now >= self._look_at - LOOK_EVERY + LOOK_SOON)
            or standing.terms != membership.standing.terms
        ):
            self._look_at, self._changes = now + LOOK_EVERY, changes
            self._look(machine, now)
        # After the look: a look-up in this process must find the member that may act for the key.
        membership.standing, membership.incarnation = standing, machine.incarnation
        self._tell_shed(machine)
        self._stepped(now)

    def _tell_shed(self, machine: PeerMachine) -> None:
        membership = self._membership
        if machine.shed != membership.shed:
            membership.shed, membership.drained = machine.shed, machine.drained
            shed = sorted(machine.shed)
            fields = {"partitions": spelled(shed), "count": len(shed)}
            self._tell(Notice("member.sheds", fields) if shed else Notice("member.sheds_nothing", {}))
            self._introduce()

    def _introduce(self) -> None:
        """Send the others this member's name, its address and how much it sheds."""
        membership = self._membership
        self._card = PeerCard(self._name, self._address, len(membership.shed), membership.drained)
        self._link.say(encoded(self._card))

    def _look(self, machine: PeerMachine, now: float) -> None:
        link, settings, before = self._link, self._settings, self._membership.outlook
        cards = {place: card for place, word in link.words.items() if (card := decoded(word)) is not None}
        after = self._membership.outlook = Outlook(
            at=now,
            began=self._began,
            peers=settings.peers,
            me=settings.me,
            heard_at=dict(link.heard_at),
            silent=link.silent,
            # The link's reason takes precedence: it is about the latest message, since what the machine ignores has
            # passed the link. A silent peer may have been stopped to be given other settings.
            refusals={**dict.fromkeys(machine.strangers - link.silent, "lease"), **link.refusals},
            leaders=tuple(machine.leaders),
            transitions=dict(machine.transitions),
            leader_changes=machine.leader_changes,
            counts=dict(link.counts),
            cards={settings.me: self._card, **cards},
            electorates=machine.electorates,
        )
        for notice in news_between(before, after):
            self._tell(notice)
        if self._feed is not None:
            self._feed.publish(self._owners.reading(after))


class BelievedOwners:
    """Turns the outlooks of one member into readings. If nothing changed, the reading has the same table object.

    A peer that has not introduced itself appears under its name in the list, and has no address.
    """

    def __init__(self, address: str, layout: Layout) -> None:
        self._address, self._layout = address, layout
        self._known: tuple[tuple[Led | None, ...], tuple[Peer, ...], str] | None = None
        self._table: Table | None = None
        self._number = 0

    def reading(self, outlook: Outlook) -> Reading:
        members = tuple(
            Peer(peer, "", 1, "") if (card := outlook.cards.get(place)) is None
            # A drained member wants no partitions, which is what a weight of 0 means.
            else Peer(card.name or peer, card.address, int(not card.drained), "")
            for place, peer in enumerate(outlook.peers)
        )  # fmt: skip
        known = outlook.leaders, members, outlook.why_unled
        if known != self._known:
            self._known = known
            self._number += 1
            self._table = self._table_of(*known)
        return Reading(self._table, self._number, outlook.at)

    def _table_of(self, leaders: tuple[Led | None, ...], members: tuple[Peer, ...], why: str) -> Table:
        owners = [
            None
            if led is None or led.leader is None
            else Owner(members[led.leader].name, members[led.leader].address, partition, led.term)
            for partition, led in enumerate(leaders)
        ]
        before = self._table
        if (
            before is not None
            and before.members == members
            and list(before.partitions) == owners
            and None not in owners
        ):
            return before  # Only the explanation differs, and the table does not show that while all are led.
        parts = [why, NO_PART if None in leaders else ""]
        found = f"this member knows no peer that leads it: {'; '.join(filter(None, parts))}"
        return Table.of(self._address, self._layout, self._number, owners, members, (found, WAIT))


def _voter(settings: TermSettings | GossipSettings, memory: bytes, runtime: Runtime) -> PeerMachine:
    now, rng = runtime.clock(), runtime.rng()
    if isinstance(settings, TermSettings):
        return TermMachine(settings, memory, now, rng=rng)
    # A state folder that was restored from an older copy has forgotten terms. None of them is above the wall clock.
    above = replace(settings, term_base=max(settings.term_base, runtime.wall()))
    return GossipMachine(above, memory, now, rng=rng)
