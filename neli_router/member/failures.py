"""Failures of the program, of its process and of this library, in words that help at 3 a.m.

    a handler raised            HandlerFailed   the program's own error is its cause
    used in a forked child      Forked
    our thread ended by a bug   NeliError       a defect: what `await_closed` raises has the traceback

The text of a foreign error may quote a key, and a key may be a person's name. So that text is never repeated here;
messages name the place where the error was raised instead.
"""

import os
import traceback

from neli_router.errors import Forked, HandlerFailed, NeliError

__all__ = ["defect", "forked", "handler_failed", "place_of"]


def place_of(error: BaseException) -> str:
    """Where `error` was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else "an unknown place"


def handler_failed(event: str, error: BaseException) -> HandlerFailed:
    """The error that ends a member when the program's handler of `event` raised `error`."""
    failure = HandlerFailed(
        f"the program's handler of {event} was to return",
        f"it raised {type(error).__name__} ({place_of(error)})",
        "fix it and restart the member, which has left: a half-prepared or half-finished partition cannot be led",
    )
    failure.__cause__ = error
    return failure


def forked(member: str, parent: int) -> Forked:
    """The error for every use of `member` in this child of process `parent`."""
    return Forked(
        f"member {member} was needed",
        f"process {parent} opened it and this is process {os.getpid()}, forked from it",
        "open a Member in this process, after the fork; the parent's goes on unharmed",
    )


def defect(error: BaseException) -> NeliError:
    """Our error that stands in for a foreign one."""
    return NeliError(
        "a member's own thread was to run until the member was closed",
        f"it ended by {type(error).__name__} ({place_of(error)})",
        "this is a defect of neli-router or of a ledger's driver: report it with the traceback of `await_closed`",
    )
