"""The ladder: the smallest setting without a wrong expiry while every core is busy; then the kills.

    setting 1 --a wrong expiry--> setting 2 --...--> setting n, and none for N seconds: this one

    round 1: kill ours, kill etcd's, kill ZooKeeper's, kill Redis's; round 2: ...        all run at the same time

The same rule holds for all: an endless loop on each core, N seconds, not one false expiry. Afterwards no core is kept
busy. Kills take turns within one run, so that other load on the machine affects all alike.

    NAME_setting_s, NAME_ms_min, _median, _max   at that setting
    NAME_over_ours, NAME_over_ours_max           the median over our median, the maximum over our maximum
    NAME                                         why it is not available, instead of these figures
    redis_lock_lacks                             what ours gives and it does not, in words
"""

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from statistics import median

from benchmarks import Figures, spread
from benchmarks._peers.ours import Sizes, busy_cores
from benchmarks._peers.rivals import Asked, Rival, ours, rivals
from neli_router.core.clock import host_clock

__all__ = ["compared", "fitting", "killed", "smallest", "told"]

LOOK_EVERY = 0.05

LACKS = "a fencing token, an order of who waits, and a Redis that does not forget"
"""Printed with a lock's speed."""


def compared(sizes: Sizes, seconds: float, rounds: int, rng: random.Random) -> Figures:
    """Ours and every available rival: the settings found in `seconds` each, and `rounds` of kills."""
    first = ours(sizes)
    least = smallest(first, first.settings, seconds)
    if least is None:
        return {first.name: _too_small(first)}
    chosen, figures = fitting(seconds, least)
    with ExitStack() as stack:
        present = {rival.name: stack.enter_context(rival.at(setting)) for rival, setting in [(first, least), *chosen]}
        took = killed(present, rounds, rng)
    figures |= told([(first, least), *chosen], took)
    for rival, _ in chosen:
        figures[f"{rival.name}_over_ours"] = median(took[rival.name]) / median(took[first.name])
        figures[f"{rival.name}_over_ours_max"] = max(took[rival.name]) / max(took[first.name])
    return {**figures, "peers_rounds": rounds, "calibration_s": seconds}


def fitting(seconds: float, lock_min: float) -> tuple[list[tuple[Rival, float]], Figures]:
    """Every available rival with its setting, and the reasons why others are not. The lock's is `lock_min` at least."""
    chosen: list[tuple[Rival, float]] = []
    figures: Figures = {}
    for rival in rivals():
        if rival.missing:
            figures[rival.name] = f"not here: {rival.missing}"
            continue
        settings = rival.settings
        if rival.name == "redis_lock":  # At equal TTL, if possible.
            settings = tuple(setting for setting in settings if setting >= lock_min)
        try:
            setting = smallest(rival, settings, seconds)
        except (AssertionError, OSError) as error:  # Its server or its processes did not start, or hang.
            figures[rival.name] = f"not here: {str(error).splitlines()[0]}"
            continue
        if setting is None:
            figures[rival.name] = _too_small(rival)
        else:
            chosen.append((rival, setting))
    return chosen, figures


def told(chosen: Sequence[tuple[Rival, float]], took: dict[str, list[float]]) -> Figures:
    """The setting and the times of each."""
    figures: Figures = {}
    for rival, setting in chosen:
        figures[f"{rival.name}_setting_s"] = setting
        figures |= {f"{rival.name}_ms_{name}": ms for name, ms in spread(took[rival.name]).items()}
    if "redis_lock" in took:
        figures["redis_lock_lacks"] = LACKS
    return figures


def _too_small(rival: Rival) -> str:
    return f"expired a process wrongly at every setting up to {rival.settings[-1]:g} s"


def smallest(rival: Rival, settings: Sequence[float], seconds: float) -> float | None:
    """The first of the rising `settings` without a wrong expiry in `seconds` with all cores busy."""
    for setting in settings:
        # A setting that never settles is too small, too.
        with suppress(TimeoutError), rival.at(setting) as asked, busy_cores():
            end = host_clock() + seconds
            asked.look()
            while asked.false_expiries == 0 and host_clock() < end:
                time.sleep(LOOK_EVERY)
                asked.look()
            if asked.false_expiries == 0:
                return setting
    return None


def killed(present: Mapping[str, Asked], rounds: int, rng: random.Random) -> dict[str, list[float]]:
    """Seconds of each takeover. The sides are killed in turn, once a round."""
    took: dict[str, list[float]] = {name: [] for name in present}
    for _ in range(rounds):
        for name, one in present.items():
            took[name].append(one.takeover(rng))
    return took
