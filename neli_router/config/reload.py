"""SIGHUP: the configuration is read again, and some options change while the agent runs.

    SIGHUP --> resolve again --ConfigError--> everything stays unchanged, and every problem is reported
                    '--> weight, token, log level: take the new values    everything else: unchanged, reported by name

Others rely on the remaining options. The ledger, the lease and the layout belong to the group; the others know this
member by its name; and clients find the agent by its sockets. If a user changes one of these, the agent reports that it
waits for a restart, because silence would look like success.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from neli_router.config.resolve import Resolved

__all__ = ["Reload", "Reloaded", "Reloader"]

CHANGEABLE = frozenset({"weight", "agent.token", "agent.token_file", "agent.log_level"})
"""In a borrowed group the weight cannot change: its broker takes no wishes."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The new values. None means unchanged: a new token must not undo a weight that an operator set meanwhile."""

    token: str | None = field(default=None, repr=False)
    weight: int | None = None
    log_level: str | None = None
    changed: tuple[str, ...] = ()
    """Names of the options that changed."""
    waiting: tuple[str, ...] = ()
    """Names of the options that wait for a restart."""


Reload = Callable[[], Reloaded]
"""Reads the configuration again, in a thread. If it raises ConfigError, everything stays unchanged."""


class Reloader:
    """A Reload over the layers. Call it from one thread."""

    def __init__(self, again: Callable[[], Resolved], running: Resolved) -> None:
        self._again, self._running, self._token = again, running, running.agent.token

    def __call__(self) -> Reloaded:
        new, old = self._again(), self._running
        before = {one.name: one.value for one in old.settings}
        different = {one.name for one in new.settings if one.value != before[one.name]}
        if new.agent.token != self._token:  # The settings show both as hidden.
            different.add("agent.token")
        if new.config.ledger != old.config.ledger:  # Perhaps only the password differs.
            different.add("ledger")
        changeable = CHANGEABLE if old.config.has_ledger else CHANGEABLE - {"weight"}
        kept = {one.name: one for one in old.settings if one.name not in changeable}
        self._running = replace(old, settings=tuple(kept.get(one.name, one) for one in new.settings))
        self._token = new.agent.token
        return Reloaded(
            token=new.agent.token if "agent.token" in different else None,
            weight=new.config.weight if "weight" in different & changeable else None,
            log_level=new.agent.log_level if "agent.log_level" in different else None,
            changed=tuple(sorted(different & changeable)),
            waiting=tuple(sorted(different - changeable)),
        )
