"""Links between two hosts: network namespaces, a key, and cables that are cut one way and both."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from neli_router.electors.events import Heard
from neli_router.peers.udp import PeerSockets
from tests.conftest import require
from tests.peers.joining import fast_clock, link_at, take_until
from tests.support.servers.network import Network, missing

pytestmark = pytest.mark.process

Hosts = tuple[Network, PeerSockets, PeerSockets]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """A network of hosts `one` and `two`, and a link on each."""
    require(missing())
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_bytes(b"one key for both hosts")
    with Network.started(["one", "two"]) as network, ExitStack() as stack:
        peers = [f"{network.address(host)}:7801" for host in network.hosts]
        links = []
        for host, me in zip(network.hosts, peers, strict=True):
            with network.entered(host):
                links.append(link_at(peers, me, tmp_path / host, options=f"&key_file={key}"))
            stack.callback(links[-1].close)
        one, two = links
        yield network, one, two


def crosses(sender: PeerSockets, receiver: PeerSockets, body: bytes) -> None:
    expected = Heard(sender.place, body)
    take_until(lambda taken: expected in taken, receiver, sender, again=lambda: sender.send(receiver.place, body))


def test_two_hosts_hear_each_other_and_when_a_cut_is_mended_hear_again(hosts: Hosts) -> None:
    network, one, two = hosts
    for link, host in ((one, "one"), (two, "two")):
        assert [network.address(host)] == [socket.getsockname()[0] for socket in link._sockets]
    crosses(one, two, b"before")
    crosses(two, one, b"before")
    network.cut("one", "two")
    for link in hosts[1:]:
        link.take()  # It was on its way.
    for _ in range(200):
        one.send(1, b"cut")
        two.send(0, b"cut")
        one.wait(0.005)
        assert [] == [event for link in (one, two) for event in link.take() if isinstance(event, Heard)]
    network.mend("one", "two")
    crosses(one, two, b"after")
    crosses(two, one, b"after")


def test_a_cable_that_carries_one_way_carries_bodies_that_way(hosts: Hosts) -> None:
    """Once they know each other, a body needs no answer."""
    network, one, two = hosts
    crosses(one, two, b"before")
    crosses(two, one, b"before")
    network.lose("two", "one")
    crosses(one, two, b"still heard")
    two.send(0, b"lost")
    crosses(one, two, b"and again")
    assert [] == [event for event in one.take() if isinstance(event, Heard)]


def test_a_member_whose_name_is_loopback_first_and_then_an_address_reaches_others_from_that(
    hosts: Hosts, tmp_path: Path
) -> None:
    """As installers write `/etc/hosts`: from 127.0.1.1 the kernel lets nothing out, and says that it is invalid."""
    network, *_ = hosts
    peers = ["one.example:7802", "two.example:7802"]
    addresses = {"one.example": ["127.0.1.1", network.address("one")], "two.example": [network.address("two")]}
    with ExitStack() as stack:
        links = []
        for host, me in zip(network.hosts, peers, strict=True):
            with network.entered(host):
                link = link_at(
                    peers,
                    me,
                    tmp_path / f"{host} by name",
                    options=f"&key_file={tmp_path / 'key'}",
                    resolve=lambda host, port: [(address, port) for address in addresses[host]],
                    clock=fast_clock,
                )
            stack.callback(link.close)
            links.append(link)
        crosses(links[0], links[1], b"from one")
        crosses(links[1], links[0], b"from two")
        assert "listens at 127.0.1.1:7802, an address of loopback" in "\n".join(links[0].doubts)
        assert "loopback" not in "\n".join(links[1].doubts)
