"""SIGHUP: the configuration is read again, and what may change while the agent runs, changes.

    SIGHUP --> resolve again --ConfigError--> all stays as it is, and every problem is told
                    '--> weight, token, log level: as they say now        everything else: as it was, told by name

What stays is what others rely on. The ledger, the lease and the layout are the group's; the name is how the others know
this member; and clients find the agent by the sockets that it has. Who changed one of these learns that it waits for a
restart, instead of a silence that looks like a yes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from neli_router.settings.resolve import AgentOptions, Resolved

__all__ = ["Reload", "Reloaded"]

CHANGEABLE = frozenset({"weight", "agent.token", "agent.token_file", "agent.log_level"})


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What holds from now on. `changed` and `waiting` are names of options; the latter wait for a restart."""

    agent: AgentOptions
    weight: int
    changed: tuple[str, ...]
    waiting: tuple[str, ...]


class Reload:
    """Call it on SIGHUP, from one thread. Raises ConfigError if what stands there now is not usable."""

    def __init__(self, again: Callable[[], Resolved], running: Resolved) -> None:
        self._again, self._running = again, running

    def __call__(self) -> Reloaded:
        new, old = self._again(), self._running
        before = {one.name: one.value for one in old.settings}
        different = {one.name for one in new.settings if one.value != before[one.name]}
        if new.agent.token != old.agent.token:  # Both are shown as hidden.
            different.add("agent.token")
        if new.config.ledger != old.config.ledger:  # A password alone may be another.
            different.add("ledger")
        agent = replace(old.agent, token=new.agent.token, log_level=new.agent.log_level)
        kept = {one.name: one for one in old.settings if one.name not in CHANGEABLE}
        self._running = replace(
            old,
            config=replace(old.config, weight=new.config.weight),
            agent=agent,
            settings=tuple(kept.get(one.name, one) for one in new.settings),
        )
        return Reloaded(
            agent,
            new.config.weight,
            tuple(sorted(different & CHANGEABLE)),
            tuple(sorted(different - CHANGEABLE)),
        )
