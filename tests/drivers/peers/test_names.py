"""Names of peers: followed when they change, reported when they are lost, and never waited for."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from neli_router.core.clock import host_clock
from neli_router.drivers.peers import names as module
from neli_router.drivers.peers.names import SILENT_EVERY, THREADS_MAX, PeerNames, Resolve, SocketAddress, resolve
from neli_router.drivers.peers.udp import PeerSockets
from neli_router.protocols.electors.events import Heard
from neli_router.protocols.protocol import Notice
from tests.drivers.peers.joining import Zone, addresses_at, fast_clock, heard, key_in, link_at, take_until
from tests.support.waiting import PATIENCE, until


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread looks for due names in a twentieth of the time, like links with a fast clock."""
    monkeypatch.setattr(module, "SILENT_EVERY", SILENT_EVERY / 20)


def events(taken: list[Heard | Notice]) -> list[str]:
    return [one.event for one in taken if isinstance(one, Notice)]


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Callable[..., PeerSockets]]:
    """The link of `a` or `b`, which are at one port of two hosts, as far as `resolve` knows."""
    port = addresses_at(["127.0.0.1"])[0].rpartition(":")[2]
    peers = {name: f"{name}.example:{port}" for name in "ab"}
    key = key_in(tmp_path, b"k" * 16)
    with ExitStack() as stack:

        def make(name: str, resolve: Resolve) -> PeerSockets:
            folder, options = tmp_path / name, f"&key_file={key}"
            link = link_at([*peers.values()], peers[name], folder, options=options, resolve=resolve, clock=fast_clock)
            return stack.enter_context(closing(link))

        yield make


Join = Callable[[str, Resolve], PeerSockets]


def test_a_peer_that_moved_is_found_at_its_new_address(join: Join) -> None:
    zone = Zone(**{"a.example": "127.0.0.1", "b.example": "127.0.0.2"})
    a, b = join("a", zone), join("b", zone)
    heard(b, a, b"hello")
    b.close()
    zone.hosts["b.example"] = "127.0.0.3"
    b = join("b", zone)
    taken: list[Heard | Notice] = []

    def a_speaks() -> None:
        a.send(1, b"at your new address")
        taken.extend(a.take())

    take_until(lambda taken: Heard(0, b"at your new address") in taken, b, again=a_speaks)
    assert "peers.moved" in events(taken)


def test_of_two_addresses_of_a_peer_the_one_that_answers_is_found(join: Join) -> None:
    def both(host: str, port: int) -> list[SocketAddress]:
        hosts = {"a.example": ["127.0.0.1"], "b.example": ["127.0.0.5", "127.0.0.2"]}
        return [(one, port) for one in hosts[host]]

    a, b = join("a", both), join("b", Zone(**{"a.example": "127.0.0.1", "b.example": "127.0.0.2"}))
    heard(b, a, b"there you are")


def test_a_member_listens_where_its_own_name_leads_now(join: Join) -> None:
    zone = Zone(**{"a.example": "127.0.0.1", "b.example": "127.0.0.2"})
    a, b = join("a", zone), join("b", zone)
    zone.hosts["a.example"] = "127.0.0.4"

    def ask_often() -> None:
        for link in (a, b):  # They ask once a minute, and no test waits for that.
            link._names._asked_at = dict.fromkeys(link._names._asked_at, 0.0)
        b.send(0, b"at your new address")

    take_until(lambda _: ["127.0.0.4"] == [one.getsockname()[0] for one in a._sockets], a, b, again=ask_often)
    take_until(lambda taken: Heard(1, b"at your new address") in taken, a, b, again=ask_often)


def test_a_name_that_does_not_resolve_is_told_once_and_when_it_heals(join: Join) -> None:
    zone = Zone(**{"a.example": "127.0.0.1"})
    a = join("a", zone)
    taken = take_until(
        lambda taken: "peers.unresolved" in events(taken) and zone.asked.count("b.example") > 1,
        a,
        again=lambda: a.send(1, b"nobody knows where"),
    )
    zone.hosts["b.example"] = "127.0.0.2"
    taken += take_until(lambda taken: "peers.resolved" in events(taken), a)
    assert ["peers.unresolved", "peers.resolved"] == events(taken)
    (lost, _) = [one for one in taken if isinstance(one, Notice)]
    assert {"peer": f"b.example:{a.address.rpartition(':')[2].partition('/')[0]}"}.items() <= lost.fields.items()
    assert "Name or service not known" == lost.fields["error"]
    assert a.counts["unsent"] > 0


def test_addresses_that_were_known_keep_their_order_and_another_order_is_no_move() -> None:
    """But a name without an address counts as lost, like a name that is not found, and keeps those that it had."""
    one, other, third = ("127.0.0.1", 1), ("127.0.0.2", 1), ("127.0.0.3", 1)
    answers = [[one, other], [other, one], [third, other, one], [third, one], []]
    names = PeerNames([one], resolve=lambda *_: answers.pop(0), clock=host_clock)
    found = [(names.addresses(0), len(names.news()))]
    for _ in range(3):
        names._ask(0)
        found.append((names.addresses(0), len(names.news())))
    assert [((one, other), 0), ((one, other), 0), ((one, other, third), 1), ((one, third), 1)] == found
    names._ask(0)
    assert [("peers.unresolved", "it has no address")] == [(it.event, it.fields["error"]) for it in names.news()]
    assert (one, third) == names.addresses(0)


def test_a_name_that_hangs_holds_up_nobody() -> None:
    is_over = threading.Event()

    def hangs(host: str, port: int) -> list[SocketAddress]:
        if host == "b.example":
            is_over.wait()
        return resolve("127.0.0.3", port)

    with closing(PeerNames([("b.example", 1), ("c.example", 2)], resolve=hangs, clock=host_clock)) as names:
        until(lambda: names.addresses(1))
        assert ((), (("127.0.0.3", 2),)) == (names.addresses(0), names.addresses(1))
    is_over.set()  # Even `close` did not wait for it.


def test_no_name_is_asked_for_twice_at_once_and_a_long_list_takes_a_few_threads() -> None:
    seconds, started, is_over = [0.0], threading.Semaphore(0), threading.Event()
    asked: list[str] = []

    def hangs(host: str, port: int) -> list[SocketAddress]:
        asked.append(host)
        started.release()
        is_over.wait()
        return [("127.0.0.3", port)]

    places = [(f"host-{i}.example", 1) for i in range(THREADS_MAX + 5)]
    names = PeerNames(places, resolve=hangs, clock=lambda: seconds[0])
    for _ in range(THREADS_MAX):
        assert started.acquire(timeout=PATIENCE)
    seconds[0] += 1000
    assert (THREADS_MAX, THREADS_MAX) == (len(names._threads), len(set(asked)))
    assert {names._claimed() for _ in range(6)} == {*range(THREADS_MAX, THREADS_MAX + 5), None}
    is_over.set()
    names.close()


def test_hosts_that_are_numbers_are_asked_for_once() -> None:
    zone = Zone(**{"127.0.0.1": "127.0.0.1", "::1": "::1"})
    names = PeerNames([("127.0.0.1", 1), ("::1", 2)], resolve=zone, clock=host_clock)
    assert ((("127.0.0.1", 1),), (("::1", 2, 0, 0),)) == (names.addresses(0), names.addresses(1))
    assert [] == names._threads
    names.close()
    assert ["127.0.0.1", "::1"] == zone.asked


def test_a_name_that_is_lost_or_of_a_silent_peer_is_asked_again_soon_and_others_seldom() -> None:
    now, hosts = [100.0], ["silent.example", "heard.example", "lost.example"]
    zone = Zone(**{"silent.example": "127.0.0.2", "heard.example": "127.0.0.3"})
    names = PeerNames([(host, 1) for host in hosts], resolve=zone, clock=lambda: now[0])
    until(lambda: names.addresses(0) and names.addresses(1) and names._asked_at[2] == now[0])
    names.silent = frozenset({0})
    for times in (2, 3):
        now[0] += SILENT_EVERY
        until(lambda: zone.asked.count(hosts[0]) == times == zone.asked.count(hosts[2]))  # noqa: B023 - over by then.
        until(lambda: names._asked_at[0] == now[0] == names._asked_at[2])
    assert [3, 1, 3] == [zone.asked.count(host) for host in hosts]
    now[0] += module.CALM_EVERY
    until(lambda: zone.asked.count("heard.example") == 2)
    names.close()
