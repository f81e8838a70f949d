"""Names of peers: followed when they change, told when they are lost, and never waited for."""

import threading
from pathlib import Path

from neli_router.clock import host_clock
from neli_router.electors.events import Heard
from neli_router.peers.names import SILENT_EVERY, THREADS_MAX, PeerNames, SocketAddress, resolve
from neli_router.protocol import Notice
from tests.peers.joining import PATIENCE, addresses_at, link_at, until


class Zone:
    """A name server that a test may change. Without an entry there is no such name."""

    def __init__(self, **hosts: str) -> None:
        self.hosts = hosts
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[SocketAddress]:
        self.asked.append(host)
        if host not in self.hosts:
            raise OSError(-2, "Name or service not known")
        return resolve(self.hosts[host], port)


def events(taken: list[Heard | Notice]) -> list[str]:
    return [one.event for one in taken if isinstance(one, Notice)]


def key_at(folder: Path) -> str:
    path = folder / "key"
    path.touch(0o600)
    path.write_bytes(b"k" * 16)
    return f"&key_file={path}"


def test_a_peer_that_moved_is_found_at_its_new_address(tmp_path: Path) -> None:
    port = addresses_at(["127.0.0.1"])[0].rpartition(":")[2]
    peers = [f"a.example:{port}", f"b.example:{port}"]
    options = key_at(tmp_path)
    zone = Zone(**{"a.example": "127.0.0.1", "b.example": "127.0.0.2"})
    a = link_at(peers, peers[0], tmp_path / "a", options=options, resolve=zone)
    b = link_at(peers, peers[1], tmp_path / "b", options=options, resolve=zone)
    until(lambda taken: Heard(0, b"hello") in taken, b, a, again=lambda: a.send(1, b"hello"))
    b.close()
    zone.hosts["b.example"] = "127.0.0.3"
    b = link_at(peers, peers[1], tmp_path / "b", options=options, resolve=zone)
    taken: list[Heard | Notice] = []

    def a_speaks() -> None:
        a.send(1, b"at your new address")
        taken.extend(a.take())

    until(lambda taken: Heard(0, b"at your new address") in taken, b, again=a_speaks)
    assert "peers.moved" in events(taken)
    a.close()
    b.close()


def test_of_two_addresses_of_a_peer_the_one_that_answers_is_found(tmp_path: Path) -> None:
    port = addresses_at(["127.0.0.1"])[0].rpartition(":")[2]
    peers = [f"a.example:{port}", f"b.example:{port}"]
    options = key_at(tmp_path)

    def both(host: str, port: int) -> list[SocketAddress]:
        hosts = {"a.example": ["127.0.0.1"], "b.example": ["127.0.0.5", "127.0.0.2"]}
        return [(one, port) for one in hosts[host]]

    a = link_at(peers, peers[0], tmp_path / "a", options=options, resolve=both)
    b = link_at(
        peers,
        peers[1],
        tmp_path / "b",
        options=options,
        resolve=Zone(**{"a.example": "127.0.0.1", "b.example": "127.0.0.2"}),
    )
    until(lambda taken: Heard(0, b"there you are") in taken, b, a, again=lambda: a.send(1, b"there you are"))
    a.close()
    b.close()


def test_a_member_listens_where_its_own_name_leads_now(tmp_path: Path) -> None:
    port = addresses_at(["127.0.0.1"])[0].rpartition(":")[2]
    peers = [f"a.example:{port}", f"b.example:{port}"]
    options = key_at(tmp_path)
    zone = Zone(**{"a.example": "127.0.0.1", "b.example": "127.0.0.2"})
    a = link_at(peers, peers[0], tmp_path / "a", options=options, resolve=zone)
    b = link_at(peers, peers[1], tmp_path / "b", options=options, resolve=zone)
    a._names._asked_at[0] -= 1000  # It is asked for once a minute, and no test waits for that.
    zone.hosts["a.example"] = "127.0.0.4"

    def ask_often() -> None:
        for link in (a, b):
            link._names._asked_at = dict.fromkeys(link._names._asked_at, 0.0)
        b.send(0, b"at your new address")

    until(lambda _: [("127.0.0.4", int(port))] == [one.getsockname() for one in a._sockets], a, b, again=ask_often)
    until(lambda taken: Heard(1, b"at your new address") in taken, a, b, again=ask_often)
    a.close()
    b.close()


def test_a_name_that_does_not_resolve_is_told_once_and_when_it_heals(tmp_path: Path) -> None:
    port = addresses_at(["127.0.0.1"])[0].rpartition(":")[2]
    peers = [f"a.example:{port}", f"b.example:{port}"]
    zone = Zone(**{"a.example": "127.0.0.1"})
    a = link_at(peers, peers[0], tmp_path / "a", options=key_at(tmp_path), resolve=zone)
    taken = until(
        lambda taken: "peers.unresolved" in events(taken) and zone.asked.count("b.example") > 1,
        a,
        again=lambda: a.send(1, b"nobody knows where"),
    )
    zone.hosts["b.example"] = "127.0.0.2"
    taken += until(lambda taken: "peers.resolved" in events(taken), a)
    assert ["peers.unresolved", "peers.resolved"] == events(taken)
    (lost, _) = [one for one in taken if isinstance(one, Notice)]
    assert {"peer": peers[1], "error": "Name or service not known"} == lost.fields
    assert a.counts["unsent"] > 0
    a.close()


def test_an_address_that_was_known_is_kept_while_the_name_server_is_away() -> None:
    zone = Zone(**{"b.example": "127.0.0.2"})
    names = PeerNames([("b.example", 1)], resolve=zone, clock=host_clock)
    wait = threading.Event()
    while not names.addresses(0):
        wait.wait(0.01)
    del zone.hosts["b.example"]
    names._asked_at[0] -= 1000
    while not (news := names.news()):
        wait.wait(0.01)
    assert ["peers.unresolved"] == [one.event for one in news]
    assert (("127.0.0.2", 1),) == names.addresses(0)
    names.close()


def test_a_name_that_was_not_found_is_asked_again_soon() -> None:
    zone, seconds = Zone(), [0.0]
    names = PeerNames([("b.example", 1)], resolve=zone, clock=lambda: seconds[0])
    wait, give_up_at = threading.Event(), host_clock() + PATIENCE
    while names._asked_at[0] != 0.0 and host_clock() < give_up_at:
        wait.wait(0.01)
    seconds[0] += SILENT_EVERY
    while len(zone.asked) < 2 and host_clock() < give_up_at:
        wait.wait(0.01)
    names.close()
    assert ["b.example"] * 2 == zone.asked


def test_another_order_of_the_same_addresses_is_no_move() -> None:
    one, other = ("127.0.0.1", 1), ("127.0.0.2", 1)
    answers = [[one, other], [other, one], [other]]
    names = PeerNames([one], resolve=lambda *_: answers.pop(0), clock=host_clock)
    names._ask(0)
    assert [] == names.news()
    names._ask(0)
    assert ["peers.moved"] == [told.event for told in names.news()]


def test_a_name_that_has_no_address_is_told_as_one_that_is_lost() -> None:
    names = PeerNames([("127.0.0.1", 1)], resolve=lambda *_: [], clock=host_clock)
    assert [("peers.unresolved", "it has no address")] == [(it.event, it.fields["error"]) for it in names.news()]


def test_a_name_server_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    port = addresses_at(["127.0.0.1"])[0].rpartition(":")[2]
    peers = [f"a.example:{port}", f"b.example:{port}"]
    hanging, is_over = threading.Event(), threading.Event()

    def hangs(host: str, port: int) -> list[SocketAddress]:
        if host == "b.example":
            hanging.set()
            is_over.wait()
        return resolve("127.0.0.1", port)

    a = link_at(peers, peers[0], tmp_path / "a", options=key_at(tmp_path), resolve=hangs)
    until(lambda _: hanging.is_set(), a)
    a.send(1, b"lost")
    assert [] == [one for one in a.take() if isinstance(one, Heard)]
    assert 1 <= a.counts["unsent"]
    a.close()
    is_over.set()


def test_a_name_that_hangs_holds_up_no_other_name() -> None:
    is_over = threading.Event()

    def hangs(host: str, port: int) -> list[SocketAddress]:
        if host == "b.example":
            is_over.wait()
        return [("127.0.0.3", port)]

    names = PeerNames([("b.example", 1), ("c.example", 2)], resolve=hangs, clock=host_clock)
    wait, give_up_at = threading.Event(), host_clock() + PATIENCE
    while not names.addresses(1) and host_clock() < give_up_at:
        wait.wait(0.01)
    assert ((), (("127.0.0.3", 2),)) == (names.addresses(0), names.addresses(1))
    is_over.set()
    names.close()


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


def test_addresses_that_were_known_keep_their_order_and_new_ones_come_behind() -> None:
    one, other, third = ("127.0.0.1", 1), ("127.0.0.2", 1), ("127.0.0.3", 1)
    answers = [[one, other], [other, one], [third, other, one], [third, one]]
    names = PeerNames([one], resolve=lambda *_: answers.pop(0), clock=host_clock)
    found = [names.addresses(0)]
    for _ in range(3):
        names._ask(0)
        found.append(names.addresses(0))
    assert [(one, other), (one, other), (one, other, third), (one, third)] == found


def test_hosts_that_are_numbers_take_no_thread_and_are_asked_for_once() -> None:
    zone = Zone(**{"127.0.0.1": "127.0.0.1", "::1": "::1"})
    names = PeerNames([("127.0.0.1", 1), ("::1", 2)], resolve=zone, clock=host_clock)
    assert ((("127.0.0.1", 1),), (("::1", 2, 0, 0),)) == (names.addresses(0), names.addresses(1))
    assert [] == names._threads
    names.close()
    assert ["127.0.0.1", "::1"] == zone.asked


def test_the_name_of_a_silent_peer_is_asked_again_soon_and_others_are_left_in_peace() -> None:
    now = [100.0]
    zone = Zone(**{"b.example": "127.0.0.2", "c.example": "127.0.0.3"})
    names = PeerNames([("b.example", 1), ("c.example", 1)], resolve=zone, clock=lambda: now[0])
    wait = threading.Event()
    while not (names.addresses(0) and names.addresses(1)):
        wait.wait(0.01)
    names.silent = frozenset({0})
    for times in (2, 3):
        now[0] += SILENT_EVERY
        while zone.asked.count("b.example") < times:
            wait.wait(0.01)
    names.close()
    assert (3, 1) == (zone.asked.count("b.example"), zone.asked.count("c.example"))
