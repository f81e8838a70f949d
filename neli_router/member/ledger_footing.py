"""The footing of a member of an `induction` group: its ledger, and the pump between that and the machine.

    pump --standing, state--> membership: leases and waiting calls
      |  '---state----------> feed: look-ups
      '----what was read----> tap
    witness --others' ends--> pump

The witness, which will report this member's death, is chosen before the machine begins, because the Join names it.

The ledger holds everything that the group is and does, so this member's router needs nothing else.
"""

import contextlib
from collections.abc import Sequence
from functools import partial

from neli_router.config.config import Config
from neli_router.drivers.ledgers.pump import Pump, Tap
from neli_router.errors import NeliError
from neli_router.hosts.process import ProcessMark
from neli_router.member.footing import Foothold, Request
from neli_router.member.membership import Membership
from neli_router.member.runtime import Runtime
from neli_router.member.witness.base import NO_WITNESS, Witness
from neli_router.member.witness.life import OwnLife
from neli_router.protocols.induction.events import Wish
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.machine import InductionMachine
from neli_router.protocols.protocol import Close, Released
from neli_router.router.feed import Feed
from neli_router.router.ledger_reader import LedgerReadings

__all__ = ["LedgerFooting"]


class LedgerFooting:
    """An open `Footing`. Raises LedgerError and ConfigError."""

    def __init__(
        self,
        config: Config,
        runtime: Runtime,
        *,
        membership: Membership,
        feed: Feed,
        tap: Tap | None,
        foothold: Foothold,
    ) -> None:
        self._settings, self._runtime, self._membership, self._feed = config.settings(), runtime, membership, feed
        self._stepped, self._moved, self._tell = foothold.stepped, foothold.moved, foothold.tell
        self._find_witness = partial(runtime.witness, config, self._settings.name)
        self._rng = runtime.rng()
        self._life = OwnLife.begin(self._rng)
        self._witness: Witness = NO_WITNESS
        self._readings = LedgerReadings()
        self._pump: Pump[InductionMachine] | None = None
        self._ledger = runtime.ledger(config)
        try:
            config.require_promises(self._ledger)
            self._pump = Pump(
                self._ledger,
                self._begin,
                clock=runtime.clock,
                pause=runtime.pause,
                publish=self._publish,
                tell=foothold.tell,
                explain=foothold.explain,
                tap=tap,
            )
        except BaseException:
            with contextlib.suppress(NeliError):  # The first failure is the one to report.
                self.close()
            raise
        feed.address = self._ledger.address

    @property
    def machine(self) -> InductionMachine:
        return self._opened.machine

    def turn(self) -> None:
        self._opened.turn()

    def post(self, event: Request) -> None:
        assert isinstance(event, Released | Close | Wish), "the engine refuses requests that only peers accept"
        self._opened.post(event)

    def wake(self) -> None:
        self._ledger.wake()

    def pledge(self, until: float, processes: Sequence[ProcessMark]) -> None:
        self._witness.pledge(until, processes)

    def close(self) -> None:
        self._witness.close()
        self._ledger.close()

    def _begin(self, state: State, now: float) -> InductionMachine:
        # Only now: an unreachable ledger is opened again and again, and each attempt would begin a life without a Join.
        self._witness = self._find_witness(self._life, self._ledger, self._tell)
        return InductionMachine(
            self._settings,
            state,
            now,
            base=self._runtime.wall(),
            rng=self._rng,
            life=self._life.name,
            witness=self._witness.name,
        )

    def _publish(self, machine: InductionMachine, now: float) -> None:
        membership, is_new = self._membership, self._membership.state is not machine.state
        membership.standing, membership.incarnation = machine.standing, machine.incarnation
        membership.is_powerless = machine.is_powerless
        membership.state = machine.state
        if is_new:
            self._moved()
        if machine.caught_up and self._pump is not None:
            read_at, heard_at = self._pump.fresh_at, machine.heard_at
            self._feed.publish(self._readings.of(machine.state, self._feed.address, read_at=read_at, heard_at=heard_at))
        for certificate in self._witness.look(machine.state, machine.incarnation, now):
            self.post(Wish(certificate))
        self._stepped(now)
        if membership.watching:
            membership.notify()

    @property
    def _opened(self) -> Pump[InductionMachine]:
        assert self._pump is not None, "the pump is set when the footing is opened"
        return self._pump
