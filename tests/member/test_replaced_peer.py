"""Two processes of one peer: the one that was there first is told by the others, and ends with all that it leads.

    listed address --> relay --> the older one, and from when it is there the newer one, each at its own `bind`

So it is where an address is translated, or a name leads to two hosts: what the others send to the one address that they
know reaches whoever is behind it. On one address the system itself refuses the second process.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from neli_router.config import Config
from neli_router.errors import LeaseLost, Replaced
from neli_router.keyspace import Layout
from neli_router.member.member import Member
from neli_router.protocol import Acquired, Event
from tests.member.test_peer_footing import BEATS, LEASE, PARTITIONS, shares
from tests.support.servers.process import free_udp_ports
from tests.support.waiting import until

LAYOUT = Layout(slots=64, partitions=PARTITIONS)


class Relay:
    """What stands at the listed address of the first peer: it brings each datagram to all who are behind it."""

    def __init__(self, ports: list[int]) -> None:
        self.places = [f"127.0.0.1:{port}" for port in ports[:3]]
        self.behind = list(ports[3:])
        self.reached = 1
        """How many of them it brings datagrams to."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", ports[0]))
        self._socket.settimeout(0.1)
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="relay")

    def address(self, i: int, state: Path, *, life: int = 0) -> str:
        state.mkdir(mode=0o700, exist_ok=True)
        bind = f"&bind=127.0.0.1:{self.behind[life]}" if i == 0 else ""
        return f"peers://{','.join(self.places)}/jobs?me={self.places[i]}&state={state}{bind}"

    def _run(self) -> None:
        while not self._ends:
            try:
                datagram = self._socket.recv(2000)
            except TimeoutError:
                continue
            for port in self.behind[: self.reached]:
                self._socket.sendto(datagram, ("127.0.0.1", port))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._thread.join()
        self._socket.close()


@pytest.fixture(name="relay")
def _relay() -> Iterator[Relay]:
    with Relay(free_udp_ports(5)) as relay:
        yield relay


def config(address: str, name: str) -> Config:
    return Config(address, protocol="term", name=name, lease=LEASE, beat=BEATS["term"], layout=LAYOUT)


def test_the_older_of_two_members_of_one_peer_ends_with_replaced_and_the_newer_leads_under_higher_terms(
    relay: Relay, tmp_path: Path
) -> None:
    told: list[Event] = []
    with ExitStack() as stack:
        older = Member(config(relay.address(0, tmp_path / "0"), "older"), on_event=told.append)
        others = [stack.enter_context(Member(config(relay.address(i, tmp_path / str(i)), f"m{i}"))) for i in (1, 2)]
        until(lambda: [2, 2, 2] == shares(older, *others))
        led = dict(older.led)
        lease = older.lease(min(led))
        assert lease is not None
        relay.reached = 2
        newer = stack.enter_context(Member(config(relay.address(0, tmp_path / "new", life=1), "newer")))
        until(lambda: older.closed)
        with pytest.raises(LeaseLost):
            lease.check()
        with pytest.raises(Replaced, match="another process has taken it"):
            older.require_open()
        assert isinstance(older.error, Replaced)

        def lost() -> set[int]:  # Which its program is told on a thread of its own.
            return {i for event in told if not isinstance(event, Acquired) for i in event.partitions}

        until(lambda: set(led) <= lost())
        until(lambda: all(newer.led.get(i, 0) > term for i, term in led.items()))
        until(lambda: [2, 2, 2] == shares(newer, *others))
