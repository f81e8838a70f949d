"""The faults that may strike a cluster and the group on it, and how each ends again.

    to a member      kill       kill -9; a while later a new process starts under its name
                     stop       stands still past its lease, then goes on
                     cut off    no server hears it, and it hears no server
                     torn       the same with some of the servers, if there are several
                     mute       everything that it sends to the servers is lost; everything that they send arrives
                     deaf       the other way round
                     slow       everything takes longer on its link
                     clock      its wall clock jumps, and stays there
    to the witness   agent dead   kill -9 of the agent that reports the members' deaths; a while later it starts again
                     agent held   stands still, and reports the deaths in between when it goes on
                     agent cut    no server hears it, so it reports late
                     both dead    a member and its witness are killed together: its lease must run out
    to the leader    dead       kill -9 of the server that takes the records; a while later it starts again
                     frozen     stands still: its connections stay, and it does not answer
                     island     it hears no other server; members may still reach it, and one of them reaches only it
                     fail over  kill -9, and its standby leads; a while later there is a new standby in its place

A fault is drawn in two steps: the deck draws its kind, and this module its target and duration.
"""

import random
from functools import partial
from typing import TYPE_CHECKING

from tests.chaos.cluster import AGENT, LoneServer
from tests.support.processes.storm import Fault

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

__all__ = [
    "FAIL_OVER",
    "LEADER_FAULTS",
    "MAIN_FAULTS",
    "SEVERAL",
    "STEPS",
    "WITNESS_FAULTS",
    "begin_leader_fault",
    "begin_member_fault",
    "begin_witness_fault",
]

MAIN_FAULTS = ("kill", "kill", "stop", "cut off", "torn", "mute", "deaf", "slow", "clock", "witness")
"""Faults of members; "witness" stands for one of WITNESS_FAULTS."""

LEADER_FAULTS = ("dead", "frozen", "island")
WITNESS_FAULTS = ("agent dead", "agent held", "agent cut", "both dead")
SEVERAL = ("torn", "island")
"""These need several servers."""

FAIL_OVER = "fail over"
"""A fault of the leader, too, but the test must have made its standby."""

STEPS = (-86_400, -3600, -10, 0, 10, 3600, 86_400)
"""Seconds by which the stepped wall clock is ahead."""

LEADER_SECONDS = (2.0, 6.0)
"""A broker's session is 1.5 s: most of the time this is long enough for another broker to lead."""


def begin_member_fault(kind: str, name: str, target: "Storm", rng: random.Random) -> Fault:
    """Inflict it on the member `name`."""
    network, hosts, process = target.cluster.network, target.cluster.hosts, target.process(name)
    seconds = target.lease * rng.uniform(0.2, 4)
    match kind:
        case "kill":
            process.kill()
            return Fault(kind, name, seconds, [partial(target.start, name)])
        case "stop":
            process.stop()
            return Fault(kind, name, target.lease + seconds, [process.resume])
        case "cut off" | "torn":
            some = hosts if kind == "cut off" else sorted(rng.sample(hosts, rng.randrange(1, len(hosts))))
            for host in some:
                network.cut(name, host)
            whom = f"{name} from {' and '.join(some)}"
            return Fault(kind, whom, seconds, [partial(network.mend, name, host) for host in some])
        case "mute" | "deaf":
            ways = [(name, host) if kind == "mute" else (host, name) for host in hosts]
            for way in ways:
                network.lose(*way)
            return Fault(kind, name, seconds, [partial(network.carry, *way) for way in ways])
        case "slow":
            how, _, _ = network.slow(name).partition(" ")
            return Fault(kind, f"{name} by {how}", seconds, [partial(network.hurry, name)])
        case _:
            assert kind == "clock", f"there is no fault {kind!r}"
            ahead = rng.choice(STEPS)
            target.clock.step(ahead)
            return Fault(kind, f"{name} to {ahead:+d} s", 0.0, [])


def begin_witness_fault(kind: str, name: str | None, target: "Storm", rng: random.Random) -> Fault:
    """Inflict it on the agent; `name` is the member that is killed with it, if any."""
    network, hosts, agent = target.cluster.network, target.cluster.hosts, target.agent
    seconds = target.lease * rng.uniform(0.2, 4)
    match kind:
        case "agent dead":
            agent.kill()
            return Fault(kind, AGENT, seconds, [agent.begin])
        case "agent held":
            agent.stop()
            return Fault(kind, AGENT, seconds, [agent.resume])
        case "agent cut":
            for host in hosts:
                network.cut(AGENT, host)
            return Fault(kind, AGENT, seconds, [partial(network.mend, AGENT, host) for host in hosts])
        case _:
            assert kind == "both dead", f"there is no fault {kind!r}"
            assert name is not None
            # The agent first: otherwise it would see the member's end for some hundred microseconds.
            agent.kill()
            target.process(name).kill()
            return Fault(kind, f"{AGENT} and {name}", seconds, [agent.begin, partial(target.start, name)])


def begin_leader_fault(kind: str, host: str, friend: str | None, target: "Storm", rng: random.Random) -> Fault:
    """Inflict it on `host`, which leads. An island may have a `friend`, a member that reaches no other server."""
    network, node = target.cluster.network, target.cluster.node(host)
    seconds = rng.uniform(*LEADER_SECONDS)
    match kind:
        case "dead":
            node.kill()
            return Fault(kind, host, seconds, [node.start])
        case "frozen":
            node.freeze()
            return Fault(kind, host, seconds, [node.thaw])
        case "fail over":
            assert isinstance(target.cluster, LoneServer)
            # Less than a lease, at times: then some leaders have not stopped when commits succeed again.
            return Fault(kind, host, target.lease * rng.uniform(0, 4), [target.cluster.fail_over()])
        case _:
            assert kind == "island", f"there is no fault {kind!r}"
            inhabitants = [host] if friend is None else [host, friend]
            pairs = [(one, other) for one in inhabitants for other in target.cluster.hosts if other != host]
            for one, other in pairs:
                network.cut(one, other)
            return Fault(kind, " with ".join(inhabitants), seconds, [partial(network.mend, *pair) for pair in pairs])
