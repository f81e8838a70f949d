"""The fence, and a leader of an elected group that was stopped between its last look at its lease and a write."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from neli_router import fence
from neli_router.processes.group import MemberProcess
from tests.chaos.fenced import FencedWriter, writes_in
from tests.processes.peer_group import PeerProcesses, loopback_places

pytestmark = pytest.mark.process

NAMES = ["m1", "m2", "m3"]
LEASE = 2.0

PAUSE = 0.2
"""Between a look and the write. A look takes a hundredth of that, so most are stopped in the pause."""

TRIES = 3


@pytest.mark.parametrize("protocol", ["term", "gossip"])
def test_a_leader_that_wakes_up_after_its_successor_wrote_is_refused(protocol: str, tmp_path: Path) -> None:
    path = tmp_path / "fence.db"
    FencedWriter.install(path)
    options = {"protocol": protocol, "lease": LEASE, "program": ("tests.chaos.fenced", str(path))}
    with PeerProcesses(tmp_path, loopback_places(NAMES), partitions=1, pause=PAUSE, **options) as group:
        for name in NAMES:
            group.start(name)

        def leaders() -> list[MemberProcess]:
            return [one for one in group.processes if one.life.held]

        def is_refused() -> bool:
            """Whether the leader came to write, once another had."""
            group.wait_until(lambda: len(leaders()) == 1, "one was to lead")
            (sleeper,) = leaders()
            term = sleeper.life.held[0].term
            group.wait_until(lambda: admitted(path) == term, "the leader was to write")
            stop_between_writes(sleeper, path)
            group.wait_until(lambda: admitted(path) > term, "a successor was to write")
            sleeper.resume()
            group.wait_until(lambda: bool(sleeper.life.halted), "the sleeper was to be fenced")
            return (sleeper.life.label, 0, term) in writes_in(path).refusals

        assert any(is_refused() for _ in range(TRIES))
        group.leave()
        assert [] == group.verdict().faults
    assert [] == writes_in(path).zombies


def admitted(path: Path) -> int:
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        return fence.admitted(connection, "partition 0") or 0


def stop_between_writes(process: MemberProcess, path: Path) -> None:
    """One that is stopped while it writes keeps the file locked, and its successor could not write."""
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        process.stop()
        connection.execute("ROLLBACK")
