"""The guard: tokens, hosts, sizes, and clients that are slow, broken or hostile, over real sockets."""

from functools import partial

import pytest

from neli_router.agent import Client
from neli_router.agent.openapi import ENDPOINTS
from neli_router.agent.server import connections
from neli_router.agent.server.exchange import OPEN_PATHS
from neli_router.agent.wire import BODY_MAX
from neli_router.errors import GroupMismatch
from tests.support.agents.running import BEARER, TOKEN, Running, rest
from tests.support.waiting import until

ENDLESS = {"/v1/events"}
GUARDED = [
    *((method, path) for method, path in ENDPOINTS if path not in OPEN_PATHS),
    *(("POST", "/v1/status"), ("GET", "/v1/nothing")),
]


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer \xff\xfe", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"],
)
def test_over_tcp_everything_else_needs_the_right_token(agent: Running, header: str | None) -> None:
    headers = [] if header is None else [(b"authorization", header.encode("latin-1"))]
    with agent.stranger() as client:
        for method, path in GUARDED:
            answer = client.request(method, path, headers=headers)
            found = (answer.status_code, answer.headers["www-authenticate"], answer.json()["kind"])
            assert (path, 401, "Bearer", "TokenWanted") == (path, *found)
            assert TOKEN not in answer.text


def test_the_status_is_open_the_right_token_opens_everything_and_the_own_socket_needs_none(agent: Running) -> None:
    with agent.stranger() as client:
        for path in OPEN_PATHS - ENDLESS | {"/assets/page.css"}:
            assert (path, 200) == (path, client.get(path).status_code)
    with agent.stranger(headers=BEARER) as client:
        assert 200 == client.get("/v1/owner?key=a").status_code
        assert 200 == client.post("/v1/undrain", json={"name": "a"}).status_code
    with agent.client() as client:
        assert 200 == client.get("/v1/owner?key=a", headers={"authorization": "Bearer wrong"}).status_code


def test_over_tcp_a_request_for_another_host_or_for_none_is_refused_even_with_the_token(agent: Running) -> None:
    """A page of `evil.example` that makes its name resolve to 127.0.0.1 can read nothing here."""
    with agent.stranger(headers=BEARER) as client:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::1].evil", "", "10.0.0.1"):
            answer = client.get("/v1/status", headers={"host": host})
            assert (host, 400, "BadRequest") == (host, answer.status_code, answer.json()["kind"])
            assert "access-control-allow-origin" not in answer.headers
        for host in ("localhost", "localhost:7635", "127.0.0.1", "[::1]:7635", "LOCALHOST"):
            assert (host, 200) == (host, client.get("/v1/status", headers={"host": host}).status_code)
    with agent.connected("tcp") as one:
        one.sendall(b"GET /v1/status HTTP/1.0\r\n\r\n")
        assert rest(one).startswith(b"HTTP/1.1 400 ")


def test_a_request_of_a_client_of_another_group_is_refused_at_the_socket_and_at_the_port(agent: Running) -> None:
    own, other = agent.agent.config.group_name, "redis://h:6379/jobs"
    for address, token in ((agent.options.socket, None), (agent.address, TOKEN)):
        with Client(address, token=token, ledger=own) as client:
            assert "a" == client.owner("a").name
        with Client(address, token=token, ledger=other) as client:
            for ask in (client.members, client.watch, partial(client.drain, "a")):
                with pytest.raises(
                    GroupMismatch, match=f"agent of {other} was wanted, but this is the agent of {own}: "
                ):
                    ask()


def test_the_largest_body_is_taken_and_a_larger_one_and_a_head_without_an_end_are_refused(agent: Running) -> None:
    body = b'{"keys": ["' + b"x" * (BODY_MAX - 14) + b'"]}'
    assert BODY_MAX == len(body)
    with agent.client() as client:
        assert 200 == client.post("/v1/owners", content=body).status_code
        answer = client.post("/v1/owners", content=(b"[" * 65536 for _ in range(BODY_MAX // 65536 + 1)))
    assert (413, "TooLarge") == (answer.status_code, answer.json()["kind"])
    with agent.connected() as one:  # Refused before its body arrives.
        one.sendall(b"POST /v1/owners HTTP/1.1\r\nhost: agent\r\ncontent-length: %d\r\n\r\n" % (BODY_MAX + 1))
        assert rest(one).startswith(b"HTTP/1.1 413 ")
    with agent.connected() as one:
        one.sendall(b"GET / HTTP/1.1\r\nx: " + b"x" * (connections.HEAD_MAX + 1))
        assert rest(one).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "said",
    [
        b"\0\xff\xfe garbage\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/owners HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/owners HTTP/1.1\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http_is_answered_and_closed(agent: Running, said: bytes) -> None:
    with agent.connected() as client:
        client.sendall(said)
        answer = rest(client)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"BadRequest"' in answer
    agent.await_ready()


def test_half_a_request_is_cut_off_in_the_end(agent: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with agent.connected() as client:
        client.sendall(b"GET /v1/owner?key=a HTTP/1.1\r\nho")
        agent.await_ready()
        # Not earlier: a sweep between the other client's connection and its head would cut that off, too.
        monkeypatch.setattr(connections, "HEAD_TIME_MAX", 0.0)
        assert b"" == rest(client)


def test_who_goes_away_in_the_middle_of_a_body_is_forgotten_even_if_it_reads_like_a_wish(agent: Running) -> None:
    body = b'{"name": "a", "weight": 7}'
    before = agent.agent.traffic.refusals["BadRequest"]
    until(lambda: agent.agent.traffic.counted == 0)
    with agent.connected() as client:
        client.sendall(b"POST /v1/weigh HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % (len(body) + 1) + body)
        until(lambda: agent.agent.traffic.counted == 1)
    until(lambda: agent.agent.traffic.counted == 0)
    until(lambda: agent.agent.traffic.refusals["BadRequest"] == before + 1)
    assert {} == agent.agent.member.state.weights
    agent.await_ready()
