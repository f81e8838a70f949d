"""Scuttlebutt: every member keeps a copy of what every member says of itself, and members bring each other up to date.

    a (asks b)                                    b
    |--- Syn: a digest, how far a's copies go ---->|
    |<-- Ack: what a lacks, and how far b's go ----|      of those of which a has more
    |--- Rest: what b lacks ---------------------->|

A member's *state* is a few keys with values. It alone changes it, and each change has the next *version*. A copy is as
good as the highest version in it: it holds each key as it was then, or newer. To keep that true, changes of one state
travel in the order of their versions, and a *piece* of a delta says after which version it begins. A receiver whose
copy ends before that (it was restarted while the answer was on its way) does not take the piece, or it would believe
to have what it never got.

*Each state belongs to a life.* A process that starts anew begins a new state under a higher `incarnation`, and nothing
of the old one is mixed into it. Incarnations count starts, by what is kept on disk, and end in two drawn bytes, which
tell apart two lives that both lost their disk. A member that hears of a later life of itself (it lost its disk) says
so in `outlived`, and must begin another.

*Nothing is longer than a datagram.* If a digest does not fit, it is of some places, and the next one is of those that
follow. If a delta does not fit, the states that the receiver is furthest behind with go first, and the others wait for
another round: they are further behind then.

*A deletion leaves a tombstone,* which travels like a value, and stays for as long as the life whose state it is in.
Elsewhere it is forgotten after a grace, as a state there may have any number of keys. Here it has a few, each with one
tombstone at most. And it is easy to forget too much: a copy that was made anew, without the tombstone, and one that
still has the key would tell each other that they are alike.

Values are flat tuples of whole numbers: they are small, they cannot change, and msgspec checks and packs them in C.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Annotated

from msgspec import Meta, MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

from neli_router.electors.events import BODY_MAX

__all__ = ["COUNT_MAX", "Ack", "Piece", "Replica", "Rest", "Scuttlebutt", "Syn", "Update", "Value", "incarnation_after"]

DRAWN_BITS = 16

PIECES_MIN = 8
"""So many pieces are made at least, although fewer did fit: the next ones may be shorter."""

NUMBER_MAX = 9
"""Bytes of the longest number, with what goes around the list."""

NEVER_HEARD = 1 << 62
"""How far behind a copy of another life is: further than any copy of this one."""

COUNT_MAX = 1 << 60
"""No process starts so often, and nobody is elected so often. What is counted may grow on from here, and still fit."""

Number = Annotated[int, Meta(ge=-(1 << 62), lt=1 << 62)]
Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
"""An odd message must not bring what cannot be sent on."""

Value = tuple[Number, ...]
Update = tuple[Count, Count, Value | None]
"""Key, version, value; None is a tombstone."""
Piece = tuple[int, Annotated[int, Meta(ge=0, lt=COUNT_MAX)], Count, list[Update]]
"""Place, incarnation, after which version it begins, and all that changed since, in the order of versions."""


class Syn(Struct, frozen=True, array_like=True, tag=0):
    """My copies, from place `first` on, end here: incarnation, version, incarnation, version ..."""

    mark: int
    first: int
    digest: list[Count]


class Ack(Struct, frozen=True, array_like=True, tag=1):
    """You lack these `pieces`; I lack what you have of these: place, the version that my copy ends with ..."""

    mark: int
    pieces: list[Piece]
    wants: list[Number]


class Rest(Struct, frozen=True, array_like=True, tag=2):
    """You lack these."""

    mark: int
    pieces: list[Piece]


_encode = Encoder().encode
_decoder: Decoder[Syn | Ack | Rest] = Decoder(Syn | Ack | Rest)


def incarnation_after(last: int, drawn: int) -> int:
    """The incarnation of the life that follows `last`. `drawn` are random bits."""
    return ((last >> DRAWN_BITS) + 1 << DRAWN_BITS) | drawn & ((1 << DRAWN_BITS) - 1)


class Replica:
    """What one copy of one state holds."""

    __slots__ = ("before", "incarnation", "keys", "latest", "version")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.version = 0
        self.keys: dict[int, Update] = {}
        """In the order of versions, so that what changed last is found without looking at the others."""
        self.latest: Update = (0, 0, None)
        self.before = 0
        """A version that no update but `latest` is above."""

    def get(self, key: int) -> Value | None:
        held = self.keys.get(key)
        return None if held is None else held[2]

    def put(self, update: Update) -> None:
        key, version, _ = update
        if key != self.latest[0]:
            self.before = self.version
            self.keys.pop(key, None)
        self.keys[key] = self.latest = update
        self.version = version

    def since(self, version: int) -> list[Update]:
        """What a copy lacks that ends with `version`."""
        if version >= self.before:
            return [self.latest]  # As it is nearly always: looking for others costs more than all the rest.
        changed = []
        for update in reversed(self.keys.values()):
            if update[1] <= version:
                break
            changed.append(update)
        changed.reverse()
        return changed


class Scuttlebutt:
    """One member's copies of all states. `mark` is the same for all members that may hear each other."""

    def __init__(self, size: int, me: int, incarnation: int, *, mark: int) -> None:
        self.replicas = [Replica(0) for _ in range(size)]
        self.outlived = 0
        """The incarnation of a later life of mine, if somebody has heard of one."""
        self._me, self._mark = me, mark
        self.is_foreign = False
        """Whether the message that was decoded last has another mark."""
        self._digest = [0, 0] * size
        self._first = 0
        self._room = size
        self._fitted = size
        """More pieces than this would be made in vain: a little more than did fit into a datagram last."""
        self.begin(incarnation)

    @property
    def own(self) -> Replica:
        return self.replicas[self._me]

    def begin(self, incarnation: int) -> None:
        """A new life of mine: nothing of the older one's state is in it."""
        self.replicas[self._me] = Replica(incarnation)
        self.outlived = 0
        self._note(self._me)

    def set(self, key: int, value: Value) -> None:
        """Change my own state."""
        own = self.own
        own.put((key, own.version + 1, value))
        self._note(self._me)

    def delete(self, key: int) -> None:
        """Take a key out of my own state; nothing happens if it is not in it."""
        own = self.own
        if own.get(key) is not None:
            own.put((key, own.version + 1, None))
            self._note(self._me)

    # Messages

    def decode(self, body: bytes) -> Syn | Ack | Rest | None:
        """None is what cannot be read, or comes from a member that was told otherwise than this one."""
        self.is_foreign = False
        try:
            message = _decoder.decode(body)
        except MsgspecError:
            return None
        self.is_foreign = message.mark != self._mark
        return None if self.is_foreign else message

    def ask(self) -> bytes:
        """A Syn of all copies, or of as many as fit, beginning where the last one ended."""
        size = len(self.replicas)
        while True:
            first = self._first
            last = min(size, first + self._room)
            body = _encode(Syn(self._mark, first, self._digest[2 * first : 2 * last]))
            if len(body) <= BODY_MAX:
                self._first = last % size
                return body
            self._room = min(self._room - 1, (last - first) * BODY_MAX // len(body))

    def answer(self, syn: Syn, refresh: Callable[[int, Update], Update] | None = None) -> bytes | None:
        """What the asker lacks, and what I lack; None if our copies are alike."""
        behind, wants = self._compare(syn)
        wanted = [number for _, place, version in wants for number in (place, version)]
        most = BODY_MAX // 3  # Of bytes: more could not be brought in one Rest, and would keep the pieces out.
        while len(wanted) * NUMBER_MAX > most and len(_encode(wanted)) > most:
            wanted = wanted[: 2 * (len(wanted) * most // len(_encode(wanted)) // 2 - 1)]
        pieces = self._pieces(((place, version) for _, place, version in behind), refresh)
        if not pieces and not wanted:
            return None
        return self._fit(lambda some: Ack(self._mark, some, wanted), pieces)

    def rest(self, wants: Sequence[int], refresh: Callable[[int, Update], Update] | None = None) -> bytes | None:
        """What the other one lacks; None if there is nothing."""
        size = len(self.replicas)
        asked = [(p, v) for p, v in zip(wants[::2], wants[1::2], strict=False) if 0 <= p < size]
        pieces = self._pieces(asked, refresh)
        return self._fit(lambda some: Rest(self._mark, some), pieces) if pieces else None

    def farewell(self) -> bytes:
        """All of my own state, for one who need not have asked."""
        return self._fit(lambda some: Rest(self._mark, some), self._pieces([(self._me, 0)], None))

    def take(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Bring my copies up to date; returns the pieces that did. One that begins after 0 adds to what I had."""
        taken = []
        digest, replicas, size = self._digest, self.replicas, len(self.replicas)
        for piece in pieces:
            place, incarnation, after, updates = piece
            if not 0 <= place < size or not updates:
                continue
            replica = replicas[place]
            last = updates[-1][1]
            if place == self._me:
                self._look(incarnation, last)
                continue
            if incarnation != replica.incarnation:
                if incarnation < replica.incarnation or after:
                    continue
                replica = replicas[place] = Replica(incarnation)
            elif after > replica.version or last <= replica.version:
                continue
            version = replica.version
            for update in updates:
                if update[1] > version:
                    replica.put(update)
            digest[2 * place] = incarnation
            digest[2 * place + 1] = last
            taken.append(piece)
        return taken

    # Helpers

    def _note(self, place: int) -> None:
        replica = self.replicas[place]
        self._digest[2 * place] = replica.incarnation
        self._digest[2 * place + 1] = replica.version

    def _look(self, incarnation: int, version: int) -> None:
        """Somebody has this of me."""
        if incarnation < COUNT_MAX and (incarnation, version) > (self.own.incarnation, self.own.version):
            self.outlived = max(self.outlived, incarnation)

    def _compare(self, syn: Syn) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
        """How far behind, place, version of the copy: the asker's and mine, those first that are furthest behind."""
        behind: list[tuple[int, int, int]] = []
        wants: list[tuple[int, int, int]] = []
        place = syn.first
        if place < 0 or 2 * place + len(syn.digest) > len(self._digest):
            return behind, wants
        mine, theirs = iter(self._digest[2 * place :]), iter(syn.digest)
        for incarnation, version, my_incarnation, my_version in zip(theirs, theirs, mine, mine, strict=False):
            if incarnation == my_incarnation:
                if my_version > version:
                    behind.append((version - my_version, place, version))
                elif my_version < version:
                    wants.append((my_version - version, place, my_version))
            elif incarnation < my_incarnation:
                behind.append((-NEVER_HEARD, place, 0))
            else:
                wants.append((-NEVER_HEARD, place, 0))
            place += 1
        if 0 <= (at := 2 * (self._me - syn.first)) < len(syn.digest) - 1:
            self._look(syn.digest[at], syn.digest[at + 1])
            wants = [want for want in wants if want[1] != self._me]
        behind.sort()
        wants.sort()
        return behind, wants

    def _pieces(self, asked: Iterable[tuple[int, int]], refresh: Callable[[int, Update], Update] | None) -> list[Piece]:
        pieces = []
        replicas = self.replicas
        for place, version in islice(asked, self._fitted):
            replica = replicas[place]
            if replica.version > version:
                updates = replica.since(version)
                if refresh is not None and place != self._me:
                    updates = [refresh(place, update) for update in updates]
                pieces.append((place, replica.incarnation, version, updates))
        return pieces

    def _fit(self, message: Callable[[list[Piece]], Ack | Rest], pieces: list[Piece]) -> bytes:
        """The message with as many of `pieces` as a datagram holds, the first ones first."""
        while True:
            body = _encode(message(pieces))
            if len(body) <= BODY_MAX:
                # The asked were cut to what fitted, or all fitted: try one more the next time.
                self._fitted = min(self._fitted + 1, len(self.replicas))
                return body
            if len(pieces) > 1:
                pieces = pieces[: max(1, min(len(pieces) - 1, len(pieces) * BODY_MAX // len(body)))]
                self._fitted = max(PIECES_MIN, len(pieces))
            else:
                place, incarnation, after, updates = pieces[0]
                pieces = [(place, incarnation, after, updates[: len(updates) // 2])]
