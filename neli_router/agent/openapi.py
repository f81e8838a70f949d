"""The agent's HTTP interface as an OpenAPI document, which the agent serves at /v1/openapi.json.

    ENDPOINTS and the classes of the wire --document--> OpenAPI 3.1 --> other languages, docs/reference/http.md

The schemas are those of the classes that the agent itself encodes and decodes, so the document cannot describe other
fields. The application takes the parameters of each request from here. A test compares the paths, and validates the
answers of a running agent. Only /v1/witness is left out: no other program can register a member.

OpenAPI knows no streams. A stream is a response of `text/event-stream`; its description names the events, and
`x-events` gives the schema of their data.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from neli_router.agent import wire

__all__ = ["ENDPOINTS", "Endpoint", "document"]

PLACE = ("key", "key64", "partition")

PARAMETERS: Mapping[str, tuple[str, dict[str, object]]] = {
    "key": ("A key, as text. Also one of digits.", {"type": "string", "maxLength": wire.KEY_MAX}),
    "key64": ("A key that is not text, in URL-safe base64.", {"type": "string", "maxLength": wire.KEY_MAX}),
    "partition": ("A partition's number, in place of a key.", {"type": "integer", "minimum": 0}),
    "partitions": ("Partitions, such as 0,8-15. All, if it is left out.", {"type": "string"}),
    "timeout": ("How many seconds to wait, at most.", {"type": "number", "minimum": 0}),
    "limit": ("How many, newest first in choice and last in order.", {"type": "integer", "minimum": 0}),
}
"""Name -> description and schema. A request has exactly one of `key`, `key64` and `partition`."""


class Endpoint(NamedTuple):
    """One method and path. `answer` is a class of the wire, or the type of a text."""

    summary: str
    answer: Any
    parameters: tuple[str, ...] | None = ()
    """None if a query is ignored."""
    asked: Any = None
    """The class of the body."""
    events: tuple[str, ...] = ()
    """The names of a stream's events; each has `answer` as its data."""


LEASES = ("waiting", "acquired", "renewed", "revoked", "fenced", "ended")

_WISHES: Mapping[str, tuple[str, Any]] = {
    "drain": ("Let a member own nothing.", wire.DrainView),
    "undrain": ("Take a drain back.", wire.DrainView),
    "pin": ("Give a partition to a certain member.", wire.WishView),
    "unpin": ("Take a pin back.", wire.WishView),
    "weigh": ("Override a member's weight; without `weight`, its own counts again.", wire.WishView),
}

ENDPOINTS: Mapping[tuple[str, str], Endpoint] = {
    ("GET", "/v1/owner"): Endpoint("Who owns a key.", wire.OwnerView, PLACE),
    ("POST", "/v1/owners"): Endpoint("Who owns each of many keys.", wire.OwnersView, None, wire.OwnersAsked),
    ("GET", "/v1/leader"): Endpoint(
        "A key's owner, this agent's member, whether it may act, and the layout. Without a key, only the last two.",
        wire.LeaderView,
        PLACE,
    ),
    ("GET", "/v1/lease"): Endpoint("Whether this host leads a role now.", wire.LeaseView, PLACE),
    ("GET", "/v1/leadership"): Endpoint("Wait until this host leads a role.", wire.LeaseView, (*PLACE, "timeout")),
    ("GET", "/v1/leadership/events"): Endpoint(
        "Hold a role: from `acquired` on, it is handed over after this stream closes, or `drain_timeout` later.",
        wire.LeaseView,
        PLACE,
        events=LEASES,
    ),
    ("GET", "/v1/share"): Endpoint("Those of some partitions that this host leads.", wire.ShareView, ("partitions",)),
    ("GET", "/v1/share/events"): Endpoint(
        "Hold those partitions together. `more` names others that the host leads by now.",
        wire.ShareView,
        ("partitions",),
        events=(*LEASES, "more"),
    ),
    ("GET", "/v1/watch"): Endpoint("Each change of an owner.", wire.OwnerView, PLACE, events=("owner",)),
    ("GET", "/v1/table"): Endpoint("Every partition.", wire.TableView),
    ("GET", "/v1/members"): Endpoint("The members, in the order in which they joined.", wire.MembersView),
    ("GET", "/v1/peers"): Endpoint("In a group of peers: who answers, and who leads.", wire.PeersView),
    ("GET", "/v1/moves"): Endpoint("Which partitions moved, and why.", wire.MovesView, ("limit",)),
    ("GET", "/v1/history"): Endpoint(
        "Joins, ends and wishes, and what moved because of each.", wire.HistoryView, ("limit",)
    ),
    ("GET", "/v1/history/events"): Endpoint(
        "Each new event of the history, and each that has grown.", wire.EventView, events=("event",)
    ),
    ("GET", "/v1/status"): Endpoint("Everything that the page shows.", wire.StatusView),
    ("GET", "/v1/events"): Endpoint(
        "The status, now and after each change.", wire.StatusView, events=("status", "changed")
    ),
    **{
        ("POST", f"/v1/{kind}"): Endpoint(
            f"{summary} With `preview`, only say what would move.", answer, (), wire.WishAsked
        )
        for kind, (summary, answer) in _WISHES.items()
    },
    ("POST", "/v1/load"): Endpoint(
        "Let partitions count with measured loads. With `preview`, only say what would move.",
        wire.LoadView,
        (),
        wire.LoadAsked,
    ),
    ("POST", "/v1/rebalance"): Endpoint(
        "Move leaders that are elected among peers.", wire.RebalanceView, (), wire.RebalanceAsked
    ),
    ("POST", "/v1/progress"): Endpoint(
        "A job reports how far it is behind its input.", wire.ProgressView, (), wire.ProgressAsked
    ),
    ("GET", "/v1/openapi.json"): Endpoint("This document.", dict[str, Any], None),
    ("GET", "/health"): Endpoint("Whether the agent's member lives.", dict[str, Any], None),
    ("GET", "/ready"): Endpoint("Whether the agent can answer.", dict[str, Any], None),
    ("GET", "/metrics"): Endpoint("Metrics, in the text format of Prometheus.", str, None),
}
"""(method, path) -> its endpoint, in the order in which the document shows them."""

INTRODUCTION = (
    "Answers come from memory. Any answer but 200 has a `Refusal`: what was wanted, what was found, and what to do; "
    "`kind` is a class of `neli_router.errors`. A client that knows its group names it in the header `neli-group`, and "
    "an agent of another group refuses. Over TCP, a request needs the agent's token."
)


def document(version: str) -> dict[str, Any]:
    """The document, for an agent of this `version`."""
    kinds = [kind for one in ENDPOINTS.values() for kind in (one.answer, one.asked) if kind is not None]
    schemas, components = msgspec.json.schema_components(
        [*dict.fromkeys(kinds), wire.Refusal], ref_template="#/components/schemas/{name}"
    )
    of = dict(zip([*dict.fromkeys(kinds), wire.Refusal], schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), one in ENDPOINTS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(path, one, of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "NELI Router agent", "version": version, "description": INTRODUCTION},
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {"Refusal": {"description": "Why not.", "content": _json(of[wire.Refusal])}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(path: str, one: Endpoint, of: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    content = _json(of[one.answer])
    if one.events:
        content = {
            "text/event-stream": {"schema": {"type": "string"}, "x-events": dict.fromkeys(one.events, of[one.answer])}
        }
    elif one.answer is str:
        content = {"text/plain": {"schema": of[str]}}
    operation: dict[str, Any] = {
        "operationId": path.removeprefix("/v1/").strip("/").replace("/", "_").partition(".")[0],
        "summary": one.summary,
        "responses": {
            "200": {"description": f"Events: {', '.join(one.events)}." if one.events else "Done.", "content": content},
            "default": {"$ref": "#/components/responses/Refusal"},
        },
    }
    if one.parameters:
        operation["parameters"] = [
            {"name": name, "in": "query", "description": PARAMETERS[name][0], "schema": PARAMETERS[name][1]}
            for name in one.parameters
        ]
    if one.asked is not None:
        operation["requestBody"] = {"required": True, "content": _json(of[one.asked])}
    return operation


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
