"""The guard: which client may ask for what. It decides before the application sees a request.

    own Unix socket -----------------------------------------------------------> all of it
    TCP --Host is a name of this host--> status, page, metrics ----------------> read, by all users of this host
              | no: refused                anything else --the right token-----> all of it
              '                                          '--none, or another --> 401
    a body longer than BODY_MAX, by its Content-Length or as it comes --> 413

Why look at Host: a page from anywhere can have its own name resolve to 127.0.0.1, and a browser then lets its scripts
read from here as from their own server. They cannot forge that header. For the same reason no answer carries a header
that would invite other origins; and to have something *done* takes a token, which a page of another origin does not
have.

Tokens are compared in constant time, or a client could find one letter after the other by the clock.
"""

import hmac
import traceback
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from neli_router import logs
from neli_router.agent.server.connections import AgentTraffic, connection_of
from neli_router.agent.server.requests import RequestRefused, bad_request
from neli_router.agent.wire import BODY_MAX, STATUS_OF, Refusal, refusal
from neli_router.errors import NeliError
from neli_router.settings.addresses import is_loopback, parse_place

__all__ = ["OPEN_PATHS", "Guard", "answer", "answer_bytes"]

OPEN_PATHS = frozenset(
    {"/", "/health", "/ready", "/metrics", "/v1/status", "/v1/events", "/v1/table", "/v1/members", "/v1/moves"}
)
"""Paths that may be read over TCP without a token. Look-ups of keys are not among them: keys may be personal."""

OPEN_FOLDER = "/assets/"

JSON = (b"content-type", b"application/json")
NO_STORE = (b"cache-control", b"no-store")
NO_SNIFF = (b"x-content-type-options", b"nosniff")

_encoder = msgspec.json.Encoder()


class Guard:
    """In front of `app`; turns every error of it into an answer. `token` gives the present one, or None."""

    def __init__(self, app: ASGIApp, traffic: AgentTraffic, *, token: Callable[[], str | None], any_host: bool) -> None:
        self._app, self._traffic, self._token, self._any_host = app, traffic, token, any_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "there is no lifespan here, and there are no web sockets"
        started, connection = False, connection_of(scope)

        async def send_on(message: Message) -> None:
            nonlocal started
            if connection.transport.is_closing():
                return  # The client went away a moment ago, and the application was not told yet.
            if not started:
                started = True
                self._traffic.answers[str(message["status"])] += 1
            await send(message)

        try:
            if not connection.is_own:
                self._check_host(scope)
                self._check_token(scope)
            if scope["method"] == "POST":
                receive = _limited(scope, receive)
            await self._app(scope, receive, send_on)
        except RequestRefused as error:
            said = error.answer
        except NeliError as error:
            said = refusal(error)
        except Exception as error:  # noqa: BLE001 - of one request; the agent's other clients have no part in it.
            said = _defect(scope, error)
        else:
            return
        self._traffic.refusals[said.kind] += 1
        if started:
            connection.transport.abort()  # In the middle of an answer there is no place for another.
        else:
            await _refuse(said, send_on)

    def _check_host(self, scope: Scope) -> None:
        if self._any_host:
            return
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        place = parse_place(hosts[0].decode("latin-1"), 80) if len(hosts) == 1 else None
        if place is None or not is_loopback(place[0]):
            raise bad_request(
                "a request to this host by a name of its own was wanted",
                "the Host header names another, or none",
                "ask for http://127.0.0.1 or http://localhost",
            )

    def _check_token(self, scope: Scope) -> None:
        path = scope["path"]
        if scope["method"] in {"GET", "HEAD"} and (path in OPEN_PATHS or path.startswith(OPEN_FOLDER)):
            return
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        found = "none was given"
        if given:
            kind, _, word = given[0].partition(b" ")
            token = self._token()
            # Bytes, because compare_digest refuses text that is not ASCII, which would be an answer by itself.
            if kind.lower() == b"bearer" and token and hmac.compare_digest(word.strip(), token.encode()):
                return
            found = "another one was given"
        raise RequestRefused(
            "TokenWanted",
            "over TCP, this needs the agent's token",
            found,
            "send `Authorization: Bearer TOKEN`, with --token-file, or use the Unix socket",
        )


async def answer(send: Send, view: Any, *, status: int = 200) -> None:
    """Answer with `view` as JSON."""
    await answer_bytes(send, _encoder.encode(view), [JSON, NO_STORE, NO_SNIFF], status=status)


async def answer_bytes(send: Send, body: bytes, headers: list[tuple[bytes, bytes]], *, status: int = 200) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def _refuse(said: Refusal, send: Send) -> None:
    status = STATUS_OF.get(said.kind, 503)
    headers = [JSON, NO_STORE, NO_SNIFF]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 413:
        headers.append((b"connection", b"close"))  # Or the rest of the body would be read as the next request.
    await answer_bytes(send, _encoder.encode(said), headers, status=status)


def _limited(scope: Scope, receive: Receive) -> Receive:
    """`receive`, for at most BODY_MAX bytes, also if its Content-Length was false."""
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    if lengths and lengths[0].isdigit() and int(lengths[0][:20]) > BODY_MAX:
        raise _too_large()
    left = BODY_MAX

    async def receive_some() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise _too_large()
        return message

    return receive_some


def _too_large() -> RequestRefused:
    found = "this one is larger"
    return RequestRefused("TooLarge", f"a body of at most {BODY_MAX} bytes was wanted", found, "send it in parts")


def _defect(scope: Scope, error: Exception) -> Refusal:
    # The place alone, without the message, which may repeat a key.
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.name}:{place.lineno}"
    logs.logger().error("agent.request_failed", path=scope["path"], error=type(error).__name__, where=where)
    found = f"the agent has a defect ({type(error).__name__} in {where})"
    return Refusal("NeliError", "an answer was wanted", found, "report it, with the agent's log")
