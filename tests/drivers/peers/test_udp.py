"""Links over real sockets: where they listen, what they refuse, and the notices about it."""

import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from neli_router.core.clock import host_clock
from neli_router.drivers.peers.address import parse
from neli_router.drivers.peers.names import Resolve, SocketAddress, resolve
from neli_router.drivers.peers.seal import DATAGRAM_MAX, Seal, derived_key
from neli_router.drivers.peers.udp import (
    ASK_AFTER,
    LOOK_EVERY,
    MANY,
    SILENT_AFTER,
    TAKE_MAX,
    TELL_EVERY,
    PeerSockets,
    _socket_at,
    my_place,
    open_link,
)
from neli_router.errors import ConfigError, PeersUnusable, Replaced
from neli_router.protocols.electors.events import Heard
from neli_router.protocols.protocol import Notice
from tests.drivers.peers.joining import Zone, addresses_at, heard, key_in, link_at, take_until

SECRET = b"an agreed secret of the group"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return key_in(tmp_path, SECRET + b"\n")


Open = Callable[..., PeerSockets]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """`link_at`, with a folder for each, closed at the end."""
    with ExitStack() as stack:

        def make(peers: list[str], me: str, folder: str = "state", **others: object) -> PeerSockets:
            link = link_at(peers, me, tmp_path / folder, **others)  # type: ignore[arg-type]
            return stack.enter_context(closing(link))

        yield make


def told(taken: list[Heard | Notice], **fields: object) -> bool:
    return any(isinstance(one, Notice) and fields.items() <= one.fields.items() for one in taken)


class Raw:
    """A program at the place of a peer, or anywhere else, that says what it likes."""

    def __init__(self, link: PeerSockets, place: str = "127.0.0.1:0") -> None:
        host, _, port = place.rpartition(":")
        me = link.address.split("/")[2].split(",")[link.place]
        self._target = ("127.0.0.1", int(me.rpartition(":")[2]))
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, int(port)))
        self._socket.settimeout(0.05)

    def say(self, datagram: bytes) -> None:
        self._socket.sendto(datagram, self._target)

    def learn(self, life: Seal) -> None:
        """Let this seal open what came, if anything did."""
        with suppress(TimeoutError):
            life.open(self._socket.recv(2000))

    def close(self) -> None:
        self._socket.close()


class Meeting:
    """A link with a key, and a program at the place of its only peer. The clock of the link stands still."""

    def __init__(self, opened: Open, key_file: Path) -> None:
        self.now = 100.0
        peers = addresses_at(["127.0.0.1"] * 2)
        self.link = opened(peers, peers[0], options=f"&key_file={key_file}", clock=lambda: self.now)
        self.peer, self.raw = peers[1], Raw(self.link, peers[1])

    def say_until(self, holds: Callable[[], bool], datagram: Callable[[], bytes]) -> list[Heard | Notice]:
        return take_until(lambda _: holds(), self.link, again=lambda: self.raw.say(datagram()))

    def refused(self, reason: str, times: int, datagram: Callable[[], bytes]) -> list[Heard | Notice]:
        """All that the link takes until it has refused `times` datagrams for this reason."""
        return self.say_until(lambda: self.link.counts.get(f"refused.{reason}", 0) >= times, datagram)

    def acquaint(self, life: Seal) -> None:
        """Make the link take something from the peer whose seal this is."""
        body = os.urandom(8)

        def speak() -> None:
            self.raw.say(life.seal(0, body) if life.knows(0) else life.ask(0))
            self.link.wait(0.05)
            self.raw.learn(life)

        take_until(lambda taken: Heard(1, body) in taken, self.link, again=speak)


@pytest.fixture
def meeting(opened: Open, key_file: Path) -> Iterator[Meeting]:
    made = Meeting(opened, key_file)
    with closing(made.raw):
        yield made


def sealer(link: PeerSockets, *, secret: bytes = SECRET, mark: bytes = b"term 8", peers: tuple[str, ...] = ()) -> Seal:
    peers = peers or tuple(link.address.split("/")[2].split(","))
    key = derived_key(secret, "jobs")
    return Seal(key, group="jobs", peers=peers, mark=mark, me=1, draw=lambda: int.from_bytes(os.urandom(8)))


@pytest.mark.parametrize(
    ("reason", "datagram"),
    [
        ("key", lambda link: sealer(link, secret=b"another secret than that").ask(0)),
        ("truncated", lambda _: b""),
        *(("oversized", lambda _: b"N" * (DATAGRAM_MAX + 1)), ("oversized", lambda _: b"N" * 60_000)),
    ],
)
def test_bad_input_is_refused_counted_and_told_once_with_the_reason_and_the_peer(
    meeting: Meeting, reason: str, datagram: Callable[[PeerSockets], bytes]
) -> None:
    (notice,) = meeting.refused(reason, 5, lambda: datagram(meeting.link))
    assert isinstance(notice, Notice)
    assert ("peers.refused", reason, meeting.peer) == (notice.event, notice.fields["reason"], notice.fields["peer"])
    assert SECRET.decode() not in repr(notice)
    meeting.now += TELL_EVERY
    assert told(meeting.refused(reason, 6, lambda: datagram(meeting.link)), times=5)


def test_a_stranger_is_told_by_where_it_came_from(meeting: Meeting) -> None:
    """One take reads at most TAKE_MAX datagrams and leaves the rest for the next."""
    link = meeting.link
    with closing(Raw(link)) as raw:
        for _ in range(TAKE_MAX + 40):
            raw.say(b"hello?")
        (notice,) = link.take()
        assert TAKE_MAX == link.counts["refused.foreign"]
        take_until(lambda _: TAKE_MAX + 40 == link.counts["refused.foreign"], link)
    assert isinstance(notice, Notice)
    assert str(notice.fields["source"]).startswith("127.0.0.1:")
    assert "peer" not in notice.fields


def test_a_peer_that_moved_is_known_by_its_new_address_and_bind_holds_wherever_its_own_name_leads(
    opened: Open, key_file: Path
) -> None:
    ports = [int(place.rpartition(":")[2]) for place in addresses_at(["127.0.0.1"] * 2)]
    peers = [f"a.example:{port}" for port in ports]
    seconds, hosts = [0.0], {ports[0]: "127.0.0.9", ports[1]: "127.0.0.1"}
    link = opened(
        peers,
        peers[0],
        options=f"&key_file={key_file}&bind=127.0.0.1:{ports[0]}",
        clock=lambda: seconds[0],
        resolve=lambda host, port: [(host if host == "127.0.0.1" else hosts[port], port)],
    )
    take_until(lambda _: bool(link._names.addresses(0) and link._names.addresses(1)), link)
    hosts[ports[1]] = "127.0.0.7"
    link._names._ask(1)
    seconds[0] += LOOK_EVERY
    link.take()
    assert {("127.0.0.7", ports[1]): 1} == link._sources
    assert [("127.0.0.1", ports[0])] == [one.getsockname() for one in link._sockets]
    assert "two hosts run one peer" in "\n".join(link.doubts)


def test_a_list_of_another_length_is_told_with_both_and_replays_are_refused_and_told_when_there_are_many(
    meeting: Meeting,
) -> None:
    other = sealer(meeting.link, peers=("a:1", "b:1", "c:1"))
    assert told(meeting.refused("size", 1, lambda: other.ask(0)), peers=2, theirs=3)
    life = sealer(meeting.link)
    meeting.acquaint(life)
    sealed = life.seal(0, b"once")
    taken = meeting.refused("replayed", MANY + 10, lambda: sealed)
    assert 1 == taken.count(Heard(1, b"once"))
    assert [MANY] == [one.fields["times"] for one in taken if isinstance(one, Notice)]


def test_what_was_refused_of_a_peer_is_forgotten_when_it_is_heard(meeting: Meeting) -> None:
    link = meeting.link
    meeting.say_until(lambda: {1: "protocol"} == link.refusals, lambda: sealer(link, mark=b"x").ask(0))
    meeting.raw.say(sealer(link).ask(0))  # It may be a replay.
    take_until(lambda _: 1 in link._asking_at, link)
    assert {1: "protocol"} == link.refusals
    meeting.acquaint(sealer(link))
    assert {} == link.refusals


def test_a_forged_address_does_not_make_a_peer_that_is_heard_a_refused_one(meeting: Meeting) -> None:
    link = meeting.link
    meeting.acquaint(sealer(link))
    taken = meeting.refused("foreign", 1, lambda: b"hello?")
    assert {} == link.refusals
    assert told(taken, reason="foreign")
    assert not told(taken, peer=meeting.peer)
    old_settings = sealer(link, mark=b"term 16")
    meeting.refused("protocol", 1, lambda: old_settings.ask(0))
    assert {} == link.refusals
    meeting.now += ASK_AFTER + SILENT_AFTER
    taken = meeting.say_until(lambda: {1: "foreign"} == link.refusals, lambda: b"hello?")
    assert told(taken, reason="foreign", peer=meeting.peer)


def test_an_old_session_marks_nobody_and_is_told_when_it_comes_often(meeting: Meeting) -> None:
    link = meeting.link
    older, newer = sealer(link), sealer(link)
    for life in (older, newer):
        meeting.acquaint(life)
    for times, is_told in ((MANY - 1, False), (MANY, True), (2 * MANY - 1, False), (2 * MANY, True)):
        taken = meeting.refused("replaced", times, lambda: older.seal(0, b"x"))
        assert times == link.counts["refused.replaced"]
        assert ({}, is_told) == (link.refusals, told(taken, reason="replaced", peer=meeting.peer))
        meeting.now += TELL_EVERY * is_told


def test_a_silent_peer_that_asks_is_heard_once_for_each_time_that_it_asks(meeting: Meeting) -> None:
    link = meeting.link
    deaf = sealer(link)

    def comes(ask: bytes) -> None:
        came = link.counts["sent"]
        meeting.say_until(lambda: link.counts["sent"] > came, lambda: ask)  # Each is answered.

    ask = deaf.ask(0)
    comes(ask)
    assert {} == link.heard_at  # A replay would not be a sign of life.
    meeting.now += ASK_AFTER + SILENT_AFTER
    link.take()
    came = link.counts["sent"]
    link.take()
    assert ([1], came) == ([*link.silent], link.counts["sent"])  # It is asked once at each look.
    assert {1: 100.0} == link.heard_at
    comes(ask)
    assert {1: 100.0} == link.heard_at
    comes(deaf.ask(0))
    assert {1: meeting.now} == link.heard_at


def test_all_addresses_of_ipv6_leave_those_of_ipv4_free() -> None:
    with closing(_socket_at(("::", 0, 0, 0))) as six, closing(_socket_at(("127.0.0.1", six.getsockname()[1]))) as four:
        assert six.getsockname()[1] == four.getsockname()[1]


def test_a_peer_that_answers_is_not_silent_and_one_that_is_gone_is(opened: Open) -> None:
    now = [100.0]
    peers = addresses_at(["127.0.0.1"] * 3)
    link, other, gone = (opened(peers, me, f"of {place}", clock=lambda: now[0]) for place, me in enumerate(peers))
    gone.close()

    def pass_time() -> None:
        now[0] += 1.0

    for _ in range(3):
        answered_at = now[0] = now[0] + ASK_AFTER
        take_until(lambda _, since=answered_at: link._answered_at[other.place] >= since, link, other, again=pass_time)  # type: ignore[misc]
        pass_time()
        link.take()
        assert other.place not in link._names.silent
    assert {gone.place} == link._names.silent


def test_a_second_process_of_one_peer_cannot_start_on_its_host_and_lets_go_of_its_other_addresses(opened: Open) -> None:
    peers = addresses_at(["127.0.0.1"] * 2)
    opened(peers, peers[0])
    with pytest.raises(PeersUnusable, match="another process listens there") as caught:
        opened(peers, peers[0], "another", resolve=lambda host, port: [("127.0.0.2", port), (host, port)])
    _socket_at(("127.0.0.2", int(peers[0].rpartition(":")[2]))).close()
    del caught  # Until now, it had all that the start had.


def test_of_two_processes_of_one_peer_on_two_hosts_the_older_ends_and_others_are_told(opened: Open) -> None:
    peers = addresses_at(["127.0.0.1"] * 2)
    (elsewhere,) = addresses_at(["127.0.0.1"])
    link, older = opened(peers, peers[0]), opened(peers, peers[1], "other")
    heard(link, older, b"older")
    newer = opened(peers, peers[1], "third", options=f"&bind={elsewhere}")

    def translated() -> None:
        """The peer's one address leads to both, like a translated address may from time to time."""
        newer.send(0, b"newer")
        link.wait(0.05)
        for datagram in received(older):
            newer._judge(datagram, ("127.0.0.1", 1), [])

    take_until(lambda taken: Heard(1, b"newer") in taken, link, again=translated)

    def older_speaks() -> None:
        older.send(0, b"older")
        link.wait(0.05)
        link.take()

    with pytest.raises(Replaced, match="another process has taken it"):
        take_until(lambda _: False, older, again=older_speaks)


def received(link: PeerSockets) -> Iterator[bytes]:
    """Wait for what the network has for this link, before the link takes it."""
    with suppress(BlockingIOError):
        while True:
            yield link._sockets[0].recv(2000)


@pytest.mark.parametrize(
    ("peers", "resolve", "has_key", "said"),
    [
        (["192.0.2.1:7801", "192.0.2.2:7801"], resolve, True, r"not an address of this host \(192.0.2.1:7801\).*bind="),
        (["here.example:7801"], Zone(), True, "its name does not resolve"),
        (["here.example:7801"], lambda _, port: [("fe80::1", port, 0, 0)], True, r"it cannot be listened at \("),
        (
            ["localhost:7801", "localhost:7802"],
            lambda _, port: [("127.0.0.1", port), ("192.0.2.1", port)],
            False,
            r"leads off loopback \(192.0.2.1:7801\), and the peers have no key",
        ),
    ],
    ids=["of another host", "lost", "refused", "keyless"],
)
def test_where_it_cannot_or_must_not_listen_it_does_not_start(
    opened: Open, key_file: Path, peers: list[str], resolve: Resolve, *, has_key: bool, said: str
) -> None:
    with pytest.raises(PeersUnusable, match=said):
        opened(peers, peers[0], options=f"&key_file={key_file}" if has_key else "", resolve=resolve)


def test_me_may_be_left_out_where_one_peer_is_here_and_what_does_not_resolve_is_told_if_none_is() -> None:
    address, _ = parse("//here.example:7801,there.example:7801/jobs?key_file=/k&state=/s")
    assert address is not None
    zone = Zone(**{"here.example": "127.0.0.1", "there.example": "192.0.2.1"})
    assert 0 == my_place(address, resolve=zone)
    with pytest.raises(ConfigError, match=r"2 of them are .*\?me=here.example:7801"):
        my_place(address, resolve=lambda _, port: [("127.0.0.1", port)])
    with pytest.raises(ConfigError, match="none of them is"):
        my_place(address, resolve=lambda _, port: [("192.0.2.1", port)])
    address, _ = parse("//a.example:1,b.example:1,c.example:1,d.example:1,e.example:1/jobs?key_file=/k&state=/s")
    assert address is not None
    for hosts, said in (
        ([], r"a.example, b.example, c.example and 2 more: these names do not resolve now \(Name or service not known"),
        (
            ["a.example", "b.example", "c.example"],
            "d.example, e.example: these .*, and none of the others is at an add",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            my_place(address, resolve=Zone(**dict.fromkeys(hosts, "192.0.2.1")))


def test_a_place_to_listen_where_others_do_not_reach_it_is_a_doubt(opened: Open, key_file: Path) -> None:
    port = int(addresses_at(["::1"])[0].rpartition(":")[2])
    peers = [f"a.example:{port}", "b.example:7801"]

    def four(host: str, port: int) -> list[SocketAddress]:
        return resolve("::1" if host == "::1" else "127.0.0.1", port)

    def doubts(bind: str) -> str:
        with closing(opened(peers, peers[0], options=f"&key_file={key_file}{bind}", resolve=four)) as link:
            return "\n".join(link.doubts)

    unbound = doubts("")
    assert "where no other host reaches it" in unbound
    assert "two hosts run one peer" not in unbound
    other_family = doubts(f"&bind=[::1]:{port}")
    assert f"is of the other family of addresses than 127.0.0.1:{port}" in other_family
    assert f"listen at 0.0.0.0:{port}" in other_family
    assert "family" not in doubts(f"&bind=127.0.0.1:{port}")


def test_a_wake_is_gone_after_the_wait_that_it_ends(opened: Open) -> None:
    """Otherwise each later wait would end immediately, and its thread would take a whole core."""
    peers = addresses_at(["127.0.0.1"] * 2)
    with closing(opened(peers, peers[0])) as link:
        link.wake()
        link.wait(60)
        with pytest.raises(BlockingIOError):
            link._ear.recv(1)


def test_what_fails_at_the_start_lets_go_of_the_memory_and_is_told(opened: Open) -> None:
    """Open files run out behind the socket, the memory and its lock, and one of a pair."""
    peers = addresses_at(["127.0.0.1"] * 2)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        held = [os.dup(0)]
        stack.callback(lambda: [*map(os.close, held)])
        highest = max(int(one.name) for one in Path("/dev/fd").iterdir())  # All those below it may be open.
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 50, before[1]))
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        for _ in range(4):
            os.close(held.pop())
        with pytest.raises(PeersUnusable, match="its sockets cannot be made"):
            opened(peers, peers[0], resolve=lambda host, port: [(host, port)])
    opened(peers, peers[0])


def test_a_first_start_is_told_as_one_that_may_be_a_loss_and_off_loopback_nothing_starts_without_a_key(
    opened: Open, tmp_path: Path
) -> None:
    (me,) = addresses_at(["127.0.0.1"])
    link = opened([me], me)
    (doubt,) = [one for one in link.doubts if "no votes were found in" in one]
    assert "fine at a first start, but if this member ran before, they are lost" in doubt
    assert "every user of this host" in "\n".join(link.doubts)
    link.keep(b"a vote")
    link.close()
    with pytest.raises(PeersUnusable, match="for another protocol, or for another number of partitions"):
        opened([me], me, mark=b"term 16")
    assert "no votes" not in "\n".join(opened([me], me).doubts)
    address, _ = parse(f"//here.example:7801/jobs?key_file=/k&state={tmp_path}")
    assert address is not None
    without = type(address)(address.peers, address.group, state=address.state)
    with pytest.raises(ConfigError, match="need a key"):
        open_link(without, mark=b"", clock=host_clock, resolve=lambda _, port: resolve("127.0.0.1", port))


def test_without_a_key_nothing_leaves_loopback_when_names_change_and_it_is_told(opened: Open) -> None:
    ports = [int(place.rpartition(":")[2]) for place in addresses_at(["127.0.0.1"] * 2)]
    peers = [f"localhost:{port}" for port in ports]
    seconds, hosts = [0.0], ["127.0.0.1"]
    link = opened(peers, peers[0], clock=lambda: seconds[0], resolve=lambda _, port: [(host, port) for host in hosts])
    take_until(lambda _: bool(link._names.addresses(0) and link._names.addresses(1)), link)
    hosts[:] = ["0.0.0.0"]  # noqa: S104 - an address off loopback that each host has.
    for place in (0, 1):
        link._names._ask(place)
    seconds[0] += LOOK_EVERY
    taken = link.take()
    assert ["peers.moved", "peers.moved", "peers.keyless", "peers.keyless"] == sorted(
        (one.event for one in taken if isinstance(one, Notice)), reverse=True
    )
    assert told(taken, peer=peers[1], addresses=f"0.0.0.0:{ports[1]}")
    assert [("127.0.0.1", ports[0])] == [one.getsockname() for one in link._sockets]
    sent = link.counts["sent"]
    link.send(1, b"to whomever")
    assert sent == link.counts["sent"]


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"fifteen bytes..\n", 0o600, "15 bytes, and a key has 16"),
        (b"x" * 5000, 0o600, "larger than"),
        (SECRET, 0o644, "mode 0644"),
    ],
)
def test_a_key_that_is_short_or_open_to_others_is_refused_without_being_shown(
    opened: Open, tmp_path: Path, content: bytes, mode: int, said: str
) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(mode)
    (me,) = addresses_at(["127.0.0.1"])
    with pytest.raises(ConfigError, match=said) as raised:
        opened([me], me, options=f"&key_file={path}")
    assert SECRET.decode() not in str(raised.value)
