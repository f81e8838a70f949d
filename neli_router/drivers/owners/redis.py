"""Owners in Redis: members write there what they lead, and routers read it and follow its changes.

    publish --SAY, one script--> hashes --PUBLISH--> follow (a separate connection, which only listens)
    table   --READ, one script--> the whole table in one round trip

News between two connections never arrive, so the first `table` over a new one returns everything, whatever version was
known.

**Layout**, version 1: three hashes and a channel for any client. docs/redis.md shows how.

    GROUP:owners:v1    partition -> TERM HOLDER         17 -> 1781234567000123 4f1c...      released: 1781234567000123 -
    GROUP:holders:v1   HOLDER -> EXPIRES_MS CARD        4f1c... -> 1781234599000 {"name":"a","address":"a:1",...}
    GROUP:layout:v1    slots, partitions, tags, since, revision
    GROUP:changes:v1   each change as a message: since:revision, then a line `PARTITION TERM HOLDER` or
                       `@HOLDER EXPIRES_MS CARD` for each

A partition names its holder, and the holder has the expiry: so a member with a thousand partitions renews one field. A
released partition keeps its term; otherwise a lower term could come after it. `since` distinguishes a recreated table
from one that went on, and `revision` counts the changes: together they are the version that readers compare.

Both scripts are one step for the server. SAY compares terms as numbers, which is exact up to 53 bits, and terms have no
more. A claim with another layout wins if all its terms are higher, which is the case for a recreated ledger, and is
refused otherwise. READ writes nothing, so a user without any right to write may run it (`EVAL_RO`). It answers with two
long texts instead of a thousand short ones, because a Python client takes 30 ms to parse the short ones.
"""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.redis.address import RedisAddress
from neli_router.drivers.ledgers.redis.link import Link
from neli_router.drivers.owners.base import Card, Claim, Holding, Listing, OwnersChange, Receipt, Version
from neli_router.drivers.owners.served import PURPOSE, ServedOwners, layout_of, mismatch, ours, require_within

__all__ = ["RedisOwners", "channel", "keys", "news"]

MESSAGES_MAX = 1000
"""Messages taken in one go. The rest waits in the socket."""

VERSION = "v1"

FORGET_AFTER_MS = 86_400_000
"""A holder that expired a day ago is dropped from the hash. Its partitions keep their terms."""

MISMATCH = "NELILAYOUT"
"""SAY's answer to a member of another layout that is not of a later group."""

SAY = """
local owners, holders, layout, channel = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local slots, partitions, tags, holder, card, ttl, led = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = redis.call('HMGET', layout, 'slots', 'partitions', 'tags')
if known[1] ~= slots or known[2] ~= partitions or known[3] ~= tags then
  if known[1] then
    local highest = 0
    for _, held in ipairs(redis.call('HVALS', owners)) do
      highest = math.max(highest, tonumber(string.match(held, '^%d+')) or 0)
    end
    local lowest = math.huge
    for i = 9, 8 + 2 * led, 2 do lowest = math.min(lowest, tonumber(ARGV[i + 1])) end
    if lowest <= highest or lowest == math.huge then
      return redis.error_reply('NELILAYOUT ' .. table.concat({known[1], known[2] or '?', known[3] or '?'}, ' '))
    end
    redis.call('DEL', owners, holders, layout)
  end
  redis.call('HSET', layout, 'slots', slots, 'partitions', partitions, 'tags', tags, 'since', table.concat(time, '.'))
end
local lines, refused = {}, {}
for i = 9, #ARGV, 2 do
  local partition, term = ARGV[i], ARGV[i + 1]
  local was = redis.call('HGET', owners, partition) or '-1'
  local is
  if i <= 8 + 2 * led then
    local highest = tonumber(string.match(was, '^-?%d+')) or -1
    is = term .. ' ' .. holder
    if tonumber(term) < highest or (tonumber(term) == highest and was ~= is and was ~= term .. ' -') then
      table.insert(refused, tonumber(partition))
      is = was
    end
  else
    is = was == term .. ' ' .. holder and term .. ' -' or was
  end
  if is ~= was then
    redis.call('HSET', owners, partition, is)
    table.insert(lines, partition .. ' ' .. is)
  end
end
local held = redis.call('HGET', holders, holder)
if ttl == '0' then
  if redis.call('HDEL', holders, holder) == 1 then table.insert(lines, '@' .. holder .. ' 0 ' .. card) end
else
  local expires = string.format('%.0f', now + tonumber(ttl))
  redis.call('HSET', holders, holder, expires .. ' ' .. card)
  local before = held and tonumber(string.match(held, '^%d+')) or 0
  if #lines > 0 or before <= now then table.insert(lines, '@' .. holder .. ' ' .. expires .. ' ' .. card) end
  if not held then
    local all = redis.call('HGETALL', holders)
    for i = 1, #all, 2 do
      if (tonumber(string.match(all[i + 1], '^%d+')) or 0) < now - FORGET then redis.call('HDEL', holders, all[i]) end
    end
  end
end
local since = redis.call('HGET', layout, 'since')
local revision = redis.call('HGET', layout, 'revision') or '0'
if #lines > 0 then
  revision = redis.call('HINCRBY', layout, 'revision', 1)
  redis.call('PUBLISH', channel, since .. ':' .. revision .. '\\n' .. table.concat(lines, '\\n'))
end
return {since .. ':' .. revision, refused}
""".replace("FORGET", str(FORGET_AFTER_MS))

READ = """
local time = redis.call('TIME')
local layout = redis.call('HMGET', KEYS[3], 'slots', 'partitions', 'tags', 'since', 'revision')
local version = (layout[4] or '') .. ':' .. (layout[5] or '0')
local owners = version ~= ARGV[1] and table.concat(redis.call('HGETALL', KEYS[1]), '\\n')
local holders = table.concat(redis.call('HGETALL', KEYS[2]), '\\n')
return {time[1], time[2], version, holders, owners, layout[1], layout[2], layout[3]}
"""


class RedisOwners(ServedOwners):
    """The owners of one group."""

    def __init__(self, at: RedisAddress) -> None:
        super().__init__(at.public)
        self._at, self._keys = at, keys(at.group)
        self._link: Link | None = None
        self._listening: Link | None = None

    def publish(self, layout: Layout, claim: Claim) -> Receipt:
        answer = self._ask("EVAL", SAY, 3, *self._keys, *_say(self._at.group, layout, claim))
        with _ours(self._at.group):
            return Receipt(_version(answer[0].decode()), tuple(answer[1]))

    def table(self, known: Version | None = None) -> Listing:
        if self._listening is None:
            self._listen()
            known = None
        version = "" if known is None else f"{known.since}:{known.revision}"
        return _listing(self._ask("EVAL_RO", READ, 3, *self._keys, version), self._at.group)

    def _ask(self, *command: str | int) -> Any:
        with self._or_dropped():
            if self._link is None:
                self._link = Link(self._at, PURPOSE, opening=True)
            (answer,) = self._link.try_each([command])
            _require_layout(answer, self._at.group)
            self._link.require(answer)
        return answer

    def _listen(self) -> None:
        """Begin to hear of changes. A `table` that is read afterwards misses none of them."""
        with self._or_dropped():
            self._listening = Link(self._at, PURPOSE, opening=True)
            self._listening.ask(("SUBSCRIBE", channel(self._at.group)))

    def _descriptor(self) -> int | None:
        return None if self._listening is None else self._listening.descriptor

    def _hear(self) -> list[OwnersChange]:
        heard: list[OwnersChange] = []
        while self._listening is not None and len(heard) < MESSAGES_MAX and self._listening.pending:
            message = self._listening.take()
            if isinstance(message, list) and message[0] == b"message":
                heard.append(news(message[2], self._at.group))
        return heard

    def _drop(self) -> None:
        for link in (self._link, self._listening):
            if link is not None:
                link.close()
        self._link = self._listening = None


def keys(group: str) -> tuple[str, str, str]:
    return f"{group}:owners:{VERSION}", f"{group}:holders:{VERSION}", f"{group}:layout:{VERSION}"


def channel(group: str) -> str:
    return f"{group}:changes:{VERSION}"


def _say(group: str, layout: Layout, claim: Claim) -> list[str | int]:
    """The arguments of SAY, after its keys."""
    card = json.dumps(claim.card._asdict(), separators=(",", ":"))
    ttl_ms = max(1, int(claim.ttl * 1000)) if claim.ttl else 0
    return [
        channel(group),
        layout.slots,
        layout.partitions,
        int(layout.tags),
        claim.holder,
        card,
        ttl_ms,
        len(claim.led),
        *chain.from_iterable(claim.led.items()),
        *chain.from_iterable(claim.released.items()),
    ]


def _require_layout(answer: Any, group: str) -> None:
    """Raise GroupMismatch if that is what SAY answered, to a member of another layout."""
    if not str(answer).startswith(MISMATCH):
        return
    with _ours(group):
        slots, partitions, tags = map(int, str(answer).removeprefix(MISMATCH).split())
    raise mismatch(group, slots, partitions, tags)


def _listing(answer: Any, group: str) -> Listing:
    """The answer of READ."""
    seconds, micros, version, holders, owners, *sizes = answer
    with _ours(group):
        words = holders.decode().split("\n") if holders else []
        found = {holder: _holder(text) for holder, text in zip(words[::2], words[1::2], strict=True)}
        layout = _layout(sizes)
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        holdings = None if owners is None else _holdings(owners, layout)
        return Listing(_version(version.decode()), layout, now_ms, found, holdings)


def news(message: bytes, group: str) -> OwnersChange:
    """A message of the channel. Raises LedgerUnusable for a text that none of our members wrote."""
    with _ours(group):
        version, *lines = message.decode().split("\n")
        holdings, holders = {}, {}
        for line in lines:
            first, _, rest = line.partition(" ")
            if first.startswith("@"):
                holders[first[1:]] = _holder(rest)
            else:
                holdings[int(first)] = _holding(rest)
        return OwnersChange(_version(version), holdings, holders)


def _version(text: str) -> Version:
    since, _, revision = text.rpartition(":")
    return Version(since, int(revision))


def _layout(sizes: list[bytes | None]) -> Layout | None:
    if None in sizes or not sizes:
        return None
    slots, partitions, tags = (int(size or 0) for size in sizes)
    return layout_of(slots, partitions, tags=bool(tags))


def _holdings(text: bytes, layout: Layout | None) -> dict[int, Holding]:
    words = text.decode().split("\n") if text else []
    partitions = [int(partition) for partition in words[::2]]
    require_within(layout, partitions)
    return dict(zip(partitions, map(_holding, words[1::2]), strict=True))


def _holding(text: str) -> Holding:
    term, holder = text.split(" ")[:2]  # A later release may add more.
    return Holding(int(term), "" if holder == "-" else holder)


def _holder(text: str) -> tuple[Card, int]:
    expires, _, card = text.partition(" ")
    said: Mapping[str, Any] = json.loads(card)
    name, address, weight, zone = said["name"], said.get("address", ""), said.get("weight", 1), said.get("zone", "")
    if not (isinstance(name, str) and isinstance(address, str) and isinstance(weight, int) and isinstance(zone, str)):
        raise TypeError("a card of texts was wanted")
    return Card(name, address, weight, zone), int(expires)


def _ours(group: str) -> AbstractContextManager[None]:
    return ours(f"the owners of the group {group} were wanted, in the layout {VERSION}", keys(group))
