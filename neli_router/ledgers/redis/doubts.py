"""What a Redis, as it is set up, can be relied upon for, and what people should know about it.

    INFO, CONFIG GET, XINFO's neighbours --> facts --> promises: MULTI_HOST, perhaps DURABLE; never NEVER_REWINDS
                                                  '--> doubts: a sentence for each thing that endangers something

Why never: a master acknowledges before its replicas have a record, so a failover takes the newest with it; and a
master that is cut off from its sentinels goes on acknowledging to whoever is on its side, while they make another one.
Without replicas, a lost disk is a lost ledger. No setting changes that, so an `exclusive` group on Redis needs its
user's word that it accepts rewinds (`accept_rewinds`). What was lost is found out all the same.

An operator may deny INFO and CONFIG to programs. Then we do not know, promise nothing, and say so.
"""

from collections.abc import Mapping
from typing import Any

from redis.exceptions import ResponseError

from neli_router.ledgers.base import Promise
from neli_router.ledgers.redis.link import Link

__all__ = ["examine"]

_SETTINGS = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "min-replicas-to-write")

_FAILOVER = (
    "Redis copies to its replicas after it has acknowledged: a failover may lose the newest records, and then the "
    "group stops and says so"
)


def examine(link: Link) -> tuple[frozenset[Promise], tuple[str, ...]]:
    """The promises and the doubts of the server that `link` leads to."""
    shared = frozenset() if link.at.path else frozenset({Promise.MULTI_HOST})
    replication, *said = link.try_each([("INFO", "replication"), ("CONFIG", "GET", *_SETTINGS)])
    doubts = []
    if isinstance(said[0], ResponseError):
        doubts.append(
            "how this Redis is set up cannot be seen: let the user run CONFIG GET, or make sure that appendonly is yes "
            "and maxmemory-policy is noeviction"
        )
        settings: Mapping[str, str] = {}
    else:
        settings = {_text(name): _text(value) for name, value in zip(said[0][::2], said[0][1::2], strict=True)}
        doubts += _of_disk(settings) + _of_memory(settings)
    replicas = 0 if isinstance(replication, ResponseError) else _replicas(_text(replication))
    if replicas or link.at.service:
        doubts.append(_FAILOVER)
        if settings.get("min-replicas-to-write") == "0":
            doubts.append(
                "min-replicas-to-write is 0: a master that is cut off from its replicas goes on taking records that "
                "the next failover drops, and members on both sides may lead meanwhile; set it to 1"
            )
    durable = settings.get("appendonly") == "yes" and settings.get("appendfsync") == "always"
    return shared | ({Promise.DURABLE} if durable else set()), tuple(doubts)


def _of_disk(settings: Mapping[str, str]) -> list[str]:
    if settings.get("appendonly") != "yes":
        return ["appendonly is no: a restart loses records, and then the group stops and says so; set it to yes"]
    if (sync := settings.get("appendfsync")) != "always":
        lost = "the records of a second or two" if sync == "everysec" else "what its host had not written yet"
        return [f"appendfsync is {sync}: a crash may lose {lost}, and then the group stops and says so"]
    return ["one disk has all records: if it is lost without a replica, so is the group's ledger"]


def _of_memory(settings: Mapping[str, str]) -> list[str]:
    policy = settings.get("maxmemory-policy", "noeviction")
    if settings.get("maxmemory", "0") == "0":
        return []
    if policy.startswith("allkeys"):
        return [f"maxmemory-policy is {policy}: Redis may drop the whole ledger for room; set it to noeviction"]
    return [f"maxmemory is {settings['maxmemory']} bytes: when they are full, nothing can be appended"]


def _replicas(information: str) -> int:
    lines = dict(line.split(":", 1) for line in information.splitlines() if ":" in line)
    return int(lines.get("connected_slaves", "0"))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
