"""Members whose group has neither ledger nor broker, on a clock that the tests turn."""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from neli_router import testing
from neli_router.config.config import Config
from neli_router.errors import BeyondProtocol, ConfigError
from neli_router.member.member import Member
from neli_router.router.router import Router
from neli_router.testing import Group
from tests.support.servers.process import free_udp_ports
from tests.support.waiting import PATIENCE

PARTITIONS = 6


class Listed:
    """A list of peers on loopback, as their addresses."""

    def __init__(self, folder: Path, count: int = 3) -> None:
        self.places = [f"127.0.0.1:{port}" for port in free_udp_ports(count)]
        self._folder = folder

    def address(self, i: int) -> str:
        (state := self._folder / f"state{i}").mkdir(mode=0o700, exist_ok=True)
        return f"peers://{','.join(self.places)}/jobs?me={self.places[i]}&state={state}"


def shares(*members: Member) -> list[int]:
    return [len(member.led) for member in members]


@contextmanager
def trio(protocol: str = "term", **options: Any) -> Iterator[tuple[Group, list[Member], Sequence[str]]]:
    """Three members, and the places in their list."""
    with testing.group("a", "b", "c", protocol=protocol, partitions=PARTITIONS, **options) as group:
        yield group, [group[name] for name in "abc"], [f"127.0.0.1:{testing.FIRST_PORT + i}" for i in range(3)]


def test_a_lone_member_leads_nothing_says_why_and_reports_why_its_link_refuses_a_peer_that_is_not_silent() -> None:
    with trio() as (group, (lone, *_), _):
        for name in "bc":
            group.kill(name)
        group.advance(30.0)  # A member asks for some seconds before it considers a peer silent.
        assert ({}, []) == (lone.led, group.told["a"])
        few = "no peer leads it: 1 of 3 peers answer, this one included, and it takes 2 to elect a leader"
        assert few == lone.engine.membership.why_not(0)
    with testing.group("a", "b", "c", "d", protocol="term", partitions=PARTITIONS) as group:
        group.settle()
        for name in "bcd":
            group.kill(name)
        footing: Any = group["a"]._engine._footing
        footing.machine.strangers.update({1, 2, 3})
        footing._link.refusals, footing._link.silent = {1: "key"}, frozenset({2})
        group.advance(4.0)
        outlook = group["a"].engine.membership.outlook
        assert outlook is not None
        assert {1: "key", 3: "lease"} == outlook.refusals
        assert ["refused", "silent", "refused"] == [outlook.state(place) for place in (1, 2, 3)]


def test_a_member_may_be_drained_shed_a_part_and_be_named_until_all_is_rebalanced() -> None:
    with trio() as (group, members, places):
        group.settle()
        members[0].operator.drain("a")
        assert group.wait(lambda: [0, 3, 3] == shares(*members), PATIENCE)
        members[1].operator.shed([1])
        assert group.wait(lambda: 1 in members[2].led, PATIENCE)
        members[0].operator.drain(places[0], undo=True)
        members[1].operator.shed(())
        members[2].operator.nominate(places[0], [1])
        assert group.wait(lambda: 1 in members[0].led, PATIENCE)
        for member in members:
            member.operator.rebalance()
        assert group.wait(lambda: [2, 2, 2] == shares(*members), PATIENCE)


def test_the_one_leader_of_gossip_gives_way_to_a_member_that_is_named_and_when_it_is_drained() -> None:
    with trio("gossip") as (group, members, places):
        group.settle()
        assert [0, 0, PARTITIONS] == sorted(shares(*members))
        at = shares(*members).index(0)
        members[at].operator.nominate(places[at])
        assert group.wait(lambda: shares(*members)[at] == PARTITIONS, PATIENCE)
        # A folder restored from an older copy repeats no term.
        assert min(members[at].led.values()) > testing.BASE
        members[at].operator.drain("abc"[at])
        assert group.wait(lambda: [0, 0, PARTITIONS] == sorted(shares(*members)) and not members[at].led, PATIENCE)
        operator = members[0].operator
        for expected, wish in (
            ("one member leads all partitions: leave the partitions out", partial(operator.nominate, places[1], [0])),
            ("gossip has no preferred peers: name the peer", operator.rebalance),
            ("one member leads all partitions: shed all of them, or none", partial(operator.shed, [0])),
        ):
            with pytest.raises(BeyondProtocol, match=expected):
                wish()


def test_a_wish_that_makes_no_sense_or_is_beyond_the_protocol_is_refused_with_what_there_is() -> None:
    with trio(policy="random") as (_, (member, *_), places):
        stranger = f"'b' is not this member, which is a at {places[0]}: peers keep no record"
        unknown = f"unknown peer 'elsewhere:1'; known peers: {places[0]}"
        for kind, expected, wish in (
            (ConfigError, stranger, partial(member.operator.drain, "b")),
            (ConfigError, "partition 6 is none of the 6", partial(member.operator.shed, [6])),
            (ConfigError, unknown, partial(member.operator.nominate, "elsewhere:1")),
            (ConfigError, "partition 6 is none of the 6", partial(member.operator.nominate, places[0], [0, 6])),
            (BeyondProtocol, "policy='random' has no preferred peers", member.operator.rebalance),
            (BeyondProtocol, "its members elect who leads, and such wishes", partial(member.operator.pin, 0, "a")),
        ):
            with pytest.raises(kind, match=expected):
                wish()
        with testing.group("x") as group, pytest.raises(BeyondProtocol, match="choose the protocol 'term'"):
            group["x"].operator.rebalance()


def test_a_router_that_is_no_members_says_whom_to_ask(tmp_path: Path) -> None:
    with pytest.raises(BeyondProtocol, match="only its members hear who leads") as raised:
        Router(Config(Listed(tmp_path).address(0), protocol="term"))
    assert "ask the router of a member, or its agent (`neli owner`)" in raised.value.remedy


@pytest.mark.parametrize("protocol", ["term", "gossip"])
def test_a_member_that_stood_still_reports_that_first(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), trio(protocol) as (group, _, _):
        group.settle()
        group.advance(10.0)
        assert "stood_still" not in caplog.text
        sleeper = next(name for name in "abc" if not group[name].led or protocol == "term")
        group.pause(sleeper)
        group.advance(30.0)
        caplog.clear()
        group.resume(sleeper)
        group.advance(1.0)
        told = [line for line in caplog.messages if f"member={sleeper}" in line]
        news = [line for line in told if re.match(r"member\.stood_still|leader\.missed|peers\.", line)]
        assert ["seconds=3" in line for line in news if "member.stood_still" in line] == [True], told
        assert "member.stood_still" in news[0], told
