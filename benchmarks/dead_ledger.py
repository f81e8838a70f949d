"""A ledger that is unreachable at start: how soon the log reports it, and whether every time-out is kept.

    refused   a port without a listener                       (Kafka, PostgreSQL, Redis)
    mute      a port that accepts connections, never answers   (Kafka, PostgreSQL, Redis)
    held      a file that another process has locked           (SQLite)
    denied    a file that cannot be created                    (SQLite)

Each figure is the longest of its trials, in seconds. For a call with a time-out, `late_s` is the time beyond it; a
negative one means that the answer came earlier. Calls without a time-out should take no time: a close, a router that
does not wait. The agent's figures include the start and the end of an interpreter.
"""

import asyncio
import logging
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from benchmarks import BenchmarkOptions, Figures
from neli_router.config.config import Config
from neli_router.config.protocols import Induction
from neli_router.errors import NeliError
from neli_router.member.async_member import AsyncMember
from neli_router.member.member import Member
from neli_router.router.async_router import AsyncRouter
from neli_router.router.router import Router

__all__ = ["Options", "run"]

Made = TypeVar("Made", Member, Router)

TOLD = 2.0
"""The time-out in seconds for every call that takes one."""

AGENT_MAX = 60.0
"""Seconds after which an agent that does not do what it should counts as hanging."""


class Options(BenchmarkOptions):
    trials: int = 3


def run(options: Options) -> Figures:
    trials = max(1, options.trials)
    figures: dict[str, float | int] = {"trials": trials}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        dead = stack.enter_context(_dead_ledgers(Path(folder)))
        for name, address in dead.items():
            found: dict[str, list[float]] = {}
            for _ in range(trials):
                for figure, seconds in _tried(address, Path(folder)).items():
                    found.setdefault(figure, []).append(seconds)
            figures |= {f"{name}_{figure}": round(max(took), 3) for figure, took in found.items()}
    lines = [seconds for name, seconds in figures.items() if name.endswith("first_line_s")]
    late = [seconds for name, seconds in figures.items() if name.endswith("late_s")]
    ends = [seconds for name, seconds in figures.items() if name.endswith("agent_end_s")]
    return {**figures, "first_line_s_max": max(lines), "late_s_max": max(late), "agent_end_s_max": max(ends)}


def _tried(address: str, folder: Path) -> dict[str, float]:
    """The seconds that each call took in a program whose ledger is at `address`."""
    config = Config(address, name="tried", protocol=Induction(accept_rewinds=True))
    with _first_line() as first_line:
        began = time.monotonic()
        with _made(lambda: Member(config, timeout=TOLD)) as (member, took):
            told = first_line()
            found = {"member_late_s": took - TOLD, "member_first_line_s": told - began}
            found["member_close_late_s"] = _took(member.close) if member is not None else 0.0
    found["async_member_late_s"] = asyncio.run(_async_member(config)) - TOLD
    found["router_late_s"] = _took(lambda: Router(address, timeout=TOLD)) - TOLD
    found["async_router_late_s"] = asyncio.run(_async_router(address)) - TOLD
    with _made(lambda: Router(address, wait=False)) as (router, took):
        found["router_without_wait_late_s"] = took
        found["router_close_late_s"] = _took(router.close) if router is not None else 0.0
    return found | _agent(address, folder)


def _agent(address: str, folder: Path) -> dict[str, float]:
    """The time from an agent's start to its first line on standard error; and from SIGTERM to its end."""
    command = [sys.executable, "-m", "neli_router", "agent", "--ledger", address, "--accept-rewinds"]
    command += ["--socket", str(folder / "agent.sock")]
    began = time.monotonic()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "NO_COLOR": "1"}) as agent:
        assert agent.stderr is not None, "it was asked for"
        told = 0.0
        for line in agent.stderr:
            if "ledger.unavailable" in line:
                told = time.monotonic() - began
                break
        agent.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        agent.stderr.read()
        agent.wait(AGENT_MAX)
        return {"agent_first_line_s": told or AGENT_MAX, "agent_end_s": time.monotonic() - asked}


async def _async_member(config: Config) -> float:
    began, member = time.monotonic(), AsyncMember(config)
    with suppress(NeliError):
        await member.open(timeout=TOLD)
    took = time.monotonic() - began
    await member.close()
    return took


async def _async_router(address: str) -> float:
    began, router = time.monotonic(), AsyncRouter(address)
    with suppress(NeliError):
        await router.open(timeout=TOLD)
    return time.monotonic() - began


@contextmanager
def _made(make: Callable[[], Made]) -> Iterator[tuple[Made | None, float]]:
    began, made = time.monotonic(), None
    with suppress(NeliError):
        made = make()
    try:
        yield made, time.monotonic() - began
    finally:
        if made is not None:
            made.close()


def _took(call: Callable[[], object]) -> float:
    began = time.monotonic()
    with suppress(NeliError):
        call()
    return time.monotonic() - began


@contextmanager
def _first_line() -> Iterator[Callable[[], float]]:
    """When the log first reported that the ledger is unavailable; infinity if it has not."""
    lines: list[float] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "ledger.unavailable" in record.getMessage():
                lines.append(time.monotonic())

    def first() -> float:
        give_up_at = time.monotonic() + AGENT_MAX
        while not lines and time.monotonic() < give_up_at:
            time.sleep(0.01)
        return lines[0] if lines else float("inf")

    handler = Listening()
    logging.getLogger("neli_router").addHandler(handler)
    try:
        yield first
    finally:
        logging.getLogger("neli_router").removeHandler(handler)


@contextmanager
def _dead_ledgers(folder: Path) -> Iterator[dict[str, str]]:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0), backlog=128) as mute, _held(folder / "held.db") as held:
        silent = mute.getsockname()[1]
        yield {
            "kafka_refused": f"kafka://127.0.0.1:{nobody}/jobs",
            "kafka_mute": f"kafka://127.0.0.1:{silent}/jobs",
            "postgresql_refused": f"postgresql://127.0.0.1:{nobody}/app?group=jobs",
            "postgresql_mute": f"postgresql://127.0.0.1:{silent}/app?group=jobs",
            "redis_refused": f"redis://127.0.0.1:{nobody}/jobs",
            "redis_mute": f"redis://127.0.0.1:{silent}/jobs",
            "sqlite_held": f"sqlite:{held}",
            "sqlite_denied": "sqlite:/proc/neli.db",
        }


@contextmanager
def _held(path: Path) -> Iterator[Path]:
    """A file that no other connection can read."""
    holder = sqlite3.connect(path, isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        yield path
    finally:
        holder.close()
