"""The guard: requests are bounded, and each error becomes an answer.

    request --> a body longer than BODY_MAX, by its Content-Length or as it comes --> 413
       '------> application --answer--> the client
                   '-- RequestRefused, NeliError --> its three parts     any other error --> a defect: 503, logged

It stands in front of the agent's application, which only its own user can reach, and of the door's (door.py), which
decides which clients may send which requests.
"""

import traceback
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from neli_router.agent.server.connections import AgentTraffic, Connection, connection_of
from neli_router.agent.server.requests import RequestRefused
from neli_router.agent.wire import BODY_MAX, STATUS_OF, Refusal, refusal
from neli_router.core import logs
from neli_router.errors import NeliError

__all__ = ["Guard", "answer", "answer_bytes"]

JSON = (b"content-type", b"application/json")
NO_STORE = (b"cache-control", b"no-store")
NO_SNIFF = (b"x-content-type-options", b"nosniff")

_encoder = msgspec.json.Encoder()


class Guard:
    """Stands in front of `app`, and turns each of its errors into an answer."""

    def __init__(self, app: ASGIApp, traffic: AgentTraffic) -> None:
        self._app, self._traffic = app, traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "lifespan and web sockets are turned off"
        connection = connection_of(scope)
        await self._answer(connection, scope, receive, send)
        if connection.transport.is_closing():
            connection.excuse()

    async def _answer(self, connection: Connection, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_on(message: Message) -> None:
            nonlocal started
            if connection.transport.is_closing():
                return  # The client went away a moment ago, and the application has not been notified yet.
            if not started:
                started = True
                self._traffic.answers[str(message["status"])] += 1
            await send(message)

        try:
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
            connection.transport.abort()  # One answer has begun, so another cannot be sent.
        else:
            await _refuse(said, send_on)


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
    """`receive`, limited to BODY_MAX bytes, even if the Content-Length was false."""
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
    # Only the place, without the message, which may repeat a key.
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.name}:{place.lineno}"
    logs.logger().error("agent.request_failed", path=scope["path"], error=type(error).__name__, where=where)
    found = f"the agent has a defect ({type(error).__name__} in {where})"
    return Refusal("NeliError", "an answer was wanted", found, "report it, with the agent's log")
