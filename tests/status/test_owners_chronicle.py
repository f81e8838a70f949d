"""The public view of a borrowed group: made only from what the store of owners says."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from neli_router.agent.server.views import history_views, member_views, table_view
from neli_router.commands.events import sentence
from neli_router.core.keyspace import Layout
from neli_router.drivers.owners.base import Card, Holding, Listing, Version
from neli_router.drivers.peers.outlook import Outlook, PeerCard
from neli_router.protocols.electors.events import Led
from neli_router.router.table import At
from neli_router.status.ledgerless import EXPLAINED_MAX, OwnersChronicle

LAYOUT = Layout(slots=64, partitions=4)
LEASE = 5.0
HERE, THERE = 100.0, 7_000_000
"""One moment, in seconds of this host's clock and in milliseconds of the store's."""


class Store:
    """The store's content at any moment. Each change has a new number."""

    def __init__(self, chronicle: OwnersChronicle) -> None:
        self.chronicle, self.version, self.layout = chronicle, Version("1", 0), LAYOUT
        self.holders: dict[str, tuple[Card, int]] = {}
        self.holdings: dict[int, Holding] = {}

    def say(self, now: float = 0.0, /, **changes: Mapping[int, int] | None) -> None:
        """At `now`, each of these holders renews and leads these (partition -> term); None withdraws a holder."""
        for name, led in changes.items():
            if led is None:
                self.holders.pop(f"life-{name}", None)
                continue
            card = Card(name, f"{name}:1", 2, "rack-7")
            self.holders[f"life-{name}"] = card, THERE + int(1000 * (now + LEASE))
            self.holdings |= {i: Holding(term, f"life-{name}") for i, term in led.items()}
        self.version = self.version._replace(revision=self.version.revision + bool(changes))
        listing = Listing(self.version, self.layout, THERE + int(1000 * now), dict(self.holders), dict(self.holdings))
        self.chronicle.listed(listing, HERE + now, HERE + now)

    @property
    def shown(self) -> list[tuple[str | None, int]]:
        """The owner and the term of each partition, as a page shows them."""
        table = table_view(self.chronicle.group, "kafka://h/g", At(0, 0.0))
        names = self.chronicle.group.names
        return [(None if one.owner is None else names[one.owner], one.term) for one in table.partitions]

    @property
    def told(self) -> list[str]:
        return [sentence(view) for view in history_views(self.chronicle.group, HERE, 50)]

    def left(self, now: float) -> dict[str, float | None]:
        """How much of each member's lease is left."""
        return {one.name: one.lease_left for one in member_views(self.chronicle.group, HERE + now)}


@pytest.fixture(name="store")
def _store() -> Store:
    return Store(OwnersChronicle(LAYOUT, lease=LEASE, guarantee="exclusive"))


def test_owners_terms_and_members_are_those_that_the_store_names(store: Store) -> None:
    store.say(a={0: 11, 1: 12}, b={3: 13})
    assert [("a", 11), ("a", 12), (None, 0), ("b", 13)] == store.shown
    group = store.chronicle.group
    expected = [("a", "a:1", "rack-7", 2, 2), ("b", "b:1", "rack-7", 2, 1)]
    assert expected == [(m.name, m.address, m.zone, m.weight, m.partitions) for m in group.members(HERE)]
    assert group.is_founded
    assert group.has("life-a")
    assert 64 == group.slots
    assert [] == store.told  # The store's first content is not news.


def test_a_lease_runs_out_by_the_stores_clock_and_is_unknown_while_it_is_away(store: Store) -> None:
    store.say(0.0, a={0: 11})
    assert {"a": pytest.approx(3.0)} == store.left(2.0)
    assert {"a": 0.0} == store.left(9.0)
    store.chronicle.away()
    assert {"a": None} == store.left(60.0)
    assert ("a", 11) == store.shown[0]


def test_a_member_that_was_killed_is_gone_when_its_card_expires_and_its_heir_has_a_higher_term(store: Store) -> None:
    store.say(0.0, a={0: 11, 1: 12}, b={2: 13, 3: 14})
    store.say(4.0, b={})
    store.say(5.1)  # No change in the store: time has passed, and `a` did not renew.
    assert ["b"] == store.chronicle.group.names
    assert [(None, 11), (None, 12), ("b", 13), ("b", 14)] == store.shown
    store.say(8.0, b={0: 21, 1: 22})
    assert [("b", 21), ("b", 22), ("b", 13), ("b", 14)] == store.shown
    expired = "a was expired by the store of owners: 2 partitions to nobody"
    assert [expired, "b leads more: 2 partitions to b"] == store.told
    assert (1, 4) == (store.chronicle.group.counts["expired"], store.chronicle.group.counts["moves"])


def test_a_member_that_took_itself_back_has_left_and_one_that_lost_a_lease_leads_less(store: Store) -> None:
    store.say(a={0: 11}, b={1: 12, 2: 13})
    store.say(1.0, a=None)
    assert ["a left: 1 partition to nobody"] == store.told
    assert ["b"] == store.chronicle.group.names
    store.holdings[1] = Holding(12, "")
    store.say(2.0, b={})
    assert "b leads less: 1 partition to nobody" == store.told[-1]
    assert (None, 12) == store.shown[1]


def test_a_newcomer_is_told_with_the_partitions_that_it_is_given_soon(store: Store) -> None:
    store.say(0.0, a={0: 11, 1: 12, 2: 13, 3: 14})
    store.say(1.0, a={}, b={})
    store.say(2.0, a={}, b={2: 21})
    store.say(3.0, a={}, b={3: 22})
    assert ["b joined: 2 partitions from a to b"] == store.told
    store.say(3.0 + 2 * LEASE, a={}, b={1: 23})
    assert ["b joined: 2 partitions from a to b", "b leads more: 1 partition from a to b"] == store.told
    offsets = [(event.offset, event.last) for event in store.chronicle.group.events]
    assert sorted(offsets) == offsets
    assert len(offsets) == len({offset for offset, _ in offsets})


def knowing(*leaders: Led) -> Outlook:
    return Outlook(HERE, HERE, ("a:7801", "b:7801"), 0, {}, frozenset(), {}, leaders)


def test_among_peers_an_event_has_the_reason_that_the_agents_member_heard_for_that_very_term(store: Store) -> None:
    store.say(a={0: 11, 1: 12})
    store.chronicle.look(knowing(Led(1, 21, "a:7801 ceded; 2 of 3 support it"), Led(0, 12, "an older one")))
    store.say(1.0, a={}, b={})
    store.say(1.0 + 2 * LEASE, a={}, b={0: 21})
    assert ["b joined", "b leads more (a:7801 ceded; 2 of 3 support it): 1 partition from a to b"] == store.told
    store.holdings[1] = Holding(12, "")
    store.chronicle.look(knowing(Led(1, 21, "a:7801 ceded"), Led(None, 12, "it lost its majority")))
    store.say(2.0 + 2 * LEASE, a={}, b={})
    assert "a leads less (it lost its majority): 1 partition to nobody" == store.told[-1]


def test_a_reason_may_come_a_little_later_but_not_for_another_term(store: Store) -> None:
    store.chronicle.look(knowing(Led(0, 11, "it won before"), Led(None, 0, "it has not heard of one yet")))
    store.say(a={0: 11}, b={1: 12})
    store.say(2 * LEASE, a={}, b={0: 21, 1: 12})
    assert ["b leads more: 1 partition from a to b"] == store.told
    (before,) = store.chronicle.group.events
    store.chronicle.look(knowing(Led(1, 21, "3 heartbeats of a:7801 were missed")))
    store.say(2 * LEASE + 1.0)
    assert ["b leads more (3 heartbeats of a:7801 were missed): 1 partition from a to b"] == store.told
    (after,) = store.chronicle.group.events
    assert (before.offset, True) == (after.offset, before.last < after.last)
    store.say(4 * LEASE, a={2: 31}, b={0: 21, 1: 12})
    late = 4 * LEASE + EXPLAINED_MAX
    store.say(late + 1.0, a={}, b={})
    store.chronicle.look(knowing(Led(0, 31, "too late")))
    store.say(late + 2.0, a={}, b={})
    assert "a leads more: 1 partition to a" == store.told[-1]


def test_among_peers_members_are_drained_that_say_so(store: Store) -> None:
    store.chronicle.look(replace(knowing(), cards={0: PeerCard("a"), 1: PeerCard("b", drained=True)}))
    store.say(a={0: 11}, b={1: 12})
    assert [False, True] == [member.drained for member in store.chronicle.group.members(HERE)]
    before = store.chronicle.group
    store.say(1.0, a={}, b={})
    assert before.looks_like(store.chronicle.group)
    store.chronicle.look(replace(knowing(), cards={}))
    store.say(2.0, a={}, b={})
    assert [False, False] == [member.drained for member in store.chronicle.group.members(HERE)]


def test_a_table_that_no_member_ever_told_of_is_no_group_and_one_that_was_made_anew_no_departure(store: Store) -> None:
    store.chronicle.listed(Listing(Version("", 0), None, THERE, {}, {}), HERE, HERE)
    assert not store.chronicle.group.is_founded
    store.say(a={0: 11}, b={1: 12})
    store.chronicle.listed(Listing(Version("", 0), None, THERE, {}, {}), HERE, HERE)
    store.version = Version("2", 0)
    del store.holders["life-b"], store.holdings[1]
    store.say(1.0, a={})
    store.say(2.0, a={}, b={1: 12})
    joined = ["a joined: 1 partition to a", "b joined: 1 partition to b"]
    assert [*joined, "b joined: 1 partition to b"] == store.told
    assert 1 == store.chronicle.group.counts["restarts"]


def test_renewals_alone_change_nothing_that_people_see_and_another_groups_table_is_not_shown(store: Store) -> None:
    store.say(0.0, a={0: 11})
    before = store.chronicle.group
    store.say(1.0, a={})
    assert store.chronicle.group.looks_like(before)
    store.say(2.0, a={1: 12})
    assert not store.chronicle.group.looks_like(before)
    store.layout = Layout(slots=64, partitions=8)
    store.say(b={5: 11})
    assert ["a"] == store.chronicle.group.names
