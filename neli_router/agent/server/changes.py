"""Changes: options that a SIGHUP changes while an agent runs, and wishes that override its weight.

    SIGHUP --read again--> ConfigError: nothing changes, and every problem is in the log
                 '-------> token: from the next request on     log level: immediately
                           weight: as a wish to the group, owed as long as the ledger is out of reach

If anything is wrong with the new configuration, the agent keeps the old one: a typo in a file must not end the leases
of a host.
"""

import asyncio
import logging
from collections.abc import Callable

from neli_router.config.reload import Reload, Reloaded
from neli_router.config.token import token_problem
from neli_router.core import logs
from neli_router.errors import ConfigError, LedgerError, NeliError
from neli_router.member.async_member import AsyncMember
from neli_router.member.served_member import ServedMember
from neli_router.member.wishes import WISH_MAX
from neli_router.status.group_view import GroupView

__all__ = ["Changes", "compare_weight"]


class Changes:
    """The changes of one agent, on its loop. `token` is the one that is valid now."""

    def __init__(
        self, token: str | None, *, on_token: Callable[[], None] = lambda: None, weigh_max: float = WISH_MAX
    ) -> None:
        self.token, self._on_token, self._weigh_max = token, on_token, weigh_max
        self._owed_weight: int | None = None
        """A weight that could not be wished because the ledger was out of reach. The next SIGHUP finds no change in the
        file, so without this the wish would never be made."""

    async def take(self, reload: Reload, member: AsyncMember, inner: ServedMember) -> None:
        """Read the configuration again and apply it. Raises nothing; the outcome is in the log."""
        log = logs.logger()
        try:
            found = await asyncio.to_thread(reload)
            weight = await self._do(found, member, inner)
        except (NeliError, ValueError) as error:
            log.warning("agent.reload_refused", why=str(error))
        else:
            told = {"weight": weight, "log_level": found.log_level, "token": found.token and "another"}
            changed = {name: value for name, value in told.items() if value is not None}
            log.info("agent.reloaded", **(changed or {"changed": "nothing"}))

    async def _do(self, found: Reloaded, member: AsyncMember, inner: ServedMember) -> int | None:
        """Apply it. Returns the weight that was new, or owed."""
        if found.token is not None and (problem := token_problem(found.token)):
            raise ConfigError([f"the token {problem}"])
        if found.log_level is not None:
            logging.getLogger("neli_router").setLevel(found.log_level.upper())
        if found.token is not None:
            self.token = found.token
            self._on_token()
        weight = self._owed_weight if found.weight is None else found.weight
        if weight is not None:
            await self._weigh(weight, member, inner)
        return weight

    async def _weigh(self, weight: int, member: AsyncMember, inner: ServedMember) -> None:
        """Use `weight` from now on. The weight that the member joined with needs no wish."""
        group = GroupView(inner.state)
        wanted = None if group.own_weight(inner.incarnation) == weight else weight
        if group.wished_weight(inner.name) != wanted:
            try:
                await member.operator.weigh(inner.name, wanted, timeout=self._weigh_max)
            except LedgerError:
                self._owed_weight = weight
                raise
        self._owed_weight = None


def compare_weight(inner: ServedMember, weight: int) -> None:
    """Log a warning if the group gives the member another weight than its configuration does.

    A wish outlives the process that made it, and a SIGHUP makes one, too. Without this warning, an operator who edits
    the file and restarts the agent would look for the reason in the file.
    """
    counts = GroupView(inner.state).wished_weight(inner.name)
    if counts not in (None, weight):
        remedy = f"neli weigh {inner.name} own"
        logs.logger().warning("agent.weight_overruled", weight=weight, counts_with=counts, remedy=remedy)
