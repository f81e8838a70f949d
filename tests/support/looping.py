"""Tests written as coroutines."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from tests.support.waiting import PATIENCE

__all__ = ["in_loop"]

Given = ParamSpec("Given")


def in_loop(test: Callable[Given, Coroutine[Any, Any, None]]) -> Callable[Given, None]:
    """Run the test on an event loop of its own."""

    @wraps(test)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run
