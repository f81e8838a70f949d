"""How far the jobs of this host are behind their input, as they report it: for /metrics and for the page.

    job --POST /v1/progress: its table, partition -> steps behind--> agent --/metrics, the page--> operator

A job repeats this at least every KEPT / 2 seconds while it holds its partitions. The agent forgets what is older, so a
job that was killed leaves no figure behind. It believes what a job says, and decides nothing by it.
"""

from collections.abc import Mapping

from neli_router.agent import wire
from neli_router.agent.server.requests import Request, answer, body_of, decoded
from neli_router.core.clock import host_clock
from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError

__all__ = ["JobProgress"]

KEPT = 60.0
"""Seconds. A step may take that long, and a job reports nothing during a step."""

TABLES_MAX = 100
"""Each is a set of time series. Many more would be names that a program makes up."""


class JobProgress:
    """The reports of one agent's jobs. Belongs to its loop."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._told: dict[str, tuple[float, dict[int, int]]] = {}

    @property
    def behind(self) -> Mapping[str, Mapping[int, int]]:
        """Table -> partition -> steps behind its input."""
        oldest = host_clock() - KEPT
        return {table: dict(behind) for table, (at, behind) in self._told.items() if at >= oldest and behind}

    def take(self, asked: wire.ProgressAsked) -> None:
        """Raises ConfigError for what cannot be shown."""
        problems = []
        if not (asked.table.isprintable() and 0 < len(asked.table) <= wire.NAME_MAX):
            problems.append(f"the name of a table must have 1 to {wire.NAME_MAX} printable characters")
        if strange := [number for number in asked.behind if not 0 <= number < self._layout.partitions]:
            problems.append(f"partition {strange[0]} is beyond the group's {self._layout.partitions}")
        if any(steps < 0 for steps in asked.behind.values()):
            problems.append("a job cannot be ahead of its input")
        current = self.behind  # Once: it copies the reports of all tables.
        self._told = {table: told for table, told in self._told.items() if table in current}
        if asked.table not in self._told and len(self._told) >= TABLES_MAX:
            problems.append(f"there are {TABLES_MAX} tables already")
        if problems:
            raise ConfigError(problems)
        self._told[asked.table] = host_clock(), dict(asked.behind)

    async def report(self, request: Request) -> None:
        example = '{"table": "totals", "behind": {"17": 3}}'
        self.take(decoded(wire.ProgressAsked, await body_of(request.receive), example))
        await answer(request.send, wire.ProgressView(KEPT))
