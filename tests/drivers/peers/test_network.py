"""Links between two hosts: network namespaces and a key. tests/chaos has the tests that cut cables."""

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.conftest import require
from tests.drivers.peers.joining import fast_clock, heard, key_in, link_at
from tests.support.servers.network import Network, missing

pytestmark = pytest.mark.process


def test_a_member_whose_name_is_loopback_first_and_then_an_address_reaches_others_from_that(tmp_path: Path) -> None:
    """Like the `/etc/hosts` that installers write: from 127.0.1.1 the kernel lets nothing out, and calls it invalid."""
    require(missing())
    key = key_in(tmp_path, b"one key for both hosts")
    peers = ["one.example:7802", "two.example:7802"]
    with Network.started(["one", "two"]) as network, ExitStack() as stack:
        addresses = {"one.example": ["127.0.1.1", network.address("one")], "two.example": [network.address("two")]}
        links = []
        for host, me in zip(network.hosts, peers, strict=True):
            with network.entered(host):
                link = link_at(
                    peers,
                    me,
                    tmp_path / host,
                    options=f"&key_file={key}",
                    resolve=lambda host, port: [(address, port) for address in addresses[host]],
                    clock=fast_clock,
                )
            links.append(stack.enter_context(closing(link)))
        one, two = links
        heard(two, one, b"from one")
        heard(one, two, b"from two")
        assert "listens at 127.0.1.1:7802, an address of loopback" in "\n".join(one.doubts)
        assert "loopback" not in "\n".join(two.doubts)
