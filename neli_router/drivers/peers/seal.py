"""The seal: a datagram that says who sent it, to whom, in which group, in which lifetime, and how many came before it.

    | magic version kind size sender receiver | group list mark | session echo counter | length | body | MAC |
      NELP  1       0..2 N    place  place      8     8    8      8       8    8         2        ..1200  16

    a starts:  Ask      a -> b   "I am session s", and whatever a has to say of itself to people
               Answer   b -> a   "your (s, counter): echo my challenge c from now on"
               Body     a -> b   echo = c: taken, once.   Any other echo: not taken, and Answered

All peers share one key, and with it they seal every byte (blake2b, keyed). So a holder of the key may say anything, in
any peer's name, and without the key nothing can be said. Nothing is encrypted.

*Why no replay is taken.* For each peer this member draws a challenge, a random number, and takes only bodies that echo
it. A session, which is one process of a peer, learns the challenge by asking. A new challenge is drawn whenever another
session takes the place. So everything that an older session sent, before this process started or after, echoes a number
that is no longer valid. Within a session, a counter and a window of WINDOW counters show which datagrams were taken; a
datagram older than the window is not taken.

*Why no Answer deceives.* An Answer quotes the session and the counter of the datagram that it answers, and of two
Answers only the one with the higher counter counts. An Answer from before this process cannot quote its session. An
Answer that was held back can only make bodies be sent without effect until the next Answer, which comes immediately.

*A session that was replaced does not come back.* A process that takes the place of another has answered a challenge, so
it is alive, and the earlier process should not be. If the earlier one asks again, the mark of an Answer notifies it
that it was replaced, and it stops. So two processes with one id are detected, on whatever hosts they run.

All state is bounded: a few numbers for each peer in the list, and nothing for a stranger. A sender of replays causes
one datagram of ours for each of its own, and ours goes to the peer's own address. Ours has 100 bytes, and the shortest
that is answered has 75. No Answer is answered.

An Ask that is taken brings a word of its sender, its `PeerCard`. Older releases ignore the word, and send none.
An Ask that is not taken is still a sign of life, and the only one of a peer to which nothing gets through. It may be a
replay. So it counts only if it is the newest of its session, and it shows people no more than that the peer is heard
and does not answer. An attacker who recorded a whole session can have that shown for a dead peer, for as long as the
session lasted.

An Answer quotes the very datagram that was refused, so the link sends that body again. It is not taken twice, because
the first datagram was not taken.
"""

import hashlib
import hmac
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from neli_router.protocols.electors.events import BODY_MAX

__all__ = ["ASKING_MAX", "DATAGRAM_MAX", "WINDOW", "Content", "Flaw", "Seal", "Unsealed", "derived_key"]

MAGIC = b"NELP"
VERSION = 1

HEADER = struct.Struct(">4sBBBBB8s8s8sQQQH")
MAC_SIZE = 16
ANSWER = struct.Struct(">QQQ?")

DATAGRAM_MAX = HEADER.size + BODY_MAX + MAC_SIZE
"""Bytes of the longest datagram, which fits into every Ethernet frame and through most tunnels."""

WINDOW = 1024
"""Counters below the highest of a session within which each is taken once, in any order. Each 64 more cost 8 bytes for
each peer; fewer would lose datagrams that a network delivers out of order."""

RESENT_MAX = 4
"""Bodies to one peer that are held until it is known whether it takes them: what one step of a machine says to it."""

RETIRED_MAX = 16
"""Sessions of one place that are remembered as replaced. Each needed a process of that peer to live and answer."""

ASKING_MAX = 16
"""Sessions of one place for which the highest counter of their untaken Asks is remembered. More keeps out the replays
of an attacker who has recorded more sessions, and costs some hundred bytes for each."""

BODY, ASK, TOLD = range(3)


class Flaw(Enum):
    """A reason not to take a datagram, in words for people."""

    TRUNCATED = "it is shorter than it says, or than any can be"
    OVERSIZED = "it is longer than any can be"
    FOREIGN = "it is not a peer's datagram"
    VERSION = "it is of a newer version: update this host"
    GROUP = "it is of another group"
    KEY = "it was sealed with another key, or changed on its way"
    SIZE = "it is of a list with another number of peers"
    LIST = "it is of another list of peers"
    PROTOCOL = "it is of another protocol, or another number of partitions or of voters"
    PLACE = "it is from a place, or to a place, that cannot be"
    REPLAYED = "it was taken before, or is too old to know"
    STALE = (
        "it does not echo this process's challenge: its sender has just started, or two run as it, or it was replayed"
    )
    REPLACED = "another process has taken that peer's place: two run with one id"


class Content(Enum):
    """The kind of a datagram that was opened, for the link."""

    BODY = "a body to take"
    NOTHING = "nothing to take"
    ASKED = "an Ask that was taken, with its sender's word"
    ASKING = "an Ask that does not echo our challenge, the newest of its session: a sign of life, and nothing to take"
    HEARD = "an Answer that counts"
    REPLACED = "an Answer which says that another process has our place"


@dataclass(frozen=True, slots=True)
class Unsealed:
    """The result for one datagram. `sender` is a place only if the seal is right; -1 is a stranger."""

    content: Content = Content.NOTHING
    flaw: Flaw | None = None
    sender: int = -1
    body: bytes = b""
    """Or the word, in case of an Ask."""
    size: int = 0
    """How many peers are in the sender's list, if that is why the datagram was refused."""
    reply: bytes = b""
    """To be sent to `sender` immediately: an Answer, or a body again."""


@dataclass(slots=True)
class _Peer:
    """This member's knowledge of one place."""

    # Its datagrams to us
    session: int = 0
    """0 means none: nothing from it was taken yet."""
    challenge: int = 0
    """The challenge that `session` echoes."""
    offered: int = 0
    """The challenge that any other session must echo to take the place."""
    highest: int = 0
    seen: int = 0
    """Bit i: the counter `highest` - i was taken."""
    retired: deque[int] = field(default_factory=lambda: deque(maxlen=RETIRED_MAX))
    asking: dict[int, int] = field(default_factory=dict)
    """Session -> the highest counter of its Asks that were not taken. The session that asked last is at the end."""
    # Our datagrams to it
    echo: int = 0
    sent: int = 0
    answered: int = 0
    """The highest of our counters that one of its Answers quoted."""
    held: deque[tuple[int, bytes]] = field(default_factory=lambda: deque(maxlen=RESENT_MAX))
    """Counter and body of what was sent last, and not sent again."""


def derived_key(secret: bytes, group: str) -> bytes:
    """The key of one group. A key file may serve several groups, and may hold many bytes or few."""
    inner = hashlib.blake2b(secret, digest_size=32, person=b"neli peers").digest()
    return hashlib.blake2b(group.encode(), digest_size=32, key=inner, person=b"neli group").digest()


class Seal:
    """One member's side of all conversations. Not thread-safe. `draw` returns 64 random, unpredictable bits."""

    def __init__(
        self, key: bytes, *, group: str, peers: tuple[str, ...], mark: bytes, me: int, draw: Callable[[], int]
    ) -> None:
        self._key, self._me, self._size, self._draw = key, me, len(peers), draw
        self._marks = tuple(map(_digest, (group.encode(), "\n".join(peers).encode(), mark)))
        self.session = self._random()
        self._peers = [_Peer(offered=self._random()) for _ in peers]

    def ask(self, to: int, word: bytes = b"") -> bytes:
        """A datagram that makes `to` answer with its challenge. It brings `word`, if `to` knows this session."""
        assert len(word) <= BODY_MAX, f"a word has at most {BODY_MAX} bytes, this one {len(word)}"
        return self._sealed(to, ASK, word)

    def seal(self, to: int, body: bytes) -> bytes:
        assert len(body) <= BODY_MAX, f"a body has at most {BODY_MAX} bytes, this one {len(body)}"
        peer = self._peers[to]
        sealed = self._sealed(to, BODY, body)
        peer.held.append((peer.sent, body))
        return sealed

    def knows(self, to: int) -> bool:
        """Whether the challenge of `to` is known."""
        return self._peers[to].echo != 0

    def open(self, datagram: bytes) -> Unsealed:
        """Judge one datagram, from any sender."""
        if len(datagram) > DATAGRAM_MAX:
            return Unsealed(flaw=Flaw.OVERSIZED)
        if datagram[:4] != MAGIC[: len(datagram)]:
            return Unsealed(flaw=Flaw.FOREIGN)
        if len(datagram) > 4 and datagram[4] > VERSION:  # Checked before the length: newer ones may have another form.
            return Unsealed(flaw=Flaw.VERSION)
        if len(datagram) < HEADER.size + MAC_SIZE:
            return Unsealed(flaw=Flaw.TRUNCATED)
        _, version, kind, size, sender, receiver, *rest = HEADER.unpack_from(datagram)
        group, peers, mark, session, echo, counter, length = rest
        if version != VERSION:
            return Unsealed(flaw=Flaw.FOREIGN)
        if len(datagram) != HEADER.size + length + MAC_SIZE:
            return Unsealed(flaw=Flaw.TRUNCATED)
        # Before the seal: without a key file, the key derives from the group's name, so all else would look forged.
        if group != self._marks[0]:
            return Unsealed(flaw=Flaw.GROUP)
        if not hmac.compare_digest(datagram[-MAC_SIZE:], self._mac(datagram[:-MAC_SIZE])):
            return Unsealed(flaw=Flaw.KEY)
        if size != self._size:
            return Unsealed(flaw=Flaw.SIZE, size=size)
        if peers != self._marks[1]:
            return Unsealed(flaw=Flaw.LIST)
        if sender >= size or sender == self._me or receiver != self._me:
            return Unsealed(flaw=Flaw.PLACE)
        if mark != self._marks[2]:
            return Unsealed(flaw=Flaw.PROTOCOL, sender=sender)
        if kind > TOLD:
            return Unsealed(flaw=Flaw.VERSION, sender=sender)
        body = datagram[HEADER.size : -MAC_SIZE]
        if kind == TOLD:
            return self._hear(sender, body)
        return self._admit(sender, session, echo, counter, kind == BODY, body)

    def _admit(self, sender: int, session: int, echo: int, counter: int, is_body: bool, body: bytes) -> Unsealed:
        peer = self._peers[sender]
        if session == 0 or session in peer.retired:
            return self._answer(sender, session, counter, Flaw.REPLACED)
        if session == peer.session and echo == peer.challenge:
            if not _take(peer, counter):
                return Unsealed(flaw=Flaw.REPLAYED, sender=sender)
        elif echo == peer.offered:
            # This session has just answered a challenge that no earlier session knew.
            if peer.session != session:
                peer.retired.append(peer.session)
            peer.session, peer.challenge, peer.offered = session, echo, self._random()
            peer.highest, peer.seen = counter, 1
        else:
            answer = self._answer(sender, session, counter, Flaw.STALE if is_body else None)
            is_news = not is_body and _is_news(peer, session, counter)
            return replace(answer, content=Content.ASKING) if is_news else answer
        if is_body:
            return Unsealed(Content.BODY, sender=sender, body=body)
        return replace(self._answer(sender, session, counter, None), content=Content.ASKED, body=body)

    def _answer(self, to: int, session: int, counter: int, flaw: Flaw | None) -> Unsealed:
        peer = self._peers[to]
        # A session that holds the place keeps its challenge: a new one would void what it has on the way.
        challenge = peer.challenge if session == peer.session else peer.offered
        told = ANSWER.pack(session, counter, challenge, flaw is Flaw.REPLACED)
        return Unsealed(flaw=flaw, sender=to, reply=self._sealed(to, TOLD, told))

    def _hear(self, sender: int, body: bytes) -> Unsealed:
        peer = self._peers[sender]
        if len(body) != ANSWER.size:
            return Unsealed(flaw=Flaw.TRUNCATED, sender=sender)
        session, counter, challenge, is_replaced = ANSWER.unpack(body)
        if session != self.session:
            return Unsealed(flaw=Flaw.STALE, sender=sender)
        if not peer.answered < counter <= peer.sent:
            return Unsealed(flaw=Flaw.REPLAYED, sender=sender)
        peer.answered = counter
        if is_replaced:
            return Unsealed(Content.REPLACED, sender=sender)
        peer.echo = challenge
        again = next((held for held in peer.held if held[0] == counter), None)
        # Sent again only once: no counter is quoted twice, and a body that is sent again is not held. Otherwise two
        # processes of one id, each of which voids the challenge of the other, would have it sent forever.
        reply = self._sealed(sender, BODY, again[1]) if again is not None else b""
        return Unsealed(Content.HEARD, sender=sender, reply=reply)

    def _sealed(self, to: int, kind: int, body: bytes) -> bytes:
        peer = self._peers[to]
        peer.sent += 1
        header = HEADER.pack(
            MAGIC, VERSION, kind, self._size, self._me, to, *self._marks, self.session, peer.echo, peer.sent, len(body)
        )
        sealed = header + body
        return sealed + self._mac(sealed)

    def _mac(self, text: bytes) -> bytes:
        return hashlib.blake2b(text, digest_size=MAC_SIZE, key=self._key).digest()

    def _random(self) -> int:
        return self._draw() or 1  # 0 means no session, and no challenge.


def _take(peer: _Peer, counter: int) -> bool:
    """Whether `counter` is new. From now on it counts as taken."""
    ahead = counter - peer.highest
    if ahead > 0:
        # Compared before shifting: a counter that jumps far must not make a number with as many bits.
        peer.seen = (peer.seen << ahead | 1) & ((1 << WINDOW) - 1) if ahead < WINDOW else 1
        peer.highest = counter
        return True
    if -ahead >= WINDOW or peer.seen >> -ahead & 1:
        return False
    peer.seen |= 1 << -ahead
    return True


def _is_news(peer: _Peer, session: int, counter: int) -> bool:
    """Whether an Ask that is not taken is newer than all others of its session."""
    before = peer.asking.pop(session, -1)
    peer.asking[session] = max(before, counter)
    if len(peer.asking) > ASKING_MAX:
        del peer.asking[next(iter(peer.asking))]
    return counter > before


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=8).digest()
