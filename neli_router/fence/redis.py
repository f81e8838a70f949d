"""The fence in Redis: one script, which nothing can interrupt, compares a term and then writes what it guards.

    admit(client, "invoices", 9, ("SET", "invoice:7", "paid"))
      hash neli:fence, field invoices:  7 --9 >= 7--> 9, then SET        the answers of the commands
                                        9 --7 <  9--> Refused            and nothing was written
    admit_batch(client, "invoices", 9, 1041, ("INCR", "paid"))
      the same, and field invoices/batch:  1040 --< 1041--> INCR, 1041   True
                                           1041 --not less--> nothing    False: it was written before
    admit(client, "invoices", (9, 3), ("INCR", "sent"))
      the same, and field invoices/pair:   9:2  --< 9:3--> INCR, 9:3     the answers of the commands
                                           9:3  --not less--> Refused    and nothing was written

Redis has no transaction that waits for its client, unlike SQL: between an `admit` and a later SET, a process may be
paused, and wake up as a zombie. So the writes to be fenced go *into* `admit`, as commands. Without commands, it only
raises the fence; a new owner does that before it reads what the fence protects, or the older owner's last write slips
in between.

`client` is a redis-py client: `redis.Redis` for `admit`, `redis.asyncio.Redis` for `admit_async`. A pipeline does not
work, because it answers too late. Terms are compared as text of digits, so that 2**63 - 1 is as exact as 7. Commands
run one after another; if one fails, Redis cannot undo those before it, and the client raises the error. The number of a
batch is stored after its commands, so a failed batch is not taken for a written one. Without commands that name other
keys, this runs on a cluster, too.

A fence is only as durable as its server: a restart without AOF, or a failover, may forget the highest terms. Where that
must not happen, keep the fence in SQL. A server that drops any key when its memory is full (`allkeys-lru` and similar)
is refused. The script checks that only when it knows no term of a resource: at the first admission, and after each
loss.

The fence is in the database that the client has selected, so all writers of a resource must select the same one. A
command that would select another database, empty this one, or has the fence's key among its words, is refused: the
script goes on after it.
"""

import inspect
from collections.abc import Sequence
from typing import Any

from neli_router.fence.refusals import FenceMisused, Refused, tally
from neli_router.fence.statements import (
    AnyLease,
    Term,
    batches_of,
    checked,
    checked_batch,
    checked_pair,
    checked_resource,
)

__all__ = [
    "KEY",
    "Command",
    "admit",
    "admit_async",
    "admit_batch",
    "admit_batch_async",
    "admitted",
    "admitted_async",
    "admitted_batch",
    "admitted_batch_async",
]

KEY = b"neli:fence"
"""A hash: resource -> the highest term admitted to it; resource/batch -> the last batch written. Their names are sent
in UTF-8, whatever the encoding of a client: two clients must never have two terms for one resource."""

COMMANDS_MAX = 1000

BATCH_MAX = 100_000
"""Commands in a batch, which cannot be split. Redis serves no other client meanwhile: some 0.2 seconds."""

WORDS_MAX = 1_000_000
"""Words of all commands together: Redis closes the connection of a client that sends more than 2**20."""

COMMAND_WORDS_MAX = 7900
"""Redis' Lua takes 8,000. A longer command would fail after the commands before it were carried out."""

Command = Sequence[str | bytes | int | float]
"""For example ("SET", "key", "value")."""

_NUMBERS = frozenset({int, float})
"""Not their subclasses: an IntEnum would be sent as `<Colour.RED: 1>`."""

_ADMIT = """
local function less(one, other) return #one < #other or (#one == #other and one < other) end
local resource, term, batches, batch = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local of, counter = string.match(batch, '^(%d+):(%d+)$')
local held = redis.call('HGET', KEYS[1], resource)
if held and less(term, held) then return {0, held} end
if not held then
  local memory = redis.pcall('INFO', 'memory')
  if type(memory) == 'string' then
    local policy = string.match(memory, 'maxmemory_policy:(allkeys[%a-]*)')
    if policy and not string.find(memory, 'maxmemory:0\\r', 1, true) then return {3, policy} end
  end
end
if held ~= term then redis.call('HSET', KEYS[1], resource, term) end
if batch ~= '' then
  local written = redis.call('HGET', KEYS[1], batches)
  if of then
    local last, before = string.match(written or '', '^(%d+):(%d+)$')
    if last == of and not less(before, counter) then return {4, written} end
  elseif written and not less(written, batch) then return {2, written} end
end
local answers, i = {}, 5
while i <= #ARGV do
  local size = tonumber(ARGV[i])
  answers[#answers + 1] = redis.call(unpack(ARGV, i + 1, i + size))
  i = i + size + 1
end
if batch ~= '' then redis.call('HSET', KEYS[1], batches, batch) end
if batch == '' or of then return {1, term, answers} end
return {1, term}
"""
REFUSED, WRITTEN, FORGETFUL, REPEATED = 0, 1, 3, 4

FORBIDDEN = frozenset({"FLUSHALL", "FLUSHDB", "SELECT", "SWAPDB"})
"""Commands that would remove the fence from under the script, or lead the script to another database."""


def admit(client: Any, resource: str, term: Term, *commands: Command) -> list[Any]:
    """Carry out `commands` if no term higher than `term`, or than the lease's, was admitted to `resource`; return their
    answers, as Redis gives them. A pair of a term and a counter must also be greater than every pair that was admitted.
    Raises Refused, and then nothing was carried out; FenceMisused; and the client's errors."""
    return list(_judged(_sent(client, resource, term, commands), resource, term)[2])


async def admit_async(client: Any, resource: str, term: Term, *commands: Command) -> list[Any]:
    """Like `admit`, for a client whose methods are awaited."""
    return list(_judged(await _awaited(_sent(client, resource, term, commands)), resource, term)[2])


def admit_batch(client: Any, resource: str, term: int | AnyLease, batch: int, *commands: Command) -> bool:
    """Like `admit`, but True if the commands were carried out, and False if `batch`, or a later one, was written
    before.

    Number batches by their position in the input, so that another process that starts again numbers them the same way.
    """
    return bool(_judged(_sent(client, resource, term, commands, batch), resource, term)[0] == WRITTEN)


async def admit_batch_async(client: Any, resource: str, term: int | AnyLease, batch: int, *commands: Command) -> bool:
    """Like `admit_batch`, for a client whose methods are awaited."""
    answer = await _awaited(_sent(client, resource, term, commands, batch))
    return bool(_judged(answer, resource, term)[0] == WRITTEN)


def admitted(client: Any, resource: str) -> int | None:
    """The highest term admitted to `resource`; None if there was none yet."""
    return _number(client.hget(KEY, checked_resource(resource).encode()))


async def admitted_async(client: Any, resource: str) -> int | None:
    """Like `admitted`, for a client whose methods are awaited."""
    return _number(await _awaited(client.hget(KEY, checked_resource(resource).encode())))


def admitted_batch(client: Any, resource: str) -> int | None:
    """The last batch of `resource` that was written; None if there was none yet. Raise the fence before you ask."""
    return _number(client.hget(KEY, batches_of(resource).encode()))


async def admitted_batch_async(client: Any, resource: str) -> int | None:
    """Like `admitted_batch`, for a client whose methods are awaited."""
    return _number(await _awaited(client.hget(KEY, batches_of(resource).encode())))


def _sent(client: Any, resource: str, term: Term, commands: Sequence[Command], *batch: int) -> Any:
    """The script's answer, or what is awaited for it. `batch` may be left out; it must not be None."""
    numbered: tuple[bytes | str, int | str] = "", ""
    if batch:
        resource, term = checked(resource, term)
        numbered = batches_of(resource).encode(), checked_batch(resource, *batch)
    else:
        resource, term, counter = checked_pair(resource, term)
        if counter is not None:
            numbered = f"{resource}/pair".encode(), f"{term}:{counter}"
    words = _flat(commands, BATCH_MAX if batch else COMMANDS_MAX)
    return client.eval(_ADMIT, 1, KEY, resource.encode(), term, *numbered, *words)


def _flat(commands: Sequence[Command], most: int) -> list[Any]:
    """Each command's length, and its words."""
    for command in commands:
        if isinstance(command, str | bytes) or not command:
            raise FenceMisused(
                "commands were wanted, each a tuple of its words",
                f"found a {type(command).__name__} that is none",
                'write ("SET", "key", "value")',
            )
        if strange := [word for word in command if not isinstance(word, str | bytes) and type(word) not in _NUMBERS]:
            raise FenceMisused(
                "commands of text, bytes, int and float were wanted",
                f"found a {type(strange[0]).__name__} in one",
                "send its text, or its number as int(...)",
            )
        name = command[0].decode(errors="replace") if isinstance(command[0], bytes) else str(command[0])
        if name.upper() in FORBIDDEN or KEY in command or KEY.decode() in command:
            raise FenceMisused(
                "commands were wanted that leave the fence where it is",
                f"found {name.upper()}" if name.upper() in FORBIDDEN else f"found one with the word {KEY.decode()}",
                "let the client select the database, and change no fence by hand, nor empty a database that has one",
            )
    words = [word for command in commands for word in (len(command), *command)]
    longest = max(map(len, commands), default=0)
    if len(commands) > most or len(words) > WORDS_MAX or longest > COMMAND_WORDS_MAX:
        raise FenceMisused(
            f"at most {most} commands were wanted in one step, and {WORDS_MAX} words, {COMMAND_WORDS_MAX} in a command",
            f"found {len(commands)} and {len(words)}, {longest} in the longest",
            "use several steps, each is fenced on its own; or smaller batches, each is written whole",
        )
    return words


def _judged(answer: Any, resource: str, term: Term) -> Sequence[Any]:
    """The script's answer, unless it is a refusal."""
    answer = _answer(answer, list | tuple)
    if answer[0] == FORGETFUL:
        policy = answer[1].decode() if isinstance(answer[1], bytes) else answer[1]
        raise FenceMisused(
            "a Redis that forgets no term was wanted",
            f"its maxmemory-policy is {policy}, so a full memory may cost it the fence",
            "set maxmemory-policy to noeviction, or to one that begins with volatile",
        )
    tally.count(refused=answer[0] in {REFUSED, REPEATED})
    _, term, counter = checked_pair(resource, term)
    if answer[0] == REFUSED:
        raise Refused.of(resource, term, _number(answer[1]))
    if answer[0] == REPEATED and counter is not None:
        raise Refused.of_pair(resource, term, counter)
    return answer  # type: ignore[no-any-return]


async def _awaited(answer: Any) -> Any:
    if not inspect.isawaitable(answer):
        raise _misused("one whose methods are not awaited", "use the function without `_async`")
    return await answer


def _number(held: Any) -> int | None:
    held = _answer(held, int | str | bytes | None)
    return None if held is None else int(held)


def _answer(answer: Any, wanted: Any) -> Any:
    """The answer, if it is of a kind that `wanted` names."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise _misused("one whose methods are awaited", "use the function with `_async`")
    if not isinstance(answer, wanted):
        raise _misused(f"one that answers with a {type(answer).__name__}, as a pipeline does", "pass the client itself")
    return answer


def _misused(found: str, remedy: str) -> FenceMisused:
    return FenceMisused("a client of Redis that answers was wanted", f"found {found}", remedy)
