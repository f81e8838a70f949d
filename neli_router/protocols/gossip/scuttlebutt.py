"""Scuttlebutt: every member keeps a copy of every member's state, and members bring each other up to date.

    a (asks b)                                    b
    |--- Syn: a digest, how far a's copies go ---->|
    |<-- Ack: what a lacks, and how far b's go ----|      of those of which a has more
    |--- Rest: what b lacks ---------------------->|

A member's *state* is a few keys with values. Only the member itself changes its state, and each change gets the next
*version*. A copy is as good as the highest version in it: it holds each key as of that version, or newer. To keep this
true, changes of one state travel in the order of their versions, and a *piece* of a delta says after which version it
begins. A receiver whose copy ends before that (it was restarted while the answer was on its way) rejects the piece.
Otherwise it would believe that it has changes that it never got.

*Each state belongs to a life.* A restarted process begins a new state under a higher `incarnation`, and nothing of the
old state is mixed into it. Incarnations count starts, with the count kept on disk. They end in two random bytes, which
distinguish two lives that both lost their disk. A member that hears of a later life of itself (it lost its disk)
reports this in `outlived`, and must begin another life.

*Nothing is longer than a datagram.* If a digest does not fit, it covers some places, and the next digest covers those
that follow. If a delta does not fit, the states furthest behind at the receiver go first. The others wait for another
round, and are further behind then.

*A deletion leaves a tombstone,* which travels like a value, and stays as long as the life that its state belongs to.
Other systems drop tombstones after a grace period, because a state there may have any number of keys. Here a state has
a few keys, each with one tombstone at most. Dropping tombstones is also risky: a copy made from scratch without the
tombstone, and one that still has the key, would report to each other that they are equal.

Values are flat tuples of whole numbers: they are small, they cannot change, and msgspec checks and packs them in C.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from operator import sub

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

from neli_router.protocols.electors.events import BODY_MAX, COUNT_MAX

__all__ = [
    "Ack",
    "Piece",
    "Refresh",
    "Rest",
    "Scuttlebutt",
    "Syn",
    "Update",
    "Value",
    "Want",
    "incarnation_after",
]

DRAWN_BITS = 16

PIECES_MIN = 8
"""Always try at least this many pieces, however long the last ones were: the next ones may be shorter."""

NO_KEY = -1
"""The last changed key of a state that was always empty."""

NEVER_HEARD = 1 << 62
"""How far behind a copy of another life counts: further than any copy of this life."""

Value = tuple[int, ...]
Update = tuple[int, int, Value | None]
"""Key, version, value; None is a tombstone."""
Latest = tuple[int, int, int, Value | None]
"""Incarnation, and the last change of its state: key, version, value."""
Piece = tuple[int, int, Latest, tuple[Update, ...]]
"""Place, the version after which it begins, the last change, and all earlier changes, in the order of versions. There
are nearly always none: so the latest is kept and passed on as it came."""
Want = tuple[int, int]
"""Place, and the version that my copy ends with."""
Refresh = Callable[[int, int, int, Value | None], Update]
"""Place, key, version, value -> the update to pass on."""


class Syn(Struct, frozen=True, array_like=True, tag=0):
    """My copies, from place `first` on, end here: incarnation, version, incarnation, version ..."""

    mark: int
    first: int
    digest: list[int]


class Ack(Struct, frozen=True, array_like=True, tag=1):
    """You lack these `pieces`; I lack yours of these."""

    mark: int
    pieces: list[Piece]
    wants: list[Want]


class Rest(Struct, frozen=True, array_like=True, tag=2):
    """You lack these."""

    mark: int
    pieces: list[Piece]


_encode = Encoder().encode
_decoder: Decoder[Syn | Ack | Rest] = Decoder(Syn | Ack | Rest)


def incarnation_after(last: int, drawn: int) -> int:
    """The incarnation of the life that follows `last`. `drawn` are random bits."""
    return ((last >> DRAWN_BITS) + 1 << DRAWN_BITS) | drawn & ((1 << DRAWN_BITS) - 1)


class Scuttlebutt:
    """One member's copies of all states. Members may hear each other only if they have the same `mark`."""

    def __init__(self, size: int, me: int, incarnation: int, *, mark: int) -> None:
        self.lives, self.versions = [0] * size, [0] * size
        """How far my copies go: the incarnation and the version for each place."""
        self._latest: list[Latest] = [(0, NO_KEY, 0, None)] * size
        self._older: list[dict[int, Update]] = [{} for _ in range(size)]
        """For each place, all earlier changes, in the order of versions: recent changes are found at the end."""
        self._before = [0] * size
        """The highest version of these earlier changes."""
        self.outlived = 0
        """The incarnation of a later life of mine, if some member has heard of one."""
        self._me, self._mark = me, mark
        self.is_foreign = False
        """Whether the message decoded last has another mark."""
        self._first = 0
        self._room = size
        self._piece_bytes = 1
        """The size of a piece in the last message: more pieces than fit at this size would be built for nothing."""
        self.begin(incarnation)

    def begin(self, incarnation: int) -> None:
        """A new life of mine, with nothing of the older one's state."""
        self._begin(self._me, incarnation)
        self.outlived = 0

    def get(self, place: int, key: int) -> Value | None:
        """The value of this key in my copy of this place's state."""
        latest = self._latest[place]
        if key == latest[1]:
            return latest[3]
        return None if (held := self._older[place].get(key)) is None else held[2]

    def set(self, key: int, value: Value) -> None:
        """Change my own state."""
        self._put(self._me, key, self.versions[self._me] + 1, value)

    def delete(self, key: int) -> None:
        """Delete a key from my own state; do nothing if it is not there."""
        if self.get(self._me, key) is not None:
            self._put(self._me, key, self.versions[self._me] + 1, None)

    # Messages

    def decode(self, body: bytes) -> Syn | Ack | Rest | None:
        """None for a body that cannot be read, or that comes from a member with another mark."""
        self.is_foreign = False
        try:
            message = _decoder.decode(body)
        except MsgspecError:
            return None
        self.is_foreign = message.mark != self._mark
        return None if self.is_foreign else message

    def ask(self) -> bytes:
        """A Syn of all copies, or of as many as fit, beginning where the last one ended."""
        size = len(self.lives)
        while True:
            first = self._first
            last = min(size, first + self._room)
            digest = [0, 0] * (last - first)
            digest[::2], digest[1::2] = self.lives[first:last], self.versions[first:last]
            body = _encode(Syn(self._mark, first, digest))
            if len(body) <= BODY_MAX:
                self._first = last % size
                return body
            self._room = min(self._room - 1, (last - first) * BODY_MAX // len(body))

    def answer(self, syn: Syn, refresh: Refresh | None = None) -> bytes | None:
        """The pieces that the asker lacks, and my own wants; None if our copies are equal."""
        behind, wants = self._compare(syn)
        most = BODY_MAX // 3  # In bytes: more could not be delivered in one Rest, and would displace the pieces.
        while (length := len(_encode(wants))) > most:
            wants = wants[: len(wants) * most // length - 1]
        if not behind and not wants:
            return None
        return self._fit(lambda pieces: Ack(self._mark, pieces, wants), behind, refresh, used=length)

    def rest(self, wants: Sequence[Want], refresh: Refresh | None = None) -> bytes | None:
        """The pieces that the other member lacks; None if it lacks nothing."""
        size, versions = len(self.lives), self.versions
        asked = [
            (place, after) for place, after in wants[: self._most()] if 0 <= place < size and after < versions[place]
        ]
        return self._fit(lambda pieces: Rest(self._mark, pieces), asked, refresh) if asked else None

    def farewell(self) -> bytes:
        """All of my own state, for a member that need not have asked."""
        return self._fit(lambda pieces: Rest(self._mark, pieces), [(self._me, 0)], None)

    def take(self, pieces: Iterable[Piece], usual: int) -> tuple[dict[int, Value | None], list[int]]:
        """Bring my copies up to date. Return the present value of the key `usual` for each place where nothing else
        changed, and the places where more changed. A place with two pieces may be in both.

        A piece that begins after 0 adds to my copy.
        """
        renewed, changed = dict[int, Value | None](), list[int]()
        lives, versions, kept = self.lives, self.versions, self._latest
        size, me = len(lives), self._me
        for place, after, latest, earlier in pieces:
            incarnation, key, version, value = latest
            if place == me:
                self._look(incarnation, version)
                continue
            if place < 0 or place >= size:
                continue
            if incarnation != lives[place]:
                if incarnation < lives[place] or after:
                    continue
                self._begin(place, incarnation)
            elif version <= (mine := versions[place]) or after > mine:
                continue
            if not earlier and key == usual and key == kept[place][1]:  # The usual case.
                versions[place], kept[place], renewed[place] = version, latest, value
                continue
            for update in earlier:
                if versions[place] < update[1] < version:
                    self._put(place, *update)
            self._put(place, key, version, value)
            changed.append(place)
        return renewed, changed

    # Helpers

    def _begin(self, place: int, incarnation: int) -> None:
        self.lives[place], self.versions[place] = incarnation, 0
        self._latest[place], self._older[place], self._before[place] = (incarnation, NO_KEY, 0, None), {}, 0

    def _put(self, place: int, key: int, version: int, value: Value | None) -> None:
        incarnation, last, before, held = self._latest[place]
        if last not in (key, NO_KEY):
            self._older[place].pop(key, None)
            self._older[place][last] = last, before, held
            self._before[place] = before
        self._latest[place], self.versions[place] = (incarnation, key, version, value), version

    def _look(self, incarnation: int, version: int) -> None:
        """Some member has this copy of my state."""
        if incarnation < COUNT_MAX and (incarnation, version) > (self.lives[self._me], self.versions[self._me]):
            self.outlived = max(self.outlived, incarnation)

    def _compare(self, syn: Syn) -> tuple[list[Want], list[Want]]:
        """Place and version of the copy, of the asker's and of mine, with those that are furthest behind first."""
        first, last = syn.first, syn.first + len(syn.digest) // 2
        if first < 0 or last > len(self.lives):
            return [], []
        if 0 <= (at := 2 * (self._me - first)) < 2 * (last - first):
            self._look(syn.digest[at], syn.digest[at + 1])
        lives, theirs, mine = syn.digest[::2], syn.digest[1::2], self.versions[first:last]
        ahead = list(map(sub, mine, theirs))
        if lives != self.lives[first:last]:
            for index, (life, my_life) in enumerate(zip(lives, self.lives[first:last], strict=False)):
                if life != my_life:
                    ahead[index] = NEVER_HEARD if life < my_life else -NEVER_HEARD
                    theirs[index] = mine[index] = 0
        order = sorted(range(len(ahead)), key=ahead.__getitem__)
        lacking = order[: bisect_left(order, 0, key=ahead.__getitem__)]
        wants = [(first + i, mine[i]) for i in lacking if first + i != self._me]
        return [(first + i, theirs[i]) for i in order[: -1 - self._most() : -1] if ahead[i] > 0], wants

    def _most(self, used: int = 0) -> int:
        """How many pieces are worth trying after `used` bytes."""
        return max(PIECES_MIN, (BODY_MAX - used) // self._piece_bytes)

    def _pieces(self, asked: Sequence[Want], refresh: Refresh | None) -> list[Piece]:
        """The pieces of existing places, of which I have more."""
        kept, before = self._latest, self._before
        if refresh is None:
            return [
                (place, after, kept[place], () if after >= before[place] else self._since(place, after))
                for place, after in asked
            ]
        pieces: list[Piece] = []
        for place, after, latest, earlier in self._pieces(asked, None):
            if place == self._me:
                pieces.append((place, after, latest, earlier))
            else:
                incarnation, key, version, value = latest
                renewed = (incarnation, *refresh(place, key, version, value))
                pieces.append((place, after, renewed, tuple(refresh(place, *update) for update in earlier)))
        return pieces

    def _since(self, place: int, version: int) -> tuple[Update, ...]:
        """The changes after `version`, without the last change."""
        changed: list[Update] = []
        for update in reversed(self._older[place].values()):
            if update[1] <= version:
                break
            changed.append(update)
        return tuple(reversed(changed))

    def _fit(
        self,
        message: Callable[[list[Piece]], Ack | Rest],
        asked: Sequence[Want],
        refresh: Refresh | None,
        *,
        used: int = 0,
    ) -> bytes:
        """The message with as many pieces, from the first one asked for, as a datagram holds after `used` bytes."""
        pieces = self._pieces(asked[: self._most(used)], refresh)
        while len(body := _encode(message(pieces))) > BODY_MAX:
            if len(pieces) > 1:
                pieces = pieces[: max(1, min(len(pieces) - 1, len(pieces) * BODY_MAX // len(body)))]
            elif earlier := pieces[0][3]:
                place, after, (incarnation, *_), _ = pieces[0]
                *sooner, last = earlier[: (len(earlier) + 1) // 2]
                pieces = [(place, after, (incarnation, *last), tuple(sooner))]
            else:
                pieces = []  # They do not fit next to my wants. A Rest has room.
        if pieces:
            self._piece_bytes = (len(body) - used) // len(pieces)
        return body
