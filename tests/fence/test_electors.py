"""The fence, and a leader of an elected group that goes on writing when another leads: frozen, or cut off.

    frozen      writes under 7  SIGSTOP ..................... SIGCONT  writes under 7 --> Refused
    cut off     writes under 7 ....... writes under 7 ................ writes under 7 --> Refused
    successor                                       writes under 9

Their program asks no lease, so the fence alone stops it. A fence knows nothing of a group, so the same holds in each
store. Only the terms must not fall: in the second half a group begins again at low ones, because it came from a ledger,
or because all its disks are gone.
"""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from neli_router import fence
from neli_router.config import Config
from neli_router.keyspace import Layout
from neli_router.member.member import Member
from neli_router.processes.group import MemberProcess
from tests.conftest import require
from tests.fence.stores import FencedStore, store_at
from tests.support.processes.peer_group import PeerProcesses, loopback_places
from tests.support.servers import network as networks
from tests.support.servers.network import Network
from tests.support.servers.redis import Redis
from tests.support.servers.redis import missing as redis_missing
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.process

NAMES = ["m1", "m2", "m3"]
LEASE = 2.0
PORT = 7801

PAUSE = 0.2
"""Between two writes, of which each takes a hundredth of that."""

POSTGRESQL, REDIS = pytest.mark.postgresql, pytest.mark.redis
ONE_EACH = [
    pytest.param("gossip", "sqlite"),
    pytest.param("term", "postgresql", marks=POSTGRESQL),
    pytest.param("gossip", "redis", marks=REDIS),
]
"""A protocol and a store: neither knows of the other, so one of each is enough."""


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FencedStore]:
    with ExitStack() as stack:
        if request.param == "postgresql":
            address = request.getfixturevalue("server")
        elif request.param == "redis":
            require(redis_missing())
            address = f"unix://{stack.enter_context(Redis.started()).socket}"
        else:
            address = str(tmp_path / "fence.db")
        opened = stack.enter_context(store_at(address))
        opened.install()
        yield opened


def peers(folder: Path, places: dict[str, str], store: FencedStore, **options: Any) -> PeerProcesses:
    """One partition, whose leader writes to `store`."""
    program = ("tests.fence.stores", store.address)
    folder.mkdir(exist_ok=True)
    return PeerProcesses(folder, places, partitions=1, pause=PAUSE, program=program, lease=LEASE, **options)


def writing_leader(group: PeerProcesses, store: FencedStore) -> tuple[MemberProcess, int]:
    """The one that leads, and its term, when it has written."""
    found: list[tuple[MemberProcess, int]] = []

    def is_writing() -> bool:
        found[:] = [(one, one.life.held[0].term) for one in group.processes if one.is_running and one.life.held]
        return len(found) == 1 and store.admitted() == found[0][1]

    group.wait_until(is_writing, "one was to lead, and to write")
    return found[0]


@pytest.mark.parametrize(("protocol", "store"), ONE_EACH, indirect=["store"])
def test_a_leader_that_wakes_up_after_its_successor_wrote_is_refused(
    protocol: str, store: FencedStore, tmp_path: Path
) -> None:
    with peers(tmp_path, loopback_places(NAMES), store, protocol=protocol) as group:
        for name in NAMES:
            group.start(name)

        sleeper, term = writing_leader(group, store)
        store.stop_between_writes(sleeper)
        group.wait_until(lambda: store.admitted() > term, "a successor was to write")
        sleeper.resume()
        refused = (sleeper.life.label, 0, term)
        group.wait_until(lambda: refused in store.writes.refusals, "the sleeper was to be refused")
        group.wait_until(lambda: bool(sleeper.life.halted), "the sleeper was to be fenced")
        _, last = writing_leader(group, store)
        group.leave()
        assert [] == group.verdict().faults
    assert term < last == store.admitted()
    assert [] == store.writes.zombies


@pytest.mark.parametrize(("protocol", "store"), ONE_EACH[1:], indirect=["store"])
def test_a_leader_that_is_cut_off_is_refused_from_its_successors_first_write(
    protocol: str, store: FencedStore, tmp_path: Path
) -> None:
    """It reaches the store all the time, and its successor does."""
    require(networks.missing())
    with Network.started(NAMES) as network:
        places = {name: f"{network.address(name)}:{PORT}" for name in NAMES}
        with peers(tmp_path, places, store, protocol=protocol) as group:
            for name in NAMES:
                group.start(name, prefix=network.prefix(name))
            alone, term = writing_leader(group, store)
            for other in set(NAMES) - {alone.life.name}:
                network.cut(alone.life.name, other)
            group.wait_until(lambda: store.admitted() > term, "a successor was to write")
            refused = (alone.life.label, 0, term)
            group.wait_until(lambda: refused in store.writes.refusals, "the one alone was to be refused")
            group.wait_until(lambda: bool(alone.life.halted), "the one alone was to be fenced")
            network.heal()
            _, last = writing_leader(group, store)
            group.leave()
            assert [] == group.verdict().faults
    assert term < last == store.admitted()
    assert [] == store.writes.zombies


def refused_leader(group: PeerProcesses, store: FencedStore) -> int:
    """The term of one that leads, when the fence has refused it."""
    for name in NAMES:
        group.start(name)

    def refused() -> list[int]:
        leading = [(one.life.label, 0, one.life.held[0].term) for one in group.processes if one.life.held]
        return [term for *_, term in set(leading) & set(store.writes.refusals)]

    group.wait_until(lambda: bool(refused()), "one was to lead, and to be refused")
    return refused()[0]


def require_mended(before: Path, places: dict[str, str], store: FencedStore, protocol: str) -> None:
    """With the disks as they are now, and with what the error says."""
    highest, after = store.admitted(), before.with_name("mended")
    shutil.copytree(before, after)
    for notes in after.glob("*.notes"):
        notes.unlink()
    with peers(after, places, store, protocol=protocol, term_base=highest) as group:
        for name in NAMES:
            group.start(name)
        assert writing_leader(group, store)[1] > highest
        group.leave()
    assert [] == store.writes.zombies


@pytest.mark.parametrize(("protocol", "store"), [pytest.param("term", "redis", marks=REDIS)], indirect=["store"])
def test_a_group_that_came_from_a_ledger_is_refused_until_it_has_its_terms_as_term_base(
    protocol: str, store: FencedStore, tmp_path: Path
) -> None:
    config = Config(f"sqlite://{tmp_path / 'ledger.db'}", layout=Layout(partitions=1), lease=LEASE)
    with Member(config) as member, member.leading(0, timeout=PATIENCE) as lease:
        store.admit(lease.term)
    places = loopback_places(NAMES)
    with peers(tmp_path / "moved", places, store, protocol=protocol) as group:
        assert refused_leader(group, store) < lease.term == store.admitted()
    require_mended(tmp_path / "moved", places, store, protocol)


@pytest.mark.parametrize(
    ("protocol", "store"), [pytest.param("gossip", "postgresql", marks=POSTGRESQL)], indirect=["store"]
)
def test_a_group_that_lost_all_its_disks_is_refused_and_told_to_raise_its_term_base(
    protocol: str, store: FencedStore, tmp_path: Path
) -> None:
    places = loopback_places(NAMES)
    with peers(tmp_path / "before", places, store, protocol=protocol, term_base=1000) as group:
        for name in NAMES:
            group.start(name)
        highest = writing_leader(group, store)[1]
    with peers(tmp_path / "lost", places, store, protocol=protocol) as group:
        low = refused_leader(group, store)
        with pytest.raises(fence.Refused, match=f"start all with a term_base of at least {store.admitted()}$"):
            store.admit(low)
        assert low < highest <= store.admitted()
    require_mended(tmp_path / "lost", places, store, protocol)
