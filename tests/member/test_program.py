"""Programs that a signal ends: their members hand over, wherever the main thread is, and they exit with status 0."""

import asyncio
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from neli_router import run
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.member.program import Signals
from neli_router.protocols.induction.records import Leave, decode
from tests.support.processes.forked import Program
from tests.support.waiting import PATIENCE

CODE = """
import asyncio, logging, os, signal, sys, threading, time
from neli_router import AsyncMember, Config, Layout, Member, run

logging.getLogger("neli_router").addHandler(logging.NullHandler())  # A slow machine may lose such a short lease.
config = Config(sys.argv[1], name="program", lease=0.3, layout=Layout(partitions=1))

def ready():
    print("ready", flush=True)

def main():
    with Member(config) as member:
        member.wait_ready()
        ready()
        BODY

run(main)
"""

CLOSING = """
def handle(event):
    if "Revoked" in str(event):  # The main thread waits in `close` for this handler.
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)

def main():
    member = Member(config, on_event=handle)
    member.wait_ready()
    ready()
    try:
        member.close()
    finally:
        print("closed:", member.closed)

run(main)
print("not reached")
"""

# Naps, because a signal that comes just before a wait begins does not end it.
PLACES = {
    "asleep": "while True: time.sleep(0.1)",
    "before a lock": "lock = threading.Lock(); lock.acquire()\n        while True: lock.acquire(timeout=0.1)",
    "in its changes": "for _ in member.changes(): pass",
    "in a wait": "member.wait()",
    "in a member's code": "while True: member.lease('key'); member.mine(['key'])",
    "in a block": "with member.leading('key'):\n            while True: time.sleep(0.1)",
}


def ended(code: str, tmp_path: Path, *numbers: int, ledger: str = "") -> tuple[int, str, str]:
    """How this program ended after these signals, and its output."""
    ledger = ledger or f"sqlite:{tmp_path}/ledger.db"
    with Program(code, ledger, folder=tmp_path) as program:
        assert "ready\n" == program.stdout.readline()
        for number in numbers:
            program.send_signal(number)
        return program.wait(PATIENCE), program.stdout.read(), program.stderr.read()


def has_left(tmp_path: Path) -> bool:
    with closing(SqliteLedger(tmp_path / "ledger.db")) as ledger:
        return any(isinstance(decode(entry.payload), Leave) for entry in ledger.read(0))


@pytest.mark.process
@pytest.mark.parametrize("place", PLACES)
def test_a_signal_ends_a_program_that_hands_over_first(place: str, tmp_path: Path) -> None:
    assert (0, "", "") == ended(CODE.replace("BODY", PLACES[place]), tmp_path, signal.SIGTERM)
    assert has_left(tmp_path)


@pytest.mark.process
def test_a_signal_cancels_a_program_in_an_event_loop_once_although_it_comes_twice(tmp_path: Path) -> None:
    code = CODE.replace("def main():\n    with Member", "async def main():\n    async with AsyncMember")
    code = code.replace("member.wait_ready()", "await member.wait_ready()")
    code = code.replace("BODY", "async for _ in member.changes(): pass")
    assert (0, "", "") == ended(code, tmp_path, signal.SIGINT, signal.SIGINT)
    assert has_left(tmp_path)


@pytest.mark.process
def test_a_signal_in_the_opening_ends_the_program_and_one_in_the_closing_lets_it_finish(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        opening = CODE.replace("with Member(config)", "ready(); Member(config, timeout=3600)\n    with Member(config)")
        ledger = f"redis://127.0.0.1:{silent.getsockname()[1]}/jobs"
        assert (0, "") == ended(opening, tmp_path, signal.SIGTERM, ledger=ledger)[:2]
    beginning, _, _ = CODE.partition("def main")
    assert (0, "closed: True\n", "") == ended(beginning + CLOSING, tmp_path)


@pytest.mark.process
def test_a_second_signal_ends_the_program_at_once(tmp_path: Path) -> None:
    nap = "\n            while True: time.sleep(0.1)\n"
    stubborn = f"try:\n            ready(){nap}        finally:\n            print('closing', flush=True){nap}"
    code = CODE.replace("        ready()\n        BODY", f"        {stubborn}")
    with Program(code, f"sqlite:{tmp_path}/ledger.db", folder=tmp_path) as program:
        assert "ready\n" == program.stdout.readline()
        program.terminate()
        assert "closing\n" == program.stdout.readline()
        while program.poll() is None:  # The second one counts half a second after the first.
            program.terminate()
            program._process.join(0.1)
        assert -signal.SIGTERM == program.poll()


def test_a_signal_that_must_wait_is_sent_until_it_counts_and_may_arrive_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    signals, endings = Signals(), iter([False, False, True])
    monkeypatch.setattr(signal, "pthread_kill", lambda *_: setattr(signals, "is_ending", next(endings)))
    signals.came = True
    signals._again(signal.SIGTERM)
    assert [] == list(endings)
    for _ in range(2):
        signals.handle(signal.SIGTERM, None)  # A second one of a person would end this process.
    signals.came = False
    signals.handle(signal.SIGTERM, None)
    assert signals.came, "also a first one during the end of `run`"


def test_a_program_that_ends_on_its_own_returns_raises_and_leaves_the_signals_as_they_were() -> None:
    async def answer() -> int:
        return 8

    def refused() -> None:
        with pytest.raises(RuntimeError, match="belongs on the main thread, once"):
            run(answer)

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    assert (7, 8) == (run(lambda: 7), run(answer))
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 / 0)
    run(refused)
    with ThreadPoolExecutor() as pool:
        pool.submit(refused).result()
    assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run(lambda: os.kill(os.getpid(), signal.SIGINT))  # Ignored at the start, as in a background job of a script.
        run(lambda: asyncio.run(asyncio.sleep(0)))
    finally:
        signal.signal(signal.SIGINT, before[1])
