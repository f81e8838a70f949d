"""The door: strangers at the port cost the agent nothing, and clients with the token do not notice it."""

import asyncio
import gc
import logging
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from neli_router.agent.server import server
from neli_router.agent.server.connections import HEADERS_MAX, Connection
from neli_router.agent.server.door import STRANGERS_MAX
from neli_router.agent.server.exchange import STREAMS_MAX
from neli_router.hosts.descendants import children
from tests.agent.test_hub import await_event
from tests.support.agents.processes import AgentProcess
from tests.support.agents.running import BEARER, TOKEN, Events, Running, configured, on_both_sockets, rest, running
from tests.support.agents.strangers import ATTACKS, attack
from tests.support.processes.forked import lives
from tests.support.waiting import PATIENCE, beside, until

LEASE = 10.0
SHORT_LEASE = 2.0
"""A member has to wait for a lease before it leads. Where being fenced costs nothing, only that wait matters."""
ASK = b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n"
LAST = b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
MEMORY_MAX = 200 * 2**20


@pytest.fixture(name="agent", scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("door")
    with running(configured(folder, lease=LEASE), on_both_sockets(folder)) as agent:
        agent.await_ready()
        yield agent


@pytest.fixture(name="unfenced")
def watched(agent: Running) -> Iterator[Running]:
    """The agent leads all the time, with one and the same door."""
    before = agent.agent.snapshot().fenced, door(agent)
    yield agent
    assert before == (agent.agent.snapshot().fenced, door(agent))
    agent.await_ready()


def door(agent: Running) -> int:
    assert agent.agent.door is not None
    until(lambda: agent.agent.door and agent.agent.door.pid, "a door")
    return agent.agent.door.pid or 0


def asked(agent: Running, path: str, *, kind: str = "tcp") -> bytes:
    with agent.connected(kind) as client:
        client.sendall(LAST % path.encode())
        return rest(client)


def metric(agent: Running, name: str) -> float:
    found = [line for line in asked(agent, "/metrics").decode().splitlines() if line.startswith(f"{name} ")]
    return float(found[0].split()[1]) if found else 0.0


@contextmanager
def attacked(agent: Running, name: str, strangers: int) -> Iterator[None]:
    over = threading.Event()

    async def main() -> None:
        attacking = asyncio.create_task(attack(name, *agent.place, strangers=strangers))
        await asyncio.to_thread(over.wait)
        attacking.cancel()
        await asyncio.gather(attacking, return_exceptions=True)

    with beside(lambda: asyncio.run(main()), end=over.set):
        yield


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_an_attack_costs_neither_the_lease_nor_the_owner_nor_memory(unfenced: Running, name: str) -> None:
    with attacked(unfenced, name, min(ATTACKS[name][1], STRANGERS_MAX + 50)):
        for _ in range(10):
            assert b" 200 OK" in asked(unfenced, "/v1/owner?key=customer-7", kind="unix")
            assert b" 200 OK" in asked(unfenced, "/health", kind="unix")
        # The client that asks is a stranger, too, and may have to make way.
        until(lambda: 0 < metric(unfenced, "neli_door_memory_bytes") < MEMORY_MAX)
        until(lambda: 0 < metric(unfenced, "neli_door_strangers") <= STRANGERS_MAX)
    until(lambda: metric(unfenced, "neli_door_connections") == 1, "the end of all connections but the one that asks")


def test_idle_strangers_keep_no_one_out(unfenced: Running) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(unfenced.connected("tcp")) for _ in range(STRANGERS_MAX + 20)]
        assert b" 200 OK" in asked(unfenced, "/health")
        assert metric(unfenced, "neli_door_strangers") <= STRANGERS_MAX
        assert b"" == rest(idle[0])  # The connection that was idle longest made way.
        with unfenced.stranger(headers=BEARER) as known:
            assert 200 == known.get("/v1/owner?key=a").status_code


def test_a_third_request_at_once_or_too_many_lines_end_the_connection(unfenced: Running) -> None:
    for kind in ("unix", "tcp"):
        with unfenced.connected(kind) as one:
            one.sendall(ASK % b"/health" + LAST % b"/health")
            assert 2 == rest(one).count(b"HTTP/1.1 200 ")
        with unfenced.connected(kind) as one:
            one.sendall(ASK % b"/health" * 3)
            assert rest(one).count(b"HTTP/1.1 200 ") < 3
        with unfenced.connected(kind) as one:
            one.sendall(b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * (HEADERS_MAX + 1) + b"\r\n")
            assert rest(one).startswith(b"HTTP/1.1 431 ")
    assert unfenced.agent.traffic.refusals["Pipelined"]
    assert metric(unfenced, 'neli_door_requests_total{outcome="pipelined"}')
    with unfenced.connected() as one:  # A body's trailer is limited to as many lines as a head.
        one.sendall(b"POST /v1/owners HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n")
        one.sendall(b"a: b\r\n" * (HEADERS_MAX + 1) + b"\r\n")
        assert b" 200 OK" not in rest(one)


def test_many_strangers_who_ask_the_same_are_one_to_the_agent(unfenced: Running) -> None:
    answers, strangers, blocked = unfenced.agent.traffic.answers, 100, threading.Event()
    before = answers["200"]
    with ExitStack() as stack:
        unfenced.loop.call_soon_threadsafe(blocked.wait, PATIENCE)
        clients = [stack.enter_context(unfenced.connected("tcp")) for _ in range(strangers)]
        for one in clients:
            one.sendall(LAST % b"/v1/status")
        for _ in range(3):  # The door has read everything sent before these.
            assert b" 401 " in asked(unfenced, "/v1/owner?key=a")
        blocked.set()
        assert strangers == sum(b" 200 OK" in rest(one) for one in clients)
    assert answers["200"] - before < strangers / 2


def test_strangers_get_the_same_answers_never_older_than_their_questions(unfenced: Running) -> None:
    for path in ("/v1/moves?limit=0", "/v1/moves?limit=-1", "/v1/status?x=1", "/ready?", "/%68ealth"):
        own, strange = (asked(unfenced, path, kind=kind).partition(b"\r\n\r\n") for kind in ("unix", "tcp"))
        assert own[2] == strange[2]
        assert own[0].split(b"\r\n")[0] == strange[0].split(b"\r\n")[0]
    with unfenced.stranger() as one:
        for weight in (2, 3, 4):
            assert 200 == one.post("/v1/weigh", json={"name": "a", "weight": weight}, headers=BEARER).status_code
            assert [weight] == [member["weight"] for member in one.get("/v1/members").json()["members"]]
        one.post("/v1/weigh", json={"name": "a", "weight": None}, headers=BEARER)


def come_and_go(agent: Running, kind: str, stream: bytes) -> None:
    """Clients that reset their connections, most of them in the middle of an answer."""
    for number in range(30):
        with agent.connected(kind) as one:
            one.sendall(ASK % (b"/v1/status" if number % 2 else stream))
            if number % 3:
                one.recv(10)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_a_client_of_the_own_socket_that_goes_in_mid_answer_leaves_nothing(unfenced: Running) -> None:
    def left() -> int:
        return sum(isinstance(one, Connection) for one in gc.get_objects())

    until(lambda: unfenced.agent.traffic.counted == 0)
    gc.disable()  # It would clean up, sooner or later.
    gc.freeze()  # Otherwise, each look at all objects of a large process would stop the agent for seconds.
    try:
        come_and_go(unfenced, "unix", b"/v1/leadership/events?partition=3")
        until(lambda: left() == 0, "no connection left of those that came")
    finally:
        gc.unfreeze()
        gc.enable()


def test_a_stranger_may_make_way_with_two_requests_pending(unfenced: Running, caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn notifies only the last request that its client is gone, and would still answer the other one."""
    blocked = threading.Event()
    with ExitStack() as stack:
        unfenced.loop.call_soon_threadsafe(blocked.wait, PATIENCE)  # No answer before some are cut off.
        clients = [stack.enter_context(unfenced.connected("tcp")) for _ in range(STRANGERS_MAX)]
        for one in clients:
            one.sendall(ASK % b"/v1/status" * 2)
        for _ in range(3):
            until(lambda: b" 401 " in asked(unfenced, "/v1/owner?key=a"))
        blocked.set()
        until(lambda: b" 200 OK" in asked(unfenced, "/v1/status"))
    until(lambda: metric(unfenced, "neli_door_strangers") == 1)
    assert [] == [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_strangers_that_go_in_mid_answer_leave_nothing_at_the_door(unfenced: Running) -> None:
    listing = Path(f"/proc/{door(unfenced)}/fd")
    if not listing.is_dir():
        pytest.skip("this system does not list descriptors")
    until(lambda: metric(unfenced, "neli_door_connections") == 1)
    before = len(list(listing.iterdir()))
    come_and_go(unfenced, "tcp", b"/v1/events")
    until(lambda: len(list(listing.iterdir())) <= before, "as few descriptors as before")
    assert 1 == metric(unfenced, "neli_door_connections")
    until(lambda: unfenced.agent.traffic.streams == 0)


def test_a_hold_ends_with_its_connection_and_a_cut_answer_has_no_proper_end(unfenced: Running) -> None:
    with unfenced.stranger(headers=BEARER) as one:
        with one.stream("GET", "/v1/leadership/events?partition=3") as stream:
            events = Events(stream)  # Kept, because its end would end the stream.
            events.next_called("acquired")
            assert 1 == unfenced.agent.traffic.streams
        until(lambda: unfenced.agent.traffic.streams == 0, "the end of the hold")
    with unfenced.connected("tcp") as one:
        one.sendall(b"GET /v1/watch HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %b\r\n\r\n" % TOKEN.encode())
        await_event(one, b"owner")
        (ours,) = [one for one in unfenced.agent.traffic.connections if one.is_answering]
        unfenced.on_loop(ours.cut)
        assert not rest(one).endswith(b"0\r\n\r\n")


def test_known_clients_take_no_room_from_strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KNOWN_MAX", 2)
    with running(configured(tmp_path, lease=SHORT_LEASE), on_both_sockets(tmp_path)) as agent, ExitStack() as stack:
        agent.await_ready()
        was = door(agent)
        known = [stack.enter_context(agent.stranger(headers=BEARER)) for _ in range(2)]
        streams = [Events(stack.enter_context(one.stream("GET", "/v1/leadership/events?partition=3"))) for one in known]
        for stream in streams:
            stream.next_called("acquired")
        with agent.stranger() as other:
            refused = other.get("/v1/owner?key=a", headers=BEARER)
            assert (503, "Crowded") == (refused.status_code, refused.json()["kind"])
            assert 200 == other.get("/v1/status").status_code
        with agent.client() as own:
            assert 200 == own.get("/v1/owner?key=a").status_code
        agent.stop()
        streams[0].next_called("revoked")
        agent.stop()  # The second call does not wait for the programs.
        streams[0].next_called("fenced")
        streams[0].next_called("ended")
        agent.join()
    with pytest.raises(ProcessLookupError):
        os.kill(was, 0)


def test_everybody_may_follow_the_status_and_one_too_many_ends_the_oldest(unfenced: Running) -> None:
    with ExitStack() as stack:
        streams = [stack.enter_context(unfenced.connected("tcp")) for _ in range(STREAMS_MAX + 1)]
        for one in streams:
            one.sendall(ASK % b"/v1/events")
            await_event(one, b"status\ndata: {")
        assert b"0\r\n\r\n" not in rest(streams[0])
        await_event(streams[-1], b"changed\ndata: {")
        assert 1 == unfenced.agent.traffic.streams
    until(lambda: unfenced.agent.traffic.streams == 0)


def test_a_dead_door_is_started_again_and_the_lease_is_kept(agent: Running, caplog: pytest.LogCaptureFixture) -> None:
    fenced = agent.agent.snapshot().fenced
    with agent.stranger(headers=BEARER) as one, one.stream("GET", "/v1/leadership/events?partition=3") as stream:
        events, was = Events(stream), door(agent)
        events.next_called("acquired")
        os.kill(was, signal.SIGKILL)
        with suppress(httpx.HTTPError):
            assert ("", {}) == events.next()
    until(lambda: door(agent) != was, "another door")
    assert b" 200 OK" in asked(agent, "/health")
    until(lambda: agent.agent.traffic.streams == 0, "the end of the hold")
    assert "agent.door_ended why='exit code -9'" in caplog.text
    assert fenced == agent.agent.snapshot().fenced


def test_a_stopped_door_and_its_return_are_logged(
    agent: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neli_router.agent.server.door.SILENT_AFTER", 2.0)
    was = door(agent)
    os.kill(was, signal.SIGKILL)  # The next door is watched by that measure from its start.
    until(lambda: door(agent) != was, "another door")
    pid = door(agent)
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: f"agent.door_silent pid={pid}" in caplog.text, "the silence")
        agent.await_ready()
        caplog.clear()
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: f"agent.door_heard pid={pid}" in caplog.text, "the door's return")


def test_the_door_ignores_signals_and_its_command_line_has_no_secret(unfenced: Running) -> None:
    assert b" 200 OK" in asked(unfenced, "/health")  # The door has started, so its signal handlers are set.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(door(unfenced), number)
    assert b" 200 OK" in asked(unfenced, "/health")
    listing = Path(f"/proc/{door(unfenced)}")
    if listing.is_dir():  # Every user of the host may read how a process was started.
        said = (listing / "cmdline").read_bytes() + (listing / "environ").read_bytes()
        assert [False, False] == [secret in said for secret in (TOKEN.encode(), b"NELI_")]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system does not list children")
def test_the_door_of_an_agent_that_is_killed_ends_with_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    with AgentProcess("a", tmp_path, listen="127.0.0.1:0", token_file=token) as agent:
        process = agent._process
        assert process is not None
        (child,) = until(lambda: children(process.pid), "a door")
        agent.kill()
        until(lambda: not lives(child), "the end of the door")
