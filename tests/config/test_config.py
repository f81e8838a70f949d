"""Configurations: which ones are refused, with which messages, and what a valid one becomes."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from neli_router.config.config import Config
from neli_router.config.options import in_shell
from neli_router.config.protocols import Gossip, Induction, Term
from neli_router.core.keyspace import Layout
from neli_router.drivers import addresses
from neli_router.drivers.addresses import public_address
from neli_router.drivers.ledgers.base import Promise
from neli_router.drivers.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.errors import ConfigError
from neli_router.protocols.electors.settings import GossipSettings, TermSettings


def problems_of(**options: object) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        Config.of({"ledger": "memory://jobs", **options})
    return list(raised.value.problems)


def test_a_ledger_is_all_that_must_be_said_and_a_mapping_may_hold_the_layout_as_a_mapping() -> None:
    made = Config("memory://jobs")
    assert (Layout(), 1.0, "exclusive", "induction") == (made.layout, made.lease, made.guarantee, made.protocol_name)
    assert made == Config.of({"ledger": "memory://jobs"})
    paths = Config(Path("x/jobs.db")), Config.given(Path("x/jobs.db"))  # type: ignore[arg-type]
    assert [Config("sqlite:x/jobs.db")] * 2 == [*paths]
    made = Config.of({"ledger": "memory://jobs", "layout": {"partitions": 8, "tags": True}, "lease": 2})
    assert (Layout(partitions=8, tags=True), 2) == (made.layout, made.lease)
    with pytest.raises(ConfigError, match=r"^no ledger is named: say where it is, such as ledger='sqlite:"):
        Config.of({"lease": 1.0})


def test_all_problems_are_named_at_once() -> None:
    found = problems_of(
        ledger="sqlit:jobs.db",
        leese=3,
        beat=2,
        name="",
        weight=-1,
        term_base=-1,
        protocol="induktion",
        layout={"slots": 0, "partition": 3},
        accept_rewinds="yes",
        max_age=0,
    )
    known = (
        "accept_rewinds, address, beat, delay_max, drain_timeout, grace, guarantee, layout, lease, ledger, "
        "max_age, name, ownership, protocol, replace, snapshot_every, term_base, weight, witness, zone"
    )
    expected = f"""
induktion is not a known protocol: did you mean induction? Choose from fast-neli, gossip, induction, neli, term
leese is not a known option: did you mean lease? Choose from {known}
accept_rewinds='yes' must be True or False
layout.partition is not a known option: did you mean layout.partitions? Choose from partitions, slots, tags
slots=0 must be a whole number of at least 1
sqlit is not a known kind of ledger: did you mean sqlite? Choose from kafka, memory, postgresql, redis, \
redis+sentinel, redis+unix, rediss, rediss+sentinel, sqlite
the member's name is empty: give each process a name of its own
weight=-1 must be a whole number from 0 to 1000000: 1 for an equal share
term_base=-1 must be a whole number from 0 to 4503599627370496: correct it
beat=2 must be above 0 and at most a quarter of lease=1.0, or one lost beat would look like silence: lower beat to \
0.25 or raise lease to 8
max_age=0 would make every table too old: give it some seconds, or None for no limit
"""
    assert expected.strip() == "\n".join(found)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"protocol": "zookeeper"}, "zookeeper is not a known protocol: choose from fast-neli, gossip, induction, "),
        ({"name": 7}, "name=7 must be text, or None"),
        ({"max_age": "never"}, "max_age='never' must be a number of seconds, "),
        ({"guarantee": ["exclusive"]}, "guarantee=['exclusive'] must be text"),
        ({"layout": 8}, "layout=8 must be a Layout(slots=..., partitions=..., tags=...)"),
        ({"ledger": "jobs.db"}, "ledger='jobs.db' does not say what kind of ledger it is: write sqlite:///"),
        ({"ledger": "/var/a:b"}, "ledger='/var/a***' does not say what kind of ledger it is"),
        ({"ledger": "sqlite://var/jobs.db"}, "ledger='sqlite://var/jobs.db' names the host 'var', and a file has none"),
        ({"ledger": "sqlite:a.db?key=b"}, "ledger='sqlite:a.db?***' has options, and a file takes none: take away t"),
        ({"ownership": "sqlite:a.db?key=b"}, "ownership='sqlite:a.db?***' is not an address in Redis or PostgreSQL"),
        ({"ledger": "sqlite:"}, "ledger='sqlite:' does not say where it is"),
        ({"witness": "chlid"}, "witness='chlid' is unknown: choose auto, agent, child or none"),
        ({"ownership": "redis://host"}, "ownership='redis://host': a group was wanted"),
        ({"ledger": None}, "ledger=None must be text"),
    ],
)
def test_one_problem_is_told_in_words_that_help(options: dict[str, object], expected: str) -> None:
    assert expected == problems_of(**options)[0][: len(expected)]


def test_a_bad_lease_is_one_problem_in_each_protocol_and_a_pipe_of_settings_is_refused(tmp_path: Path) -> None:
    borrowed = {"protocol": "neli", "ledger": "kafka://h:1/jobs"}
    for options in ({}, borrowed, {**borrowed, "guarantee": "available"}, {**borrowed, "protocol": "fast-neli"}):
        for lease in ("long", 0, -1, -0.5):
            assert [f"lease={lease!r} must be a number of seconds above 0"] == problems_of(lease=lease, **options)
    os.mkfifo(tmp_path / "pipe")
    (found,) = addresses.problems_of(f"kafka://localhost/jobs?config={tmp_path}/pipe")
    assert "is not a regular file: name a file" in found


SECRETS = """
secret@host  secret@host:9092  http://host:secret  //user:secret@host/jobs  redis:secret@host  nonsense:secret
kafka://host/jobs?sasl.password=a&secret  kafka://host/jobs?sasl.password=a&secret=  sqlite://u:secret@h/x
kafka://host/jobs?sasl_pwd=secret  kafka://host/jobs?sasl.p%61ssword=secret  redis://host:secret/jobs
redis://host/jobs?password=a&secret  redis+sentinel://host/jobs?service=main&sentinel_pasword=secret
redis://user:secret@host:6379/jobs?db=x  redis+unix:///run/redis.sock?group=jobs&secret  memory://a?secret
redis://user:a/secret@host/jobs  sqlite:///jobs.db?key=secret
postgresql://u:a/secret@h/db?group=g  postgresql://u:a?secret@h/db?group=g
postgresql://h/db?group=g&password=a&secret  postgresql+psycopg2://u:secret@h/db  postgres:///db?password=secret
postgresql://h/db?group=g&passwrod=secret  postgresql://secret@h/db?group=g
"""


def test_nothing_that_may_be_a_secret_is_shown_of_an_address_and_what_is_none_is() -> None:
    for address in SECRETS.split():
        assert "secret" not in " ".join((public_address(address), *addresses.problems_of(address))), address
        assert "secret" not in "".join(problems_of(ledger=address, lease=0)), address
    made = Config("memory://user:secret@jobs")
    assert (False, True) == ("secret" in repr(made), "memory://***" in repr(made))
    for address, shown in (
        ("kafka://a:1,b:2/jobs?replication=3", "kafka://a:1,b:2/jobs?replication=3"),
        ("kafka://u:p@a:1/jobs?replication=3&ssl.key.password=p", "kafka://***@a:1/jobs?replication=3&***"),
        ("redis://:p@a:1/jobs?db=2", "redis://***@a:1/jobs?db=2"),
        ("postgres://u:p@a,b/db?group=g&sslkey=v&sslmode=require", "postgres://***@a,b/db?group=g&***&sslmode=require"),
        ("sqlite:///var/lib/a@b.db", "sqlite:///var/lib/a@b.db"),
    ):
        assert shown == public_address(address)


def test_a_configuration_is_a_value_with_all_that_the_protocol_needs_and_a_fresh_name_if_it_has_none() -> None:
    made = Config("memory://jobs", name="a")
    assert {made} == {pickle.loads(pickle.dumps(made)), Config("memory://jobs", name="a")}  # noqa: S301 - our own.
    given: dict[str, Any] = {"name": "a", "address": "host:1", "weight": 3, "zone": "z", "lease": 2.0}
    found = Config("memory://jobs", beat=0.1, **given).settings()
    assert given == {name: getattr(found, name) for name in given}
    assert 0.1 == found.beat_every
    first, second = (Config("memory://jobs").settings().name for _ in range(2))
    assert (True, True) == (first != second, f"-{os.getpid()}-" in first)


class Forgetful(MemoryLedger):
    """A ledger that may lose records it has shown, like a replicated cache."""

    promises: frozenset[Promise] = frozenset()
    address = "forgetful"


def test_exclusive_is_refused_on_a_ledger_that_may_rewind_unless_that_is_accepted() -> None:
    ledger = Forgetful(MemoryLog())
    expected = "forgetful may lose records.*say accept_rewinds=True and fence every act that matters"
    with pytest.raises(ConfigError, match=f"needs a ledger that never rewinds, and {expected}") as refused:
        Config("memory://jobs").require_promises(ledger)
    assert "another ledger or --guarantee available, or say --accept-rewinds and fence" in in_shell(str(refused.value))
    Config("memory://jobs", protocol=Induction(accept_rewinds=True)).require_promises(ledger)
    Config("memory://jobs", guarantee="available").require_promises(ledger)
    Config("memory://jobs").require_promises(MemoryLedger(MemoryLog()))


PEERS = "peers://127.0.0.1:7801,127.0.0.1:7802,127.0.0.1:7803/jobs"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"ledger": "sqlite:jobs.db"}, "'sqlite:jobs.db' is not a list of peers: write peers://a:7801,b:7801,c:7801/"),
        ({"ledger": "peers://a:7801/jobs", "protocol": "induction"}, "is not a ledger of induction: choose the protoc"),
        ({"ledger": "peers://127.0.0.1:7801"}, "a group was wanted after the peers"),
        ({"policy": "oldest"}, "policy='oldest' is unknown: choose 'random' or 'priority'"),
        ({"replicas": 4}, "replicas=4 must be from 1 to the 3 peers, or None for all"),
        ({"replicas": "all"}, "replicas='all' must be a whole number, or None"),
        ({"replicas": 2, "policy": "random"}, "replicas requires policy='priority'"),
        ({"misses": 1}, "misses=1 must be at least 2, or one late heartbeat would seem to end a leader"),
        ({"wait_max": 1.0}, "wait_max requires policy='random', which draws waits: leave it out"),
        ({"protocol": "gossip", "phi_max": 0}, "phi_max=0 must be from 1 to 100"),
        ({"protocol": "gossip", "window": 1}, "window=1 must be from 2 to 10000"),
        ({"protocol": "gossip", "policy": "random"}, "policy is an option of the protocol term, and gossip has"),
        ({"first_class": 2}, "first_class is an option of the protocol gossip, and term has none: leave it out"),
        ({"protocol": "gossip", "first_class": 4}, "first_class=4 must be from 1 to the 3 peers, or None for all"),
        ({"beat": 0.6}, "beat=0.6 must be above 0 and at most lease/3=0.5: lower it, or raise lease to 1.8"),
        ({"protocol": "gossip", "beat": 1.0}, "beat=1 must be above 0 and at most lease/5=0.6: lower it, or raise"),
        ({"lease": 7200}, "lease=7200 must be from 0.01 to 3600.0 seconds"),
        ({"term_base": -1}, "term_base=-1 must be a whole number from 0"),
        ({"guarantee": "available"}, "guarantee='available' is not of term, which is exclusive: choose the"),
        ({"layout": Layout(slots=16384, partitions=8192)}, "8192 partitions are too many for term"),
    ],
)
def test_one_problem_of_a_group_of_peers_is_told_in_words_that_help(options: dict[str, Any], expected: str) -> None:
    (found,) = problems_of(**{"ledger": PEERS, "protocol": "term", **options})
    assert expected in found


def test_all_problems_of_a_group_of_peers_are_told_at_once() -> None:
    options = {"replicas": 9, "beat": 2.0, "guarantee": "available", "witness": "agent", "zone": 7}
    assert len(options) == len(problems_of(ledger=PEERS, protocol="term", **options))


def test_peers_have_defaults_that_leave_room_for_two_lost_heartbeats_and_classes_if_they_are_told_so() -> None:
    term = Config(PEERS, protocol="term").peer_settings(1)
    assert isinstance(term, TermSettings)
    assert (1.5, 0.5, "priority", 1) == (term.lease, term.beat, term.policy, term.me)
    slow = Config(PEERS, protocol=Term(policy="random", misses=5, wait_max=4.0), beat=0.2).peer_settings(1)
    assert isinstance(slow, TermSettings)
    assert (1.5, 1.5, 1.0, 4.0) == (term.time_out, term.longest_wait, slow.time_out, slow.longest_wait)
    classes: dict[str, Any] = {"first_class": 1, "relay": True, "phi_max": 5, "window": 30}
    for options, expected in (({}, (None, False, 3, 8, 100)), (classes, (1, True, 1, 5, 30))):
        gossip = Config(PEERS, protocol=Gossip(**options), name="a").peer_settings(2)
        assert isinstance(gossip, GossipSettings)
        assert (3.0, 0.3, "a") == (gossip.lease, gossip.beat, gossip.name)
        assert expected == (gossip.first_class, gossip.relay, gossip.voters, gossip.phi_max, gossip.window)


def test_an_even_number_of_voters_is_a_doubt_that_says_what_it_costs() -> None:
    def doubts(count: int, **options: Any) -> list[str]:
        peers = ",".join(f"127.0.0.1:{7801 + i}" for i in range(count))
        return Config.of({"ledger": f"peers://{peers}/jobs", "protocol": "term", **options}).peer_settings(0).doubts

    assert [[], [], [], []] == [doubts(1), doubts(3), doubts(5), doubts(4, replicas=3)]
    for expected, found in (
        ("2 peers need 2 for a majority, and bear no failure, as one alone does", doubts(2)),
        ("6 peers need 4 for a majority, and bear 2 failures, as 5 do", doubts(6)),
        ("4 that elect together need 3 for a majority, and bear 1 failure, as 3 do", doubts(5, replicas=4)),
        ("4 that elect together need 3 for", doubts(9, protocol="gossip", first_class=4)),
    ):
        assert expected in found[0]


def test_members_of_one_list_have_one_ledger_for_people_and_an_address_that_is_none_shows_no_secret() -> None:
    assert {PEERS} == {Config(f"{PEERS}?me=127.0.0.1:780{i}", protocol="term").public_ledger for i in (1, 2, 3)}
    assert f"{PEERS}?me=127.0.0.1:7801" == public_address(f"{PEERS}?me=127.0.0.1:7801")
    address = "peers://me:geheim@127.0.0.1:7801/jobs"
    assert "geheim" not in public_address(address) + "".join(problems_of(ledger=address, protocol="term"))
