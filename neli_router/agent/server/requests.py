"""Requests and answers: a request is bounded and decoded, and each error becomes an answer.

    key=K | key64=B | partition=N --> its partition  exactly one, and at most KEY_MAX characters of it
    partitions=0,8-15        --> partitions          that exist; all, if none are given
    timeout=S  limit=N       --> a number            within its bounds
    {"keys": ...}            --> OwnersAsked         no unknown field

    request --> a body longer than BODY_MAX, by its Content-Length or as it comes --> 413
       '------> application --answer--> the client
                   '-- RequestRefused, NeliError --> its three parts     any other error --> a defect: 503, logged

A request comes from another program. It is either accepted exactly as meant or refused, and never quietly changed: the
usual way to decode a query would replace a byte that is not text by a question mark, and name the owner of another key.
No refusal repeats a key, because it may be personal data.

The guard stands in front of the agent's application, which only its own user can reach, and of the door's (door.py),
which decides which clients may send which requests.
"""

import asyncio
import base64
import binascii
import math
import re
import traceback
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from neli_router.agent.server.connections import AgentTraffic, Connection, connection_of
from neli_router.agent.wire import BODY_MAX, GROUP, KEY_MAX, STATUS_OF, OwnersAsked, Refusal, refusal
from neli_router.core import logs
from neli_router.core.keyspace import Key, Layout, Role, numbered
from neli_router.errors import BadKey, ConfigError, GroupMismatch, NeliError

__all__ = [
    "Answering",
    "Guard",
    "Place",
    "Request",
    "RequestRefused",
    "Route",
    "answer",
    "answer_bytes",
    "bad_request",
    "body_of",
    "decoded",
    "keys_asked",
    "not_ready",
    "number",
    "partitions",
    "place",
    "queried",
    "require_group",
]

FIELDS_MAX = 16
"""Parameters of one query. No request needs more than two."""

BODY_TIME_MAX = 10.0
"""How many seconds a body may take to arrive."""

RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")
PLAIN = re.compile(r"[a-z_]{1,12}|[-+0-9.,]{1,20}")
"""Names like those of parameters, and numbers."""

GROUP_HEADER = GROUP.encode()
JSON = (b"content-type", b"application/json")
NO_STORE = (b"cache-control", b"no-store")
NO_SNIFF = (b"x-content-type-options", b"nosniff")

Asked = TypeVar("Asked")


class RequestRefused(Exception):
    """A request is answered with a Refusal. This is not one of the library's own errors."""

    def __init__(self, kind: str, wanted: str, found: str, remedy: str) -> None:
        super().__init__(found)
        self.answer = Refusal(kind, wanted, found, remedy)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a key belongs, or a partition itself, which has no slot."""

    partition: int
    slot: int | None
    role: Role


class Request(NamedTuple):
    """A request to the agent, and what answers it."""

    asked: dict[str, str]
    """The parameters of its query."""
    scope: Scope
    receive: Receive
    send: Send


Answering = Callable[[Request], Awaitable[None]]
"""Answers the requests of one method and path."""


class Route(NamedTuple):
    """An endpoint, and the parameters that its requests may have; None if none counts."""

    endpoint: Answering
    parameters: Collection[str] | None


def require_group(scope: Scope, group: str) -> None:
    """Raise GroupMismatch if the client of this request means another group."""
    for name, value in scope["headers"]:
        if name == GROUP_HEADER and (asked := unquote(value.decode("latin-1"))) != group:
            raise GroupMismatch(
                f"the agent of {asked} was wanted",
                f"this is the agent of {group}",
                "start one with `neli agent`, say with --agent or NELI_AGENT where it listens, or correct the ledger "
                "in --ledger, NELI_LEDGER or neli.toml",
            )


def bad_request(wanted: str, found: str, remedy: str) -> RequestRefused:
    return RequestRefused("BadRequest", wanted, found, remedy)


def not_ready(wanted: str, found: str, remedy: str) -> RequestRefused:
    return RequestRefused("NotReady", wanted, found, remedy)


async def body_of(receive: Receive) -> bytes:
    """The whole body. The guard bounds its size. Raises RequestRefused if the client goes away before the end."""
    body, is_whole = bytearray(), False
    try:
        async with asyncio.timeout(BODY_TIME_MAX):
            while not is_whole:
                message = await receive()
                if message["type"] == "http.disconnect":  # Part of a wish may read like another wish.
                    raise bad_request("a whole body was wanted", "the client went away before its end", "send it again")
                body += message.get("body", b"")
                is_whole = not message.get("more_body", False)
    except TimeoutError:
        raise bad_request("a body was wanted", f"it did not come within {BODY_TIME_MAX:g} s", "send it") from None
    return bytes(body)


def queried(query: bytes, known: Collection[str]) -> dict[str, str]:
    """The parameters of a query, each given once. Raises RequestRefused for any that is not `known`."""
    if not query:
        return {}
    try:
        text = query.decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=FIELDS_MAX)
    except UnicodeDecodeError:
        pairs = None  # Raised below: this error holds the key, and would become the context of ours.
    except ValueError:
        raise bad_request(
            f"a query of NAME=VALUE was wanted, of at most {FIELDS_MAX} parameters",
            "this one is made otherwise",
            "encode each value as for a URL, and put & between the parameters",
        ) from None
    if pairs is None:
        raise BadKey(
            "a query of UTF-8 text was wanted",
            "it has bytes that are not UTF-8 text",
            "give a key that is not text as key64, in URL-safe base64",
        )
    found = dict(pairs)
    for name in found:
        if name not in known:
            nearest = get_close_matches(name, known, 1, cutoff=0.5)
            guess = f"did you mean {nearest[0]}? " if nearest else ""
            there = ", ".join(sorted(known)) or "none"
            raise bad_request("a known parameter was wanted", f"found {_shown(name)}", f"{guess}There is {there}")
    if len(found) < len(pairs):
        raise bad_request("each parameter was wanted once", "one was given twice", "POST /v1/owners takes many keys")
    return found


def place(found: dict[str, str], layout: Layout) -> Place:
    """The place of the key, key64 or partition. Raises BadKey unless exactly one is given."""
    given = [name for name in ("key", "key64", "partition") if name in found]
    if len(given) != 1:
        there = " and ".join(given) or "none"
        raise BadKey("one of key, key64 and partition was wanted", f"found {there}", "give exactly one of them")
    (name,) = given
    text = found[name]
    key = _bytes_of(text) if name == "key64" else text
    if len(key) > KEY_MAX:
        wanted = f"a key of at most {KEY_MAX} characters was wanted"
        raise BadKey(wanted, f"found one of {len(key)}", "use a shorter key")
    if name == "partition":
        partition = layout.partition_of_role(numbered(text))
        return Place(partition, None, partition)
    slot = layout.slot(key)
    return Place(layout.partition_of_slot(slot), slot, key)


def partitions(found: dict[str, str], layout: Layout) -> Sequence[int]:
    """The requested partitions, in order: numbers and ranges, separated by commas. All, if none are given."""
    text = found.get("partitions")
    if text is None:
        return range(layout.partitions)
    asked: set[int] = set()
    for part in text.split(","):
        spelled = RANGE.fullmatch(part)
        if spelled is None:
            raise bad_request(
                "partitions were wanted, such as 0,8-15", f"found {_shown(part)}", "put commas between them"
            )
        first, last = int(spelled[1]), int(spelled[2] or spelled[1])
        if not first <= last < layout.partitions:
            raise ConfigError([f"there are no partitions {part!r:.40}: they count from 0 to {layout.partitions - 1}"])
        asked.update(range(first, last + 1))
    return sorted(asked)


def number(found: dict[str, str], name: str, *, default: float, most: float) -> float:
    """A parameter that is a number from 0 to `most`."""
    text = found.get(name)
    if text is None:
        return default
    try:
        value = float(text) if len(text) <= 40 else math.nan
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:
        raise bad_request(
            f"{name} was to be a number from 0 to {most:g}",
            f"found {_shown(text)}",
            "give it in seconds, or as a count",
        )
    return value


def keys_asked(body: bytes) -> list[Key]:
    asked = decoded(OwnersAsked, body, '{"keys": ["customer-7"]}')
    return [*asked.keys, *map(_bytes_of, asked.keys64)]


def decoded(kind: type[Asked], body: bytes, example: str) -> Asked:
    """The `kind` of struct that `body` spells in JSON, like the `example`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        # The message names a place and a type but no value, and so no key. But it repeats the name of an unknown field.
        found = "a field that is not known" if "unknown field" in str(error) else str(error)[:200]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = "it is not JSON"
    raise bad_request("a body of JSON was wanted", found, f"send something like {example}")


def _bytes_of(text: str) -> bytes:
    try:
        # Padding may be left out, as is common in addresses; any other character is refused, not skipped.
        bare = text.encode("ascii").rstrip(b"=")
        return base64.b64decode(bare + b"=" * (-len(bare) % 4), b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        pass  # Raised below: this error holds the key.
    raise BadKey("a key64 was wanted: URL-safe base64", "found something else", "encode the key's bytes that way")


def _shown(text: str) -> str:
    """`text` if it looks like a typo; a key that got to its place by mistake must not be repeated."""
    return repr(text) if PLAIN.fullmatch(text) else "something else"


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
    await answer_bytes(send, msgspec.json.encode(view), [JSON, NO_STORE, NO_SNIFF], status=status)


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
    await answer_bytes(send, msgspec.json.encode(said), headers, status=status)


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
