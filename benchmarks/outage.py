"""An outage of the ledger for three leases, under eight members: expiries, moves, and the time until all lead again.

    seeds --> simulated groups at rest --> outage --> expired, terms_changed, moves, reconnected_within_leases_max

The benchmark runs in virtual time, so the figures are the protocol's own, and the same on every machine.
"""

from benchmarks import BenchmarkOptions, Figures, option
from neli_router.lab.sim.induction.simulate import AWAY_LEASES, MEMBERS, outage

__all__ = ["Options", "run"]


class Options(BenchmarkOptions):
    seeds: int = option(30, "how many groups")


def run(options: Options) -> Figures:
    """The figures over all seeds."""
    found = [outage(seed) for seed in range(options.seeds)]
    return {
        "seeds": len(found),
        "members": MEMBERS,
        "away_leases": AWAY_LEASES,
        "expired": sum(one.expired for one in found),
        "terms_changed": sum(one.terms_changed for one in found),
        "moves": sum(one.moves for one in found),
        "reconnected_within_leases_max": max(one.back_after_leases for one in found),
    }
