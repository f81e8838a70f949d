"""Waiting for what comes about without telling, with a bound that only a broken test meets."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from neli_router.core.clock import host_clock

__all__ = ["LOOK_EVERY", "PATIENCE", "until", "until_in_loop"]

PATIENCE = 180.0
"""Seconds for what comes at once, and after minutes where other programs have all cores."""

LOOK_EVERY = 0.01
"""Looking more often would take the processor from what is waited for."""

Answer = TypeVar("Answer")


def until(holds: Callable[[], Answer], what: str = "it", *, patience: float = PATIENCE) -> Answer:
    """Wait for the first answer that is true, and return it."""
    give_up_at, pause = host_clock() + patience, threading.Event()
    while not (answer := holds()):
        assert host_clock() < give_up_at, f"{what} did not come true within {patience:g} s"
        pause.wait(LOOK_EVERY)
    return answer


async def until_in_loop(holds: Callable[[], Answer], what: str = "it", *, patience: float = PATIENCE) -> Answer:
    """The same, while the event loop goes on."""
    give_up_at = host_clock() + patience
    while not (answer := holds()):
        assert host_clock() < give_up_at, f"{what} did not come true within {patience:g} s"
        await asyncio.sleep(LOOK_EVERY)
    return answer
