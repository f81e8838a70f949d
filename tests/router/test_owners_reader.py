"""The reader of a store of owners, without a real store. tests/drivers/owners tests it with a real Redis."""

from contextlib import closing

import pytest

from neli_router.core.clock import host_clock
from neli_router.core.keyspace import Layout
from neli_router.drivers.owners.base import Card, Claim, Holding, Listing, OwnersChange, OwnersSource, Receipt, Version
from neli_router.errors import LedgerUnavailable
from neli_router.router.feed import Feed
from neli_router.router.owners_reader import RENEWAL_MAX, OwnersReader, renewable
from tests.support.waiting import until

NOW, NOW_MS = 100.0, 7_000_000
LAYOUT = Layout(slots=64, partitions=1)
CARD = Card("a", "a:1")


@pytest.mark.parametrize(
    ("expires_in", "late_in", "expected"),
    [
        (2000, None, 2000),
        (-500, None, 0),  # It expired by now at the latest.
        (-500, 3.0, 3000),
        (500, 3.0, 3000),
        (4000, 3.0, 4000),
        (-500, -1.0, -500),
    ],
)
def test_a_holder_does_not_expire_before_it_could_renew(expires_in: int, late_in: float | None, expected: int) -> None:
    late = {} if late_in is None else {"life": NOW + late_in}
    found = renewable({"life": (CARD, NOW_MS + expires_in)}, NOW_MS, late, NOW)
    assert {"life": (CARD, NOW_MS + expected)} == found
    # A holder that withdrew is not late.
    assert {"life": (CARD, 0)} == renewable({"life": (CARD, 0)}, NOW_MS, late, NOW)


class Shelf:
    """A store that is here or away, as the test sets it. Its one holder has `left_ms` to live."""

    address = "shelf://here"

    def __init__(self) -> None:
        self.left_ms, self.is_away, self.asked = 1000, False, 0

    def table(self, known: Version | None = None) -> Listing:
        self._require_here()
        self.asked += 1
        holders = {"life": (CARD, NOW_MS + self.left_ms)}
        return Listing(Version("1", 1), LAYOUT, NOW_MS, holders, {0: Holding(11, "life")})

    def follow(self, timeout: float) -> list[OwnersChange]:
        self._require_here()
        return []

    def publish(self, layout: Layout, claim: Claim) -> Receipt:
        raise NotImplementedError

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _require_here(self) -> None:
        if self.is_away:
            raise LedgerUnavailable("the shelf was wanted", "it is away", "wait")


class Seen(list[int | None]):
    """Everything that a tap received: how many holders were alive each time, or None for an outage."""

    def listed(self, listing: Listing, asked_at: float, now: float) -> None:
        self.append(sum(expires_ms > listing.now_ms for _, expires_ms in listing.holders.values()))

    def away(self) -> None:
        self.append(None)


def test_after_an_outage_that_outlived_a_holder_nothing_expires_until_it_could_renew() -> None:
    shelf, seen, time = Shelf(), Seen(), [host_clock()]
    feed, source = Feed("", layout=LAYOUT, tell=lambda _: None), OwnersSource(shelf.address, lambda: shelf)
    with closing(feed), closing(OwnersReader(feed, source, clock=lambda: time[0], tap=seen)):
        until(lambda: 1 in seen)
        shelf.is_away, shelf.left_ms = True, -5000
        until(lambda: None in seen)
        asked, shelf.is_away = shelf.asked, False
        until(lambda: shelf.asked > asked)
        until(lambda: seen[-1] is not None)
        assert 0 not in seen
        time[0] += RENEWAL_MAX + 1
        until(lambda: seen[-1] == 0)
