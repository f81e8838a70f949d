"""HTTP from anywhere: no request finds a defect, each refusal says what to do, and other clients are still served.

    whole requests    any method, path, query, headers, body    --> exactly one answer; 4xx and 503 carry a Refusal
    bytes             requests cut, spliced, flipped, and noise --> nothing, or answers as above, and the end
                                     |
                                     '--> then: no defect counted, nothing logged as an error, a good client served

The guard answers a defect that it catches with 503 and the kind NeliError, which no other refusal has here. A test that
looked only for 500 would find none.
"""

import json
import logging
import socket
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPResponse, IncompleteRead

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neli_router.agent.openapi import ENDPOINTS
from neli_router.agent.wire import BODY_MAX, STATUS_OF, Refusal
from tests.support.agents.running import TOKEN, Running

MAY_BE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]  # A busy machine draws slowly.
LAW = settings(max_examples=100, suppress_health_check=MAY_BE)

METHODS = st.sampled_from([b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"PROPFIND", b"TRACE"])

ROUTES = [
    (method.encode(), path.encode(), [name.encode() for name in one.parameters or ()])
    for (method, path), one in ENDPOINTS.items()
]
OTHER = [b"/", b"/assets/main.js", b"/assets/../x", b"/v1", b"//", b"*", b"/%00"]
NOISE = st.binary(max_size=12).map(lambda noise: b"/" + b"".join(b"%%%02x" % byte for byte in noise))
WRITTEN = st.sampled_from(
    [b"", b"7", b"-1", b"1e999", b"nan", b"%ff", b"%", b"%0a", b"YQ", b"=", b"9" * 50, b"k" * 9000]
) | st.binary(max_size=6).map(lambda noise: b"".join(b"%%%02x" % byte for byte in noise))

# None of these names is the agent's own member, which would then no longer lead.
NAMES = st.sampled_from(["", "b", "nobody", "x" * 5000, "\0", "é", "a b"]) | st.none()
VALUES = NAMES | st.integers() | st.floats() | st.booleans() | st.lists(NAMES | st.integers(), max_size=3)
FIELDS = st.sampled_from(["keys", "keys64", "name", "partition", "weight", "preview", "loads", "layout", "other"])
BODIES = (
    st.dictionaries(FIELDS, VALUES, max_size=4).map(lambda said: json.dumps(said).encode())
    | st.lists(st.text(max_size=5), max_size=5).map(lambda keys: json.dumps({"keys": keys}).encode())
    | st.dictionaries(st.integers(-1, 9), st.floats() | VALUES, max_size=3).map(
        lambda loads: json.dumps({"loads": loads, "preview": True}).encode()
    )
    | st.binary(max_size=40)
    | st.sampled_from([b"", b"[" * 5000, b"null", b'{"keys": ["\\ud800"]}'])
)

HEADERS = st.lists(
    st.sampled_from(
        [
            b"host: evil.example",
            b"host:",
            b"accept: text/event-stream",
            b"content-type: text/plain",
            b"authorization: Bearer",
            b"authorization: Bearer \xff\xfe",
            b"authorization: Basic " + TOKEN.encode(),
            b"if-none-match: *",
            b"expect: 100-continue",
            b"connection: close",
            b"connection: upgrade\r\nupgrade: websocket",
            b"content-length: 99999999999999999999",
            b"content-length: -1",
            b"content-length: 5, 5",
            b"transfer-encoding: chunked",
            b"x: " + b"y" * 3000,
            b"\xff: \xff",
        ]
    ),
    max_size=2,
)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Mostly known paths with parameters that fit; otherwise nearly every answer would be 404."""
    method, path, known = draw(st.sampled_from(ROUTES))
    names = [*known[:1], *draw(st.lists(st.sampled_from([*known, b"kye"]), max_size=1))]
    if draw(st.integers(0, 3)) == 0:
        method, path = draw(METHODS), draw(st.sampled_from([*OTHER, path]) | NOISE)
    elif b"key64" in names:
        names = [b"key64"]
    query = b"&".join(name + b"=" + draw(WRITTEN) for name in names)
    body = draw(BODIES) if method != b"GET" or draw(st.booleans()) else b""
    size = draw(st.sampled_from([*[len(body)] * 9, BODY_MAX + 1]))  # The agent does not read a body that large.
    token = draw(st.sampled_from([b"authorization: Bearer " + TOKEN.encode() + b"\r\n", b""]))
    line = b"%b %b%b HTTP/1.1\r\n" % (method, path, b"?" * bool(query) + query)
    return line + b"host: 127.0.0.1\r\n%bcontent-length: %d\r\n\r\n" % (token, size) + body


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """The remains of one or two requests after an accident, with headers that contradict each other."""
    said = b"".join(draw(st.lists(requests(), min_size=1, max_size=2)))
    line, _, rest = said.partition(b"\r\n")
    said = b"\r\n".join([line, *draw(HEADERS), rest])[: 2 * BODY_MAX]
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, min(len(said), 400)))
        end = draw(st.integers(start, min(len(said), start + 16)))
        piece = draw(st.binary(max_size=8) | st.sampled_from([b"\r\n", b"\r\n\r\n", b":", b" ", b"\0"]))
        said = said[:start] + piece + said[end:]
    return said[: draw(st.sampled_from([len(said), len(said) // 2, 20]))]


@pytest.fixture(name="unharmed")
def watched(agent: Running, caplog: pytest.LogCaptureFixture) -> Iterator[Running]:
    """An agent that must not have met a defect by the end of the test."""
    caplog.set_level(logging.ERROR)
    yield agent
    assert 0 == agent.agent.traffic.refusals["NeliError"]
    assert "500" not in agent.agent.traffic.answers
    assert [] == [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    agent.await_ready()


def answer(client: socket.socket, *, has_body: bool) -> tuple[int, bytes | None]:
    """The status and the body of the next answer; None for a stream, of which only the head is read."""
    found = HTTPResponse(client, method="GET" if has_body else "HEAD")
    found.begin()
    is_stream = "text/event-stream" in found.getheader("content-type", "")
    return found.status, None if is_stream else found.read()


def is_served(agent: Running) -> bool:
    """Whether a good client is served."""
    with agent.connected() as client:
        client.sendall(b"GET /v1/owner?key=7 HTTP/1.1\r\nhost: a\r\n\r\n")
        status, body = answer(client, has_body=True)
    return status == 200 and json.loads(body or b"{}").get("name") == "a"


def require_sense(status: int, body: bytes | None) -> None:
    """A refusal says what was wanted, what was found, and what to do, under the status of its kind."""
    if status in {200, 304}:
        return
    assert body
    said = msgspec.json.decode(body, type=Refusal)
    assert "" not in {said.wanted, said.found, said.remedy}
    assert status in {STATUS_OF.get(said.kind, 503), 431}


@pytest.mark.parametrize("kind", ["unix", "tcp"])
@LAW
@given(request=requests())
def test_every_whole_request_has_an_answer_that_makes_sense(unharmed: Running, kind: str, request: bytes) -> None:
    with unharmed.connected(kind) as client:
        with suppress(ConnectionError):  # The request may have been refused before its whole body was sent.
            client.sendall(request)
        is_head = request.startswith(b"HEAD ")
        status, body = answer(client, has_body=not is_head)
        if not is_head:
            require_sense(status, body)
    assert is_served(unharmed)


@LAW
@given(said=damaged() | st.binary(max_size=200))
def test_bytes_that_are_no_request_harm_nobody(unharmed: Running, said: bytes) -> None:
    with unharmed.connected() as client, suppress(ConnectionError, IncompleteRead):
        client.sendall(said)
        client.shutdown(socket.SHUT_WR)
        status, body = answer(client, has_body=b"HEAD " not in said)
        if body:
            require_sense(status, body)
    assert is_served(unharmed)
