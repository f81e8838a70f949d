"""The public view of a group without a broker: made only from what one member knows of its peers."""

from dataclasses import replace

from neli_router.agent.server.views import history_views, peers_view, table_view, why_unled
from neli_router.commands.events import sentence
from neli_router.core.keyspace import Layout
from neli_router.drivers.peers.outlook import Outlook, PeerCard
from neli_router.protocols.electors.events import Led
from neli_router.router.table import At
from neli_router.status.ledgerless import PeersChronicle
from tests.drivers.peers.test_outlook import START as QUIET

A, B, C = PEERS = QUIET.peers
LEASE = 5.0
START = replace(
    QUIET, heard_at={1: 100.0, 2: 100.0}, leaders=(Led(0, 7, "2 of 3 support it"), Led(1, 8, ""), Led(1, 9, ""), None)
)
GONE = replace(
    START,
    at=110.0,
    silent=frozenset({1}),
    leaders=(Led(0, 7, ""), Led(None, 8, "3 heartbeats of b:1 were missed"), Led(2, 10, "b:1 ceded"), None),
)


def shown(*outlooks: Outlook) -> PeersChronicle:
    chronicle = PeersChronicle(Layout(slots=64, partitions=4), lease=LEASE, guarantee="exclusive")
    for outlook in outlooks:
        chronicle.look(outlook)
    return chronicle


def said(chronicle: PeersChronicle) -> list[str]:
    return [sentence(view) for view in history_views(chronicle.group, 200.0, 50)]


def test_members_are_the_peers_and_a_missing_leader_is_explained_by_a_missing_majority_first() -> None:
    group = shown(START).group
    table = table_view(group, "peers://", At(group.at, 0.0))
    assert [(0, 7), (1, 8), (1, 9), (None, 0)] == [(one.owner, one.term) for one in table.partitions]
    assert list(PEERS) == group.names
    view = peers_view(GONE)
    assert [("here", 1), ("silent", 0), ("alive", 1)] == [(one.state, one.leads) for one in view.peers]
    assert (2, 2, 10, 1) == (view.majority, view.alive, view.term, view.unled)
    assert "" == why_unled(START)
    assert "an election is under way: 3 heartbeats of b:1 were missed" == why_unled(GONE)
    lost = replace(GONE, silent=frozenset({1, 2}))
    assert "1 of 3 peers answer, this one included, and it takes 2 to elect a leader" == why_unled(lost)


def test_a_start_is_told_as_leads_and_later_silence_with_the_reasons_of_each_change_and_a_refusal_once() -> None:
    expected = ["a:1 leads, term 7 (2 of 3 support it): 1 partition to a:1", "b:1 leads: 2 partitions to b:1"]
    assert expected == said(shown(replace(START, silent=frozenset({2}), heard_at={1: 100.0})))
    assert [
        "b:1 is silent (nothing is heard of it)",
        "b:1 no longer leads (3 heartbeats of b:1 were missed): 1 partition to nobody",
        "c:1 leads, term 10 (b:1 ceded): 1 partition from b:1 to c:1",
    ] == said(shown(START, GONE))[2:]
    assert "b:1 answers again" == said(shown(START, GONE, replace(GONE, at=111.0, silent=frozenset())))[-1]
    refused = replace(START, at=101.0, refusals={2: "key"})
    told = said(shown(START, refused, replace(refused, at=102.0), replace(refused, at=103.0, silent=frozenset({2}))))
    assert ["c:1 is silent (what comes from it is refused: key)"] == told[2:]


def test_a_peer_that_still_leads_others_leads_less_its_heir_is_named_and_events_differ_by_their_reasons() -> None:
    whole = replace(START, leaders=(Led(1, 9, ""), Led(1, 9, ""), Led(1, 9, ""), None))
    first = replace(whole, at=101.0, leaders=(Led(None, 9, "b:1 ceded to c:1"), *whole.leaders[1:]))
    assert "b:1 leads less (b:1 ceded to c:1): 1 partition given to c:1" == said(shown(whole, first))[-1]
    last = replace(first, at=102.0, leaders=(*[Led(None, 9, "b:1 ceded to c:1")] * 3, None))
    assert ["b:1 no longer leads (b:1 ceded to c:1): 3 partitions given to c:1"] == said(shown(whole, first, last))[1:]
    none = replace(START, leaders=(None,) * 4)
    two, three = Led(1, 7, "2 of 3 support it"), Led(1, 9, "3 of 3 support it")
    found = replace(none, at=101.0, leaders=(two, three, None, None))
    more = replace(found, at=102.0, leaders=(two, three, three, None))
    expected = [
        "b:1 leads, term 7 (2 of 3 support it): 1 partition to b:1",
        "b:1 leads, term 9 (3 of 3 support it): 2 partitions to b:1",
    ]
    assert expected == said(shown(none, found, more))
    other = replace(more, at=103.0, leaders=(two, three, three, three._replace(term=12)))
    assert [expected[0], "b:1 leads (3 of 3 support it): 3 partitions to b:1"] == said(shown(none, found, more, other))


def test_what_peers_say_of_themselves_is_no_news_and_leaders_that_come_within_a_lease_are_one_event() -> None:
    told = replace(START, at=101.0, cards={1: PeerCard("m1", "10.0.0.1:9000", drained=True)})
    chronicle = shown(START, told)
    expected = [("a:1", "", False), ("b:1", "10.0.0.1:9000", True), ("c:1", "", False)]
    assert expected == [(one.name, one.address, one.drained) for one in chronicle.group.members(200.0)]
    assert said(shown(START)) == said(chronicle)
    before = chronicle.group
    chronicle.look(replace(told, at=102.0))
    assert before.looks_like(chronicle.group)
    later = replace(START, at=102.0, leaders=(Led(1, 9, ""), *START.leaders[1:]))
    assert ["b:1 leads: 3 partitions from nobody, a:1 to b:1"] == said(shown(START, later))[1:]
    assert 3 == len(said(shown(START, replace(later, at=100.0 + 2 * LEASE))))
