"""Links for tests: at free ports of this host, with folders of their own, and a condition to wait for."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from neli_router.core.clock import Clock, host_clock
from neli_router.drivers.peers.address import parse
from neli_router.drivers.peers.base import PeerLink
from neli_router.drivers.peers.memory import MemoryLink
from neli_router.drivers.peers.names import Resolve, SocketAddress, resolve
from neli_router.drivers.peers.udp import PeerSockets, open_link
from neli_router.protocols.electors.events import Heard
from neli_router.protocols.protocol import Notice
from tests.support.servers.process import free_udp_ports
from tests.support.waiting import PATIENCE

__all__ = ["Zone", "addresses_at", "fast_clock", "heard", "key_in", "link_at", "links", "take_until"]


class Zone:
    """A name server that a test may change. A name without an entry does not exist."""

    def __init__(self, **hosts: str) -> None:
        self.hosts = hosts
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[SocketAddress]:
        self.asked.append(host)
        if host not in self.hosts:
            raise OSError(-2, "Name or service not known")
        return resolve(self.hosts[host], port)


def fast_clock() -> float:
    """For tests that wait until a link asks, or finds a peer silent: it does so in a twentieth of the time."""
    return 20 * host_clock()


def addresses_at(hosts: Sequence[str]) -> list[str]:
    """HOST:PORT for each host, in the order of the list."""
    ports = free_udp_ports(len(hosts))
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in zip(hosts, ports, strict=True)]


def key_in(folder: Path, secret: bytes) -> Path:
    """A file with a key that only this user can read."""
    path = folder / "key"
    path.touch(0o600)
    path.write_bytes(secret)
    return path


def link_at(
    peers: Sequence[str],
    me: str,
    folder: Path,
    *,
    mark: bytes = b"term 8",
    options: str = "",
    resolve: Resolve = resolve,
    clock: Clock = host_clock,
) -> PeerSockets:
    address, problems = parse(f"//{','.join(peers)}/jobs?me={me}&state={folder}{options}")
    assert address is not None, problems
    return open_link(address, mark=mark, clock=clock, resolve=resolve)


@contextmanager
def links(hosts: Sequence[str], folder: Path) -> Iterator[list[PeerSockets]]:
    """One link for each host, in the order of their places."""
    peers = addresses_at(hosts)
    with ExitStack() as stack:
        made = [stack.enter_context(closing(link_at(peers, me, folder, clock=fast_clock))) for me in peers]
        yield sorted(made, key=lambda link: link.place)


def take_until(
    condition: Callable[[list[Heard | Notice]], bool],
    link: PeerLink,
    *others: PeerLink,
    again: Callable[[], object] = lambda: None,
) -> list[Heard | Notice]:
    """All that `link` takes until `condition` holds for it, while the `others` take theirs. `again` runs in between."""
    taken: list[Heard | Notice] = []
    end = host_clock() + PATIENCE
    while not condition(taken):
        assert host_clock() < end, f"it did not come true; taken so far: {taken[-20:]}"
        again()
        link.wait(0.01)
        taken += link.take()
        for other in others:
            other.take()
    return taken


def heard(link: PeerSockets | MemoryLink, from_: PeerSockets | MemoryLink, body: bytes) -> None:
    """Send `body` until it has arrived: the network may lose it, and at first no link knows the other."""
    said = Heard(from_.place, body)
    take_until(lambda taken: said in taken, link, from_, again=lambda: from_.send(link.place, body))
