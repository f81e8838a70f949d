"""The storm: faults dealt from a deck that a seed shuffled, one about every one and a half leases, and then calm.

    deck   every kind of fault once, in random order; when it is empty, the next deck: so a short run meets them all.
           Kills are there twice, and the witness's faults are one kind: it must be well to report a kill
    out    the targets that a fault has struck; at most `OUT_MAX` members, one server, so that two brokers remain in
           sync, and the agent
    calm   all faults are undone together: what was stopped goes on, what was killed comes back, all links carry

A server is struck only while all servers are well; until then its card waits. The agent of this host is the witness of
some members, who are killed and not expired; the others die unseen.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from neli_router.core.clock import host_clock
from neli_router.lab.processes.group import MemberProcess, ProcessGroup
from tests.chaos import faults
from tests.chaos.clocks import WallClock
from tests.chaos.cluster import Cluster
from tests.support.agents.processes import AgentProcess
from tests.support.processes.storm import BaseStorm

__all__ = ["Storm", "led_from"]

UNSEEN = 2
"""How many of the members have no witness: only their leases reveal their deaths."""

NO_AGENT = "/nonexistent/agent.sock"

OUT_MAX = 2
"""Out of five: others must be there, or nothing would ever be taken over."""


class Storm(BaseStorm):
    """Turns a group upside down for some seconds, and then lets it settle."""

    def __init__(
        self,
        cluster: Cluster,
        group: ProcessGroup,
        agent: AgentProcess,
        names: Sequence[str],
        kinds: Sequence[str],
        *,
        called: str,
        lease: float,
        seed: int,
        clock: WallClock,
    ) -> None:
        super().__init__(group, names, kinds, lease=lease, seed=seed)
        self.cluster, self.agent, self.clock = cluster, agent, clock
        self.led_after = self.balanced_after = 0.0
        """Seconds after the calm until every partition was led, and until all members shared them evenly."""
        self._kinds, self._called, self._clocked = list(kinds), called, self._names[0]
        self._deck: deque[str] = deque()

    def run(self, seconds: float, seen: Callable[[], object]) -> None:
        """Start the group, let things happen for `seconds`, and longer until it has `seen` something; then let it
        settle and leave, which must succeed."""
        self.agent.start()
        for name in self._names:
            self.start(name)
        self._group.settle()
        self._rage(seconds, seen)
        self._recover()
        self.agent.await_member()
        self._group.leave()

    def process(self, name: str) -> MemberProcess:
        return self._present[name]

    def start(self, name: str) -> None:
        is_unseen = name in self._names[-UNSEEN:]
        environment = {"NELI_AGENT": NO_AGENT} if is_unseen else self.agent.environment
        if name == self._clocked:
            environment = {**environment, **self.clock.environment}
        prefix = self.cluster.network.prefix(name)
        options: dict[str, Any] = {"witness": "none"} if is_unseen else {}
        self._present[name] = self._group.start(name, prefix=prefix, environment=environment, **options)

    def _undo_all(self) -> None:
        super()._undo_all()
        self.cluster.network.heal()  # The next test always needs all servers and a network.

    def _strike(self) -> None:
        """Deal the first card that can be played."""
        if not self._deck:
            self._rng.shuffle(self._kinds)
            self._deck.extend(self._kinds)
        free = [name for name in self._names if name not in self._out]
        for _ in range(len(self._deck)):
            kind = self._deck.popleft()
            if self._play(kind, free):
                self._unmet.discard(kind)
                return
            self._deck.append(kind)

    def _play(self, kind: str, free: list[str]) -> bool:
        """Begin this fault, and schedule its end. Returns whether that was possible."""
        may_be_out = len(self._names) - len(free) < OUT_MAX
        if kind in (*faults.LEADER_FAULTS, faults.FAIL_OVER):
            leader = None if "server" in self._out else self.cluster.leader(self._called)
            if leader is None:
                return False
            friend = self._rng.choice(free) if may_be_out and kind == "island" and self._rng.random() < 0.7 else None
            self._end_later(
                faults.begin_leader_fault(kind, leader, friend, self, self._rng), {"server", friend or "server"}
            )
        elif kind == "witness":
            if "agent" in self._out or not may_be_out:
                return False
            befalls = self._rng.choice(faults.WITNESS_FAULTS)
            name = self._rng.choice(free) if befalls == "both dead" else None
            self._end_later(faults.begin_witness_fault(befalls, name, self, self._rng), {"agent", name or "agent"})
        elif kind == "clock":
            self._end_later(faults.begin_member_fault(kind, self._clocked, self, self._rng), set())
        elif may_be_out:
            name = self._rng.choice(free)
            self._end_later(faults.begin_member_fault(kind, name, self, self._rng), {name})
        else:
            return False
        return True

    def _look(self) -> None:
        super()._look()
        if "agent" not in self._out and not self.agent.is_running:
            self.ended.append(f"the agent ended:\n{self.agent.log.read_text(errors='replace')}")
            self.agent.begin()

    def _recover(self) -> None:
        self._look()  # A process that ended on its own is started again.
        self.cluster.await_all_well(self._called)
        calm_at = host_clock()
        self._look()
        self.led_after = max(led_from(self._group, calm_at).values()) - calm_at
        self._group.settle()
        self.balanced_after = host_clock() - calm_at


def led_from(group: ProcessGroup, moment: float, *, claimed: float = 0.0) -> dict[int, float]:
    """Wait until a running process acts for each partition at `moment` or later; return when that began, or `moment`.

    A claim that ends within `claimed` seconds of `moment` does not count: its process may be dead.
    """
    led_at: dict[int, float] = {}

    def is_led() -> bool:
        for process in group.running.values():
            for span in process.life.spans:
                if span.until > moment + claimed:
                    since = max(moment, span.since)
                    led_at[span.partition] = min(since, led_at.get(span.partition, since))
        return len(led_at) == group.partitions

    group.wait_until(is_led, "every partition was to be led")
    return led_at
