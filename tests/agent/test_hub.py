"""Every waiting client is notified: leadership by long poll and by events, owners, and the status."""

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from neli_router.agent.server import connections, hub
from neli_router.config.agent_options import AgentOptions
from neli_router.core.keyspace import Layout
from neli_router.member.member import Member
from tests.support.agents.running import DRAIN, LEASE, PARTITIONS, STEADY, Running, configured, paired, running
from tests.support.waiting import PATIENCE, until

ROLE = "3"


def ask(client: socket.socket, path: bytes) -> None:
    client.sendall(b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % path)


def await_event(client: socket.socket, name: bytes) -> None:
    said = b""
    while b"event: " + name not in said:
        more = client.recv(65536)
        assert more, "the stream ended early"
        said += more


def test_a_long_poll_ends_when_its_client_goes(follower: Running) -> None:
    with follower.connected() as client:
        ask(client, b"/v1/leadership?partition=3&timeout=3600")
        until(lambda: follower.agent.traffic.waiting == 1)
    until(lambda: follower.agent.traffic.waiting == 0)


def test_every_long_poll_ends_when_its_time_is_over_and_says_who_leads_instead(follower: Running) -> None:
    """The loop's timers use another clock than leases, and a poll whose timer rang early was once waited for again."""
    with ExitStack() as stack:
        clients = [stack.enter_context(follower.connected()) for _ in range(100)]
        for number, client in enumerate(clients):
            ask(client, b"/v1/leadership?partition=3&timeout=0.0%02d" % number)
        assert {b"HTTP/1.1 409"} == {client.recv(12) for client in clients}
    with follower.client() as asker:
        answer = asker.get("/v1/leadership", params={"partition": ROLE, "timeout": "0.05"})
    assert (409, "NotLeading") == (answer.status_code, answer.json()["kind"])
    assert answer.json()["found"].startswith("b owns it under term ")


def test_streams_tell_a_tenure_to_its_end_and_then_give_the_role_back(follower: Running, other: Member) -> None:
    with follower.events("/v1/leadership/events", partition=ROLE) as events, ExitStack() as stack:
        clients = [stack.enter_context(follower.connected()) for _ in range(50)]
        for client in clients:
            ask(client, b"/v1/leadership/events?partition=3")
        until(lambda: follower.agent.traffic.streams == 1 + len(clients))
        name, waiting = events.next()
        assert ("waiting", False) == (name, waiting["leads"])
        assert waiting["why"].startswith("b owns it under term ")
        other.operator.pin(3, "a", timeout=PATIENCE)
        for client in clients:
            await_event(client, b"acquired")
        acquired = events.next_called("acquired")
        found = [acquired[part] for part in ("leads", "partition", "member", "drain_timeout")]
        assert [True, 3, "a", DRAIN] == found
        assert 0 < acquired["remaining"] <= STEADY
        renewed = events.next_called("renewed")
        assert (True, acquired["term"]) == (renewed["leads"], renewed["term"])
        other.operator.pin(3, None, timeout=PATIENCE)  # The agent is drained, so the role goes back.
        revoked = events.next_called("revoked")
        assert (True, "another member is to have it") == (revoked["leads"], revoked["why"])
        assert revoked["remaining"] > 0
        for client in clients:
            await_event(client, b"revoked")
        assert 3 not in other.led  # It waits for us.
    until(lambda: 3 in other.led)
    until(lambda: 0 == follower.agent.traffic.streams, "the end of all streams")


def test_streams_are_told_another_reason_to_wait_and_the_agents_end(tmp_path: Path) -> None:
    with (
        paired(tmp_path, lease=LEASE) as (agent, other),
        agent.events("/v1/leadership/events", partition=ROLE) as waiting,
        agent.events("/v1/watch") as watching,
    ):
        assert "waiting" == waiting.next()[0]
        watching.next()
        with Member(configured(tmp_path, "c")):
            other.operator.pin(3, "c", timeout=PATIENCE)
            while not waiting.next_called("waiting")["why"].startswith("c owns it"):
                pass
        agent.stop()
        assert "this agent is being stopped" == waiting.next_called("ended")["why"]
        for events in (waiting, watching):
            while events.next()[0]:
                pass
        agent.join()


def test_a_lease_that_is_lost_with_its_stream_is_called_fenced_before_the_end(tmp_path: Path) -> None:
    """On a busy machine, the agent ended the streams before the one with the lease was looked at again."""
    with running(configured(tmp_path), AgentOptions(socket=f"{tmp_path}/agent.sock")) as agent:
        agent.await_ready()
        with agent.events("/v1/leadership/events", partition=ROLE) as events:
            events.next_called("acquired")

            def end() -> None:
                agent.agent.member.close(timeout=0)
                agent.agent.hub.close()

            agent.on_loop(end)
            events.next_called("fenced")
            assert "ended" == events.next()[0]


def test_a_watch_begins_with_what_is_and_goes_on_with_what_changes(follower: Running, other: Member) -> None:
    with (
        follower.events("/v1/watch") as events,
        follower.events("/v1/watch", key="k") as one,
        follower.client() as client,
    ):
        views = [events.next()[1] for _ in range(PARTITIONS)]
        assert [("b", i) for i in range(PARTITIONS)] == [(view["name"], view["partition"]) for view in views]
        assert "b" == one.next_called("owner")["name"]
        other.operator.pin(3, "a", timeout=PATIENCE)
        moved = events.next_called("owner")
        assert ("a", 3, None) == (moved["name"], moved["partition"], moved["slot"])
        assert "a" == client.get("/v1/owner", params={"partition": "3"}).json()["name"]
        partition = Layout(partitions=PARTITIONS).partition("k")
        other.operator.pin(partition, "a", timeout=PATIENCE)
        moved = one.next_called("owner")
        assert ("a", partition) == (moved["name"], moved["partition"])
        for query in ("key=a&partition=1", "nothing=1"):
            assert 400 == client.get(f"/v1/watch?{query}").status_code


def test_the_status_is_shown_again_when_something_changes_and_as_leases_run(follower: Running, other: Member) -> None:
    with follower.events("/v1/events") as events:
        name, status = events.next()
        assert ("status", ["b", "a"]) == (name, [member["name"] for member in status["members"]])
        assert 2 == len([events.next_called("changed")["members"] for _ in range(2)])  # Only time has passed.
        other.operator.pin(3, "nobody-yet", timeout=PATIENCE)  # No owner changes.
        while "nobody-yet" != events.next_called("changed")["table"]["partitions"][3]["pinned"]:
            pass
    # Changes that come together are shown together.
    ticker = follower.agent.hub.status

    def change() -> int:
        for _ in range(3):
            ticker.changed()
        ticker.tick()
        return ticker.version

    with follower.events("/v1/events") as events:
        assert "status" == events.next()[0]
        before = follower.on_loop(change)
        assert "changed" == events.next()[0]
        assert before + 1 == follower.on_loop(lambda: ticker.version)


def test_a_silent_stream_gets_a_comment_and_one_too_many_is_refused(
    follower: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "COMMENT_EVERY", 1)
    with follower.client() as client, client.stream("GET", "/v1/watch", params={"partition": ROLE}) as answer:
        assert "text/event-stream; charset=utf-8" == answer.headers["content-type"]
        lines = answer.iter_lines()
        while ":" != next(lines):
            pass
    until(lambda: follower.agent.traffic.streams == 0)
    monkeypatch.setattr(hub, "STREAMS_MAX", 1)
    with follower.events("/v1/watch") as events:
        events.next()
        with follower.client() as client:
            for path in ("/v1/watch", "/v1/events", "/v1/leadership/events?partition=1", "/v1/leadership?partition=1"):
                answer = client.get(path)
                assert (503, "Crowded") == (answer.status_code, answer.json()["kind"])
            assert 200 == client.get("/v1/owner?key=a").status_code
    until(lambda: follower.agent.traffic.streams == 0)
    with follower.events("/v1/watch") as events:
        assert "owner" == events.next()[0]


@pytest.mark.parametrize("limit", ["queue", "time"])
def test_a_watcher_that_does_not_read_is_cut_off(
    follower: Running, other: Member, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(connections, "QUEUE_MAX", 100_000 if limit == "queue" else 2**30)
    monkeypatch.setattr(connections, "STALL_MAX", 3600.0 if limit == "queue" else 0.0)
    before = follower.agent.traffic.slow
    with socket.socket(socket.AF_UNIX) as sleeper, follower.events("/v1/watch", partition=ROLE) as events:
        sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sleeper.connect(follower.options.socket or "")
        ask(sleeper, b"/v1/watch")
        until(lambda: follower.agent.traffic.streams == 2)
        sleeping = follower.on_loop(lambda: next(iter(follower.agent.hub._watching[None])))
        filler = b": " + b"x" * 10_000 + b"\n\n"

        def fill() -> bool:
            follower.on_loop(lambda: sleeping.put(filler))
            return follower.agent.traffic.slow == before + 1

        until(fill, "the cut")
        assert "b" == events.next_called("owner")["name"]
        other.operator.pin(3, "a", timeout=PATIENCE)
        assert "a" == events.next_called("owner")["name"]


def test_clients_that_come_and_go_leave_nothing_behind(follower: Running) -> None:
    paths = ("watch", "watch?partition=1", "events", "leadership/events?partition=1", "share/events")
    for path in paths * 5:
        with follower.events(f"/v1/{path}") as events:
            assert events.next()[0]
    until(lambda: follower.agent.traffic.streams == 0 and not follower.agent.traffic.connections)
    hub = follower.agent.hub
    left = follower.on_loop(lambda: [hub._waiting, hub._watching, hub.status._streams, hub._all, *hub._wheel])
    assert not any(left)
