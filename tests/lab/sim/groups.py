"""A group of `induction` in which nothing fails unless a test causes it."""

from dataclasses import replace
from random import Random
from typing import Any

from neli_router.lab.sim.induction.group import SimulatedGroup
from neli_router.lab.sim.induction.options import RunOptions, Weather
from neli_router.lab.sim.induction.process import Process
from neli_router.lab.sim.induction.simulate import CONVERGED_LEASES_MAX
from neli_router.lab.sim.world import World
from neli_router.protocols.induction.machine import InductionMachine
from neli_router.protocols.protocol import Guarantee

__all__ = ["LEASE", "at_rest", "group", "incarnation", "options"]

LEASE = 6.0
NOTHING = {"repeated": 0.0, "hang": 0.0, "witnessed": 0.0, "lent": 0.0}


def options(weather: Weather = "foul", guarantee: Guarantee = "exclusive", **forced: Any) -> RunOptions:
    calm = RunOptions.draw(1, Random(1), guarantee=guarantee, weather="fair")
    told = {"weather": weather, "faults": (), "lease": LEASE, "partitions": 4, "delay": 0.005} | NOTHING | forced
    return replace(calm, **told)


def group(weather: Weather = "foul", guarantee: Guarantee = "exclusive", **forced: Any) -> SimulatedGroup:
    return SimulatedGroup(World(1), options(weather, guarantee, **forced))


def at_rest(**forced: Any) -> tuple[SimulatedGroup, Process, Process]:
    """A group of two members that has settled."""
    found = group(**forced)
    found.heal()
    one, other = found.start("m1"), found.start("m2")
    found.world.run(CONVERGED_LEASES_MAX * LEASE)
    assert found.converged, found.describe()
    return found, one, other


def incarnation(process: Process) -> str:
    assert isinstance(process.machine, InductionMachine)
    return process.machine.incarnation
