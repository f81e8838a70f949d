"""The card: what reaches a peer of a member's word about itself."""

import msgspec
import pytest

from neli_router.drivers.peers.outlook import PeerCard, decoded, encoded
from neli_router.protocols.electors.events import BODY_MAX
from neli_router.protocols.protocol import NAME_MAX


def test_a_card_comes_as_it_was_said() -> None:
    card = PeerCard("worker-1", "10.0.0.1:9000", shed=6, drained=True)
    assert card == decoded(encoded(card))


def test_names_that_fit_into_no_datagram_are_left_out_and_the_rest_is_said() -> None:
    longest = PeerCard("\N{GRINNING FACE}" * NAME_MAX, "\N{GRINNING FACE}" * NAME_MAX, shed=2)
    assert len(encoded(longest)) <= BODY_MAX
    assert PeerCard(shed=2) == decoded(encoded(longest))


def test_a_card_of_a_newer_release_may_say_more_and_one_of_an_older_less() -> None:
    assert PeerCard("a", "b", 1, False) == decoded(msgspec.msgpack.encode(["a", "b", 1, False, "more"]))
    assert PeerCard("a") == decoded(msgspec.msgpack.encode(["a"]))


@pytest.mark.parametrize(
    "said",
    [
        *(b"", b"\xff", b"no card", ["a", "b", -1], ["\x1b[2J"], ["a", "b\n"], ["a" * 257], [7]),
        b"\x91\xa2\xff\xfe",  # A list of one text that is not UTF-8.
        b"\x95\xa0\xa0\x00\xc2" + b"\x91" * 1100,  # A field that we do not know, nested as deep as fits.
    ],
)
def test_what_is_no_card_or_would_spoil_a_terminal_is_none(said: bytes | list[object]) -> None:
    assert None is decoded(said if isinstance(said, bytes) else msgspec.msgpack.encode(said))
