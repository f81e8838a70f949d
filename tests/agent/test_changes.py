"""A SIGHUP while the ledger is out of reach."""

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from neli_router.agent.server.changes import Changes
from neli_router.member.async_member import AsyncMember
from neli_router.member.member import Member
from neli_router.settings.reload import Reloaded
from tests.support.agents.running import configured
from tests.support.waiting import until


def test_a_weight_is_owed_until_the_ledger_can_be_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The second reading of the same file finds nothing changed, and the weight was never said."""
    caplog.set_level(logging.INFO)

    async def story() -> None:
        inner = Member(configured(tmp_path))
        member = await AsyncMember(inner).open()
        try:
            until(lambda: inner.led)
            changes = Changes(None, weigh_max=2.0)
            with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                await changes.take(lambda: Reloaded(weight=7), member, inner)
                assert "agent.reload_refused" in caplog.text
                until(lambda: inner.obstacle)
            until(lambda: not inner.obstacle)
            assert {} == inner.state.weights
            await changes.take(Reloaded, member, inner)
            until(lambda: {"a": 7} == inner.state.weights)
            await changes.take(Reloaded, member, inner)
        finally:
            await member.close()

    asyncio.run(story())
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("agent.reloaded")]
    assert ["agent.reloaded weight=7", "agent.reloaded changed=nothing"] == told
