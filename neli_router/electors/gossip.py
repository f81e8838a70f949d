"""Leader election on top of Scuttlebutt: each member says whom it favours, and a majority of fresh favours makes a
leader.

              quiet P                     it seems dead, or it may not lead             P since the last declaration
    start ---------------> (chooses) --> favours, declares ------------> frozen --------------------------------------.
                               ^             ^                             | it is heard again                        |
                               |             '-----------------------------'                                          |
                               '--------------------------------------------------------------------------------------'

Every interval a member declares its *heartbeat*, a triplet: its favourite, the time elapsed since it started, and a
lower bound of the favourite's clock. The bound is read off a *biased clock*: what the favourite said last of its own
clock, and since then my own clock, slowed down by as much as the two may differ. The best of all such estimates is
kept. So a bound is never ahead of the favourite's clock, however late or on whatever way the news came.

N *leads* as long as a majority favour it with bounds less than P (`lease`) behind its own clock. A bound says, on N's
own clock, when the declaration was made or that it was later: so how long messages take does not matter.

*Why at most one leads.* The majorities of two share a member v. It declared the first with a bound that was true at
time t, so the first leads until t + P at most, on its own clock. v may declare another only `wait` after its last
declaration: P on the slowest allowed clock beside the fastest. (The text allows for the drift of one clock only, in
its factor 1 + 500 ppm; two may be off.) What the text leaves open, and what holds here:

- *The whole triplet is frozen*, not only `elapsed`. A favourite that is not to be declared afresh gets no later
  bound, or it would lead on while its voter changes over. A frozen member pulses instead, or all would take it for
  dead.
- *A start is followed by a quiet P*: this member's older life may have declared somebody a moment before it ended.
  That holds for the first favourite of a fresh member, too, which cannot know that it is fresh.
- *A bound is of one life of the favourite.* Its clock starts anew with each, and the bounds of an older life are far
  ahead of it.
- *A voter counts once*, by its latest life; a message from an older one changes nothing.
- *A pause counts as time.* A member that was stopped for P may change its favourite; but it first listens, because it
  was deaf, and the others not silent.
- *Whoever cannot hear a majority is no candidate*, and says so: the highest of all would otherwise be everybody's
  favourite for ever while it is deaf. A favourite that has not come to lead within P is given up for a leader, or for
  a higher candidate: the text breaks off in the sentence that says how long a member sticks to a living favourite.
- *A fresh member joins the leader that there is*, and only without one the highest candidate.

*Ending in good order.* A member may publish a `floor`: "I act on no bound up to this, now or ever". A voter whose last
declaration is not above its favourite's floor has no promise to keep, and changes at once. One that stops says: on
none.

*Terms.* Each declaration carries the highest term that its maker knows, which was on disk before. Who comes to have a
majority takes a higher term than all of these and itself, publishes it, and acts when a majority declare it with a
term at least as high. It drops the term when its majority lapses, be it for a moment. So: a later leader's majority
shares a member with the one that an earlier one acted on. That member had published the earlier term before it changed
over, and it did so before the later leader chose. If a leader kept a term that it chose before it lost its majority,
another could have acted under a higher one in between.

*Two classes.* With `first_class`, only that many members vote, and gossip twice as often, every other time among
themselves. They are the highest ones at first, and then the leader replaces those that are dead. A change of the
electorate goes over a *joint* one, as in Raft: the leader publishes (old, new) and acts by majorities of both; when
majorities of both declare it under that electorate, it publishes (new, new). Each declaration names the latest
electorate that its maker knows, which was on disk before, and nobody counts a declaration under an electorate that it
has not taken over. So whoever still goes by the old set meets a member of its majority that knows of the joint one.

A member's *uuid* is a hash of its address, so that "highest" is the same for all and for ever, and says nothing of the
order in the list.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from math import inf
from random import Random
from typing import NamedTuple
from zlib import crc32

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder, encode

from neli_router.electors.events import Keep, Led, Nominate, PeerEffect, Prefer, Rebalance, Send
from neli_router.electors.phi import Accrual
from neli_router.electors.scuttlebutt import Ack, Piece, Scuttlebutt, Syn, Update, incarnation_after
from neli_router.electors.settings import GossipSettings
from neli_router.electors.voter import Voter
from neli_router.protocol import Notice

__all__ = ["CAUSES", "FLOOR", "HEARTBEAT", "LEADS", "READY", "TICKS", "Electorate", "Gossip", "Triplet", "uuid_of"]

TICKS = 8192
"""Times travel in ticks, of which a second has this many: whole numbers are short, and halves stay exact."""

URGENT_MAX = 5
"""Members that are asked at once when there is news for all of them. More is quicker, and a burst of datagrams."""

PAUSE_BEATS = 2
"""A beat that is late by this many intervals was slept through."""

HEARTBEAT, READY, LEADS, FLOOR, ELECTORATE, PULSE, WISH = range(7)
"""The keys of a member's state.

    HEARTBEAT   see Triplet
    READY       ()                           it hears a majority, and would lead
    LEADS       (term,)                      it acts under this
    FLOOR       (ticks, successor)           it acts on no bound up to this; whom to favour instead, or NOBODY
    ELECTORATE  (term, count, n, old..., new...)  n is how many the old ones are
    PULSE       (ticks,)                     it lives, although its heartbeat is frozen
    WISH        (place, term)                an operator wants the leader of this term to give way to this place
"""

LAPSED = "no majority declared this member their favourite within P"
TURNED = "it favours another member now"
GAVE = "it gave all partitions away"
OUTLIVED = "others know a later life of this member: its memory was lost, or there are two of it"

ENDS = {LAPSED: "majority_lost", TURNED: "other_favoured", GAVE: "ceded", OUTLIVED: "outlived"}
"""Why leading ended -> the same in a word."""

CAUSES = (("candidate", "favoured"), *(("follower", cause) for cause in ENDS.values()), ("leader", "elected"))
"""All (role, cause): a candidate has a majority, and waits until it declares the new term."""

NOBODY = -1
ON_NONE = (1 << 62) - 1
"""A floor above all bounds."""

GRACE_LEASES = 20
"""In P: how long a tombstone is kept. By then every member that is not cut off has it; others are sent all anew."""


class Triplet(NamedTuple):
    """A member's heartbeat, and what must be said in the same breath: the term and the electorate that it knows."""

    favourite: int
    life: int
    """The favourite's incarnation."""
    elapsed: int
    bound: int
    term: int
    electorate_term: int
    electorate_count: int


class Electorate(NamedTuple):
    """Who votes. The latest has the highest (term, count); a leader numbers its changes."""

    term: int
    change: int
    old: tuple[int, ...]
    new: tuple[int, ...]

    @property
    def tag(self) -> tuple[int, int]:
        return self.term, self.change

    @property
    def is_joint(self) -> bool:
        return self.old != self.new


class _Favour(NamedTuple):
    """A declaration for me."""

    bound: int
    term: int
    tag: tuple[int, int]


class _Memory(Struct, frozen=True, array_like=True):
    """What must outlive the process."""

    incarnation: int
    term: int
    electorate: tuple[int, ...] = ()


_memory: Decoder[_Memory] = Decoder(_Memory)


def uuid_of(address: str) -> str:
    return sha256(address.encode()).hexdigest()[:32]


class Gossip(Voter):
    """One member of a group that elects one leader for all partitions. `memory` is what the last life kept."""

    def __init__(self, settings: GossipSettings, memory: bytes, now: float, *, rng: Random) -> None:
        super().__init__(settings, now, rng=rng)
        self._settings, self._rng = settings, rng
        size, me = settings.size, settings.me
        uuids = [uuid_of(address) for address in settings.peers]
        self._rank = {place: rank for rank, place in enumerate(sorted(range(size), key=lambda p: uuids[p]))}
        highest = sorted(range(size), key=lambda p: uuids[p], reverse=True)
        electors = tuple(sorted(highest[: settings.first_class]))
        self._two_classes = len(electors) < size
        self._electorate = Electorate(0, 0, electors, electors)
        self._term = settings.term_base
        last = 0
        if memory:
            kept = _decode_memory(memory)
            last, self._term = kept.incarnation, max(self._term, kept.term)
            if self._two_classes and kept.electorate:
                self._electorate = _electorate_of(kept.electorate)
        # Members that count P, N or the electorate otherwise would break each other's promises: they hear nothing.
        told = f"{settings.peers} {settings.lease} {settings.drift} {electors}"
        self._slow = (1 - settings.drift) / (1 + settings.drift)
        self._copies = Scuttlebutt(size, me, 0, mark=crc32(told.encode()), grace=GRACE_LEASES * settings.lease)
        self._lives = [0] * size
        self._beats: list[tuple[int, ...] | None] = [None] * size
        self._bases, self._based_at = [-inf] * size, [now] * size
        self._signs = [self._suspicion() for _ in range(size)]
        self._supports: dict[int, _Favour] = {}
        self._given: set[int] = set()
        self._slept = 0.0
        self._hears_until = -inf
        self._beat_at = self._turned_at = now
        self._reason = LAPSED
        self.transitions = Counter(dict.fromkeys(CAUSES, 0))
        self._lost_by = "it has not heard of one"
        """Why there is no leader."""
        self._strangers: set[int] = set()
        self._last_leader: int | None = None
        """The one that was known last."""
        self._begin_life(incarnation_after(last, rng.getrandbits(16)), now)

    def _begin_life(self, incarnation: int, now: float) -> None:
        self._life, self._start = incarnation, now
        self._quiet_until = now + self._settings.wait
        self._kept = False
        self._favourite: tuple[int, int] | None = None
        self._favoured_at = self._declared_at = now
        self._bound = 0
        self._steady = True
        """Whether the favourite shall be declared afresh."""
        self._floor = -1
        self._supports.clear()
        self._lead_term: int | None = None
        self._acting = False
        self._majority_until = self._acts_until = -inf
        self._successor: int | None = None
        """To whom I give way, as soon as the program has let go."""
        self._named = NOBODY
        """To whom I gave way."""
        self._aside_until = -inf
        self._is_news = False
        self._urgent: dict[int, None] = {}
        self._told_leader: int | None = None
        self._copies.begin(incarnation)
        self._publish_electorate()

    # Questions

    @property
    def leader(self) -> int | None:
        """The place of the member that leads, as far as this one has heard."""
        if self._acting:
            return self._settings.me
        best, found = 0, None
        for place, replica in enumerate(self._copies.replicas):
            leads = replica.get(LEADS)
            if leads and leads[0] > best and self._signs[place].is_alive(self._turned_at - self._slept):
                best, found = leads[0], place
        return found

    @property
    def favourite(self) -> int | None:
        """The place of the member that this one favours."""
        return None if self._favourite is None else self._favourite[0]

    @property
    def electorate(self) -> Electorate:
        return self._electorate

    def tenures(self, now: float) -> dict[int, int]:
        if not self._acting or now >= min(self._acts_until, self._majority_until):
            return {}
        assert self._lead_term is not None
        term = self._lead_term
        return {i: term for i in range(self._settings.layout.partitions) if i not in self._given}

    def _ends(self, partition: int) -> float:
        return min(self._acts_until, self._majority_until)

    def _unwanted(self, now: float) -> Iterable[int]:
        return range(self._settings.layout.partitions) if self._successor is not None else ()

    def _due(self) -> float:
        free_at = self._quiet_until
        if self._favourite is not None:
            free_at = inf if self._steady else self._declared_at + self._settings.wait
        # A choice that found nobody is made again at the next beat.
        return min(self._beat_at, free_at if free_at > self._turned_at else inf)

    @property
    def leaders(self) -> Sequence[Led | None]:
        leader = self.leader
        if leader is None:
            led = Led(None, self._term, self._lost_by)
        elif leader == self._settings.me:
            led = Led(leader, self._lead_term or 0, "a majority favour it")
        else:
            led = Led(leader, self._leads(leader), "it says that it leads")
        return [led] * self._settings.layout.partitions

    @property
    def strangers(self) -> frozenset[int]:
        return frozenset(self._strangers)

    @property
    def _loss(self) -> str:
        return self._reason

    @property
    def _interval(self) -> float:
        """Between two exchanges that this member begins."""
        settings = self._settings
        return settings.beat / 2 if self._two_classes and settings.me in self._electors else settings.beat

    @property
    def _electors(self) -> tuple[int, ...]:
        electorate = self._electorate
        return electorate.new if electorate.old == electorate.new else (*electorate.old, *electorate.new)

    # Messages

    def _hear(self, sender: int, body: bytes, now: float, effects: list[PeerEffect]) -> None:
        self._wake(now, effects)
        message = self._copies.decode(body)
        if message is None or not 0 <= sender < self._settings.size:
            if self._copies.is_foreign and sender not in self._strangers:
                self._strangers.add(sender)
                why = "it has another lease, another first_class or another bound of drift: start all with the same"
                effects.append(Notice("peers.settings_differ", {"peer": self._settings.peers[sender], "why": why}))
            return
        self._strangers.discard(sender)
        refresh = self._refresher(now) if self._settings.relay else None
        answer: bytes | None
        if isinstance(message, Syn):
            answer = self._copies.answer(message, refresh)
            if self._copies.outlived:
                self._begin_another_life(now, effects)
                return
        else:
            self._take(message.pieces, now, effects)
            if self._copies.outlived:
                self._begin_another_life(now, effects)
                return
            answer = self._copies.rest(message.wants, refresh) if isinstance(message, Ack) else None
        if answer is not None:
            effects.append(Send(sender, answer))

    def _take(self, pieces: list[Piece], now: float, effects: list[PeerEffect]) -> None:
        """Bring copies up to date, and clocks, supports and suspicion with them."""
        changed = self._copies.take(pieces, now)
        replicas, beats, lives, signs = self._copies.replicas, self._beats, self._lives, self._signs
        bases, based_at = self._bases, self._based_at
        supports, me, life = self._supports, self._settings.me, self._life
        awake, slow, term = now - self._slept, self._slow * TICKS, self._term
        tag, two_classes = self._electorate.tag, self._two_classes
        for place in changed:
            replica = replicas[place]
            if lives[place] != replica.incarnation:
                # Its clock starts anew. An older life's would be ahead of it, and so would all bounds for it.
                lives[place], bases[place], beats[place] = replica.incarnation, -inf, None
                signs[place] = self._suspicion()
                supports.pop(place, None)
            signs[place].sign(awake)
            held = replica.keys.get(HEARTBEAT)
            beat = None if held is None else held[2]
            if beat is None or beat is beats[place] or len(beat) != 7:
                continue
            beats[place] = beat
            favourite, favoured_life, elapsed, bound, known, electorate_term, electorate_count = beat
            if elapsed > bases[place] + (now - based_at[place]) * slow:
                bases[place], based_at[place] = elapsed, now
            if known > term:  # noqa: PLR1730 - a call of `max` for each of them would be felt.
                term = known
            if two_classes and (electorate_term, electorate_count) > tag:
                tag = self._take_over(replica.get(ELECTORATE)) or tag
            if favourite == me and favoured_life == life:
                supports[place] = _Favour(bound, known, (electorate_term, electorate_count))
            elif place in supports:
                del supports[place]
        if self._favourite is not None and self._favourite[0] in changed:
            self._steady = self._sticks(now)  # First: what follows may declare it.
        if term > self._term or tag != self._electorate_published:
            self._term = term
            self._publish_electorate()
            self._keep(effects)
            if self._steady:
                self._declare(now)
                self._is_news = True
        if self._acting:
            self._heed_wishes(changed)

    def _refresher(self, now: float) -> Callable[[int, Update], Update]:
        """The text's own improvement: pass on what I know of a clock, where its owner's last word is older."""

        def refresh(place: int, update: Update) -> Update:
            key, version, value = update
            if key != HEARTBEAT or value is None or len(value) != 7:
                return update
            clock = self._clock(place, now)
            return (key, version, (*value[:2], clock, *value[3:])) if clock > value[2] else update

        return refresh

    # The turn

    def _turn(self, now: float, effects: list[PeerEffect]) -> None:
        self._wake(now, effects)
        self._turned_at = now
        is_beat = now >= self._beat_at
        if is_beat:
            self._look_round(now)
        self._favour(now)
        self._lead(now, effects)
        if is_beat:
            self._beat(now, effects)
            self._tell_leader(effects)
        if self._is_news:
            self._is_news = False
            if self._favourite is not None:
                self._urgent[self._favourite[0]] = None
        self._urgent.pop(self._settings.me, None)
        effects += [Send(place, self._copies.ask()) for place in self._urgent]
        self._urgent.clear()

    def _tell_leader(self, effects: list[PeerEffect]) -> None:
        """Let people know whom the group follows. Of itself a member tells by what it acquires."""
        if (leader := self.leader) == self._told_leader:
            return
        me, peers = self._settings.me, self._settings.peers
        if leader is not None and leader != self._last_leader:
            self.leader_changes += self._last_leader is not None
            self._last_leader = leader
        if leader is None and self._told_leader != me and self._told_leader is not None:
            farewell = self._farewell_of(self._told_leader)
            effects.append(farewell)
            self._lost_by = str(farewell.fields["reason"])
        elif leader is not None and leader != me:
            effects.append(Notice("leader.found", {"peer": peers[leader], "term": self._leads(leader)}))
        self._told_leader = leader

    def _farewell_of(self, leader: int) -> Notice:
        """How people are told that this one leads no more."""
        peer, floor = self._settings.peers[leader], self._copies.replicas[leader].get(FLOOR)
        if floor is not None and len(floor) == 2 and (floor[0] == ON_NONE or floor[1] != NOBODY):
            heir = NOBODY if floor[0] == ON_NONE else floor[1]
            whom = "it stopped" if heir == NOBODY else f"it gave way to {self._settings.peers[heir]}"
            return Notice("leader.ceded", {"peer": peer, "reason": whom})
        lives = self._signs[leader].is_alive(self._turned_at - self._slept)
        why = "it says that it leads no more: it lost its majority" if lives else "nothing is heard of it"
        return Notice("leader.missed", {"peer": peer, "reason": why})

    def _wake(self, now: float, effects: list[PeerEffect]) -> None:
        """Let time pass first: what is heard late must not hide that the majority had lapsed before."""
        if not self._kept:
            self._kept = True
            self._keep(effects)
        if now > self._beat_at + PAUSE_BEATS * self._settings.beat:
            self._slept += now - self._beat_at
            self._beat_at = now
        if self._lead_term is not None and (now >= self._majority_until or (self._acting and now >= self._acts_until)):
            self._end_lead(now, LAPSED)

    def _look_round(self, now: float) -> None:
        """Find out whether I am a candidate, and whether I stick to my favourite."""
        own, awake = self._copies.own, now - self._slept
        # One that leads is heard by a majority, and a short outage shall not unseat it: P decides.
        hears = self._acting or self._hears_majority(awake)
        aside = now < self._aside_until or (self._closing and self._lead_term is None)
        if hears and not aside and self._settings.me in self._electors:
            if own.get(READY) is None:
                self._copies.set(READY, ())
        else:
            self._copies.delete(READY, now)
        if aside and self._floor < ON_NONE:
            self._raise_floor(self._elapsed(now))
        self._steady = self._sticks(now)
        if (
            self._steady
            and self._favourite is not None
            and now >= self._favoured_at + self._settings.wait
            and not self._leads(self._favourite[0])
            and self._choose(now) != self._favourite
        ):
            self._steady = False

    def _hears_majority(self, awake: float) -> bool:
        """Whether a majority of the electorate seem alive. It is put off to look at each of a hundred."""
        if awake >= self._hears_until:
            mine, signs = self._electorate, self._signs
            until = inf
            for part in {mine.old, mine.new}:
                ends = sorted((inf if p == self._settings.me else signs[p].until for p in part), reverse=True)
                until = min(until, ends[len(part) // 2])
            self._hears_until = until
        return awake < self._hears_until

    def _beat(self, now: float, effects: list[PeerEffect]) -> None:
        # In step with the last one, unless that is past: then beats would come one after another.
        self._beat_at = next_at if (next_at := self._beat_at + self._interval) > now else now + self._interval
        self._copies.purge(now)
        if self._acting and self._two_classes:
            self._govern(now, effects)
        if self._steady:
            self._declare(now)
        else:
            self._copies.set(PULSE, (self._elapsed(now),))
        if self._settings.size > 1:
            self._urgent[self._partner(now)] = None

    def _partner(self, now: float) -> int:
        """Whom to exchange with: anybody; of first-class citizens, every other time one of them. Mostly the living."""
        me, pool = self._settings.me, range(self._settings.size)
        if self._two_classes and me in self._electors and self._rng.random() < 0.5:
            among = [place for place in self._electors if place != me]
        else:
            among = []
        chosen = me
        for _ in range(4):
            chosen = self._rng.choice(among) if among else self._rng.choice(pool)
            if chosen != me and self._signs[chosen].is_alive(now - self._slept):
                break
        return chosen if chosen != me else (me + 1) % self._settings.size

    def _declare(self, now: float) -> None:
        """Say afresh whom I favour, as of now."""
        elapsed = self._elapsed(now)
        place, life, bound = NOBODY, 0, 0
        if self._favourite is not None:
            place, life = self._favourite
            bound = self._clock(place, now)
        tag = self._electorate.tag
        self._copies.set(HEARTBEAT, Triplet(place, life, elapsed, bound, self._term, *tag))
        self._declared_at, self._bound = now, bound
        if place == self._settings.me:
            self._supports[place] = _Favour(bound, self._term, tag)
        else:
            self._supports.pop(self._settings.me, None)

    # The favourite

    def _favour(self, now: float) -> None:
        """Choose another favourite, if the one I have will not do and I am free."""
        if self._favourite is None:
            if now < self._quiet_until:
                return
        elif self._steady or not self._is_free(now):
            return
        chosen = self._choose(now)
        self._steady = True
        if chosen == self._favourite:
            return
        if self._favourite is not None and self._favourite[0] == self._settings.me:
            self._end_lead(now, TURNED)
        self._favourite, self._favoured_at = chosen, now
        self._declare(now)
        self._is_news = True

    def _is_free(self, now: float) -> bool:
        """Whether nobody leads by a declaration of mine, nor can."""
        assert self._favourite is not None
        place, life = self._favourite
        if place == self._settings.me or now >= self._declared_at + self._settings.wait:
            return True
        replica = self._copies.replicas[place]
        floor = replica.get(FLOOR)
        return replica.incarnation == life and floor is not None and floor[0] >= self._bound

    def _sticks(self, now: float) -> bool:
        """Whether my favourite lives and would lead."""
        if self._favourite is None:
            return True
        place, life = self._favourite
        if self._settings.me not in self._electors:
            return False
        if place == self._settings.me:
            return self._copies.own.get(READY) is not None
        replica = self._copies.replicas[place]
        return (
            replica.incarnation == life
            and replica.get(READY) is not None
            and place in self._electors
            and self._signs[place].is_alive(now - self._slept)
        )

    def _choose(self, now: float) -> tuple[int, int] | None:
        """The leader, if there is one; whom the last one named; or the candidate with the highest uuid."""
        me, awake, replicas = self._settings.me, now - self._slept, self._copies.replicas
        if me not in self._electors:
            return None
        candidates = [
            place
            for place in dict.fromkeys(self._electors)
            if replicas[place].get(READY) is not None
            and (place == me or (self._signs[place].is_alive(awake) and self._bases[place] > -inf))
        ]
        if not candidates:
            return None
        named = NOBODY
        if self._favourite is not None and (floor := replicas[self._favourite[0]].get(FLOOR)) and len(floor) == 2:
            named = floor[1]
        best = max(candidates, key=lambda place: (self._leads(place), place == named, self._rank[place]))
        return best, replicas[best].incarnation

    def _leads(self, place: int) -> int:
        """The term under which it says that it leads; 0 if it does not."""
        leads = self._copies.replicas[place].get(LEADS)
        return leads[0] if leads else 0

    # Leading

    def _lead(self, now: float, effects: list[PeerEffect]) -> None:
        """Am I the leader?"""
        self._majority_until = self._until(0)
        if self._lead_term is None:
            if now >= self._majority_until or self._copies.own.get(READY) is None:
                return
            self._lead_term = self._term = 1 + max(self._term, *(support.term for support in self._supports.values()))
            self._given.clear()
            self._keep(effects)
            if self._steady:
                self._declare(now)
            self._tell_voters()
            self.transitions["candidate", "favoured"] += 1
        elif now >= self._majority_until:
            self._end_lead(now, LAPSED)
            return
        self._acts_until = self._until(self._lead_term)
        if now < self._acts_until:
            if not self._acting:
                self._acting, self._reason = True, LAPSED
                self.transitions["leader", "elected"] += 1
                self._copies.set(LEADS, (self._lead_term,))
                self._tell_voters()
        elif self._acting:
            self._end_lead(now, LAPSED)

    def _until(self, term: int) -> float:
        """Until when a majority's declarations hold, of those with at least this term."""
        floor, mine = self._floor, self._electorate
        if 2 * len(self._supports) <= min(len(mine.old), len(mine.new)):
            return -inf
        bounds = {
            place: each.bound
            for place, each in self._supports.items()
            if each.bound > floor and each.term >= term and each.tag <= mine.tag
        }
        least = ON_NONE
        for part in {mine.old, mine.new}:
            theirs = sorted((bounds[place] for place in part if place in bounds), reverse=True)
            if 2 * len(theirs) <= len(part):
                return -inf
            least = min(least, theirs[len(part) // 2])
        return self._start + least / TICKS + self._settings.lease

    def _end_lead(self, now: float, reason: str) -> None:
        """I act no more on anything that was declared up to now."""
        if self._lead_term is None:
            return
        self._reason = self._lost_by = reason
        self.transitions["follower", ENDS[reason]] += 1
        self._lead_term, self._acting = None, False
        self._majority_until = self._acts_until = -inf
        self._copies.delete(LEADS, now)
        self._named, self._successor = NOBODY if self._successor is None else self._successor, None
        self._raise_floor(self._elapsed(now))
        self._tell_voters()

    def _raise_floor(self, floor: int) -> None:
        self._floor = max(self._floor, floor)
        self._copies.set(FLOOR, (self._floor, self._named))

    def _tell_voters(self) -> None:
        """There is news of me that my voters wait for."""
        others = sorted(place for place in self._supports if place != self._settings.me)
        for place in others if len(others) <= URGENT_MAX else self._rng.sample(others, URGENT_MAX):
            self._urgent[place] = None

    def _cede(self, partitions: Iterable[int], now: float, effects: list[PeerEffect]) -> None:
        self._given.update(partitions)
        if len(self._given) < self._settings.layout.partitions:
            return
        if self._lead_term is not None:
            self._aside_until = now + 2 * self._settings.wait
            self._copies.delete(READY, now)
            self._end_lead(now, GAVE)
        if self._closing:
            # The process ends: a voter that hears this waits for nothing, whatever it declares in the meantime.
            self._copies.delete(READY, now)
            if self._floor < ON_NONE:
                self._raise_floor(ON_NONE)
                body = self._copies.farewell()
                effects.extend(Send(i, body) for i in range(self._settings.size) if i != self._settings.me)

    def _nominate(self, event: Nominate | Prefer | Rebalance, now: float, effects: list[PeerEffect]) -> None:
        if not isinstance(event, Nominate) or not 0 <= event.node < self._settings.size:
            return
        if self._acting:
            self._give_way(event.node)
        elif (leader := self.leader) is not None:
            self._copies.set(WISH, (event.node, self._leads(leader)))
            self._urgent[leader] = None

    def _heed_wishes(self, changed: Iterable[int]) -> None:
        for place in changed:
            wish = self._copies.replicas[place].get(WISH)
            if wish and len(wish) == 2 and wish[1] == self._lead_term:
                self._give_way(wish[0])

    def _give_way(self, place: int) -> None:
        """Let this member lead instead, if it would."""
        is_able = place in self._electors and self._copies.replicas[place].get(READY) is not None
        if is_able and place != self._settings.me and self._successor is None:
            self._successor = place

    # The electorate

    def _govern(self, now: float, effects: list[PeerEffect]) -> None:
        """Replace dead first-class citizens, over a joint electorate."""
        mine, awake = self._electorate, now - self._slept
        assert self._lead_term is not None
        if mine.is_joint:
            holding = {
                place
                for place, each in self._supports.items()
                if each.tag == mine.tag
                and each.bound > self._floor
                and now < self._start + each.bound / TICKS + self._settings.lease
            }
            if any(2 * len(holding & set(part)) <= len(part) for part in (mine.old, mine.new)):
                return
            old, new = mine.new, mine.new
        else:
            living = [p for p in mine.new if p == self._settings.me or self._signs[p].is_alive(awake)]
            spare = [
                p
                for p in sorted(self._rank, key=lambda p: self._rank[p], reverse=True)
                if p not in mine.new and self._signs[p].is_alive(awake)
            ]
            dead = [p for p in mine.new if p not in living and awake >= self._signs[p].last + self._settings.wait]
            swapped = dict(zip(dead, spare, strict=False))
            if not swapped:
                return
            old, new = mine.new, tuple(sorted(swapped.get(p, p) for p in mine.new))
        count = mine.change + 1 if mine.term == self._lead_term else 1
        self._electorate = Electorate(self._lead_term, count, old, new)
        effects.append(Notice("electorate.changed", {"term": self._lead_term, "old": list(old), "new": list(new)}))
        self._publish_electorate()
        self._keep(effects)
        self._tell_voters()

    def _take_over(self, value: tuple[int, ...] | None) -> tuple[int, int] | None:
        """The tag of an electorate that somebody published and that is now mine."""
        if not value or len(value) < 4 or value[:2] <= self._electorate.tag:
            return None
        self._electorate = _electorate_of(value)
        return self._electorate.tag

    def _publish_electorate(self) -> None:
        """Say it before a heartbeat names it, so that nobody has the heartbeat without it."""
        mine = self._electorate
        if self._two_classes and self._copies.own.get(ELECTORATE) != (value := _flat(mine)):
            self._copies.set(ELECTORATE, value)
        self._electorate_published = mine.tag
        self._hears_until = -inf

    # Helpers

    def _begin_another_life(self, now: float, effects: list[PeerEffect]) -> None:
        """Others remember a later life of mine than I do: my disk was lost. This life's words are lost on them."""
        later = self._copies.outlived
        self._end_lead(now, OUTLIVED)
        self._begin_life(incarnation_after(later, self._rng.getrandbits(16)), now)
        effects.append(Notice("memory.lost", {"incarnation": self._life}))
        self._wake(now, effects)

    def _keep(self, effects: list[PeerEffect]) -> None:
        electorate = _flat(self._electorate) if self._two_classes else ()
        effects.append(Keep(encode(_Memory(self._life, self._term, electorate))))

    def _elapsed(self, now: float) -> int:
        return int((now - self._start) * TICKS)

    def _clock(self, place: int, now: float) -> int:
        """C_N(N'): a lower bound of that member's elapsed time, in ticks."""
        if place == self._settings.me:
            return self._elapsed(now)
        return int(self._bases[place] + (now - self._based_at[place]) * self._slow * TICKS)

    def _suspicion(self) -> Accrual:
        beat = self._settings.beat
        return Accrual(
            phi_max=self._settings.phi_max,
            window=self._settings.window,
            mean_first=beat,
            deviation_min=beat / 2,
        )


def _decode_memory(memory: bytes) -> _Memory:
    try:
        return _memory.decode(memory)
    except MsgspecError:
        # As if it was lost: whoever heard of me knows my older lives.
        return _Memory(0, 0)


def _flat(electorate: Electorate) -> tuple[int, ...]:
    return (electorate.term, electorate.change, len(electorate.old), *electorate.old, *electorate.new)


def _electorate_of(value: tuple[int, ...]) -> Electorate:
    term, count, size, *places = value
    return Electorate(term, count, tuple(places[:size]), tuple(places[size:]))
