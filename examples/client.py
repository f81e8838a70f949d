"""A client of orders.py: it asks any server, follows a 421 to the owner, and asks again while owners change.

any server --421--> the owner --200--> the answer
    ^---- 503, or no connection ----'
"""

import random
import time
from collections.abc import Sequence

import httpx

__all__ = ["ask"]

PAUSE = 0.1
"""Seconds between two attempts: a takeover is quick."""


def ask(customer: str, servers: Sequence[str], *, patience: float = 30.0) -> httpx.Response:
    """The owner's answer. A server may be killed after its work, so the request must do no harm if it is repeated."""
    address, give_up_at = random.choice(servers), time.monotonic() + patience
    while time.monotonic() < give_up_at:
        try:
            answer = httpx.get(f"http://{address}/orders/{customer}")
        except httpx.TransportError:  # The server is gone.
            answer = httpx.Response(503)
        if answer.status_code == 421:
            address = answer.json()["owner"]
        elif answer.status_code == 503:
            time.sleep(PAUSE)
            address = random.choice(servers)
        else:
            return answer.raise_for_status()
    raise TimeoutError(f"no owner of {customer} answered within {patience:g} s")
