"""Closing: the base class of everything that a program opens and closes.

    with thing: ... --the block ends, however--> thing.close()

An error raised in the block propagates. `close` may be called more than once. Every call after an error that ended the
thing raises a copy of that error.
"""

import copy
from types import TracebackType
from typing import Self, TypeVar

from neli_router.errors import NeliError

__all__ = ["AsyncClosing", "Closing", "anew"]

Failure = TypeVar("Failure", bound=BaseException)


class Closing:
    __slots__ = ()

    def close(self) -> object:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClosing:
    __slots__ = ()

    async def close(self) -> object:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def anew(error: Failure) -> Failure:
    """A copy to raise: raising the same error repeatedly would grow its traceback, and mix those of several threads."""
    if not isinstance(error, NeliError):
        return error  # Not one of our errors, so it may not be copyable.
    fresh = copy.copy(error)
    fresh.__cause__ = error.__cause__
    return fresh
