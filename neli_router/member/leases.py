"""Leases: the right to act for partitions, each under its term, until a clock reaches the right's end.

    BaseRight  holds <=> end > clock()
       |-- BaseLease                          one partition
       |      |-- Lease, AsyncLease              the end is that of this process's own member   (member/)
       |      '-- AgentLease, AsyncAgentLease    the end is what an agent reported              (agent/client/)
       '-- Share, AsyncShare                  many partitions, as reported by an agent          (agent/client/)

    Revocation, AsyncRevocation               whether it is time to finish: can be checked, or waited for

A lease is a question about time, not a flag: a process that was stopped for a minute finds its lease over at its first
check, no matter what its other threads know. A check and the act that it guards are never atomic, because time passes
between them. So an act that matters carries `term`, and the store that receives it refuses a lower term.

There is no I/O, no clock and no thread here. Each form defines where its end comes from and how its caller waits.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from neli_router.core.keyspace import Role
from neli_router.errors import LeaseLost, NeliError

__all__ = ["AsyncRevocation", "BaseLease", "BaseRight", "Revocation"]


class BaseRight:
    """Everything except what the right covers, and how a caller waits for its revocation.

    `clock` is the clock on which `_end` is a time.
    """

    __slots__ = ("_clock", "_member")

    def __init__(self, member: str, clock: Callable[[], float]) -> None:
        self._member, self._clock = member, clock

    @property
    def member(self) -> str:
        """The name of the member that holds it."""
        return self._member

    def remaining(self) -> float:
        """For how many seconds it still holds without renewal; 0 if it is lost. Grows with each renewal."""
        return max(0.0, self._end() - self._clock())

    def holds(self) -> bool:
        """Whether it holds now. Takes about a microsecond."""
        return self._end() > self._clock()  # The end first: the thread may be stopped between the two reads.

    def check(self) -> None:
        """Raise LeaseLost if it does not hold now (and Forked in a forked child, where no lease ever holds)."""
        if self._end() <= self._clock():  # Not `holds()`: this is called so often that an extra call would show.
            raise self.lost()

    def lost(self, *, why: str = "") -> NeliError:
        """The error that says what was lost, when and why; `why` is for who knows better, such as before the end."""
        wanted = self._wanted()
        return self._not_here(wanted) or LeaseLost(
            wanted,
            why or self._why_lost(self._clock()),
            "stop this work now, and undo or fence what it did since: another member may be doing it already",
        )

    # Left to each form

    def _wanted(self) -> str:
        """The first part of the error for a lost right."""
        raise NotImplementedError

    def _end(self) -> float:
        """When it ends; `-inf` once it is lost."""
        raise NotImplementedError

    def _is_revoked(self) -> bool:
        """Whether another member is to get one of its partitions, or has it."""
        raise NotImplementedError

    def _not_here(self, wanted: str) -> NeliError | None:
        """The error if this object is void in this process, such as after a fork."""
        raise NotImplementedError

    def _why_lost(self, now: float) -> str:
        raise NotImplementedError


class BaseLease(BaseRight):
    """The right to act for one partition under one term."""

    __slots__ = ("_partition", "_role", "_term")

    def __init__(self, role: Role, partition: int, term: int, member: str, clock: Callable[[], float]) -> None:
        super().__init__(member, clock)
        self._role, self._partition, self._term = role, partition, term

    @property
    def role(self) -> Role:
        """The role, as requested. It may be a key, so it never appears in a log, an error or a `repr`."""
        return self._role

    @property
    def partition(self) -> int:
        return self._partition

    @property
    def term(self) -> int:
        """The fencing token: a later holder always has a higher one."""
        return self._term

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of partition {self._partition} under term {self._term} for {self._member}>"

    def _wanted(self) -> str:
        return f"the lease of partition {self._partition} under term {self._term} was needed"


Answer = TypeVar("Answer")


class _BaseRevocation(Generic[Answer]):
    __slots__ = ("_is_set", "_wait")

    def __init__(self, is_set: Callable[[], bool], wait: Callable[[Callable[[], bool], float | None], Answer]) -> None:
        self._is_set, self._wait = is_set, wait

    def is_set(self) -> bool:
        return self._is_set()

    def __bool__(self) -> bool:
        return self._is_set()

    def wait(self, timeout: float | None = None) -> Answer:
        """Wait at most `timeout` seconds; return whether it is time to finish."""
        return self._wait(self._is_set, timeout)


class Revocation(_BaseRevocation[bool]):
    """Whether it is time to finish. Once true, it stays true. Use it like a `threading.Event`."""

    __slots__ = ()


class AsyncRevocation(_BaseRevocation[Coroutine[Any, Any, bool]]):
    """Whether it is time to finish. Once true, it stays true. Use it like an `asyncio.Event`."""

    __slots__ = ()
