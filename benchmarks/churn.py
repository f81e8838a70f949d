"""Whether an agent's memory, descriptors and threads stay constant while clients, members and wishes come and go.

    this process: clients that ask, stream, wait and break off ---.
                  members that join and leave, three at a time ---+--> an agent in its own process
                  drains, pins and weights, set and taken back ---'        '--/proc, sample after sample

The first quarter of the time is warm-up, in which caches, Python's allocator and the agent's bounded history fill. The
second quarter is compared with the last. At the end, the open descriptors and threads are compared with those from
before.

    growth               resident memory, mean of the last quarter over mean of the second
    descriptors_growth   the same for open files and sockets
    threads_growth       the same for threads
    descriptors_left     open ones after all had gone, minus those before any client came; `threads_left` likewise

It takes a minute by default. The run that counts is `--minutes 20`.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks import BenchmarkOptions, Figures, option, switch
from benchmarks._agent import LEASE, PARTITIONS, configured
from benchmarks.agent import REQUEST, started_agent, until_ready
from benchmarks.memory import growth
from neli_router.errors import NeliError
from neli_router.member.member import Member
from tests.support.waiting import PATIENCE

__all__ = ["Options", "run"]

SAMPLES = 240

CLIENTS = 20
GUESTS = 3
NAMES = 9
"""The number of names that guests take in turn. A group remembers departed members, for as long as it decides."""

PATHS = (
    b"/v1/owner?key=%d",
    b"/v1/owner?partition=%d",
    b"/v1/lease?partition=%d",
    b"/v1/status?",
    b"/v1/table?",
    b"/v1/members?",
    b"/v1/moves?",
    b"/v1/history?",
    b"/metrics?",
    b"/?",
    b"/nowhere/%d",
)
STREAMS = (
    b"/v1/watch?partition=%d",
    b"/v1/watch",
    b"/v1/events",
    b"/v1/leadership/events?partition=%d",
    b"/v1/leadership?timeout=9&partition=%d",
)


class Sample(NamedTuple):
    resident: int
    descriptors: int
    threads: int


class Options(BenchmarkOptions):
    minutes: float = option(1.0, "how long they come and go")
    seed: int = 1
    progress: bool = switch("print each sample to standard error immediately")


def run(options: Options) -> Figures:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    with tempfile.TemporaryDirectory(prefix="neli-") as folder, started_agent(folder, cores[-1]) as process:
        return asyncio.run(_measure(folder, process, options))


async def _measure(folder: str, process: int, options: Options) -> Figures:
    path, rng, done = f"{folder}/agent.sock", random.Random(options.seed), Counter[str]()
    await until_ready(path)
    before = _sample(process)
    works = [_again_and_again(lambda: _be_client(path, rng, done)) for _ in range(CLIENTS)]
    works += [_again_and_again(lambda: _be_guest(folder, rng, done)) for _ in range(GUESTS)]
    works.append(_again_and_again(lambda: _wish(path, rng, done)))
    tasks = [asyncio.create_task(work) for work in works]
    samples = []
    for _ in range(SAMPLES):
        await asyncio.sleep(60 * options.minutes / SAMPLES)
        samples.append(_sample(process))
        if options.progress:
            sys.stderr.write(f"{samples[-1]}\n")
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    if broken := [end for end in ends if not isinstance(end, asyncio.CancelledError)]:
        raise RuntimeError(f"the churn stopped before the end: {broken}")
    after = await _at_rest(process, before)
    return {
        "growth": growth([sample.resident for sample in samples]),
        "descriptors_growth": growth([sample.descriptors for sample in samples]),
        "threads_growth": growth([sample.threads for sample in samples]),
        "descriptors_left": after.descriptors - before.descriptors,
        "threads_left": after.threads - before.threads,
        "resident_mib": samples[-1].resident / 2**20,
        "descriptors_max": max(sample.descriptors for sample in samples),
        "minutes": options.minutes,
        **{kind: done[kind] for kind in ("requests", "streams", "broken_off", "guests", "wishes", "refused_wishes")},
        "partitions": PARTITIONS,
        "lease_s": LEASE,
    }


def _sample(process: int) -> Sample:
    folder = Path(f"/proc/{process}")
    pages = int((folder / "statm").read_text(encoding="ascii").split()[1])
    return Sample(
        pages * os.sysconf("SC_PAGE_SIZE"),
        sum(1 for _ in (folder / "fd").iterdir()),
        sum(1 for _ in (folder / "task").iterdir()),
    )


async def _at_rest(process: int, before: Sample) -> Sample:
    """A sample of the agent when it has noticed that all clients are gone."""
    give_up_at = time.monotonic() + PATIENCE
    found = _sample(process)
    while found.descriptors > before.descriptors and time.monotonic() < give_up_at:
        await asyncio.sleep(0.2)
        found = _sample(process)
    return found


async def _again_and_again(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await work()


async def _be_client(path: str, rng: random.Random, done: Counter[str]) -> None:
    """One connection: a few requests, or a stream, or half a request."""
    reader, writer = await asyncio.open_unix_connection(path)
    kind = rng.randrange(10)
    try:
        with suppress(OSError):
            if kind < 6:
                for _ in range(rng.randrange(1, 6)):
                    done["requests"] += 1
                    await _get(reader, writer, _filled(rng.choice(PATHS), rng))
                    await asyncio.sleep(0.01 * rng.random())
            elif kind < 9:
                done["streams"] += 1
                writer.write(REQUEST % _filled(rng.choice(STREAMS), rng))
                with suppress(TimeoutError):
                    async with asyncio.timeout(rng.random()):
                        while await reader.read(65536):
                            pass
            else:
                done["broken_off"] += 1
                writer.write((REQUEST % b"/v1/owner?key=1")[: rng.randrange(1, 40)])
                await asyncio.sleep(0.05 * rng.random())
    finally:
        if rng.random() < 0.5:
            writer.transport.abort()
        writer.close()


def _filled(path: bytes, rng: random.Random) -> bytes:
    return path % rng.randrange(PARTITIONS) if b"%d" in path else path


async def _get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: bytes) -> None:
    writer.write(REQUEST % path)
    await _answer(reader)


async def _answer(reader: asyncio.StreamReader) -> bytes:
    """The head of an answer, after reading all of it."""
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return head


async def _be_guest(folder: str, rng: random.Random, done: Counter[str]) -> None:
    """A member that joins, stays for a while, and leaves. If two have the same name, the newer one ends the older."""
    done["guests"] += 1
    name, stay = f"guest-{done['guests'] % NAMES}", LEASE * (1 + 3 * rng.random())

    def live() -> None:
        with suppress(NeliError), Member(configured(folder, name)):
            time.sleep(stay)

    await asyncio.to_thread(live)


async def _wish(path: str, rng: random.Random, done: Counter[str]) -> None:
    """An operator's wish, mostly taken back later. It is refused if no member has that name now."""
    name, partition = f"guest-{rng.randrange(NAMES)}", rng.randrange(PARTITIONS)
    of_name, of_partition = f'{{"name":"{name}"', f'{{"partition":{partition}'
    for kind, body in (
        ("drain", f"{of_name}}}"),
        ("undrain", f"{of_name}}}"),
        ("weigh", f'{of_name},"weight":{rng.randrange(4)}}}'),
        ("weigh", f'{of_name},"weight":null}}'),
        ("pin", f'{of_partition},"name":"{name}"}}'),
        ("unpin", f"{of_partition}}}"),
        ("drain", f'{of_name},"preview":true}}'),
    ):
        await asyncio.sleep(0.3 * rng.random())
        reader, writer = await asyncio.open_unix_connection(path)
        head = f"POST /v1/{kind} HTTP/1.1\r\nhost: agent\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(f"{head}{body}".encode())
        is_done = b" 200 " in await _answer(reader)
        done["wishes" if is_done else "refused_wishes"] += 1
        writer.close()
