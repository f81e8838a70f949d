"""Shares: all partitions that a host leads, held by one stream. With a stand-in, and with the real agent."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from neli_router.agent import AsyncClient, Client
from neli_router.agent.server.lender import Lender
from neli_router.agent.wire import ShareView
from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.errors import ConfigError, GroupMismatch, LeaseLost, NotLeading
from neli_router.member.member import Member
from neli_router.protocols.protocol import Standing
from tests.support.agents.running import DRAIN, PARTITIONS, STEADY, Running, over_once_told, paired
from tests.support.agents.stand_in import StandIn, whenever
from tests.support.looping import in_loop
from tests.support.waiting import PATIENCE, until, until_in_loop


@pytest.fixture
def host(follower: Running, other: Member) -> Running:
    """An agent that leads partitions 3 and 5; the other member leads the others and can move them."""
    give(follower, other)
    return follower


@pytest.fixture
def host_client(host: Running) -> Iterator[Client]:
    with Client(host.options.socket or "", timeout=PATIENCE) as client:
        yield client


def give(agent: Running, other: Member) -> None:
    for partition in (3, 5):
        other.operator.pin(partition, "a", timeout=PATIENCE)
    until(lambda: {3, 5} == set(agent.agent.member.led))


def shares(agent: StandIn, terms: dict[int, int], *, remaining: float = 30.0) -> None:
    """From now on the stand-in's member may act for `terms`, and says so to every waiting client."""
    agent.share = ShareView("alpha", terms, remaining, 10.0)
    agent.say("acquired", agent.share)


def test_only_an_answer_that_has_all_partitions_renews_and_no_event_does(stand_in: StandIn, client: Client) -> None:
    """An answer may lack a partition before its loss is announced. Until then, the end of the share stands."""
    shares(stand_in, {3: 7, 5: 7}, remaining=20)
    with client.share() as share:
        for asked, terms in enumerate(({}, {3: 7}, {3: 7, 5: 8}), 1):
            stand_in.share = ShareView("alpha", terms, 500.0)
            stand_in.say("renewed", ShareView("alpha", {3: 7, 5: 7}, 500.0))
            until(lambda asked=asked: stand_in.requests.count("/v1/share") > asked)  # type: ignore[misc]
            assert share.remaining() < 20


def test_a_partition_that_is_taken_away_sooner_ends_sooner_alone(stand_in: StandIn, client: Client) -> None:
    """Its drain is nearly over. A holder whose process stands still just then does not hear about it."""
    stand_in.share = ShareView("alpha", {3: 7, 5: 7}, 30.0, 10.0, rests={5: 0.0})  # Like an older agent: no layout.
    stand_in.say("acquired", stand_in.share)
    expected = r"the leases of partitions 3, 5 were needed.*without being renewed"
    with pytest.raises(LeaseLost, match=expected), client.share() as share:  # noqa: PT012 - its end raises.
        assert (True, False, False) == (share.holds(3), share.holds(5), share.holds())
        with pytest.raises(GroupMismatch, match="older than this program"):
            str(share.layout)
        share.check(3)


def test_a_share_is_lost_with_its_first_partition_and_the_others_hold_on(stand_in: StandIn, client: Client) -> None:
    shares(stand_in, {3: 7, 5: 7})
    heard = threading.Event()
    with pytest.raises(LeaseLost, match="partition 5 was lost: expired by beta"), client.share() as share:  # noqa: PT012 - its end raises.
        share.on_news(heard.set)
        stand_in.share = ShareView("alpha", {3: 7}, 500.0)
        stand_in.say("fenced", ShareView("alpha", {5: 7}, why="expired by beta"))
        assert (True, True) == (share.ending.wait(PATIENCE), heard.wait(PATIENCE))
        share.check(3)
        for partition in (5, None):
            with pytest.raises(LeaseLost, match="expired by beta"):
                share.check(partition)
        assert ({5: "expired by beta"}, 0.0) == (share.fenced, share.remaining())
    with pytest.raises(LeaseLost, match="its block has ended"):
        share.check(3)


def test_all_of_a_share_is_fenced_when_its_agent_ends(stand_in: StandIn, client: Client) -> None:
    shares(stand_in, {3: 7, 5: 7})
    why = "this agent is being stopped"
    with pytest.raises(LeaseLost, match=why), client.share() as share:  # noqa: PT012 - its end raises.
        stand_in.say("ended", ShareView("alpha", why=why))
        assert share.ending.wait(PATIENCE)
        assert {3: why, 5: why} == share.fenced


def test_after_a_broken_stream_a_share_is_what_the_agent_still_holds(stand_in: StandIn, client: Client) -> None:
    shares(stand_in, {3: 7, 5: 7, 6: 7})
    with pytest.raises(LeaseLost), client.share() as share:  # noqa: PT012 - its end raises.
        stand_in.hang_up()
        until(lambda: stand_in.requests.count("/v1/share/events") == 2)
        share.check()
        stand_in.share = ShareView("alpha", {3: 7, 5: 8, 9: 9}, 30.0)
        stand_in.hang_up()
        assert share.ending.wait(PATIENCE)
        until(lambda: share.more)
        assert [True, False, False] == [share.holds(partition) for partition in (3, 5, 6)]
        assert "it was acquired again, under term 8" == share.fenced[5]
        assert {5: 8, 9: 9} == share.more


def test_news_before_a_share_is_confirmed_is_not_lost(stand_in: StandIn, client: Client) -> None:
    """A busy agent answers late, and sends each of these only once: if one were lost, work on a partition would not
    begin, or not end."""

    def begin() -> None:
        stand_in.share = ShareView("alpha")
        stand_in.say("acquired", ShareView("alpha", {3: 7, 5: 7, 6: 7}, 30.0))
        stand_in.say("more", ShareView("alpha", {4: 8}))
        stand_in.say("revoked", ShareView("alpha", {5: 7}))
        stand_in.say("fenced", ShareView("alpha", {6: 7}))
        until(lambda: stand_in.requests.count("/v1/share") >= 3)
        stand_in.share = ShareView("alpha", {3: 7, 5: 7}, 30.0)
        stand_in.say("renewed", stand_in.share)

    with whenever(lambda: stand_in.held == 1, begin), client.share(timeout=PATIENCE) as share:
        assert ({3: 7, 5: 7}, {4: 8}, frozenset({5})) == (share.terms, share.more, share.revoked)
        assert share.ending


@pytest.mark.parametrize("partitions", [[], [-1], [True], ["3"], [2.0], range(0, 100_000, 2)])
def test_impossible_partitions_are_refused_at_once(stand_in: StandIn, client: Client, partitions: list[int]) -> None:
    with pytest.raises(ConfigError):
        client.share(partitions)
    assert [] == stand_in.requests


def test_every_view_is_pledged_and_a_partition_about_to_be_taken_shortens_no_other_lease() -> None:
    pledged: list[float] = []
    standing = Standing({3: 7, 5: 8}, host_clock() + 1000.0, {5: host_clock() + 500.0})
    member = SimpleNamespace(name="a", layout=None, pledge=lambda seconds, processes: pledged.append(seconds))
    hub = SimpleNamespace(member=member, membership=SimpleNamespace(standing=standing), config=Config("memory://jobs"))
    lender = Lender(cast("Any", hub))
    leases: list[Any] = [
        SimpleNamespace(partition=i, term=7, member="a", remaining=lambda i=i: 10.0 + i) for i in (5, 3)
    ]
    views: list[Any] = [lender._standing([3, 5]), lender._share(leases), lender._lease(leases[0])]
    assert pledged == [view.remaining for view in views]
    assert ({3, 5}, {5}) == (set(views[0].terms), set(views[0].rests))
    assert (True, 13.0, 15.0) == (views[0].remaining > 500.0, *pledged[1:])


def test_a_share_has_what_the_host_leads_and_the_next_one_more(
    host: Running, other: Member, host_client: Client
) -> None:
    led = dict(host.agent.member.led)
    with host_client.share(timeout=PATIENCE) as share, host_client.share([0, 1, 2, 3]) as part:
        assert ({3, 5}, {3: led[3]}, led) == (set(led), part.terms, share.terms)
        assert (True, "a", DRAIN) == (0 < share.remaining() <= STEADY, share.member, share.drain_timeout)
        other.operator.pin(6, "a", timeout=PATIENCE)
        until(lambda: 6 in share.more)
        assert ({3, 5}, False, False) == (set(share.terms), share.holds(6), bool(share.ending))
        with pytest.raises(LeaseLost, match="it was not led here when this share began"):
            share.check(6)
        with host_client.share() as later:
            assert {**share.terms, **share.more} == later.terms
    # Nothing of them is left behind in the agent.
    until(lambda: host.agent.traffic.streams == 0)
    assert {} == host.on_loop(lambda: host.agent.hub._leading)
    periods = [host.agent.member.engine.barrier.period(partition) for partition in (3, 5)]
    assert [0, 0] == [period.working for period in periods if period is not None]


@in_loop
async def test_leases_are_renewed_even_while_a_revoked_partition_is_finished(
    host: Running, other: Member, host_client: Client
) -> None:
    """A batch takes longer than a lease; the successor waits for it all the same.

    A revoked role was once not renewed: its holder had only what was left of a lease instead of the drain timeout.
    """
    with host_client.share(timeout=PATIENCE) as share, host_client.leading(5, timeout=PATIENCE) as lease:
        async with AsyncClient(host.options.socket or "", timeout=PATIENCE) as one, one.leading(3) as kept:
            other.operator.pin(5, None, timeout=PATIENCE)  # The agent is drained, so the partition goes back.
            assert share.ending.wait(PATIENCE)
            assert lease.revoked.wait(PATIENCE)
            end = host_clock() + 1.25 * STEADY
            await until_in_loop(lambda: host_clock() > end)
            share.check()
            lease.check()
            kept.check()
            assert (frozenset({5}), False) == (share.revoked, 5 in other.led)
    until(lambda: 5 in other.led)
    assert 3 not in other.led


def test_a_client_that_does_not_finish_in_time_is_fenced_for_that_partition_alone(tmp_path: Path) -> None:
    with paired(tmp_path, drain_timeout=0.3) as (agent, other):
        give(agent, other)
        with (
            Client(agent.options.socket or "", timeout=PATIENCE) as client,
            agent.events("/v1/leadership/events", partition=5) as events,
        ):
            term = events.next_called("acquired")["term"]
            with pytest.raises(LeaseLost), client.share() as share:  # noqa: PT012 - its end raises.
                other.operator.pin(5, None, timeout=PATIENCE)
                rests = []
                while (news := events.next())[0] != "fenced":
                    rests.append(news[1]["remaining"])
                fenced = news[1]
                assert (False, term) == (fenced["leads"], fenced["term"])
                # A client that hears of the loss late relies on the last end that it received.
                assert rests[-1] <= 0.3 < STEADY
                assert "the program did not finish within drain_timeout=0.3 s" == fenced["why"]
                while "b owns it" not in events.next_called("waiting")["why"]:
                    pass
                until(lambda: 5 in share.fenced)
                until(lambda: 5 in other.led)
                assert share.holds(3)
                agent.stop()
                until(lambda: 3 in share.fenced)


def test_a_share_of_what_is_led_elsewhere_waits_and_says_why(other: Member, host_client: Client) -> None:
    with (
        pytest.raises(NotLeading, match="none of 2 partitions is led here; partition 0: b owns it under term"),
        over_once_told(host_client.share([0, 1], timeout=PATIENCE)),
    ):
        raise AssertionError("b leads them")
    with (
        whenever(lambda: True, lambda: other.operator.pin(1, "a", timeout=PATIENCE)),
        host_client.share([0, 1], timeout=PATIENCE) as share,
    ):
        assert {1} == set(share.terms)


def test_partitions_that_there_are_not_are_refused(host: Running, host_client: Client) -> None:
    with pytest.raises(ConfigError, match="they count from 0 to 7"), host_client.share([PARTITIONS]):
        raise AssertionError("there is none")
    with host.client() as bare:
        for spelled in ("", "3-", "5-3", "a", "1,,2", "-1", "9" * 40):
            assert 400 == bare.get("/v1/share", params={"partitions": spelled}).status_code
