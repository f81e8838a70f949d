"""The fence against a leader of an elected group that goes on writing when another leads: frozen, or cut off.

    frozen      writes under 7  SIGSTOP ..................... SIGCONT  writes under 7 --> Refused
    cut off     writes under 7 ....... writes under 7 ................ writes under 7 --> Refused
    successor                                       writes under 9

Their program never checks its lease, so only the fence stops it: here that of a Redis, and in tests/chaos that of
SQLite. The terms must not fall: in the last test a group begins again at low ones, because it came from a ledger.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from neli_router import fence
from neli_router.config.config import Config
from neli_router.core.keyspace import Layout
from neli_router.lab.processes.group import MemberProcess
from neli_router.member.member import Member
from tests.conftest import require
from tests.fence.stores import FencedStore
from tests.support.processes.peer_group import PeerProcesses, loopback_places
from tests.support.servers import network as networks
from tests.support.servers.network import Network
from tests.support.servers.redis import Redis
from tests.support.servers.redis import missing as redis_missing
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.process, pytest.mark.redis]

NAMES = ["m1", "m2", "m3"]
LEASE = 2.0
PORT = 7801

PAUSE = 0.2
"""Seconds between two writes. Each write takes a hundredth of that."""


@pytest.fixture
def store() -> Iterator[FencedStore]:
    require(redis_missing())
    with Redis.started() as server, FencedStore(f"unix://{server.socket}") as opened:
        yield opened


def peers(folder: Path, places: dict[str, str], store: FencedStore, **options: Any) -> PeerProcesses:
    """A group with one partition, whose leader writes to `store`."""
    program = ("tests.fence.stores", store.address)
    folder.mkdir(exist_ok=True)
    return PeerProcesses(folder, places, partitions=1, pause=PAUSE, program=program, lease=LEASE, **options)


def writing_leader(group: PeerProcesses, store: FencedStore) -> tuple[MemberProcess, int]:
    """The member that leads, and its term, once it has written."""
    found: list[tuple[MemberProcess, int]] = []

    def is_writing() -> bool:
        found[:] = [(one, one.life.held[0].term) for one in group.processes if one.is_running and one.life.held]
        return len(found) == 1 and store.admitted() == found[0][1]

    group.wait_until(is_writing, "one was to lead, and to write")
    return found[0]


def require_refused(group: PeerProcesses, store: FencedStore, leader: MemberProcess, term: int) -> None:
    """The fence ends this leader's program, its successor has written, and nothing went wrong."""
    refused = (leader.life.label, 0, term)
    group.wait_until(lambda: refused in store.writes.refusals, "the older leader was to be refused")
    group.wait_until(lambda: bool(leader.life.halted), "the older leader was to be fenced")
    assert term < writing_leader(group, store)[1]
    group.leave()
    assert [] == group.verdict().faults
    assert [] == store.writes.zombies


@pytest.mark.parametrize("protocol", ["gossip", "term"])
def test_a_leader_that_wakes_up_too_late_is_refused(protocol: str, store: FencedStore, tmp_path: Path) -> None:
    with peers(tmp_path, loopback_places(NAMES), store, protocol=protocol) as group:
        for name in NAMES:
            group.start(name)
        sleeper, term = writing_leader(group, store)
        sleeper.stop()
        group.wait_until(lambda: store.admitted() > term, "a successor was to write")
        sleeper.resume()
        require_refused(group, store, sleeper, term)


def test_a_leader_that_is_cut_off_is_refused_once_its_successor_writes(store: FencedStore, tmp_path: Path) -> None:
    """It reaches the store all the time, and so does its successor."""
    require(networks.missing())
    with Network.started(NAMES) as network:
        places = {name: f"{network.address(name)}:{PORT}" for name in NAMES}
        with peers(tmp_path, places, store, protocol="gossip") as group:
            for name in NAMES:
                group.start(name, prefix=network.prefix(name))
            alone, term = writing_leader(group, store)
            for other in set(NAMES) - {alone.life.name}:
                network.cut(alone.life.name, other)
            group.wait_until(lambda: store.admitted() > term, "a successor was to write")
            fenced = "the one alone was to be refused, and fenced"
            group.wait_until(lambda: bool(store.writes.refusals and alone.life.halted), fenced)
            network.heal()
            require_refused(group, store, alone, term)


def refused_leader(group: PeerProcesses, store: FencedStore) -> int:
    """The term of a leader that the fence has refused."""
    for name in NAMES:
        group.start(name)

    def refused() -> list[int]:
        leading = [(one.life.label, 0, one.life.held[0].term) for one in group.processes if one.life.held]
        return [term for *_, term in set(leading) & set(store.writes.refusals)]

    group.wait_until(lambda: bool(refused()), "one was to lead, and to be refused")
    return refused()[0]


def test_a_group_from_a_ledger_is_refused_until_it_has_a_term_base(store: FencedStore, tmp_path: Path) -> None:
    config = Config(f"sqlite://{tmp_path / 'ledger.db'}", layout=Layout(partitions=1), lease=LEASE)
    with Member(config) as member, member.leading(0, timeout=PATIENCE) as lease:
        store.admit(lease.term)
    moved, mended, places = tmp_path / "moved", tmp_path / "mended", loopback_places(NAMES)
    with peers(moved, places, store, protocol="term") as group:
        low = refused_leader(group, store)
    with pytest.raises(fence.Refused, match=f"start all with a term_base of at least {lease.term}$"):
        store.admit(low)
    # With the present disks, and with the remedy from the error.
    shutil.copytree(moved, mended)
    for notes in mended.glob("*.notes"):
        notes.unlink()
    with peers(mended, places, store, protocol="term", term_base=lease.term) as group:
        for name in NAMES:
            group.start(name)
        assert writing_leader(group, store)[1] > lease.term
        group.leave()
    assert [] == store.writes.zombies
