"""Witnesses: they see a simulated process end, and record that in the ledger.

    start --one is chosen--> lives --ends--> its client acts on until the lease ends --> certified: soon, late, twice
                                                                                     '-> never: its witness died, too

A witness is an agent, which is another member's process of the group, or a child, which writes on its own. An agent
that has ended certifies no process; a live agent repeats the certificate until it reads it. Both reach the ledger by
other ways than the dead process. So a certificate may come before the Join that it is about, after an Expire, or when a
newer process has the name.

Certificates are true here: a false certificate is the fault of a witness, which no protocol repairs. So the group
raises if one is appended while its process, or a client of that process, still acts: that would be a fault of this
simulator.
"""

from collections.abc import Sequence
from random import Random

from neli_router.lab.sim.induction.ledger import Log
from neli_router.lab.sim.induction.process import Process
from neli_router.lab.sim.induction.referee import Referee
from neli_router.lab.sim.world import World
from neli_router.protocols.induction.events import Wish
from neli_router.protocols.induction.machine import InductionMachine
from neli_router.protocols.induction.records import Certify, encode

__all__ = ["Witnesses"]

AGENT = 0.5
"""How often a witness is another member rather than a child."""

DIES_TOO = 0.15
"""How often a child dies with its process, as when a host kills both for lack of memory."""

AGAIN = 0.3
"""How often a child certifies a second time, because no answer came to the first try."""

DELAYS = (0.0, 0.002, 0.05, 0.5, 3.0)
"""In leases: the longest that a witness takes; sometimes it comes after the Expire."""

REPEATED_EVERY, REPEATED_MAX = 0.5, 8
"""In leases: how often an agent repeats what it has not read; and how many times."""


class Witnesses:
    """The witnesses of one group. They have their own dice, so that runs without witnesses stay the same."""

    def __init__(self, world: World, log: Log, referee: Referee) -> None:
        self._world, self._log, self._referee = world, log, referee
        self._lease = log.options.lease
        self._random = Random(f"witnesses of {log.options.seed}")

    def choose(self, living: Sequence[Process]) -> tuple[str, Process | None]:
        """The witness that a newcomer's Join names, and its process among the `living`; None for a child or none."""
        random = self._random
        if random.random() >= self._log.options.witnessed:
            return "", None
        if living and random.random() < AGENT:
            return "agent", random.choice(living)
        return "child", None

    def lends(self) -> bool:
        """Whether a process that is killed now has a client that acts on."""
        return self._random.random() < self._log.options.lent

    def certify(self, name: str, agent: Process | None, incarnations: Sequence[str], quiet_at: float) -> None:
        """Certify a process that ended. All that acts for it ends by `quiet_at`; its Join called its witness `name`."""
        random = self._random
        if not name or (agent is None and random.random() < DIES_TOO):
            return
        for _ in range(1 + (agent is None and random.random() < AGAIN)):
            says_at = quiet_at + random.uniform(0.0, random.choice(DELAYS)) * self._lease
            for incarnation in incarnations:
                self._world.at(says_at, self._say, agent, incarnation, REPEATED_MAX)

    def _say(self, agent: Process | None, incarnation: str, times: int) -> None:
        if agent is None:
            if self._world.now < self._log.away_until:
                self._world.at(self._log.away_until, self._say, agent, incarnation, times)
            else:
                self._log.extend(None, [encode(Certify(by="a child", incarnation=incarnation))])
            return
        machine = agent.machine
        if isinstance(machine, InductionMachine):
            agent.post(Wish(Certify(by=machine.incarnation, incarnation=incarnation)))
        if agent.alive and times > 1:
            again_at = self._world.now + REPEATED_EVERY * self._lease
            self._world.at(again_at, self._repeat, agent, incarnation, times - 1)

    def _repeat(self, agent: Process, incarnation: str, times: int) -> None:
        if incarnation not in self._referee.state.departed:
            self._say(agent, incarnation, times)
