"""Owners in Redis: members write there what they lead, and routers read it and follow its changes.

    publish --SAY, one script--> hashes --PUBLISH--> follow (a separate connection, which only listens)
    table   --READ, one script--> the whole table in one round trip

The first use opens a store, and the first use after a failure opens it again. News between two connections never
arrive, so the first `table` after that returns everything, whatever version was known.

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

import contextlib
import json
import os
import select
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from neli_router.core.keyspace import Layout
from neli_router.drivers.ledgers.redis.address import RedisAddress
from neli_router.drivers.ledgers.redis.link import Link
from neli_router.drivers.owners.base import Card, Claim, Holding, Listing, OwnersChange, Receipt, Version
from neli_router.errors import GroupMismatch, LedgerUnavailable, LedgerUnusable

__all__ = ["RedisOwners", "channel", "keys", "news"]

_PURPOSE = "the table of owners"

MESSAGES_MAX = 1000
"""Messages taken in one go. The rest waits in the socket."""

VERSION = "v1"

FORGET_AFTER_MS = 86_400_000
"""A holder that expired a day ago is dropped from the hash. Its partitions keep their terms."""

MISMATCH = "NELILAYOUT"
"""SAY's answer to a member of another layout that is not of a later group."""

PARTITIONS_MAX = 2**20
"""The most partitions of a group whose owners are read. A router has a row for each, and one wrong number must not fill
its memory."""

JUNK = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""Raised when parsing an entry that none of our members wrote. Deeply nested lists raise the last; ConfigError, for a
layout that cannot be, is a ValueError."""

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


class RedisOwners:
    """The owners of one group."""

    def __init__(self, at: RedisAddress) -> None:
        self._at, self.address = at, at.public
        self._keys = keys(at.group)
        self._link: Link | None = None
        self._listening: Link | None = None
        self._heard: list[OwnersChange] = []
        self._closing = threading.RLock()  # Reentrant, so a signal handler may call `wake` during `close`.
        self._waking: tuple[int, int] | None = os.pipe()
        for descriptor in self._waking:
            os.set_blocking(descriptor, False)  # A full pipe wakes as well as one more byte would.
        self._process = os.getpid()

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

    def follow(self, timeout: float) -> list[OwnersChange]:
        give_up_at = time.monotonic() + timeout
        if (link := self._listening) is None:
            raise LedgerUnavailable(f"{_PURPOSE} of {self.address} was wanted", "it is not open", "ask for it")
        waiting = select.poll()
        waiting.register(link.descriptor, select.POLLIN)
        if self._waking is not None:
            waiting.register(self._waking[0], select.POLLIN)
        while True:
            self._hear(link)  # First, because messages that came with an earlier one make no descriptor readable.
            patience = give_up_at - time.monotonic()
            if self._heard or patience <= 0:
                break
            rung = [descriptor for descriptor, _ in waiting.poll(patience * 1000)]
            if self._waking is not None and self._waking[0] in rung:
                os.read(self._waking[0], 4096)
                break
        heard, self._heard = self._heard, []
        return heard

    def wake(self) -> None:
        if os.getpid() != self._process:
            return  # A forked child shares the pipe, and would wake its parent's reader.
        # Under the lock, because the number of a closed descriptor may already stand for another file.
        with self._closing, contextlib.suppress(BlockingIOError):
            if self._waking is not None:
                os.write(self._waking[1], b"!")

    def close(self) -> None:
        self._drop()
        if os.getpid() != self._process:
            return
        with self._closing:
            waking, self._waking = self._waking, None
            for descriptor in waking or ():
                os.close(descriptor)

    def _ask(self, *command: str | int) -> Any:
        with self._or_dropped():
            if self._link is None:
                self._link = Link(self._at, _PURPOSE, opening=True)
            (answer,) = self._link.try_each([command])
            _require_layout(answer, self._at.group)
            self._link.require(answer)
        return answer

    def _listen(self) -> None:
        """Begin to hear of changes. A `table` that is read afterwards misses none of them."""
        with self._or_dropped():
            self._listening = Link(self._at, _PURPOSE, opening=True)
            self._listening.ask(("SUBSCRIBE", channel(self._at.group)))

    def _hear(self, link: Link) -> None:
        with self._or_dropped():
            while len(self._heard) < MESSAGES_MAX and link.pending:
                message = link.take()
                if isinstance(message, list) and message[0] == b"message":
                    self._heard.append(news(message[2], self._at.group))

    @contextlib.contextmanager
    def _or_dropped(self) -> Iterator[None]:
        try:
            yield
        except (LedgerUnavailable, LedgerUnusable):
            self._drop()
            raise

    def _drop(self) -> None:
        for link in (self._link, self._listening):
            if link is not None:
                link.close()
        self._link = self._listening = None
        self._heard = []


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
    raise GroupMismatch(
        f"the owners of the group {group} were to be published",
        f"another group is there, with slots={slots}, partitions={partitions}, tags={tags}, whose terms are not lower",
        "give each group an address of its own",
    )


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
    if partitions > PARTITIONS_MAX:
        raise ValueError("more partitions than a group can have")
    return Layout(slots=slots, partitions=partitions, tags=bool(tags))


def _holdings(text: bytes, layout: Layout | None) -> dict[int, Holding]:
    words = text.decode().split("\n") if text else []
    partitions = [int(partition) for partition in words[::2]]
    if partitions and not (layout and 0 <= min(partitions) <= max(partitions) < layout.partitions):
        raise ValueError(f"partitions {min(partitions)} to {max(partitions)}")
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


@contextlib.contextmanager
def _ours(group: str) -> Iterator[None]:
    """Raise LedgerUnusable if the text that is parsed here was not written by one of our members."""
    try:
        yield
    except JUNK as error:
        raise LedgerUnusable(
            f"the owners of the group {group} were wanted, in the layout {VERSION}",
            f"something else stands there ({type(error).__name__}: {error})"[:200],
            f"see who else writes to {', '.join(keys(group))}, and use a group's name of your own",
        ) from error
