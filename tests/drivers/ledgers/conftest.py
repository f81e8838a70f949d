"""The machine may be busy: no test of a ledger depends on a server's speed."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from neli_router.drivers.addresses import problems_of
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.open import open_ledger
from tests.support.asking import Open, take, write
from tests.support.waiting import PATIENCE


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers late is not given up: by then, its driver would drop what it has sent."""
    for bound in ("postgresql.link.ANSWER_MAX", "redis.link.ANSWER_MAX", "asked.SETTLE_MAX", "asked.QUIET_MAX"):
        monkeypatch.setattr(f"neli_router.drivers.ledgers.{bound}", PATIENCE)


@pytest.fixture
def opened() -> Iterator[Open]:
    with ExitStack() as stack:

        def open_one(url: str, *, create: bool = True) -> Ledger:
            assert [] == problems_of(url)
            return stack.enter_context(closing(open_ledger(url, create=create, patience=PATIENCE)))

        yield open_one


@pytest.fixture
def begun(opened: Open) -> Open:
    """Opens a ledger, and writes and reads these payloads."""

    def begin(url: str, *payloads: bytes) -> Ledger:
        ledger = opened(url)
        write(ledger, *payloads)
        assert [*payloads] == take(ledger, len(payloads))
        return ledger

    return begin
