"""The outlook: what one member of a group without a broker knows of its peers, for people.

    link --heard, silent, refused, cards--.
                                          +--> Outlook --> metrics, pages, commands, look-ups
    machine --leaders, terms -------------'       '--two of them--> notices: which peer fell silent, and whether a
                                                                    majority is heard

No protocol decides by the outlook. A machine has its own reasons to miss a leader, and under `term` a member that
follows hears nothing from the other followers. The link asks each peer for an answer anyway, so it knows about all.

A peer is alive if it answers, and unknown until it has been asked for long enough. `WHY` explains the other states.

A majority here means a majority of the peers that answer, because that is what an operator can fix. If not all peers
elect together (replicas of a partition, first-class citizens), the outlook counts the electorate that is nearest to
having no majority, or furthest from one.

**The card** is a member's word about itself to its peers. Protocols elect places of a list. They neither know nor say
what the member at a place is called, where its clients reach it, or that it was drained. So the card travels with the
link's own questions, and not with votes. It may be some seconds old, and older releases send none.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec
from msgspec import Struct

from neli_router.protocols.electors.events import BODY_MAX, Led
from neli_router.protocols.protocol import NAME_MAX, Notice

__all__ = [
    "ONE_WAY_MAX",
    "WHY",
    "Outlook",
    "PeerCard",
    "PeerState",
    "answering",
    "decoded",
    "encoded",
    "news_between",
    "too_few",
    "why_led",
]

ONE_WAY_MAX = 2.9
"""Seconds. A silent peer that was heard within this time is alive, but hears nothing: it asks us once a second. With a
higher value, a peer that has just died would be taken for one of these: it turns silent three seconds after its death
at the earliest."""

PeerState = Literal["alive", "one-way", "refused", "silent", "unknown", "here"]


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


@dataclass(frozen=True, slots=True)
class Outlook:
    """The outlook as of `at`, on the clock of this host."""

    at: float
    began: float
    """When the member began to listen."""
    peers: tuple[str, ...]
    me: int
    heard_at: Mapping[int, float]
    """Place -> when it was heard last; without the places that were never heard."""
    silent: frozenset[int]
    refusals: Mapping[int, str]
    """Place -> why its datagrams are refused now."""
    leaders: tuple[Led | None, ...]
    """By partition, as this member believes; None for a partition that it takes no part in."""
    transitions: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(role, cause) -> how often this member entered that role."""
    leader_changes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    """The counts of the link."""
    cards: Mapping[int, PeerCard] = field(default_factory=dict)
    """Place -> that member's word about itself, this member's own included; without members that said nothing."""
    electorates: Collection[tuple[int, ...]] = ()
    """The sets of places that elect together: a leader needs a majority of its set. No set means the whole list."""

    @property
    def voters(self) -> tuple[int, ...]:
        """The electorate that is furthest from a majority, or has the fewest votes to spare."""
        return self._weakest(("alive", "here"))

    @property
    def quorum(self) -> int:
        """How many of the `voters` make a majority."""
        return len(self.voters) // 2 + 1

    @property
    def alive(self) -> int:
        """How many of the `voters` are alive. This member counts as alive."""
        return sum(self.state(place) in ("alive", "here") for place in self.voters)

    @property
    def why_unled(self) -> str:
        """Why partitions have no leader that this member knows of; empty if each has one."""
        unled = [led.reason for led in self.leaders if led is not None and led.leader is None]
        if not unled:
            return ""
        if self.alive < self.quorum:
            return too_few(self.alive, self.quorum, len(self.voters), len(self.peers))
        return f"an election is under way: {Counter(unled).most_common(1)[0][0]}"

    @property
    def hears_majority(self) -> bool | None:
        """Whether every electorate has a majority that is alive; None while that is unknown."""
        if self.alive >= self.quorum:
            return True
        able: Collection[PeerState] = ("alive", "here", "unknown")
        weakest = self._weakest(able)
        return None if 2 * sum(self.state(place) in able for place in weakest) > len(weakest) else False

    def votes(self, place: int) -> bool:
        """Whether the peer at `place` elects anything."""
        return not self.electorates or any(place in voters for voters in self.electorates)

    def _weakest(self, able: Collection[PeerState]) -> tuple[int, ...]:
        def margin(voters: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
            return sum(self.state(place) in able for place in voters) - len(voters) // 2, voters

        return min(self.electorates or (tuple(range(len(self.peers))),), key=margin)

    def state(self, place: int) -> PeerState:
        if place == self.me:
            return "here"
        if place in self.refusals:
            return "refused"
        heard_at = self.heard_at.get(place)
        if place not in self.silent:
            return "unknown" if heard_at is None else "alive"
        return "one-way" if heard_at is not None and self.at < heard_at + ONE_WAY_MAX else "silent"

    def silent_for(self, place: int) -> float:
        """Seconds since the peer was heard last, or since this member began to listen."""
        return 0.0 if place == self.me else max(0.0, self.at - self.heard_at.get(place, self.began))


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


def answering(alive: int, voters: int, peers: int) -> str:
    """How many of the peers that elect together answer, as a clause."""
    if voters == peers:
        return f"{alive} of {peers} peers answer, this one included"
    return f"of {voters} peers that elect together, {alive} answer"


def too_few(alive: int, quorum: int, voters: int, peers: int) -> str:
    """A clause: too few peers answer for a majority."""
    return f"{answering(alive, voters, peers)}, and it takes {quorum} to elect a leader"


def why_led(outlook: Outlook, partition: int, term: int | None) -> str:
    """Why `partition` got the leader of `term`, or has none if `term` is None; empty if this member does not know."""
    led = outlook.leaders[partition] if partition < len(outlook.leaders) else None
    if led is None or (led.leader is None) is not (term is None) or (term is not None and led.term != term):
        return ""
    return led.reason


def news_between(before: Outlook | None, after: Outlook) -> list[Notice]:
    """The notices to show people for this change. Before the first outlook no peer's state was known."""
    news: list[Notice] = []
    if before is None:
        before = replace(after, heard_at={}, silent=frozenset(), refusals={})
    for place, peer in enumerate(after.peers):
        was, state = before.state(place), after.state(place)
        if state == "alive" and was in WHY:
            news.append(Notice("peers.alive", {"peer": peer}))
        elif state in WHY and was not in WHY and state != "refused":  # Link and machine report refusals themselves.
            fields: dict[str, object] = {"peer": peer, "why": WHY[state]}
            if state == "silent":
                fields["seconds"] = round(after.silent_for(place), 1)
            news.append(Notice("peers.silent", fields))
    had, has = before.hears_majority, after.hears_majority
    if had is not has and has is not None:
        count: dict[str, object] = {"alive": after.alive, "peers": len(after.voters), "majority": after.quorum}
        if not has:
            news.append(Notice("peers.majority_missed", count))
        elif had is False:
            news.append(Notice("peers.majority_heard", count))
    return news


WHY: Mapping[PeerState, str] = {
    "silent": "nothing is heard of it",
    "one-way": "it is heard, but does not answer: it has just started, or what is sent to it is lost",
    "refused": "what comes from it is refused",
}
