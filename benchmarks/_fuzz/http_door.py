"""Fuzz of the HTTP door: requests and broken requests, at an agent's own socket and at its port.

    a sound request --fields lost, doubled, overwritten; headers that contradict each other--> own socket --> agent
    bytes without a request -------------------------------------------------------------->  port --> door --> agent
                                                                                              '-- the answer, if any

Keys and tokens are the secrets. An answer must make sense: known statuses, and refusals with all their parts. If the
guard of either process catches a defect, the answer is of the kind NeliError, and counts as a crash here.
"""

import json
import random
import socket
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from benchmarks._fuzz import HUGE, MARKER, Attempt, any_bytes, any_text, mutated, secret
from neli_router.agent.wire import BODY_MAX, STATUS_OF, Refusal
from neli_router.config.agent_options import AgentOptions
from tests.support.agents.running import Running, configured, running
from tests.support.waiting import PATIENCE

__all__ = ["DOCUMENTED", "opened"]

DOCUMENTED = (ConnectionError, EOFError)
"""A connection that is cut off, which is the only way to answer bytes without a request."""

TOKEN = f"{MARKER}-{MARKER}-token"

PATHS = (
    *(
        "/",
        "/health",
        "/ready",
        "/metrics",
        "/v1/status",
        "/v1/events",
        "/v1/table",
        "/v1/members",
        "/v1/moves",
        "/v1/history",
    ),
    *("/v1/owner", "/v1/lease", "/v1/leadership", "/v1/leadership/events", "/v1/share", "/v1/share/events"),
    *("/v1/watch", "/assets/page.css", "/assets/../x", "/v1/%6fwner", "/v1", "//", "*", "http://localhost/health"),
)
POSTS = tuple(f"/v1/{kind}" for kind in ("owners", "drain", "undrain", "pin", "unpin", "weigh", "load"))
FIELDS = ("key", "key64", "role", "partitions", "limit", "kye")
NUMBERS = ("0", "7", "-1", "0,2-3", "nan", "1e999", "")
HEADERS = (
    "host: evil.example",
    "host:",
    "connection: close",
    "connection: upgrade\r\nupgrade: websocket",
    "expect: 100-continue",
    "transfer-encoding: chunked",
    "content-length: 99999999999999999999",
    "content-length: -1",
    "content-length: 5, 5",
    "if-none-match: *",
    "x: " + "y" * 3000,
    "x: y\r\n" * 110 + "z: a",
)
STATUSES = {200, 304, 431, 503, *STATUS_OF.values()}


@contextmanager
def opened() -> Iterator[Attempt]:
    with tempfile.TemporaryDirectory(prefix="neli-") as folder:
        options = AgentOptions(socket=f"{folder}/agent.sock", listen="127.0.0.1:0", token=TOKEN)
        with running(configured(Path(folder), lease=5.0), options) as agent:
            agent.await_ready()

            def attempt(rng: random.Random) -> Iterable[str]:
                said = _said(rng)
                with _connected(agent, "unix" if rng.random() < 0.3 else "tcp") as client:
                    with suppress(OSError):  # It may have been refused before all of it was sent.
                        client.sendall(said)
                        client.shutdown(socket.SHUT_WR)
                    yield from _answers(client)
                assert agent.error is None, "the agent ended"

            yield attempt


def _said(rng: random.Random) -> bytes:
    if rng.random() < 0.05:
        return any_bytes(rng, size_max=300)
    text = "".join(_request(rng) for _ in range(rng.choice((1, 1, 1, 2, 5))))
    if rng.random() < 0.5:
        text = mutated(rng, text, [_request(rng)])
    found = text.encode("utf-8", "surrogateescape") if rng.random() < 0.9 else text.encode("utf-16", "replace")
    return found[: rng.choice((len(found), len(found), len(found), len(found) // 2))]


def _request(rng: random.Random) -> str:
    is_post = rng.random() < 0.3
    body = _body(rng) if is_post or rng.random() < 0.1 else ""
    size = rng.choice((len(body.encode("utf-8", "surrogateescape")),) * 9 + (BODY_MAX + 1,))
    method = rng.choice(("GET", "GET", "HEAD", "PUT", "OPTIONS", "PROPFIND")) if not is_post else "POST"
    path = rng.choice(POSTS if is_post else PATHS)
    lines = [f"{method} {path}{_query(rng)} HTTP/1.{rng.choice('11110')}", "host: 127.0.0.1"]
    lines += rng.sample(HEADERS, rng.choice((0, 0, 0, 1, 2)))
    token = rng.choice((f"Bearer {TOKEN}", f"Bearer {TOKEN}", f"Bearer {secret(rng)}", f"Basic {secret(rng)}", ""))
    lines += [f"authorization: {token}"] if token else []
    lines += [f"content-length: {size}"] if body else []
    return "\r\n".join((*lines, "", body))


def _query(rng: random.Random) -> str:
    def value() -> str:
        return rng.choice((secret(rng), rng.choice(NUMBERS), any_text(rng).replace(" ", "+"), rng.choice(HUGE)))

    pairs: Sequence[str] = [f"{rng.choice(FIELDS)}={value()}" for _ in range(rng.choice((0, 1, 1, 1, 2, 20)))]
    # No client waits for a lease here: it is answered immediately.
    return "?" + "&".join((*pairs, *rng.choice(((), ("timeout=0",))))) if pairs else ""


def _body(rng: random.Random) -> str:
    name = rng.choice(("b", "nobody", "", any_text(rng)))  # Not the agent's own name: it would no longer lead.
    values = (name, 3, -1, 1e300, None, True, [name], {"a": 1})
    bodies: tuple[object, ...] = (
        {"keys": [secret(rng), any_text(rng)]},
        {"keys64": [secret(rng)]},
        {"keys": secret(rng)},
        {"name": name, "partition": rng.choice((0, -1, 10**30)), "preview": True},
        {"loads": {rng.choice(NUMBERS): rng.choice((1.0, -1.0, 1e300, None))}, "preview": True},
        {rng.choice((*FIELDS, "name", "preview")): rng.choice(values)},
        [secret(rng)],
    )
    return rng.choice((json.dumps(rng.choice(bodies)), rng.choice(HUGE), any_text(rng)))


@contextmanager
def _connected(agent: Running, kind: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET) as client:
        client.settimeout(PATIENCE)
        host, _, port = (agent.agent.tcp_address or "").rpartition(":")
        client.connect(agent.options.socket if kind == "unix" else (host, int(port)))
        yield client


def _answers(client: socket.socket) -> Iterator[str]:
    """The first answer, which must make sense, and everything that follows before the end or a stream."""
    said = b""
    while b"\r\n\r\n" not in said:
        said += _more(client)
    head, _, body = said.partition(b"\r\n\r\n")
    yield head.decode("latin-1")
    if b"text/event-stream" in head:
        return
    while more := client.recv(65536):
        body += more
    yield body.decode("utf-8", "backslashreplace")
    status = int(head[9:12])
    length = head.lower().partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0]
    if status == 100 or not length:
        return
    assert status in STATUSES, f"{status} is not one of our statuses"
    if status not in {200, 304} and (content := body[: int(length)]):  # None after HEAD.
        with suppress(msgspec.DecodeError):  # After HEAD, this is the next answer.
            refusal = msgspec.json.decode(content, type=Refusal)
            assert refusal.kind != "NeliError", refusal.found
            assert "" not in {refusal.wanted, refusal.found, refusal.remedy}


def _more(client: socket.socket) -> bytes:
    said = client.recv(65536)
    if not said:
        raise EOFError
    return said
