"""The metrics: read back by Prometheus' own parser, and checked against its conventions."""

import time
from collections import Counter, deque
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from neli_router.agent.server.connections import AgentTraffic
from neli_router.agent.server.metrics import Delays, MetricsSnapshot, render
from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.drivers.peers.outlook import Outlook
from neli_router.fence import tally
from neli_router.protocols.electors.events import Led
from tests.support.agents.running import Running
from tests.support.waiting import beside, until

NORMAL = MetricsSnapshot(
    config=Config("memory://jobs"),
    name="alice",
    version="0.1.0",
    lease_left=0.75,
    leases_left={"alice": 0.75, "bob": 0.5},
    delays=Delays(deque()),
    counts={"records": 1000, "skipped": 1, "suspicions": 2, "expired": 6, "certified": 4, "moves": 40},
    fenced=1,
    refused_writes=3,
    table_age=0.01,
    members=2,
    partitions=256,
    owned=250,
    led=128,
    idle=0.25,
    behind={"totals": {7: 3}},
    is_powerless=False,
    ledger_available=True,
    witnessed=3,
    certificates=1,
    traffic=AgentTraffic(
        answers=Counter({"200": 90, "404": 2}), lookups=Counter(owned=7, NoOwner=2), waiting=4, streams=5
    ),
)

OUTLOOK = Outlook(
    at=100.0,
    began=0.0,
    peers=("a:1", "b:1", "c:1", "d:1"),
    me=0,
    heard_at={1: 99.5, 3: 40.0},
    silent=frozenset({2, 3}),
    refusals={3: "key"},
    leaders=(Led(1, 7, "2 of 3 support it"), Led(None, 9, "3 heartbeats of b:1 were missed"), None),
    transitions={("follower", "leader_missed"): 1, ("leader", "elected"): 0},
    leader_changes=2,
    counts={"sent": 10, "taken": 8, "unsent": 1, "refused.key": 3, "refused.stale": 0},
)
"""The outlook of a member that elects among peers: one answers, one was never heard, and one has another key."""

STORE = "redis://h:6379/jobs"
AMONG_PEERS = Config("peers://127.0.0.1:1,127.0.0.1:2/jobs", protocol="term")


def families(**different: Any) -> dict[str, Metric]:
    text = render(replace(NORMAL, **different)).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(**different: Any) -> dict[str, float]:
    """Every sample, written like in a query."""
    found = {}
    for family in families(**different).values():
        for sample in family.samples:
            labels = ",".join(f"{name}={text!r}" for name, text in sorted(sample.labels.items()))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def test_every_fact_is_told_and_what_never_happened_as_0() -> None:
    """An alert on a counter that only appears with its first event would miss that event."""
    expected = {
        "neli_agent_info{guarantee='exclusive',member='alice',protocol='induction',version='0.1.0'}": 1,
        "neli_lease_seconds": 1.0,
        "neli_lease_left_seconds": 0.75,
        "neli_member_lease_left_seconds{member='alice'}": 0.75,
        "neli_member_lease_left_seconds{member='bob'}": 0.5,
        "neli_append_to_read_seconds_count": 0,
        "neli_append_to_read_seconds_sum": 0,
        "neli_records_total": 1000,
        "neli_skipped_records_total": 1,
        "neli_suspicions_total": 2,
        "neli_expired_members_total": 6,
        "neli_certified_members_total": 4,
        "neli_handovers_total": 0,
        "neli_moves_total": 40,
        "neli_fenced_total": 1,
        "neli_refused_writes_total": 3,
        "neli_table_age_seconds": 0.01,
        "neli_lookups_total{outcome='owned'}": 7,
        "neli_lookups_total{outcome='NoOwner'}": 2,
        "neli_members": 2,
        "neli_partitions": 256,
        "neli_partitions_owned": 250,
        "neli_partitions_unowned": 6,
        "neli_partitions_led": 128,
        "neli_idle_seconds": 0.25,
        "neli_steps_behind{partition='7',table='totals'}": 3,
        "neli_can_expire": 1,
        "neli_ledger_available": 1,
        "neli_waiting_clients": 4,
        "neli_streams": 5,
        "neli_witnessed_members": 3,
        "neli_certificates_total": 1,
        "neli_requests_total{outcome='200'}": 90,
        "neli_requests_total{outcome='404'}": 2,
    }
    told = {name: value for name, value in values().items() if name.startswith("neli_") and "_bucket{" not in name}
    assert expected == told


def test_what_has_ended_or_is_away_is_told_and_a_member_may_be_called_anything() -> None:
    told = values(table_age=inf)
    assert (inf, 0) == (told["neli_table_age_seconds"], told["neli_ledger_available"])
    assert 0 == values(ledger_available=False)["neli_ledger_available"]
    assert 0 == values(is_powerless=True)["neli_can_expire"]
    told = values(lease_left=-0.5, leases_left={"bob": -3.0})
    assert 0 == told["neli_lease_left_seconds"]
    assert 0 == told["neli_member_lease_left_seconds{member='bob'}"]
    for name in ('quo"te', "back\\slash", "two\nlines", "ünïcode", "", "a,b={c}"):
        found = families(name=name, leases_left={name: 0.5})
        for family in ("neli_member_lease_left_seconds", "neli_agent_info"):
            assert [name] == [sample.labels["member"] for sample in found[family].samples]


def test_what_a_borrowed_group_does_not_have_is_left_out_and_not_zero() -> None:
    borrowed = Config("kafka://h:9092/jobs", protocol="neli", ownership=STORE)
    told = values(config=borrowed, lease_left=None, counts={"expired": 1, "moves": 2})
    absent = ("records", "skipped_records", "suspicions", "certified_members", "handovers")
    assert not {f"neli_{name}_total" for name in absent} & told.keys()
    assert not [name for name in told if name.startswith(("neli_append_to_read", "neli_can_expire", "neli_lease_left"))]
    assert (1, 2) == (told["neli_expired_members_total"], told["neli_moves_total"])
    assert 1 == told["neli_agent_info{guarantee='exclusive',member='alice',protocol='neli',version='0.1.0'}"]


def test_of_peers_is_told_who_answers_who_leads_and_what_was_refused() -> None:
    told = values(config=AMONG_PEERS, outlook=OUTLOOK)
    expected = {
        "neli_peers": 4,
        "neli_peers_alive": 2,
        "neli_peers_majority": 3,
        "neli_peer_alive{peer='b:1'}": 1,
        "neli_peer_alive{peer='c:1'}": 0,
        "neli_peer_alive{peer='d:1'}": 0,
        "neli_peer_age_seconds{peer='b:1'}": 0.5,
        "neli_peer_age_seconds{peer='c:1'}": 100,
        "neli_peer_age_seconds{peer='d:1'}": 60,
        "neli_datagrams_total{outcome='sent'}": 10,
        "neli_datagrams_total{outcome='taken'}": 8,
        "neli_datagrams_total{outcome='unsent'}": 1,
        "neli_refused_datagrams_total{reason='key'}": 3,
        "neli_refused_datagrams_total{reason='stale'}": 0,
        "neli_term": 9,
        "neli_partitions_unled": 1,
        "neli_transitions_total{reason='leader_missed',role='follower'}": 1,
        "neli_transitions_total{reason='elected',role='leader'}": 0,
        "neli_leader_changes_total": 2,
    }
    assert expected == {name: told.get(name) for name in expected}
    # Without a store of owners, nothing shows that a table is old or a ledger unreachable.
    assert not {"neli_table_age_seconds", "neli_ledger_available"} & told.keys()
    with_store = values(config=replace(AMONG_PEERS, ownership=STORE), outlook=OUTLOOK)
    assert {"neli_table_age_seconds", "neli_ledger_available"} <= with_store.keys()


def test_delays_fall_into_buckets_that_add_up_and_are_counted_once_however_often_they_are_scraped() -> None:
    source = deque([0.0001, 0.0005, 0.003, 0.003, 99.0])
    delays = Delays(source)
    for _ in range(2):
        told = values(delays=delays)
        expected = {"0.0005": 2, "0.001": 2, "0.0025": 2, "0.005": 4, "10.0": 4, "+Inf": 5}
        assert expected == {bound: told[f"neli_append_to_read_seconds_bucket{{le='{bound}'}}"] for bound in expected}
        assert 5 == told["neli_append_to_read_seconds_count"]
        assert pytest.approx(99.0066) == told["neli_append_to_read_seconds_sum"]
    source.append(0.02)
    assert 6 == values(delays=delays)["neli_append_to_read_seconds_count"]


class Yielding(deque[float]):
    """Another thread gets its turn before each value is taken."""

    def popleft(self) -> float:
        time.sleep(0.001)
        return super().popleft()


def test_scrapes_at_once_count_each_delay_once() -> None:
    delays = Delays(Yielding([0.01] * 100))
    with beside(*[delays.taken] * 4):
        pass
    buckets, total = delays.taken()
    assert ("+Inf", 100.0) == buckets[-1]
    assert pytest.approx(1.0) == total


def test_the_own_lease_counts_from_sending_and_refused_writes_are_counted(agent: Running) -> None:
    one = agent.agent
    lease = one.config.lease

    def holds() -> bool:
        vital = one.chronicle.group.vitals[one.member.incarnation]
        since_read = vital.heard_at + lease - host_clock()
        snapshot = one.snapshot()
        return 0 < (snapshot.lease_left or 0) < since_read and snapshot.leases_left["a"] < since_read

    until(holds)
    before = one.snapshot().refused_writes
    tally.count(refused=True)
    assert before + 1 == one.snapshot().refused_writes
