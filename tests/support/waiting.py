"""Waiting for things that happen without a notification, with a time limit that only a broken test reaches; and work on
other threads while a test goes on, which ends with it."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from neli_router.core.clock import host_clock

__all__ = ["LOOK_EVERY", "PATIENCE", "beside", "until", "until_in_loop"]

PATIENCE = 180.0
"""Seconds for things that happen immediately, but take minutes if other programs use all cores."""

LOOK_EVERY, PART = 0.01, 9
"""Seconds between two looks, or this many times the processor time of a look, if that is longer: looking more often
would take the processor from what the test waits for."""

Answer = TypeVar("Answer")


def until(
    holds: Callable[[], Answer], what: str = "it", *, patience: float = PATIENCE, every: float = LOOK_EVERY
) -> Answer:
    """Wait for the first true answer, and return it."""
    give_up_at, pause = host_clock() + patience, threading.Event()
    began_at = time.thread_time()
    while not (answer := holds()):
        assert host_clock() < give_up_at, f"{what} did not come true within {patience:g} s"
        pause.wait(max(every, PART * (time.thread_time() - began_at)))
        began_at = time.thread_time()
    return answer


async def until_in_loop(holds: Callable[[], Answer]) -> Answer:
    """The same, while the event loop keeps running."""
    give_up_at = host_clock() + PATIENCE
    while not (answer := holds()):
        assert host_clock() < give_up_at, f"it did not come true within {PATIENCE:g} s"
        await asyncio.sleep(LOOK_EVERY)
    return answer


@contextmanager
def beside(*works: Callable[[], object], end: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Inside, each of `works` runs on a thread of its own. After `end`, they are waited for."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end()
        for thread in threads:
            thread.join(PATIENCE)
