"""The calls: the requests that a client can make, and what the answers mean. Nothing is sent here.

    owner(key) --> Call(method, target, answer, body) --transport, over httpx--> status, bytes
                                                                                    |
    OwnerView, or the error that the agent raised  <---------- answered ------------'
    NoAgent, with the reason                       <---------- no_agent ---- or an error of httpx

Both forms of a client share all of this, so they cannot disagree. A key is part of the address of a request, and may be
personal data, so it appears in no `repr` and in no error.
"""

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from errno import errorcode
from itertools import groupby
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from neli_router.agent import wire
from neli_router.config.agent_address import Address
from neli_router.core.clock import host_clock
from neli_router.core.keyspace import Key, Role, utf8
from neli_router.core.logs import logger
from neli_router.errors import BadKey, ConfigError, NeliError, NoAgent, NoOwner

__all__ = [
    "EVENTS",
    "HERE",
    "HISTORY_EVENTS",
    "MEMBERS",
    "PEERS",
    "STATUS",
    "TABLE",
    "TIMEOUT",
    "Call",
    "answered",
    "batches",
    "causes",
    "drain",
    "history",
    "layout_awaited",
    "leader",
    "leadership",
    "lease",
    "led_by",
    "led_within",
    "load",
    "moves",
    "named",
    "no_agent",
    "owner",
    "owner_of_role",
    "owners",
    "pin",
    "progress",
    "rebalance",
    "share",
    "share_events",
    "watch",
    "weigh",
]

TIMEOUT = 5.0
"""Seconds without a byte of an answer, after which the agent counts as hung. It answers from memory, in under one
millisecond. A longer timeout only helps on a host whose processors are all busy."""

WISH_TIMEOUT = 15.0
"""A wish waits for the ledger, at most ten seconds; see `member/wishes.py`."""

BATCH_MAX = wire.BODY_MAX // 2
"""Bytes of keys in one request, before JSON adds quotes, commas and escapes."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One request. `target` may contain a key, so `repr` leaves it out."""

    method: str
    target: str = field(repr=False)
    answer: type[Answer]
    body: bytes = field(default=b"", repr=False)
    timeout: float | None = None


# Requests

TABLE = Call("GET", "/v1/table", wire.TableView)
MEMBERS = Call("GET", "/v1/members", wire.MembersView)
PEERS = Call("GET", "/v1/peers", wire.PeersView)
HERE = Call("GET", "/v1/leader", wire.LeaderView)
"""The name of this host's member and the group's layout. No owner is looked up."""
STATUS = Call("GET", "/v1/status", wire.StatusView)
EVENTS = Call("GET", "/v1/events", msgspec.Raw)
"""The stream of the status page. Its events are passed on unchanged, so their JSON is only checked, not decoded."""
HISTORY_EVENTS = Call("GET", "/v1/history/events", wire.EventView)


def owner(key: Key) -> Call[Any]:
    """The owner of `key`. A key that is too long for an address goes in the body, and the answer is a list of one."""
    target = f"/v1/owner?{_key(key)}"
    return owners([key]) if len(target) > wire.KEY_MAX else Call("GET", target, wire.OwnerView)


def owner_of_role(role: Role) -> Call[Any]:
    return owner(role) if isinstance(role, str | bytes) else Call("GET", f"/v1/owner?{_role(role)}", wire.OwnerView)


def leader(role: Role) -> Call[wire.LeaderView]:
    """The leader of `role`, and what this host has to do with it. A key must fit into an address: see `KEY_MAX`."""
    return Call("GET", f"/v1/leader?{_role(role)}", wire.LeaderView)


def owners(keys: Iterable[Key]) -> Call[wire.OwnersView]:
    # Send every key as bytes, so that the answers come in the order of the questions.
    asked = wire.OwnersAsked(keys64=[urlsafe_b64encode(utf8(key)).decode() for key in keys])
    return Call("POST", "/v1/owners", wire.OwnersView, msgspec.json.encode(asked))


def batches(keys: Iterable[Key]) -> Iterator[list[Key]]:
    """`keys` in batches that each fit into a request. The agent refuses a key that is too large on its own."""
    batch: list[Key] = []
    size = 0
    for key in keys:
        cost = len(utf8(key)) * 4 // 3 + 8
        if batch and size + cost > BATCH_MAX:
            yield batch
            batch, size = [], 0
        batch.append(key)
        size += cost
    if batch:
        yield batch


def lease(role: Role) -> Call[wire.LeaseView]:
    return Call("GET", f"/v1/lease?{_role(role)}", wire.LeaseView)


def led_within(role: Role, seconds: float) -> Call[wire.LeaseView]:
    """The lease of `role` as soon as this host leads it. Raises NotLeading after `seconds` seconds."""
    return Call("GET", f"/v1/leadership?{_role(role)}&timeout={seconds:.3f}", wire.LeaseView, timeout=seconds + TIMEOUT)


def leadership(role: Role) -> Call[wire.LeaseView]:
    """A stream; each of its events is a LeaseView."""
    return Call("GET", f"/v1/leadership/events?{_role(role)}", wire.LeaseView)


def share(partitions: Iterable[int]) -> Call[wire.ShareView]:
    return Call("GET", f"/v1/share?partitions={_ranges(partitions)}", wire.ShareView)


def share_events(partitions: Iterable[int] | None) -> Call[wire.ShareView]:
    """A stream; each of its events is a ShareView. None stands for all partitions."""
    query = "" if partitions is None else f"?partitions={_ranges(partitions)}"
    if len(query) > wire.KEY_MAX:
        raise ConfigError([f"{wire.KEY_MAX} characters must be enough to name the partitions of a share: ask for all"])
    return Call("GET", f"/v1/share/events{query}", wire.ShareView)


def watch(role: Role | None) -> Call[wire.OwnerView]:
    """A stream; each of its events is an OwnerView."""
    query = "" if role is None else _role(role)
    if len(query) > wire.KEY_MAX:
        raise BadKey(
            f"a key that fits into {wire.KEY_MAX} characters was wanted", f"it needs {len(query)}", "watch them all"
        )
    return Call("GET", f"/v1/watch?{query}" if query else "/v1/watch", wire.OwnerView)


def history(limit: int) -> Call[wire.HistoryView]:
    return Call("GET", f"/v1/history?limit={limit}", wire.HistoryView)


def moves(limit: int) -> Call[wire.MovesView]:
    return Call("GET", f"/v1/moves?limit={limit}", wire.MovesView)


def drain(name: str, *, undo: bool, preview: bool) -> Call[wire.DrainView]:
    return _wish("undrain" if undo else "drain", wire.WishAsked(name=name, preview=preview), wire.DrainView)


def pin(partition: int, name: str | None, *, preview: bool) -> Call[wire.WishView]:
    asked = wire.WishAsked(name=name, partition=partition, preview=preview)
    return _wish("unpin" if name is None else "pin", asked, wire.WishView)


def weigh(name: str, weight: int | None, *, preview: bool) -> Call[wire.WishView]:
    return _wish("weigh", wire.WishAsked(name=name, weight=weight, preview=preview), wire.WishView)


def rebalance(to: str | None, partitions: Iterable[int] | None) -> Call[wire.RebalanceView]:
    asked = wire.RebalanceAsked(to, None if partitions is None else list(partitions))
    return _wish("rebalance", asked, wire.RebalanceView)


def load(asked: wire.LoadAsked) -> Call[wire.LoadView]:
    return _wish("load", asked, wire.LoadView)


def progress(table: str, behind: Mapping[int, int]) -> Call[wire.ProgressView]:
    asked = wire.ProgressAsked(table, dict(behind))
    return Call("POST", "/v1/progress", wire.ProgressView, msgspec.json.encode(asked))


def _wish(path: str, asked: msgspec.Struct, answer: type[Answer]) -> Call[Answer]:
    return Call("POST", f"/v1/{path}", answer, msgspec.json.encode(asked), WISH_TIMEOUT)


# Answers


def led_by(view: wire.LeaderView) -> wire.OwnerView:
    """The owner, if there is one. Raises what a question for the owner raises."""
    if view.owner is None:
        assert view.refusal is not None, "an agent names an owner or a reason"
        raise wire.raised(view.refusal)
    return view.owner


def named(view: wire.OwnerView | wire.OwnersView) -> wire.OwnerView:
    """The owner, if there is one. Raises NoOwner."""
    one = view.owners[0] if isinstance(view, wire.OwnersView) else view
    if one.name is None:
        raise NoOwner(
            f"an owner of partition {one.partition} was wanted",
            one.why or "it has no owner now",
            "ask again in a moment; `neli members` shows who is there",
        )
    return one


def layout_awaited(give_up_at: float) -> None:
    """Tell that the agent knows no layout yet. Raises NeliError once it is too late to wait."""
    if (left := give_up_at - host_clock()) < 0:
        raise NeliError(
            "the layout of the group was wanted from the agent",
            "it has found no group yet",
            "see with `neli members` what it waits for",
        )
    logger().warning("layout.awaited", at_most=f"{left:.0f} s")


def answered(call: Call[Answer], address: Address, status: int, content: bytes, *, has_token: bool) -> Answer:
    """The agent's answer, decoded. Raises the error that the agent refused with."""
    try:
        if status == 200:
            return msgspec.json.decode(content, type=call.answer)
        refused = msgspec.json.decode(content, type=wire.Refusal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = f"the answer, with status {status}, is of no agent of this version"
    else:
        if refused.kind == "TokenWanted":
            raise NeliError(
                f"the token of the agent at {address} was wanted",
                "it knows another one" if has_token else "none was given",
                "put it into NELI_TOKEN or a file for --token-file, or speak to the agent's Unix socket, "
                "which needs none",
            )
        raise wire.raised(refused)
    raise NoAgent(f"an agent was wanted at {address}", found, "see what listens there, or name another with --agent")


def no_agent(address: Address, error: BaseException) -> NoAgent:
    """The reason why no answer came, from the `error` of httpx."""
    start = "start one with `neli agent`, or say with --agent or NELI_AGENT where it listens"
    name = next((errorcode.get(one.errno or 0, "") for one in causes(error) if isinstance(one, OSError)), "")
    if isinstance(error, httpx.TimeoutException):
        found = "it did not answer in time"
        start = "if it hangs, its log says why; restart it then"
    elif name in {"ENOENT", "ENOTDIR"}:
        found = "there is no socket"
    elif name == "ECONNREFUSED" and address.path:
        found = "its socket is stale: no process listens on it any more"
    elif name == "ECONNREFUSED":
        found = "nothing listens there"
    elif name in {"EACCES", "EPERM"}:
        found = "this user may not open its socket"
        start = "run this as the agent's own user, or " + start
    elif name in {"ENOTSOCK", "EPROTOTYPE"}:
        found = "the file there is not a socket that accepts connections"
    elif isinstance(error, httpx.ConnectError):
        found = f"it cannot be reached ({name or error})"
    else:
        found = "it ended the connection before it had answered"
        start = "it may have been stopped: " + start
    return NoAgent(f"an agent was wanted at {address}", found, start)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """`error` and what it came from: httpx wraps httpcore's error, which wraps the system's."""
    for _ in range(10):
        if error is None:
            return
        yield error
        # A host name with several addresses is tried at each of them, and the failures come as a group of errors.
        inner = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else None
        error = inner or error.__cause__ or error.__context__


def _key(key: Key) -> str:
    if isinstance(key, str) and key:
        return f"key={quote(utf8(key), safe='')}"
    return f"key64={quote(urlsafe_b64encode(utf8(key)), safe='')}"


def _role(role: Role) -> str:
    return f"partition={role}" if type(role) is int else _key(role)  # type: ignore[arg-type]


def _ranges(partitions: Iterable[int]) -> str:
    """Written as the wire spells them: 0,8-15."""
    asked: list[Any] = list(partitions)
    for partition in asked:
        if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
            raise ConfigError([f"the partitions of a share are numbers from 0 on, got {partition!r:.40}"])
    if not asked:
        raise ConfigError(["a share needs a partition: name one, or leave `partitions` out for all"])
    # In a run of neighbours, each number has the same distance to its index.
    runs = groupby(enumerate(sorted(set(asked))), lambda one: one[1] - one[0])
    ends = [(run[0][1], run[-1][1]) for run in (list(members) for _, members in runs)]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)
