"""All that wait are told: leadership by long poll and by events, owners, and the status."""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlencode

import pytest

from neli_router.agent.server import channels, connections, hub
from neli_router.keyspace import Layout
from neli_router.member.member import Member
from neli_router.settings.agent_options import AgentOptions
from tests.support.agents.running import (
    DRAIN,
    LEASE,
    PARTITIONS,
    PATIENCE,
    STEADY,
    Events,
    Running,
    configured,
    running,
)
from tests.support.waiting import until

LAYOUT = Layout(partitions=PARTITIONS)
ROLE = "3"

steady = pytest.mark.parametrize("pair", [STEADY], indirect=True)


@pytest.fixture(name="pair")
def with_another_member(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Running, Member]]:
    """An agent that leads nothing, and a member that leads it all and can give it away."""
    lease = getattr(request, "param", LEASE)
    with Member(configured(tmp_path, "b", lease=lease)) as other:
        until(lambda: len(other.led) == PARTITIONS)
        other.drain("a")
        with running(configured(tmp_path, lease=lease), AgentOptions(socket=str(tmp_path / "agent.sock"))) as agent:
            agent.await_ready()
            yield agent, other


def give(other: Member, partition: int = int(ROLE)) -> None:
    """Let the agent have it."""
    other.pin(partition, "a")


# Leadership


def test_a_long_poll_ends_when_the_role_is_led_here(pair: tuple[Running, Member]) -> None:
    agent, other = pair
    with agent.client() as client:
        answers = []
        poll = threading.Thread(
            target=lambda: answers.append(client.get("/v1/leadership", params={"role": ROLE, "timeout": PATIENCE}))
        )
        poll.start()
        until(lambda: agent.agent.traffic.waiting == 1)
        give(other)
        poll.join(PATIENCE)
    (answer,) = answers
    assert (200, True, "a") == (answer.status_code, answer.json()["leads"], answer.json()["member"])


def test_a_long_poll_in_vain_says_who_leads_instead(pair: tuple[Running, Member]) -> None:
    with pair[0].client() as client:
        answer = client.get("/v1/leadership", params={"role": ROLE, "timeout": "0.05"})
    assert (409, "NotLeading") == (answer.status_code, answer.json()["kind"])
    assert answer.json()["found"].startswith("b owns it under term ")


def test_every_long_poll_ends_when_its_time_is_over(pair: tuple[Running, Member]) -> None:
    """The loop's timers follow another clock than leases do, and one that rang early was once waited for again."""
    agent, _ = pair
    with ExitStack() as stack:
        clients = []
        for number in range(200):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(PATIENCE)
            client.connect(agent.options.socket or "")
            query = f"role={ROLE}&timeout=0.0{number % 100:02d}".encode()
            client.sendall(b"GET /v1/leadership?%b HTTP/1.1\r\nhost: a\r\n\r\n" % query)
            clients.append(client)
        assert {b"HTTP/1.1 409"} == {client.recv(12) for client in clients}


def test_a_client_that_goes_away_is_not_waited_for(pair: tuple[Running, Member]) -> None:
    agent, _ = pair
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(agent.options.socket or "")
        client.sendall(b"GET /v1/leadership?role=3&timeout=3600 HTTP/1.1\r\nhost: a\r\n\r\n")
        until(lambda: agent.agent.traffic.waiting == 1)
    until(lambda: agent.agent.traffic.waiting == 0)


@steady
def test_a_stream_of_leadership_tells_its_whole_life(pair: tuple[Running, Member]) -> None:
    agent, other = pair
    with agent.events("/v1/leadership/events", role=ROLE) as events:
        name, waiting = events.next()
        assert ("waiting", False) == (name, waiting["leads"])
        assert waiting["why"].startswith("b owns it under term ")
        give(other)
        acquired = events.next_called("acquired")
        parts = ("leads", "partition", "member", "drain_timeout")
        assert (True, 3, "a", DRAIN) == tuple(acquired[part] for part in parts)
        assert 0 < acquired["remaining"] <= STEADY
        renewed = events.next_called("renewed")
        assert (True, acquired["term"]) == (renewed["leads"], renewed["term"])
        other.unpin(3)  # The agent is drained, so it goes back.
        revoked = events.next_called("revoked")
        assert (True, "another member is to have it") == (revoked["leads"], revoked["why"])
        assert revoked["remaining"] > 0
        assert 3 not in other.led  # It waits for us.
    until(lambda: 3 in other.led)


def test_a_lost_lease_is_told_as_fenced_and_waited_for_again(tmp_path: Path) -> None:
    """A client that does not close its stream within the drain timeout is fenced."""
    config, its = (configured(tmp_path, name, lease=STEADY, drain_timeout=0.3) for name in ("a", "b"))
    with Member(its) as other:
        until(lambda: len(other.led) == PARTITIONS)
        other.drain("a")
        with running(config, AgentOptions(socket=str(tmp_path / "agent.sock"))) as agent:
            agent.await_ready()
            give(other)
            with agent.events("/v1/leadership/events", role=ROLE) as events:
                term = events.next_called("acquired")["term"]
                other.unpin(3)
                rests = []
                while (news := events.next())[0] != "fenced":
                    rests.append(news[1]["remaining"])
                fenced = news[1]
                assert (False, term) == (fenced["leads"], fenced["term"])
                # A client that hears of the loss late goes by the last end that it was told.
                assert rests[-1] <= 0.3 < STEADY
                assert "the program did not finish within drain_timeout=0.3 s" == fenced["why"]
                while "b owns it" not in events.next_called("waiting")["why"]:
                    pass


@steady
def test_a_stream_that_breaks_gives_the_role_back_at_once(pair: tuple[Running, Member]) -> None:
    agent, other = pair
    give(other)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE)
        client.connect(agent.options.socket or "")
        client.sendall(b"GET /v1/leadership/events?role=3 HTTP/1.1\r\nhost: a\r\n\r\n")
        said = b""
        while b"event: acquired" not in said:
            said += client.recv(65536)
        other.unpin(3)
        while b"event: revoked" not in said:
            said += client.recv(65536)
        assert 3 not in other.led
    until(lambda: 3 in other.led)
    assert 0 == agent.agent.traffic.streams


def test_two_hundred_that_wait_are_all_told_of_one_takeover(pair: tuple[Running, Member]) -> None:
    agent, other = pair
    clients = [socket.socket(socket.AF_UNIX) for _ in range(200)]
    try:
        for client in clients:
            client.settimeout(PATIENCE)
            client.connect(agent.options.socket or "")
            client.sendall(b"GET /v1/leadership/events?role=3 HTTP/1.1\r\nhost: a\r\n\r\n")
        until(lambda: agent.agent.traffic.streams == 200)
        give(other)
        for client in clients:
            said = b""
            while b"event: acquired" not in said:
                more = client.recv(65536)
                assert more, "the stream ended early"
                said += more
    finally:
        for client in clients:
            client.close()
    until(lambda: agent.agent.traffic.streams == 0)


def test_a_reason_to_wait_that_changes_is_told_again(pair: tuple[Running, Member], tmp_path: Path) -> None:
    agent, other = pair
    with agent.events("/v1/leadership/events", role=ROLE) as events:
        assert events.next_called("waiting")["why"].startswith("b owns it")
        with Member(configured(tmp_path, "c")):
            other.pin(3, "c")
            assert events.next_called("waiting")["why"].startswith("c owns it")


# Owners


def test_a_watch_begins_with_what_is_and_goes_on_with_what_changes(pair: tuple[Running, Member]) -> None:
    agent, other = pair
    with agent.events("/v1/watch") as events, agent.events("/v1/watch", key="k") as one:
        assert [("b", i) for i in range(PARTITIONS)] == [
            (view["name"], view["partition"]) for _, view in (events.next() for _ in range(PARTITIONS))
        ]
        assert "b" == one.next_called("owner")["name"]
        give(other)
        moved = events.next_called("owner")
        assert ("a", 3, None) == (moved["name"], moved["partition"], moved["slot"])
        with agent.client() as client:
            assert "a" == client.get("/v1/owner", params={"role": "3"}).json()["name"]
        other.pin(LAYOUT.partition("k"), "a")
        moved = one.next_called("owner")
        assert ("a", LAYOUT.partition("k")) == (moved["name"], moved["partition"])


@pytest.mark.parametrize("query", [{"key": "a", "role": "1"}, {"nothing": "1"}])
def test_a_watch_is_of_one_thing(pair: tuple[Running, Member], query: dict[str, str]) -> None:
    with pair[0].client() as client:
        assert 400 == client.get(f"/v1/watch?{urlencode(query)}").status_code


# The status


def test_the_status_is_shown_again_when_something_people_see_has_changed(pair: tuple[Running, Member]) -> None:
    agent, other = pair
    with agent.events("/v1/events") as events:
        name, status = events.next()
        assert ("status", ["b", "a"]) == (name, [member["name"] for member in status["members"]])
        other.pin(3, "nobody-yet")  # No owner changes.
        while "nobody-yet" != events.next_called("changed")["table"]["partitions"][3]["pinned"]:
            pass


def test_leases_left_go_on_being_shown_when_nothing_else_happens(pair: tuple[Running, Member]) -> None:
    with pair[0].events("/v1/events") as events:
        events.next_called("status")
        assert 2 == len([events.next_called("changed")["members"] for _ in range(2)])


# Streams as such


def test_a_stream_that_is_silent_gets_a_comment(pair: tuple[Running, Member], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "COMMENT_EVERY", 1)
    agent, _ = pair
    with agent.client() as client, client.stream("GET", "/v1/watch", params={"role": ROLE}) as answer:
        assert "text/event-stream; charset=utf-8" == answer.headers["content-type"]
        lines = answer.iter_lines()
        while ":" != next(lines):
            pass


def test_more_streams_than_there_may_be_are_refused(
    pair: tuple[Running, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "STREAMS_MAX", 1)
    agent, _ = pair
    with agent.events("/v1/watch") as events:
        events.next()
        with agent.client() as client:
            for path in ("/v1/watch", "/v1/events", "/v1/leadership/events?role=1", "/v1/leadership?role=1"):
                answer = client.get(path)
                assert (503, "Crowded") == (answer.status_code, answer.json()["kind"])
            assert 200 == client.get("/v1/owner?key=a").status_code
    until(lambda: agent.agent.traffic.streams == 0)
    with agent.events("/v1/watch") as events:
        assert "owner" == events.next()[0]


@pytest.mark.parametrize("limit", ["queue", "time"])
def test_a_watcher_that_does_not_read_is_cut_off_and_the_others_hear_it_all(
    pair: tuple[Running, Member], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(channels, "QUEUE_MAX", 100_000 if limit == "queue" else 2**30)
    monkeypatch.setattr(connections, "STALL_MAX", 3600.0 if limit == "queue" else 0.0)
    agent, other = pair
    with socket.socket(socket.AF_UNIX) as sleeper, agent.events("/v1/watch", role=ROLE) as events:
        sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sleeper.connect(agent.options.socket or "")
        sleeper.sendall(b"GET /v1/watch HTTP/1.1\r\nhost: a\r\n\r\n")
        until(lambda: agent.agent.traffic.streams == 2)
        sleeping = agent.on_loop(lambda: next(iter(agent.agent.hub._watching[None])))
        filler = b": " + b"x" * 10_000 + b"\n\n"

        def fill() -> bool:
            agent.on_loop(lambda: sleeping.put(filler))
            return agent.agent.traffic.slow == 1

        until(fill, "the cut")
        assert "b" == events.next_called("owner")["name"]
        give(other)
        assert "a" == events.next_called("owner")["name"]
    until(lambda: agent.agent.traffic.streams == 0)


def test_clients_that_come_and_go_leave_nothing_behind(pair: tuple[Running, Member]) -> None:
    agent, _ = pair
    paths = ("/v1/watch", "/v1/watch?role=1", "/v1/events", "/v1/leadership/events?role=1")
    for path in paths * 5:
        with agent.events(path) as events:
            assert events.next()[0]
    until(lambda: agent.agent.traffic.streams == 0 and not agent.agent.traffic.connections)
    one = agent.agent.hub
    left = agent.on_loop(lambda: [len(one._waiting), len(one._watching), len(one.status._streams), len(one._all)])
    assert [0, 0, 0, 0] == left
    assert not any(agent.on_loop(lambda: [len(slot) for slot in one._wheel]))


def test_changes_that_come_together_are_shown_together(pair: tuple[Running, Member]) -> None:
    agent, _ = pair
    ticker = agent.agent.hub.status

    def change() -> int:
        for _ in range(3):
            ticker.changed()
        ticker.tick()
        return ticker.version

    with agent.events("/v1/events") as events:
        assert "status" == events.next()[0]
        before = agent.on_loop(change)
        assert "changed" == events.next()[0]
        assert before + 1 == agent.on_loop(lambda: ticker.version)


def test_all_streams_are_told_when_the_agent_ends(pair: tuple[Running, Member]) -> None:
    agent, _ = pair
    with agent.events("/v1/leadership/events", role=ROLE) as waiting, agent.events("/v1/watch") as watching:
        assert "waiting" == waiting.next()[0]
        watching.next()
        agent.stop()
        ended = waiting.next_called("ended")
        assert "this agent is being stopped" == ended["why"]
        assert ("", {}) == last(waiting)
        assert ("", {}) == last(watching)
    agent.join()


def last(events: Events) -> tuple[str, dict[str, object]]:
    while (found := events.next())[0]:
        pass
    return found
