"""One suite for every link: the promises that the pump and the machines rely on.

    WAYS["IPv4"] ------+
    WAYS["IPv6"] ------+--> three links that know each other, for each test
    WAYS["both"] ------+
    WAYS["by name"] ---+
    WAYS["memory"] ----+

To add a way, add a function to WAYS that gives three links in the order of their places.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from neli_router.core.clock import host_clock
from neli_router.drivers.peers.memory import MemoryLink, MemoryNetwork
from neli_router.drivers.peers.udp import PeerSockets
from neli_router.errors import Closed
from neli_router.protocols.electors.events import BODY_MAX, Heard
from tests.drivers.peers.joining import heard, links, take_until
from tests.support.waiting import PATIENCE

Link = PeerSockets | MemoryLink
Three = Sequence[Link]


def in_memory() -> Three:
    network = MemoryNetwork(3)
    return [network.open(place, host_clock) for place in range(3)]


WAYS: dict[str, Callable[[Path], AbstractContextManager[Three]]] = {
    "IPv4": lambda folder: links(["127.0.0.1"] * 3, folder),
    "IPv6": lambda folder: links(["::1"] * 3, folder),
    "both": lambda folder: links(["127.0.0.1", "::1", "127.0.0.1"], folder),
    "by name": lambda folder: links(["localhost"] * 3, folder),
    "memory": lambda _: nullcontext(in_memory()),
}


@pytest.fixture(params=list(WAYS))
def three(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Three]:
    with WAYS[request.param](tmp_path) as made:
        yield made


def test_what_one_sends_the_other_hears_whole_and_knows_from_whom_also_the_longest_body_and_an_empty_one(
    three: Three,
) -> None:
    for sender in three:
        for receiver in three:
            if sender is not receiver:
                heard(receiver, sender, f"from {sender.place}".encode())
    heard(three[1], three[0], b"x" * BODY_MAX)
    heard(three[1], three[0], b"")
    assert three[0].counts["sent"] >= 2
    assert three[1].counts["taken"] >= 2


def test_a_body_sent_once_is_taken_once_also_by_one_that_has_never_heard_of_the_sender(three: Three) -> None:
    one, other, _ = three
    while True:
        unsent = one.counts["unsent"]
        one.send(other.place, b"once")
        if one.counts["unsent"] == unsent:
            break  # A name may take a while to be found, and until then nothing leaves.
        other.wait(0.01)
    taken = take_until(lambda taken: Heard(0, b"once") in taken, other, again=one.take)
    heard(other, one, b"later")
    taken += take_until(lambda _: True, other)
    assert 1 == taken.count(Heard(0, b"once"))


def test_what_a_peer_says_of_itself_the_others_come_to_know_and_it_may_say_another_thing(three: Three) -> None:
    for word in (b"I am one", b"x" * BODY_MAX):
        three[1].say(word)
        for other in (three[0], three[2]):
            take_until(lambda _: {1: word} == other.words, other, three[1])  # noqa: B023 - it is over by then.
    assert {} == three[1].words


def test_a_wake_ends_one_wait_also_one_that_comes_later(three: Three) -> None:
    started = host_clock()
    three[0].wake()
    three[0].wait(PATIENCE)
    waking = threading.Timer(0.05, three[0].wake)
    waking.start()
    three[0].wait(PATIENCE)
    waking.join()
    assert host_clock() < started + PATIENCE


def test_sending_to_a_peer_that_is_gone_is_no_error_and_after_close_every_call_but_wake_raises_closed(
    three: Three, tmp_path: Path
) -> None:
    three[2].close()
    for _ in range(100):
        three[0].send(2, b"into the void")
        three[0].take()
    heard(three[1], three[0], b"still here")
    assert b"" == three[0].memory
    three[0].keep(b"term 7")
    three[0].keep(b"term 8")
    assert b"term 8" == three[0].memory
    link = three[0]
    assert [] == [event for event in link.take() if isinstance(event, Heard)]  # Returns immediately: nothing came.
    assert link.address.startswith("peers://")
    assert str(tmp_path) not in link.address  # For people.
    link.close()
    link.close()
    link.wake()
    for call in (lambda: link.wait(0), link.take, lambda: link.send(1, b""), lambda: link.keep(b"")):
        with pytest.raises(Closed):
            call()
