"""Electors as real processes on loopback: leaders are killed and leave, and the kernel counts datagrams.

    for each size: a group of each protocol, all at the same time
        at rest: datagrams are counted
        again and again: the leader of each group in turn is killed -9 --> rest --> those start again --> rest
                         the leader of each group in turn leaves -------> rest --> those start again --> rest

Each takeover is over before the next leader is killed or stopped, so none is measured while processes start.

If root runs it, each group has its own network namespace, and its datagrams are counted there. Otherwise the kernel
counts the datagrams of the whole host, over all groups, and only their sum is known.

The figures are listed with the times that the texts expect, with our settings: for `term`, three missed heartbeats and
the longest random wait; for `priority`, Zeebe's bound of quorum + 1 time-outs; for `gossip`, 2 P.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from statistics import median

from benchmarks import Figures, spread
from benchmarks._peers.ours import await_led_elsewhere
from benchmarks._protocols.schedule import QUIET, gap
from benchmarks._protocols.side import Side
from neli_router.core.clock import host_clock
from neli_router.lab.processes.group import MemberProcess
from neli_router.protocols.electors.settings import MISSES
from tests.support.processes.peer_group import PeerProcesses, loopback_places
from tests.support.servers import network as networks
from tests.support.servers.network import Network
from tests.support.waiting import PATIENCE

__all__ = ["BEAT", "ELECTORS", "ElectorRow", "opened_rows", "real_figures"]

ELECTORS = ("term", "priority", "gossip")

BEAT = 0.05
"""Seconds between heartbeats, and the interval of gossip."""

BEATS_PER_P = 10
"""P of `gossip`, the default of its lease."""

LOOKS_PER_BEAT = 5
"""How often a program checks its leases. More checks cost processor time, which is scarce with many processes."""

LOOK_EVERY = 0.02


class ElectorRow:
    """One group of real processes, with one leader."""

    def __init__(self, folder: Path, protocol: str, size: int, *, beat: float, network: Network | None) -> None:
        self.protocol, self.size, self.beat = protocol, size, beat
        self.lease = beat * (BEATS_PER_P if protocol == "gossip" else MISSES)
        self._prefix = () if network is None else network.prefix(protocol)
        places = loopback_places([f"m{number + 1}" for number in range(size)])
        options = {"protocol": "gossip"} if protocol == "gossip" else {"protocol": "term", "policy": _policy(protocol)}
        self.group = PeerProcesses(
            folder, places, partitions=1, pause=beat / LOOKS_PER_BEAT, lease=self.lease, beat=beat, **options
        )
        self.side = Side(f"{protocol},{size}", self.group, "", "")

    def start(self, name: str) -> None:
        self.group.start(name, prefix=self._prefix)

    def rest(self, members: int) -> None:
        """Wait until this many members have had the same leader for a while."""
        give_up_at = host_clock() + PATIENCE
        before, since = self.side.led(), host_clock()
        while True:
            self.group.read_notes()
            now, led = host_clock(), self.side.led()
            if led != before or not self.side.is_shared(members):
                before, since = led, now
            elif now - since >= QUIET + 2 * self.lease:
                return
            if now >= give_up_at:
                said = "\n".join(it.log[-2000:] for it in self.group.running.values())
                raise TimeoutError(f"{self.side.name} is not at rest with {members} members; it leads {led}:\n{said}")
            time.sleep(LOOK_EVERY)

    def kill_leader(self, rng: Random) -> str:
        """The name of the process that was killed; another leads by now."""
        victim = self._leader_at_random(rng)
        self.side.found.takeovers.append(self._took(victim, victim.kill()))
        return victim.life.name

    def stop_leader(self, rng: Random) -> str:
        """The name of the process that left in good order; another leads by now."""
        leaver = self._leader_at_random(rng)
        self.side.found.handovers.append(self._took(leaver, leaver.ask_to_leave()))
        if leaver.exit_code() != 0:
            raise RuntimeError(f"{leaver.life.label} did not leave in good order:\n{leaver.log}")
        self.side.found.leaderless.append(gap(self.side, leaver.life, 0))
        return leaver.life.name

    def datagrams(self) -> int:
        """Datagrams sent in its network since that began."""
        return _datagrams_sent(next(iter(self.group.running.values())).life.pid)

    @property
    def expected(self) -> float:
        """The takeover time in seconds that the protocol's text expects with these settings, at most or roughly."""
        time_out = MISSES * self.beat
        match self.protocol:
            case "term":
                return 2 * time_out
            case "priority":
                return (self.size // 2 + 2) * time_out
            case _:
                return 2 * self.lease

    def _leader_at_random(self, rng: Random) -> MemberProcess:
        """The leader at a random moment between two beats."""
        time.sleep(2 * self.beat * rng.random())
        give_up_at = host_clock() + PATIENCE
        while (leader := self.side.leader()) is None:  # A busy machine may have cost it its lease.
            assert host_clock() < give_up_at, f"{self.side.name} has no leader"
            time.sleep(LOOK_EVERY)
            self.group.read_notes()
        return leader

    def _took(self, leaver: MemberProcess, since: float) -> float:
        return await_led_elsewhere(self.group, leaver, [0], since) - since


def trial(rows: Sequence[ElectorRow], rng: Random) -> None:
    """Kill the leader of each group in turn, and then let each leave. All groups rest again at the same time."""
    for strike in (ElectorRow.kill_leader, ElectorRow.stop_leader):
        names = [strike(row, rng) for row in rows]
        for row in rows:
            row.rest(row.size - 1)
        for row, name in zip(rows, names, strict=True):
            row.start(name)
        for row in rows:
            row.rest(row.size)


def real_figures(folder: Path, sizes: Sequence[int], *, trials: int, seconds: float, rng: Random) -> Figures:
    """The figures of all electors at these sizes. Datagrams are counted for `seconds`."""
    figures: Figures = {}
    loads: list[float] = []
    overlaps = 0
    for size in sizes:
        with opened_rows(folder, size, BEAT) as rows:
            sent = _sent_per_second(rows, seconds)
            for _ in range(trials):
                trial(rows, rng)
                loads.append(os.getloadavg()[0])
            for row in rows:
                figures |= {f"{name}@{row.side.name}": value for name, value in _figures_of(row).items()}
                found = len(row.group.verdict().overlaps)
                figures[f"overlaps@{row.side.name}"] = found
                overlaps += found
            figures |= {f"messages_per_second@{name}": value for name, value in sent.items()}
            reference = median(rows[0].side.found.takeovers)
            for row in rows[1:]:
                figures[f"takeover_over_term@{row.side.name}"] = median(row.side.found.takeovers) / reference
    return {
        "overlaps": overlaps,
        **figures,
        "electors_beat_ms": 1e3 * BEAT,
        "electors_load_average_median": median(loads),
        "electors_load_average_max": max(loads),
    }


@contextmanager
def opened_rows(folder: Path, size: int, beat: float) -> Iterator[list[ElectorRow]]:
    """A group of each protocol with `size` members, at rest."""
    with ExitStack() as stack:
        network = None if networks.missing() else stack.enter_context(Network.started(ELECTORS))
        rows = []
        for protocol in ELECTORS:
            own = folder / f"{protocol}-{size}"
            own.mkdir()
            rows.append(ElectorRow(own, protocol, size, beat=beat, network=network))
            stack.enter_context(rows[-1].group)
        for row in rows:
            for number in range(size):
                row.start(f"m{number + 1}")
        for row in rows:
            row.rest(size)
        yield rows


def _policy(protocol: str) -> str:
    return "priority" if protocol == "priority" else "random"


def _figures_of(row: ElectorRow) -> dict[str, float]:
    found = row.side.found
    times = {"takeover": found.takeovers, "handover": found.handovers, "leaderless": found.leaderless}
    took = median(found.takeovers)
    return {
        **{f"{name}_ms_{each}": ms for name, seconds in times.items() for each, ms in spread(seconds).items()},
        "expected_by_text_ms": 1e3 * row.expected,
        "takeover_over_beat": took / row.beat,
        "takeover_over_lease": took / row.lease,
    }


def _sent_per_second(rows: Sequence[ElectorRow], seconds: float) -> dict[str, float]:
    began, first = host_clock(), [row.datagrams() for row in rows]
    time.sleep(seconds)
    took, last = host_clock() - began, [row.datagrams() for row in rows]
    if networks.missing():
        return {f"all,{rows[0].size}": (last[0] - first[0]) / took}
    return {row.side.name: (b - a) / took for row, a, b in zip(rows, first, last, strict=True)}


def _datagrams_sent(pid: int) -> int:
    """The kernel's count for the network of process `pid`."""
    lines = Path(f"/proc/{pid}/net/snmp").read_text(encoding="ascii").splitlines()
    names, values = (line.split() for line in lines if line.startswith("Udp:"))
    return int(values[names.index("OutDatagrams")])
