"""Links over real sockets: where they listen, what they refuse, and what people are told of it."""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import pytest

from neli_router.clock import host_clock
from neli_router.electors.events import Heard
from neli_router.errors import ConfigError, PeersUnusable, Replaced
from neli_router.peers.address import parse
from neli_router.peers.names import SocketAddress, resolve
from neli_router.peers.seal import DATAGRAM_MAX, Seal, derived_key
from neli_router.peers.udp import ASK_AFTER, LOOK_EVERY, MANY, TAKE_MAX, PeerSockets, _socket_at, my_place, open_link
from neli_router.protocol import Notice
from tests.peers.joining import addresses_at, link_at, until

SECRET = b"an agreed secret of the group"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_bytes(SECRET + b"\n")
    return path


Open = Callable[..., PeerSockets]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """`link_at`, with a folder for each, closed at the end."""
    with ExitStack() as stack:

        def make(peers: list[str], me: str, folder: str = "state", **others: object) -> PeerSockets:
            link = link_at(peers, me, tmp_path / folder, **others)  # type: ignore[arg-type]
            stack.callback(link.close)
            return link

        yield make


def told(taken: list[Heard | Notice], **fields: object) -> bool:
    return any(isinstance(one, Notice) and fields.items() <= one.fields.items() for one in taken)


class Raw:
    """A program at the place of a peer, or anywhere, that says what it likes."""

    def __init__(self, link: PeerSockets, place: str = "127.0.0.1:0") -> None:
        host, _, port = place.rpartition(":")
        me = link.address.split("/")[2].split(",")[link.place]
        self._target = ("127.0.0.1", int(me.rpartition(":")[2]))
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((host, int(port)))

    def say(self, datagram: bytes) -> None:
        self._socket.sendto(datagram, self._target)

    def close(self) -> None:
        self._socket.close()


def sealer(
    link: PeerSockets,
    *,
    me: int = 1,
    secret: bytes = SECRET,
    group: str = "jobs",
    mark: bytes = b"term 8",
    peers: tuple[str, ...] = (),
) -> Seal:
    peers = peers or tuple(link.address.split("/")[2].split(","))
    key = derived_key(secret, group)
    return Seal(key, group=group, peers=peers, mark=mark, me=me, draw=lambda: int.from_bytes(os.urandom(8)))


# What is refused


@pytest.mark.parametrize(
    ("reason", "datagram"),
    [
        ("key", lambda link: sealer(link, secret=b"another secret than that").ask(0)),
        ("group", lambda link: sealer(link, group="another").ask(0)),
        ("list", lambda link: sealer(link, peers=("a:1", "b:1")).ask(0)),
        ("size", lambda link: sealer(link, peers=("a:1", "b:1", "c:1")).ask(0)),
        ("protocol", lambda link: sealer(link, mark=b"gossip 8").ask(0)),
        ("protocol", lambda link: sealer(link, mark=b"term 16").ask(0)),
        ("place", lambda link: sealer(link, me=0).ask(0)),
        ("truncated", lambda link: sealer(link).ask(0)[:-1]),
        ("truncated", lambda _: b""),
        ("oversized", lambda _: b"N" * (DATAGRAM_MAX + 1)),
        ("oversized", lambda _: b"N" * 60_000),
        ("foreign", lambda _: b"GET / HTTP/1.1\r\n\r\n"),
        ("version", lambda link: b"NELP\x02" + sealer(link).ask(0)[5:]),
    ],
)
def test_bad_input_is_refused_counted_and_told_once_with_the_reason_and_the_peer(
    opened: Open, key_file: Path, reason: str, datagram: Callable[[PeerSockets], bytes]
) -> None:
    peers = addresses_at(["127.0.0.1"] * 2)
    link = opened(peers, peers[0], options=f"&key_file={key_file}")
    with closing(Raw(link, peers[1])) as raw:
        taken = until(
            lambda _: link.counts.get(f"refused.{reason}", 0) >= 5,
            link,
            again=lambda: raw.say(datagram(link)),
        )
    notices = [one for one in taken if isinstance(one, Notice)]
    assert [("peers.refused", reason, peers[1])] == [
        (one.event, one.fields["reason"], one.fields["peer"]) for one in notices
    ]
    assert not [one for one in taken if isinstance(one, Heard)]
    assert all(SECRET.decode() not in repr(one) for one in notices)


def test_a_stranger_is_told_by_where_it_came_from(opened: Open) -> None:
    peers = addresses_at(["127.0.0.1"] * 2)
    link = opened(peers, peers[0])
    with closing(Raw(link)) as raw:
        taken = until(lambda taken: told(taken, reason="foreign"), link, again=lambda: raw.say(b"hello?"))
    (notice,) = [one for one in taken if isinstance(one, Notice)]
    assert str(notice.fields["source"]).startswith("127.0.0.1:")
    assert "peer" not in notice.fields


def test_a_list_of_another_length_is_told_with_both(opened: Open, key_file: Path) -> None:
    peers = addresses_at(["127.0.0.1"] * 2)
    link = opened(peers, peers[0], options=f"&key_file={key_file}")
    other = sealer(link, peers=("a:1", "b:1", "c:1"))
    with closing(Raw(link)) as raw:
        until(lambda taken: told(taken, peers=2, theirs=3), link, again=lambda: raw.say(other.ask(0)))


def test_replays_are_refused_and_told_when_there_are_many(opened: Open, key_file: Path) -> None:
    peers = addresses_at(["127.0.0.1"] * 2)
    link = opened(peers, peers[0], options=f"&key_file={key_file}")
    other = sealer(link)
    with closing(Raw(link, peers[1])) as raw:
        raw._socket.settimeout(0.05)

        def learn() -> None:
            if not other.knows(0):
                raw.say(other.ask(0))
                link.wait(1)
                link.take()
                try:
                    other.open(raw._socket.recv(2000))
                except TimeoutError:
                    return

        until(lambda _: other.knows(0), link, again=learn)
        sealed = other.seal(0, b"once")
        taken = until(
            lambda _: link.counts.get("refused.replayed", 0) >= MANY + 10, link, again=lambda: raw.say(sealed)
        )
    assert 1 == taken.count(Heard(1, b"once"))
    assert [MANY] == [one.fields["times"] for one in taken if isinstance(one, Notice)]


def test_what_was_refused_of_a_peer_is_forgotten_when_it_is_heard(opened: Open, key_file: Path) -> None:
    peers = addresses_at(["127.0.0.1"] * 2)
    link = opened(peers, peers[0], options=f"&key_file={key_file}")
    with closing(Raw(link, peers[1])) as raw:
        until(lambda _: {1: "protocol"} == link.refusals, link, again=lambda: raw.say(sealer(link, mark=b"x").ask(0)))
        until(lambda _: {} == link.refusals, link, again=lambda: raw.say(sealer(link).ask(0)))


def test_one_take_reads_so_many_and_leaves_the_rest_for_the_next(opened: Open) -> None:
    peers = addresses_at(["127.0.0.1"] * 2)
    link = opened(peers, peers[0])
    with closing(Raw(link)) as raw:
        for _ in range(TAKE_MAX + 40):
            raw.say(b"x")
        link.take()
        assert TAKE_MAX == link.counts["refused.foreign"]
        until(lambda _: TAKE_MAX + 40 == link.counts["refused.foreign"], link)


def test_all_addresses_of_ipv6_leave_those_of_ipv4_free() -> None:
    with closing(_socket_at(("::", 0, 0, 0))) as six, closing(_socket_at(("127.0.0.1", six.getsockname()[1]))) as four:
        assert six.getsockname()[1] == four.getsockname()[1]


def test_where_bind_says_it_stays_wherever_its_name_leads(opened: Open, key_file: Path) -> None:
    port = int(addresses_at(["127.0.0.1"])[0].rpartition(":")[2])
    peers, seconds = [f"a.example:{port}", f"b.example:{port}"], [0.0]

    def elsewhere(host: str, port: int) -> list[SocketAddress]:
        return [(host if host == "127.0.0.1" else "127.0.0.9", port)]

    options = f"&key_file={key_file}&bind=127.0.0.1:{port}"
    link = opened(peers, peers[0], options=options, resolve=elsewhere, clock=lambda: seconds[0])
    until(lambda _: bool(link._names.addresses(0)), link)
    seconds[0] += LOOK_EVERY
    link.take()
    assert [("127.0.0.1", port)] == [one.getsockname() for one in link._sockets]


def test_a_flood_does_not_hold_up_a_take_nor_what_comes_behind_it(opened: Open) -> None:
    peers = addresses_at(["127.0.0.1"] * 2)
    link, other = opened(peers, peers[0]), opened(peers, peers[1], "other")

    def flood() -> None:
        for _ in range(500):
            raw.say(b"x" * 1000)
        other.send(0, b"through the flood")
        other.take()

    with closing(Raw(link)) as raw:
        until(lambda taken: Heard(1, b"through the flood") in taken, link, again=flood)


def test_a_peer_that_answers_is_not_silent_and_one_that_is_gone_is(opened: Open) -> None:
    now = [100.0]
    peers = addresses_at(["127.0.0.1"] * 3)
    link, other, gone = (opened(peers, me, f"of {place}", clock=lambda: now[0]) for place, me in enumerate(peers))
    gone.close()

    def pass_time() -> None:
        now[0] += 1.0

    for _ in range(3):
        answered_at = now[0] = now[0] + ASK_AFTER
        until(lambda _, since=answered_at: link._answered_at[other.place] >= since, link, other, again=pass_time)  # type: ignore[misc]
        pass_time()
        link.take()
        assert other.place not in link._names.silent
    assert {gone.place} == link._names.silent


# Two of one id


def test_a_second_process_of_one_peer_cannot_start_on_its_host(opened: Open) -> None:
    peers = addresses_at(["127.0.0.1"] * 2)
    opened(peers, peers[0])
    with pytest.raises(PeersUnusable, match="another process listens there"):
        opened(peers, peers[0], "another")


def test_of_two_processes_of_one_peer_on_two_hosts_the_older_ends_and_others_are_told(opened: Open) -> None:
    peers = addresses_at(["127.0.0.1"] * 2)
    (elsewhere,) = addresses_at(["127.0.0.1"])
    link, older = opened(peers, peers[0]), opened(peers, peers[1], "other")
    until(lambda taken: Heard(1, b"older") in taken, link, older, again=lambda: older.send(0, b"older"))
    newer = opened(peers, peers[1], "third", options=f"&bind={elsewhere}")

    def translated() -> None:
        """The peer's one address leads to both, as a translated one may from time to time."""
        newer.send(0, b"newer")
        link.wait(0.05)
        for datagram in received(older):
            newer._judge(datagram, ("127.0.0.1", 1), [])

    until(lambda taken: Heard(1, b"newer") in taken, link, again=translated)
    told_to_others: list[Heard | Notice] = []

    def older_speaks() -> None:
        older.send(0, b"older")
        link.wait(0.05)
        told_to_others.extend(link.take())

    with pytest.raises(Replaced, match="another process has taken it"):
        until(lambda _: False, older, again=older_speaks)
    assert told(told_to_others, reason="replaced", peer=peers[1])


def received(link: PeerSockets) -> Iterator[bytes]:
    """What the network has for this link, before it takes it."""
    with suppress(BlockingIOError):
        while True:
            yield link._sockets[0].recv(2000)


def test_a_peer_that_starts_anew_is_heard_again_and_hears(opened: Open) -> None:
    peers = addresses_at(["127.0.0.1"] * 2)
    link, other = opened(peers, peers[0]), opened(peers, peers[1], "other")
    for life in range(3):
        body = str(life).encode()
        said, answered = Heard(1, body), Heard(0, body)
        until(partial(contains, said), link, other, again=partial(other.send, 0, body))
        until(partial(contains, answered), other, link, again=partial(link.send, 1, body))
        other.close()
        other = opened(peers, peers[1], "other")


def contains(event: Heard, taken: list[Heard | Notice]) -> bool:
    return event in taken


# Where it listens


def test_an_address_of_another_host_is_no_place_to_listen(opened: Open, key_file: Path) -> None:
    options = f"&key_file={key_file}"
    with pytest.raises(PeersUnusable, match=r"no address of this host \(192.0.2.1:7801\).*bind="):
        opened(["192.0.2.1:7801", "192.0.2.2:7801"], "192.0.2.1:7801", options=options)


def test_behind_a_translated_address_it_listens_where_bind_says(opened: Open, key_file: Path) -> None:
    (place,) = addresses_at(["127.0.0.1"])
    peers = ["192.0.2.1:7801", "192.0.2.2:7801"]
    link = opened(peers, peers[0], options=f"&key_file={key_file}&bind={place}")
    other = sealer(link)
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as raw:
        host, _, port = place.partition(":")
        until(
            lambda _: link.counts.get("refused.stale", 0) > 0,
            link,
            again=lambda: raw.sendto(other.seal(0, b"x"), (host, int(port))),
        )
    assert "two hosts run one peer" in "\n".join(link.doubts)


def test_me_may_be_left_out_where_one_peer_alone_is_at_an_address_of_this_host() -> None:
    address, problems = parse("//127.0.0.1:7801,192.0.2.1:7801/jobs?key_file=/k&state=/s")
    assert address is None
    assert "another host" in "\n".join(problems)
    address, _ = parse("//here.example:7801,there.example:7801/jobs?key_file=/k&state=/s")
    assert address is not None
    names = {"here.example": "127.0.0.1", "there.example": "192.0.2.1"}
    assert 0 == my_place(address, resolve=lambda host, port: [(names[host], port)])
    with pytest.raises(ConfigError, match=r"2 of them are .*\?me=here.example:7801"):
        my_place(address, resolve=lambda _, port: [("127.0.0.1", port)])
    with pytest.raises(ConfigError, match="none of them is"):
        my_place(address, resolve=lambda _, port: [("192.0.2.1", port)])


def test_a_name_of_its_own_that_does_not_resolve_is_told_at_the_start(opened: Open, key_file: Path) -> None:
    def lost(host: str, port: int) -> list[SocketAddress]:
        raise OSError(2, "Name or service not known")

    with pytest.raises(PeersUnusable, match="its name does not resolve"):
        opened(["here.example:7801"], "here.example:7801", options=f"&key_file={key_file}", resolve=lost)


def test_a_name_that_is_loopback_here_is_a_doubt(opened: Open, key_file: Path) -> None:
    (port,) = (int(place.rpartition(":")[2]) for place in addresses_at(["127.0.0.1"]))
    me = f"here.example:{port}"
    link = opened(
        [me, "there.example:7801"],
        me,
        options=f"&key_file={key_file}",
        resolve=lambda host, port: resolve("127.0.0.1", port),
    )
    assert "where no other host reaches it" in "\n".join(link.doubts)


# The key


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (b"", 0o600, "0 bytes"),
        (b"fifteen bytes..\n", 0o600, "15 bytes, and a key has 16"),
        (b"x" * 5000, 0o600, "larger than"),
        (SECRET, 0o644, "mode 0644"),
        (SECRET, 0o660, "mode 0660"),
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


def test_a_key_that_is_not_there_is_an_error(opened: Open) -> None:
    (me,) = addresses_at(["127.0.0.1"])
    with pytest.raises(ConfigError, match="no such file"):
        opened([me], me, options="&key_file=/nowhere/key")


def test_off_loopback_nothing_runs_without_a_key(tmp_path: Path) -> None:
    """Not even for a caller that made the address by hand."""
    address, _ = parse(f"//here.example:7801/jobs?key_file=/k&state={tmp_path}")
    assert address is not None
    without = type(address)(address.peers, address.group, state=address.state)
    with pytest.raises(ConfigError, match="need a key"):
        open_link(without, mark=b"", clock=host_clock, resolve=lambda _, port: resolve("127.0.0.1", port))


def test_on_loopback_without_a_key_it_runs_and_says_what_that_means(opened: Open) -> None:
    (me,) = addresses_at(["127.0.0.1"])
    assert "every user of this host" in "\n".join(opened([me], me).doubts)
