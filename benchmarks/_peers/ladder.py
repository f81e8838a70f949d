"""The ladder: the smallest setting without a wrong expiry while every core is busy; then the kills.

    setting 1 --a wrong expiry--> setting 2 --...--> setting n, and none for N seconds: this one

    round 1: kill ours, kill etcd's, kill ZooKeeper's, kill Redis's; round 2: ...        all alive beside each other

The same rule for all: an endless loop on each core, N seconds, not one false expiry. Then no core is kept busy. Kills
take turns within one run, so that anything else that the machine does falls on all alike.

    NAME_setting_s, NAME_ms_median, NAME_ms_max     at that setting
    NAME_over_ours, NAME_over_ours_max              the median over our median, the maximum over our maximum
    NAME                                            why it could not be had, instead of all that
    redis_lock_lacks                                what ours gives and it does not, in words
"""

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from statistics import median

from benchmarks import Figures
from benchmarks._peers.ours import Sizes, busy_cores
from benchmarks._peers.rivals import Rival, ours, rivals
from neli_router.clock import host_clock

__all__ = ["compared"]

LOOK_EVERY = 0.05

LACKS = "a fencing token, an order of who waits, and a Redis that does not forget"
"""To be said beside a lock's speed."""


def compared(sizes: Sizes, seconds: float, rounds: int, rng: random.Random) -> Figures:
    """Ours and every rival that can be had: the settings found in `seconds` each, and `rounds` of kills."""
    present = [ours(sizes), *(rival for rival in rivals() if not rival.missing)]
    figures: Figures = {rival.name: f"not here: {rival.missing}" for rival in rivals() if rival.missing}
    chosen: dict[str, float] = {}
    for rival in present:
        settings = rival.settings
        if rival.name == "redis_lock":  # At equal TTL, if it can be.
            settings = tuple(setting for setting in settings if setting >= chosen["ours"])
        try:
            setting = smallest(rival, settings, seconds)
        except (AssertionError, OSError) as error:  # Its server or its processes did not start, or hang.
            if rival.name == "ours":
                raise
            figures[rival.name] = f"not here: {str(error).splitlines()[0]}"
            continue
        if setting is None:
            figures[rival.name] = f"expired a process wrongly at every setting up to {settings[-1]:g} s"
        else:
            chosen[rival.name] = setting
        if "ours" not in chosen:
            return figures
    took = _killed([rival for rival in present if rival.name in chosen], chosen, rounds, rng)
    for name, seconds_taken in took.items():
        figures[f"{name}_setting_s"] = chosen[name]
        figures[f"{name}_ms_median"] = 1e3 * median(seconds_taken)
        figures[f"{name}_ms_max"] = 1e3 * max(seconds_taken)
        if name != "ours":
            figures[f"{name}_over_ours"] = median(seconds_taken) / median(took["ours"])
            figures[f"{name}_over_ours_max"] = max(seconds_taken) / max(took["ours"])
    if "redis_lock" in took:
        figures["redis_lock_lacks"] = LACKS
    return {**figures, "peers_rounds": rounds, "calibration_s": seconds}


def smallest(rival: Rival, settings: Sequence[float], seconds: float) -> float | None:
    """The first of `settings`, which rise, without a wrong expiry in `seconds` with all cores busy."""
    for setting in settings:
        # One at which it never comes to rest is too small, too.
        with suppress(TimeoutError), rival.at(setting) as asked, busy_cores():
            end = host_clock() + seconds
            asked.look()
            while asked.false_expiries == 0 and host_clock() < end:
                time.sleep(LOOK_EVERY)
                asked.look()
            if asked.false_expiries == 0:
                return setting
    return None


def _killed(
    present: Sequence[Rival], chosen: dict[str, float], rounds: int, rng: random.Random
) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {rival.name: [] for rival in present}
    with ExitStack() as stack:
        asked = {rival.name: stack.enter_context(rival.at(chosen[rival.name])) for rival in present}
        for _ in range(rounds):
            for name, one in asked.items():
                took[name].append(one.takeover(rng))
    return took
