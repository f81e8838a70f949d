"""Strangers at an agent's port: each attack is one coroutine that runs until it is cancelled.

    pipelining       a megabyte of small requests in one go, on each of many connections
    flooding         request after request, on each of many connections
    idling           as many connections as there can be, without a byte
    reading_slowly   much is requested, and nothing is read; streams, too
    writing_slowly   heads that are nearly too long, and never end
    closing_early    a request, and the connection is reset before its answer

None of them has the token. The tests run them for a moment, and the benchmark `attack` for a minute each.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from tests.support.waiting import PATIENCE

__all__ = ["ATTACKS", "attack"]

Attack = Callable[[str, int], Awaitable[None]]

SMALL = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
STATUS = b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\n\r\n"
STREAM = b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n"
MEBIBYTE = 2**20
HEAD = b"GET /?%b HTTP/1.1\r\n" % (b"x" * 120_000) + b"".join(b"a%d: \r\n" % number for number in range(90))
RESET = struct.pack("ii", 1, 0)
PAUSE = 0.01


async def pipelining(host: str, port: int) -> None:
    async with _connected(host, port) as (_, writer):
        writer.write(SMALL * (MEBIBYTE // len(SMALL)))
        await writer.drain()
        await asyncio.sleep(PAUSE)


async def flooding(host: str, port: int) -> None:
    async with _connected(host, port) as (reader, writer):
        while True:
            writer.write(STATUS)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)


async def idling(host: str, port: int) -> None:
    async with _connected(host, port) as (reader, _):
        await reader.read(1)


async def reading_slowly(host: str, port: int) -> None:
    for asked in (STATUS + STATUS, STREAM):
        async with _connected(host, port) as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined] # A stream's transport reads, too.
            writer.write(asked)
            await asyncio.sleep(5.0)


async def writing_slowly(host: str, port: int) -> None:
    async with _connected(host, port) as (_, writer):
        writer.write(HEAD)
        while not writer.is_closing():
            await asyncio.sleep(0.5)
            writer.write(b"x")
            await writer.drain()


async def closing_early(host: str, port: int) -> None:
    async with _connected(host, port) as (_, writer):
        found: socket.socket = writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.write(STATUS)
        await asyncio.sleep(0)


ATTACKS: dict[str, tuple[Attack, int]] = {
    "pipelining": (pipelining, 150),
    "flooding": (flooding, 50),
    "idling": (idling, 8300),
    "reading_slowly": (reading_slowly, 400),
    "writing_slowly": (writing_slowly, 400),
    "closing_early": (closing_early, 100),
}
"""Name -> what each stranger does again and again, and how many of them the benchmark runs."""


async def attack(name: str, host: str, port: int, *, strangers: int | None = None) -> None:
    """Never ends: cancel it."""
    one, many = ATTACKS[name]
    await asyncio.gather(*(_again_and_again(one, host, port) for _ in range(strangers or many)))


async def _again_and_again(one: Attack, host: str, port: int) -> None:
    while True:
        with suppress(OSError, EOFError, ValueError, TimeoutError):
            await one(host, port)
        await asyncio.sleep(PAUSE)


@asynccontextmanager
async def _connected(host: str, port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that is reset at the end, no matter what is still queued in it."""
    async with asyncio.timeout(PATIENCE):  # `wait_for` of Python 3.11 may lose the end of the attack.
        reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
