"""The card: a member's word about itself to its peers, for people and for look-ups.

    member --name, address, what it sheds--> card --with each Ask of its link--> the cards of all others

Protocols elect places of a list. They neither know nor say what the member at a place is called, where its clients
reach it, or that it was drained. People and look-ups want to know that, but no promise rests on it. So the card travels
with the link's own questions, and not with votes. It may be some seconds old, and older releases send none.
"""

import msgspec
from msgspec import Struct

from neli_router.protocols.electors.events import BODY_MAX
from neli_router.protocols.protocol import NAME_MAX

__all__ = ["PeerCard", "decoded", "encoded"]


class PeerCard(Struct, frozen=True, array_like=True):
    """Newer releases may add fields at the end."""

    name: str = ""
    address: str = ""
    """Where the member's clients reach it; empty if it gave no address."""
    shed: int = 0
    """How many partitions the member leads only while no other member can."""
    drained: bool = False
    """Whether these are all the partitions that it could lead."""


_ENCODER = msgspec.msgpack.Encoder()
_CARDS = msgspec.msgpack.Decoder(PeerCard)


def encoded(card: PeerCard) -> bytes:
    """`card`, encoded so that it fits into a datagram."""
    word = _ENCODER.encode(card)
    if len(word) > BODY_MAX:  # A name and an address of 256 letters each, at up to four bytes a letter.
        word = _ENCODER.encode(msgspec.structs.replace(card, name="", address=""))
    return word


def decoded(word: bytes) -> PeerCard | None:
    """The card that a peer sent; None if `word` is not a card."""
    try:
        card = _CARDS.decode(word)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # The last two for bad text and deep nesting.
        return None
    # The card is shown on terminals.
    is_text = all(text.isprintable() and len(text) <= NAME_MAX for text in (card.name, card.address))
    return card if is_text and card.shed >= 0 else None
