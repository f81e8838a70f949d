"""The network that chaos is made in: a cut path is cut, only in the requested direction, and nothing is left behind."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.chaos.bad_switch import BadSwitch
from tests.conftest import require
from tests.support.draws import SEED
from tests.support.servers.network import NAMESPACES, Network, missing

pytestmark = pytest.mark.process

SOON = 60.0
"""Seconds for a datagram to cross two veth pairs."""

LOOK_EVERY = 0.02

Wire = tuple[socket.socket, socket.socket]
"""Two sockets on two hosts: the second receives what is sent into the first."""


@pytest.fixture
def network() -> Iterator[Network]:
    require(missing())
    with Network.started(["one", "two", "three"]) as started:
        yield started


@pytest.fixture
def hears(network: Network) -> Iterator[Callable[[str, str], bool]]:
    """Whether a datagram from the first host reaches the second; retried while it does not and should."""
    sockets: dict[str, socket.socket] = {}
    with ExitStack() as open_sockets:
        for host in network.hosts:
            with network.entered(host):
                made = open_sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            made.bind((network.address(host), 7635))
            made.settimeout(LOOK_EVERY)
            sockets[host] = made

        def hears(source: str, target: str, *, within: float = SOON) -> bool:
            give_up_at = time.monotonic() + within
            word = f"{source} at {give_up_at}".encode()
            while time.monotonic() < give_up_at:
                sockets[source].sendto(word, (network.address(target), 7635))
                try:
                    if sockets[target].recv(100) == word:
                        return True
                except TimeoutError:
                    continue
            return False

        yield hears


def test_a_loss_is_one_way_and_both_faults_of_a_path_must_end(network: Network, hears: Callable[..., bool]) -> None:
    assert all(hears(one, two) for one in network.hosts for two in network.hosts if one != two)
    network.lose("one", "two")
    assert not hears("one", "two", within=0.2)
    assert hears("two", "one")
    assert hears("one", "three")
    network.cut("one", "two")
    network.mend("one", "two")
    assert not hears("one", "two", within=0.2)
    assert hears("two", "one")
    network.carry("one", "two")
    assert hears("one", "two")
    network.cut("one", "two")
    assert network.slow("one")
    assert hears("one", "three")
    network.heal()
    assert hears("one", "two")


def test_nothing_is_left_at_the_end_even_of_a_failure() -> None:
    require(missing())
    spaces: list[str] = []

    def fail() -> None:
        with Network.started(["one", "two"]) as network:
            spaces.extend(network.prefix(host)[-1] for host in network.hosts)
            assert all((NAMESPACES / space).exists() for space in spaces)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fail()
    assert len(spaces) == 2
    assert not any((NAMESPACES / space).exists() for space in spaces)


def test_a_thread_that_entered_a_host_is_back_afterwards(network: Network) -> None:
    here = Path("/proc/thread-self/ns/net")
    before = here.readlink()
    with network.entered("one"):
        assert before != here.readlink()
    assert before == here.readlink()


@pytest.fixture(name="switch")
def _switch(network: Network) -> Iterator[BadSwitch]:
    with BadSwitch(network, seed=SEED) as switch:
        yield switch


@pytest.fixture
def wire(network: Network) -> Iterator[Wire]:
    with network.entered("one"):
        source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with network.entered("two"):
        target = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with source, target:
        target.bind((network.address("two"), 7636))
        target.settimeout(SOON)
        source.connect((network.address("two"), 7636))
        yield source, target


def test_a_bad_switch_carries_or_loses_as_told_and_cuts_hold(network: Network, hears: Callable[..., bool]) -> None:
    with BadSwitch(network, seed=SEED) as switch:
        assert all(hears(one, two) for one in network.hosts for two in network.hosts if one != two)
        assert switch.carried > 0
        assert 0 == switch.lost
        switch.loss = 1.0
        assert not hears("one", "two", within=0.2)
        switch.heal()
        assert hears("one", "two")
        network.lose("one", "two")
        assert not hears("one", "two", within=0.2)
        assert hears("two", "one")
        network.heal()
    assert hears("one", "two")


def test_a_bad_switch_doubles_datagrams_and_lets_them_overtake_each_other(switch: BadSwitch, wire: Wire) -> None:
    source, target = wire
    switch.doubled, switch.late = 1.0, 0.2
    for number in range(20):
        source.send(bytes([number]))
    heard = [target.recv(100)[0] for _ in range(40)]
    assert [number for number in range(20) for _ in range(2)] == sorted(heard)
    assert heard != sorted(heard)


def test_a_bad_switch_keeps_what_is_held_and_then_carries_all_of_it(
    switch: BadSwitch, wire: Wire, hears: Callable[[str, str], bool]
) -> None:
    source, target = wire
    switch.held = frozenset({"one"})
    for number in range(3):
        source.send(bytes([number]))
    assert hears("two", "one")
    target.settimeout(0.2)
    with pytest.raises(TimeoutError):
        target.recv(100)
    switch.held = frozenset()
    target.settimeout(SOON)
    assert [0, 1, 2] == [target.recv(100)[0] for _ in range(3)]
