"""The footing: what a member stands on, and the pump that keeps it there. The engine only turns it.

    LedgerFooting     a ledger and Induction: reads what the whole group is and does
    GroupFooting      a broker's consumer group and NELI or Fast NELI: knows its own tenures, but not the others'
    PeerFooting       datagrams between the members, and an elector: likewise (`peer_footing.py`)

    pump --standing, state--> membership: leases and waiting calls
      |  '---state----------> feed: look-ups                         these three for a ledger only
      '----what was read----> tap
    witness --others' ends--> pump

A footing is opened on the engine's thread, because a driver may hang. It reports what happens through the engine's
`Foothold`. The ledger holds everything that its group is and does, so that member's router needs nothing else. Without
a ledger, no record of the group exists, and the router is fed by the owner store, where every member publishes what it
leads, or by nothing: see `engine.py`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from neli_router.config.config import Config
from neli_router.drivers.consumer_groups.base import GroupSubscription
from neli_router.drivers.consumer_groups.pump import SubscriptionPump
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.ledgers.pump import Pump, Tap
from neli_router.drivers.peers.base import PeerLink
from neli_router.errors import NeliError
from neli_router.hosts.process import ProcessMark
from neli_router.member.membership import Membership
from neli_router.member.runtime import Runtime
from neli_router.member.witness.base import NO_WITNESS, OwnLife, Witness
from neli_router.protocols.consumer_group.fast_neli import FastNeliMachine
from neli_router.protocols.consumer_group.machine import GroupMachine
from neli_router.protocols.consumer_group.neli import NeliMachine
from neli_router.protocols.consumer_group.settings import FastNeliSettings, NeliSettings
from neli_router.protocols.electors.events import Nominate, Prefer, Rebalance
from neli_router.protocols.induction.events import Wish
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.machine import InductionMachine
from neli_router.protocols.protocol import Close, Machine, News, Notice, Released
from neli_router.router.feed import Feed
from neli_router.router.ledger_reader import LedgerReadings

__all__ = ["Foothold", "Footing", "GroupFooting", "LedgerFooting", "Request"]

Request = Released | Close | Wish | Nominate | Prefer | Rebalance
"""A program's or an operator's request to a machine. The engine posts to each footing only what its protocol takes."""


@dataclass(frozen=True, slots=True)
class Foothold:
    """The engine's callbacks. All of them are called on the engine's thread."""

    explain: Callable[[Sequence[object]], None]
    """Receives the effects of a step before the standing shows their result."""
    stepped: Callable[[float], None]
    """Called with the time after each step, once the membership knows its result, and before its effects are carried
    out."""
    moved: Callable[[], None]
    """Called when other loops may have something to do now and were not notified of it."""
    tell: Callable[[News], None]
    """Receives the machine's news for its program and its operators."""


class Footing:
    """One member's footing. `turn` and `close` belong to one thread; the rest may be called from any thread.

    The constructor of each form opens `_line`, and then `_pump`, which drives the machine.
    """

    takes: ClassVar[tuple[type, ...]]
    """The requests that its protocol takes."""

    _line: Ledger | GroupSubscription | PeerLink
    _pump: Any

    def __init__(self, membership: Membership, foothold: Foothold) -> None:
        self._membership, self._stepped, self._tell = membership, foothold.stepped, foothold.tell

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
        self,
        config: Config,
        runtime: Runtime,
        membership: Membership,
        foothold: Foothold,
        *,
        feed: Feed,
        tap: Tap | None,
    ) -> None:
        super().__init__(membership, foothold)
        self._feed, self._moved, self._readings = feed, foothold.moved, LedgerReadings()
        self._witness: Witness = NO_WITNESS
        settings, rng = config.settings(), runtime.rng()
        life = OwnLife.begin(rng)
        self._line = ledger = runtime.ledger(config)

        def begin(state: State, now: float) -> InductionMachine:
            # Only now: an unreachable ledger is opened again and again, and each attempt would begin a life without a
            # Join.
            self._witness = witness = runtime.witness(config, settings.name, life, ledger, foothold.tell)
            base = runtime.wall()
            return InductionMachine(settings, state, now, base=base, rng=rng, life=life.name, witness=witness.name)

        with self._opening():
            config.require_promises(ledger)
            self._pump = Pump(
                ledger,
                begin,
                clock=runtime.clock,
                pause=runtime.pause,
                publish=self._publish,
                tell=foothold.tell,
                explain=foothold.explain,
                tap=tap,
            )
        feed.address = ledger.address

    def pledge(self, until: float, processes: Sequence[ProcessMark]) -> None:
        self._witness.pledge(until, processes)

    def close(self) -> None:
        self._witness.close()
        super().close()

    def _publish(self, machine: InductionMachine, now: float) -> None:
        membership, is_new = self._membership, self._membership.state is not machine.state
        membership.standing, membership.incarnation = machine.standing, machine.incarnation
        membership.is_powerless = machine.is_powerless
        membership.state = machine.state
        if is_new:
            self._moved()
        if machine.caught_up:
            read_at, heard_at = self._pump.fresh_at, machine.heard_at
            self._feed.publish(self._readings.of(machine.state, self._feed.address, read_at=read_at, heard_at=heard_at))
        for certificate in self._witness.look(machine.state, machine.incarnation, now):
            self.post(Wish(certificate))
        self._stepped(now)
        if membership.watching:
            membership.notify()


class GroupFooting(Footing):
    """The footing of a member whose protocol borrows a broker's consumer group. Raises LedgerError, ConfigError and
    GroupMismatch."""

    takes = (Released, Close)
    _pump: SubscriptionPump[GroupMachine]

    def __init__(self, config: Config, runtime: Runtime, membership: Membership, foothold: Foothold) -> None:
        super().__init__(membership, foothold)
        settings = config.group_settings()
        self._line = subscription = runtime.subscription(config, settings)
        with self._opening():
            self._doubt(subscription.doubts)
            self._pump = SubscriptionPump(
                subscription,
                _machine(settings, subscription.partitions, runtime),
                clock=runtime.clock,
                publish=self._publish,
                tell=foothold.tell,
                explain=foothold.explain,
            )
        # Now, not at the first step: the member is published to the owner store as soon as the engine has this footing.
        membership.incarnation = self._pump.machine.incarnation

    def _publish(self, machine: GroupMachine, now: float) -> None:
        self._membership.standing, self._membership.incarnation = machine.standing, machine.incarnation
        self._stepped(now)


def _machine(settings: NeliSettings | FastNeliSettings, partitions: int, runtime: Runtime) -> GroupMachine:
    now, rng = runtime.clock(), runtime.rng()
    if isinstance(settings, NeliSettings):
        return NeliMachine(settings, partitions, now, rng=rng)
    return FastNeliMachine(settings, partitions, now, rng=rng, wall_nanoseconds=1000 * runtime.wall())
