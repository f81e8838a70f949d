"""The fence in Redis: one script, which nothing can interrupt, compares a term and then writes what it guards.

    admit(client, "invoices", 9, ("SET", "invoice:7", "paid"))
      hash neli:fence, field invoices:  7 --9 >= 7--> 9, then SET        the answers of the commands
                                        9 --7 <  9--> Refused            and nothing was written

Redis has no transaction that waits for its client, as SQL has: between an `admit` and a later SET, a process may be
paused, and wake up as a zombie. So the writes to be fenced go *into* `admit`, as commands. Without any, it only raises
the fence; a new owner does that before it reads what the fence protects, or the older one's last write slips in
between.

`client` is a redis-py client: `redis.Redis` for `admit`, `redis.asyncio.Redis` for `admit_async`. A pipeline is none,
because it answers too late. Terms are compared as text of digits, so that 2**63 - 1 is as exact as 7. Commands run one
after another; if one fails, Redis has no way to take back those before it, and the error is what the client raises.
Without commands that name other keys, this runs on a cluster, too.

A fence is as lasting as its server: a restart without AOF, or a failover, may forget the highest terms. Where that must
not be, keep the fence in SQL.
"""

import inspect
from collections.abc import Sequence
from typing import Any

from neli_router.fence.refusals import FenceMisused, Refused, tally
from neli_router.fence.statements import checked

__all__ = ["KEY", "Command", "admit", "admit_async", "admitted", "admitted_async"]

KEY = "neli:fence"
"""A hash: resource -> the highest term that was admitted to it."""

COMMANDS_MAX = 1000

Command = Sequence[str | bytes | int | float]
"""Such as ("SET", "key", "value")."""

_ADMIT = """
local resource, term = ARGV[1], ARGV[2]
local held = redis.call('HGET', KEYS[1], resource)
if held and (#term < #held or (#term == #held and term < held)) then return {0, held} end
if held ~= term then redis.call('HSET', KEYS[1], resource, term) end
local answers, i = {}, 3
while i <= #ARGV do
  local size = tonumber(ARGV[i])
  answers[#answers + 1] = redis.call(unpack(ARGV, i + 1, i + size))
  i = i + size + 1
end
return {1, term, answers}
"""


def admit(client: Any, resource: str, term: int, *commands: Command) -> list[Any]:
    """Carry out `commands` if no higher term than `term` was admitted to `resource`; their answers, as Redis gives
    them. Raises Refused, and then nothing was carried out; FenceMisused; and what the client raises."""
    resource, term = checked(resource, term)
    answer = client.eval(_ADMIT, 1, KEY, resource, term, *_flat(commands))
    return _judged(answer, resource, term)


async def admit_async(client: Any, resource: str, term: int, *commands: Command) -> list[Any]:
    """As `admit`, for a client whose methods are awaited."""
    resource, term = checked(resource, term)
    answer = client.eval(_ADMIT, 1, KEY, resource, term, *_flat(commands))
    return _judged(await _awaited(answer), resource, term)


def admitted(client: Any, resource: str) -> int | None:
    """The highest term admitted to `resource`; None if there was none yet."""
    resource, _ = checked(resource, 0)
    return _number(client.hget(KEY, resource))


async def admitted_async(client: Any, resource: str) -> int | None:
    """As `admitted`, for a client whose methods are awaited."""
    resource, _ = checked(resource, 0)
    return _number(await _awaited(client.hget(KEY, resource)))


def _flat(commands: Sequence[Command]) -> list[Any]:
    """Each command's length, and its words."""
    for command in commands:
        if isinstance(command, str | bytes) or not command:
            raise FenceMisused(
                "commands were wanted, each a tuple of its words",
                f"found a {type(command).__name__} that is none",
                'write ("SET", "key", "value")',
            )
    if len(commands) > COMMANDS_MAX:
        raise FenceMisused(
            f"at most {COMMANDS_MAX} commands were wanted in one step",
            f"found {len(commands)}",
            "use several steps: each is fenced by itself",
        )
    return [word for command in commands for word in (len(command), *command)]


def _judged(answer: Any, resource: str, term: int) -> list[Any]:
    is_admitted, held, *answers = _answer(answer, list | tuple, "admit_async")
    tally.count(refused=not is_admitted)
    if not is_admitted:
        raise Refused.of(resource, term, _number(held))
    return list(answers[0])


async def _awaited(answer: Any) -> Any:
    if not inspect.isawaitable(answer):
        raise _misused("one whose methods are not awaited", "use the function without `_async`")
    return await answer


def _number(held: Any) -> int | None:
    held = _answer(held, int | str | bytes | None, "admitted_async")
    return None if held is None else int(held)


def _answer(answer: Any, wanted: Any, function: str) -> Any:
    """The answer itself, if it is one that `wanted` names; `function` is the form for clients that are awaited."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise _misused("one whose methods are awaited", f"use `{function}`")
    if not isinstance(answer, wanted):
        raise _misused(f"one that answers with a {type(answer).__name__}, as a pipeline does", "pass the client itself")
    return answer


def _misused(found: str, remedy: str) -> FenceMisused:
    return FenceMisused("a client of Redis that answers was wanted", f"found {found}", remedy)
