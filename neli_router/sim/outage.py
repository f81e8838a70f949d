"""An outage: the ledger is away for three leases under a group at rest, and what that costs.

    at rest --ledger away, 3 leases--> all fenced, none heard --ledger back--> at rest: the same members, the same terms

Everybody has then been silent to everybody for longer than a lease. If anyone took that for death, the first member to
reach the ledger would expire the rest, and every partition would move for nothing.
"""

from dataclasses import dataclass, replace
from random import Random

from neli_router.sim.group import Group
from neli_router.sim.options import Options
from neli_router.sim.world import World

__all__ = ["AWAY_LEASES", "MEMBERS", "Outage", "outage"]

MEMBERS = 8
AWAY_LEASES = 3.0

REST_LEASES = 14.0
"""Long enough for the group to found itself, share its partitions and come to rest."""

CHECKS_PER_LEASE = 100


@dataclass(frozen=True, slots=True)
class Outage:
    """What an outage did to a group."""

    seed: int
    expired: int
    """Members before it that were none after it."""
    terms_changed: int
    moves: int
    back_after_leases: float
    """From when the ledger could be reached again until every partition was led by its owner."""


def outage(seed: int) -> Outage:
    """Run one; the seed decides partitions, clocks, delays and the phases of everybody's beats."""
    world = World(seed)
    options = _options(seed, world.random)
    group = Group(world, options)
    for member in range(MEMBERS):
        world.at(world.random.uniform(0.0, 2.0) * options.lease, _start, group, f"m{member + 1}")
    world.run(REST_LEASES * options.lease)
    assert _at_rest(group), f"seed {seed:#x} did not come to rest before its outage: {group.describe()}"
    before = group.referee.state
    world.run(world.now + world.random.random() * options.lease)
    back_at = group.log.away_until = world.now + AWAY_LEASES * options.lease
    world.run(back_at)
    while not _at_rest(group) and world.now < back_at + REST_LEASES * options.lease:
        world.run(world.now + options.lease / CHECKS_PER_LEASE)
    back_after = (world.now - back_at) / options.lease
    world.run(world.now + 3 * options.lease)  # Whoever would accuse another does so after a lease of hearing itself.
    after = group.referee.state
    return Outage(
        seed,
        expired=len(before.seats.keys() - after.seats.keys()),
        terms_changed=sum(old != new for old, new in zip(before.terms, after.terms, strict=True)),
        moves=sum(old != new for old, new in zip(before.owners, after.owners, strict=True)),
        back_after_leases=back_after,
    )


def _options(seed: int, random: Random) -> Options:
    drawn = Options.draw(seed, random, guarantee="exclusive", weather="fair")
    return replace(drawn, members=MEMBERS, partitions=16, faults=(), leases=100.0)


def _at_rest(group: Group) -> bool:
    return group.converged


def _start(group: Group, name: str) -> None:
    group.start(name)
