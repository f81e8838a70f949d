"""What a worker and the demo tell each other: one order at the start, then notes, each of them one line of JSON.

    demo --Order, as an argument--> worker
    demo <--Opened, Held, Renewed, Ended, Fenced, Woke, Left or Failed, on standard output-- worker
    demo --end of standard input--> worker                  the demo is gone, so the worker ends, too

All times are the host's clock (`clock.py`), which every process of a host shares. A worker that is killed says nothing
any more, so what it may still do must have been said before: `Held` and `Renewed` carry the end of the leases.
"""

import msgspec
from msgspec import Struct

__all__ = [
    "Ended",
    "Failed",
    "Fenced",
    "Held",
    "Left",
    "Note",
    "Opened",
    "Order",
    "Renewed",
    "Woke",
    "read_note",
    "read_order",
    "written",
]


class Order(Struct, frozen=True):
    """Which member a worker shall be."""

    name: str
    ledger: str
    partitions: int
    lease: float


class _Note(Struct, frozen=True, tag=str.lower):
    pass


class Opened(_Note, frozen=True):
    """The member has opened the ledger."""

    at: float


class Held(_Note, frozen=True):
    """From `at` on, the worker may act for these partitions under these terms, like for all that it held before: until
    `until`, if nothing else is noted."""

    at: float
    until: float
    terms: dict[int, int]


class Renewed(_Note, frozen=True):
    """Everything held is held until `until`."""

    until: float


class Ended(_Note, frozen=True):
    """Since `at`, the worker does not act for these any more."""

    at: float
    terms: dict[int, int]


class Fenced(_Note, frozen=True):
    """The member told its program to stop at once."""

    at: float
    partitions: int
    reason: str


class Woke(_Note, frozen=True):
    """The worker noticed that it had not run for `asleep` seconds. The first thing that it then did was to ask a lease
    which it had held before: `refusal` is what the lease said, and empty if it still holds."""

    at: float
    asleep: float
    refusal: str


class Left(_Note, frozen=True):
    """The member left the group in good order."""

    at: float


class Failed(_Note, frozen=True):
    """The member could not start, or ended by an error."""

    error: str


Note = Opened | Held | Renewed | Ended | Fenced | Woke | Left | Failed

_encoder = msgspec.json.Encoder()
_orders: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_notes: msgspec.json.Decoder[Note] = msgspec.json.Decoder(Note)


def written(message: Order | Note) -> bytes:
    """One line, without its end."""
    return _encoder.encode(message)


def read_order(line: str) -> Order:
    return _orders.decode(line)


def read_note(line: bytes) -> Note | None:
    """None for half a line, which is all that a worker killed while it wrote leaves behind."""
    try:
        return _notes.decode(line)
    except msgspec.DecodeError:
        return None
