"""The machine may be busy: no test of a ledger depends on a server's speed."""

import pytest

from tests.support.waiting import PATIENCE


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers late is not given up: by then, its driver would drop what it has sent."""
    for bound in ("postgresql.link.ANSWER_MAX", "redis.link.ANSWER_MAX", "asked.SETTLE_MAX", "asked.QUIET_MAX"):
        monkeypatch.setattr(f"neli_router.drivers.ledgers.{bound}", PATIENCE)
