"""Leader election on top of Scuttlebutt: members declare a favourite, and a majority makes a leader.

              quiet P                     it seems dead, or it may not lead             P since the last declaration
    start ---------------> (chooses) --> favours, declares ------------> frozen --------------------------------------.
                               ^             ^                             | it is heard again                        |
                               |             '-----------------------------'                                          |
                               '--------------------------------------------------------------------------------------'

`election.py` defines which declarations make a leader, why there is at most one, and who votes. This module carries the
declarations. They are part of each member's state, which Scuttlebutt brings to all others. Phi-accrual suspicion
decides which members are alive. Every interval, a member repeats its declaration. While it is frozen, it only *pulses*,
or the others would consider it dead. The text leaves some points open. These rules settle them:

- *The highest uuid among the candidates* is the choice of a member without a living favourite; but a new member joins
  the present leader, if there is one. A member's uuid is a hash of its address. So "highest" is the same for all
  members, never changes, and is independent of the order in the list.
- *A pause counts as time.* A member that was stopped for P may change its favourite. But it listens first, because it
  was deaf while the others were not silent.
- *A member that cannot hear a majority is not a candidate*, and says so. Otherwise the highest member would remain
  every other's favourite while it is deaf. A favourite that does not lead within P is given up for a leader or for a
  higher candidate. The text breaks off in the sentence that says how long a member sticks to a living favourite.
- *With two classes*, only `first_class` members vote. They gossip twice as often, every other time among themselves.
  They are the highest members at first; later, the leader replaces dead ones.
- *A drained member* is the last candidate. No member favours it while another would lead, and if it leads, it gives way
  to another one, unless an operator named it. If all are drained, the highest of them leads. The memory holds the
  drain, because an operator who drained a host expects it to stay drained after a restart.

A member that gives way or closes raises its floor. Voters that hear this change over without a wait.
"""

from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from math import inf
from random import Random
from zlib import crc32

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder, encode

from neli_router.protocols.electors.events import COUNT_MAX, Keep, Led, Nominate, PeerEffect, Prefer, Rebalance, Send
from neli_router.protocols.electors.machine import PeerMachine
from neli_router.protocols.electors.priority import LEAST
from neli_router.protocols.electors.settings import GossipSettings
from neli_router.protocols.gossip.clocks import BiasedClocks
from neli_router.protocols.gossip.election import NOBODY, ON_NONE, Electorate, GossipElection
from neli_router.protocols.gossip.phi import Signs
from neli_router.protocols.gossip.scuttlebutt import (
    Ack,
    Piece,
    Refresh,
    Scuttlebutt,
    Syn,
    Update,
    Value,
    incarnation_after,
)
from neli_router.protocols.protocol import Notice

__all__ = ["CAUSES", "ELECTORATE", "FLOOR", "HEARTBEAT", "LAPSED", "LEADS", "READY", "WISH", "GossipMachine", "uuid_of"]

URGENT_MAX = 5
"""Members that are contacted immediately when all of them wait for news. More is quicker, and a burst of datagrams."""

PAUSE_BEATS = 2
"""A beat that is late by this many intervals means that the member was paused."""

HEARTBEAT, READY, LEADS, FLOOR, ELECTORATE, PULSE, WISH = range(7)
"""The keys of a member's state.

    HEARTBEAT   see Triplet
    READY       ()                           it hears a majority, and would lead
                (1,)                         ... only while no other would; older releases see no difference
    LEADS       (term,)                      it acts under this
    FLOOR       (ticks, successor)           it acts on no bound up to this; whom to favour instead, or NOBODY
    ELECTORATE  (term, change, n, old..., new...)  n is how many the old ones are
    PULSE       (ticks,)                     it lives, although its heartbeat is frozen
    WISH        (place, term)                an operator wants the leader of this term to give way to this place
"""

LAPSED = "for a lease, no majority declared this member their favourite"
TURNED = "this member favours another one now"
LAST_CHOICE = (1,)
GAVE = "this member gave all partitions away"
OUTLIVED = "others know a later life of this member: its memory was lost, or there are two of it"

ENDS = {LAPSED: "majority_lost", TURNED: "other_favoured", GAVE: "ceded", OUTLIVED: "outlived"}
"""Why leading ended -> the cause, in a word."""

CAUSES = (("candidate", "favoured"), *(("follower", cause) for cause in ENDS.values()), ("leader", "elected"))
"""All (role, cause). A candidate has a majority, and waits until the majority declares the new term."""


class _Memory(Struct, frozen=True, array_like=True):
    """The state that must outlive the process."""

    incarnation: int
    term: int
    electorate: tuple[int, ...] = ()
    wait: float = 0.0
    """How long earlier declarations may keep a member leading. Memories of older releases lack it."""
    drained: bool = False
    voters_mark: int = 0
    """A mark of the list and the classes that the electorate belongs to: under others it means nothing."""


_memory: Decoder[_Memory] = Decoder(_Memory)


def uuid_of(address: str) -> str:
    return sha256(address.encode()).hexdigest()[:32]


class GossipMachine(PeerMachine):
    """One member of a group that elects one leader for all partitions. `memory` is what its last life kept."""

    _settings: GossipSettings

    def __init__(self, settings: GossipSettings, memory: bytes, now: float, *, rng: Random) -> None:
        super().__init__(settings, CAUSES, rng=rng)
        self._rng = rng
        size, me = settings.size, settings.me
        ascending = sorted(range(size), key=lambda p: uuid_of(settings.peers[p]))
        self._rank = {place: rank for rank, place in enumerate(ascending)}
        electors = tuple(sorted(ascending[-settings.voters :]))
        self._two_classes = len(electors) < size
        electorate = Electorate.first(electors)
        self._voters_mark = crc32(f"{settings.peers} {electors}".encode())
        last, term, self._owed = 0, settings.term_base, 0.0
        if memory:
            kept = _decode_memory(memory)
            last, term, self._owed = kept.incarnation, max(term, kept.term), kept.wait
            self._drain_itself(kept.drained)
            if self._two_classes and kept.electorate and kept.voters_mark == self._voters_mark:
                electorate = Electorate.of(kept.electorate)
        # Members that count P, N or the electorate differently would break each other's promises, so they hear nothing.
        told = f"{settings.peers} {settings.lease} {settings.drift} {electors}"
        self._copies = Scuttlebutt(size, me, 0, mark=crc32(told.encode()))
        life = incarnation_after(last, rng.getrandbits(16))
        self._clocks = BiasedClocks(size, me, now, drift=settings.drift)
        self._election = GossipElection(
            me,
            electorate,
            self._clocks,
            now,
            lease=settings.lease,
            wait=settings.wait,
            owed=self._owed,
            life=life,
            term=term,
        )
        beat = settings.beat
        self._signs = Signs(
            size,
            phi_max=settings.phi_max,
            window=settings.window,
            mean_first=beat,
            deviation_min=beat / 2,
            limit_max=settings.lease,
        )
        self._leaders: set[int] = set()
        self._wishers: set[int] = set()
        """The other members whose copy here holds LEADS, or WISH."""
        self._given: set[int] = set()
        self._slept = 0.0
        self._hears_until = -inf
        self._beat_at = self._turned_at = now
        self._why = LAPSED
        self._lost_by = "this member has not heard of one yet"
        """The reason for having no leader."""
        self._before: tuple[int, str] | None = None
        """The leader before the present one, and why it no longer leads; for display."""
        self._last_leader: int | None = None
        """The last known leader."""
        self._begin_life(now)

    def _begin_life(self, now: float) -> None:
        """Reset everything that the election does not reset itself."""
        self._kept = False
        self._favoured_at = now
        self._steady = True
        """Whether to keep declaring the favourite."""
        self._successor: int | None = None
        """The member to give way to, once the program has let go; myself for any member, because I was drained."""
        self._named = NOBODY
        """The member that I gave way to."""
        self._aside_until = -inf
        self._was_named = False
        """Whether an operator wants me to lead, although I was drained."""
        self._is_news = False
        self._urgent: dict[int, None] = {}
        self._told_leader: int | None = None
        self._copies.begin(self._election.life)
        self._publish_electorate()

    # Questions

    @property
    def leader(self) -> int | None:
        """The place of the leader, as far as this member has heard."""
        if self._election.acting:
            return self._settings.me
        best, found = 0, None
        for place in self._leaders:
            term = self._leads(place)
            if term > best and self._signs.is_alive(place, self._turned_at - self._slept):
                best, found = term, place
        return found

    @property
    def favourite(self) -> int | None:
        """The place of this member's favourite."""
        return None if (favourite := self._election.favourite) is None else favourite[0]

    @property
    def electorate(self) -> Electorate:
        return self._election.electorate

    def tenures(self, now: float) -> dict[int, int]:
        if (term := self._election.tenure(now)) is None:
            return {}
        return {i: term for i in range(self._settings.layout.partitions) if i not in self._given}

    def _ends(self, partition: int) -> float:
        return self._election.ends

    def _unwanted(self, now: float) -> Iterable[int]:
        return range(self._settings.layout.partitions) if self._successor is not None else ()

    def _due(self) -> float:
        election = self._election
        free_at = inf if self._steady and election.favourite is not None else election.free_at
        # A choice without a result is repeated at the next beat.
        return min(self._beat_at, free_at if free_at > self._turned_at else inf)

    @property
    def leaders(self) -> Sequence[Led | None]:
        leader = self.leader
        if leader is None:
            told = self._told_leader  # Its end is reported at the next beat.
            led = Led(None, self._election.term, self._lost_by if told is None else self._end_of(told))
        elif leader == self._settings.me:
            why = self._end_before(leader)
            led = Led(leader, self._election.lead_term or 0, "; ".join(filter(None, (why, "a majority favour it"))))
        else:
            led = Led(leader, self._leads(leader), self._end_before(leader) or "it says that it leads")
        return [led] * self._settings.layout.partitions

    @property
    def electorates(self) -> Collection[tuple[int, ...]]:
        electorate = self._election.electorate
        return {electorate.old, electorate.new}

    @property
    def _interval(self) -> float:
        """The time between two exchanges that this member begins."""
        settings = self._settings
        return settings.beat / 2 if self._two_classes and settings.me in self._electors else settings.beat

    @property
    def _electors(self) -> tuple[int, ...]:
        return self._election.electorate.places

    # Messages

    def _hear(self, sender: int, body: bytes, now: float, effects: list[PeerEffect]) -> None:
        self._wake(now, effects)
        message = self._copies.decode(body)
        if message is None or not 0 <= sender < self._settings.size:
            if self._copies.is_foreign and sender not in self.strangers:
                self.strangers.add(sender)
                why = "it has another lease, or settings of another release: start all with the same lease and release"
                effects.append(Notice("peers.settings_differ", {"peer": self._settings.peers[sender], "why": why}))
            return
        self.strangers.discard(sender)
        refresh = self._refresher(now) if self._settings.relay else None
        answer: bytes | None = None
        if isinstance(message, Syn):
            answer = self._copies.answer(message, refresh)
        else:
            self._take(message.pieces, now, effects)
        if self._copies.outlived:
            self._begin_another_life(now, effects)
            return
        if isinstance(message, Ack):
            answer = self._copies.rest(message.wants, refresh)
        if answer is not None:
            effects.append(Send(sender, answer))

    def _take(self, pieces: list[Piece], now: float, effects: list[PeerEffect]) -> None:
        """Bring copies up to date, and with them the clocks, supports and suspicion."""
        election, copies = self._election, self._copies
        two_classes, favourite = self._two_classes, self.favourite
        term, electorate = election.term, election.electorate
        beats, changed = copies.take(pieces, HEARTBEAT)
        for place in changed:
            self._look_at(place)
            beats[place] = copies.get(place, HEARTBEAT)
        for place, beat in beats.items():
            if beat is not None and len(beat) == 7:
                if two_classes and beat[5:] > election.electorate.tag:
                    self._take_over(copies.get(place, ELECTORATE))
                election.hear(place, beat, now)
        self._signs.sign(beats, now - self._slept)
        if favourite in beats:
            self._steady = self._sticks(now)  # First, because the code below may declare it.
        if election.term > term or election.electorate is not electorate:
            self._publish_electorate()
            self._keep(effects)
            if self._steady:
                self._declare(now)
                self._is_news = True
        if election.acting and self._wishers:
            self._heed_wishes()

    def _look_at(self, place: int) -> None:
        """More than the heartbeat has changed in the copy of this member's state."""
        if self._clocks.lives[place] != (life := self._copies.lives[place]):
            self._election.meet(place, life)
            self._signs.forget(place)
        if floor := self._copies.get(place, FLOOR):
            self._election.hear_floor(place, floor[0])
        for key, places in ((LEADS, self._leaders), (WISH, self._wishers)):
            (places.discard if self._copies.get(place, key) is None else places.add)(place)

    def _refresher(self, now: float) -> Refresh:
        """The text's own improvement: pass on what I know of a clock, where its owner's last word is older."""

        def refresh(place: int, key: int, version: int, value: Value | None) -> Update:
            if key == HEARTBEAT and value is not None and len(value) == 7 and self._clocks.knows(place):
                elapsed = max(value[2], self._clocks.read(place, now))
                value = (*value[:2], elapsed, *value[3:])
            return key, version, value

        return refresh

    # The turn

    def _turn(self, now: float, effects: list[PeerEffect]) -> None:
        self._wake(now, effects)
        self._turned_at = now
        is_beat = now >= self._beat_at
        if is_beat:
            self._look_round(now)
        self._favour(now)
        if self._election.supports or self._election.lead_term is not None:
            self._lead(now, effects)
        if is_beat:
            self._beat(now, effects)
            self._tell_leader(effects)
        if self._is_news:
            self._is_news = False
            if (favourite := self.favourite) is not None:
                self._urgent[favourite] = None
        self._urgent.pop(self._settings.me, None)
        effects += [Send(place, self._copies.ask()) for place in self._urgent]
        self._urgent.clear()

    def _tell_leader(self, effects: list[PeerEffect]) -> None:
        """Report whom the group follows. A member's own lead shows in what it acquires."""
        if (leader := self.leader) == self._told_leader:
            return
        me, peers = self._settings.me, self._settings.peers
        if (told := self._told_leader) is not None:
            self._before = told, self._end_of(told)
        if leader is not None and leader != self._last_leader:
            self.leader_changes += self._last_leader is not None
            self._last_leader = leader
        if leader is None and told is not None and told != me:
            event, self._lost_by = self._farewell_of(told)
            effects.append(Notice(event, {"peer": peers[told], "reason": self._lost_by}))
        elif leader is not None and leader != me:
            effects.append(Notice("leader.found", {"peer": peers[leader], "term": self._leads(leader)}))
        self._told_leader = leader

    def _end_of(self, leader: int) -> str:
        return self._lost_by if leader == self._settings.me else self._farewell_of(leader)[1]

    def _end_before(self, leader: int) -> str:
        """Why the leader before `leader` no longer leads; empty if this member knew of none."""
        before, told = self._before, self._told_leader
        if told is not None and told != leader:  # It is reported at the next beat.
            before = told, self._end_of(told)
        return "" if before is None or before[0] == leader else before[1]

    def _farewell_of(self, leader: int) -> tuple[str, str]:
        """The event of the notice that this leader no longer leads, and the reason."""
        peer, floor = self._settings.peers[leader], self._copies.get(leader, FLOOR)
        if floor is not None and len(floor) == 2 and (floor[0] == ON_NONE or 0 <= floor[1] < self._settings.size):
            if floor[0] == ON_NONE:
                why = f"{peer} stopped"
            elif floor[1] == leader:
                why = f"{peer} was drained, and gave way"
            else:
                why = f"{peer} gave way to {self._settings.peers[floor[1]]}"
            return "leader.ceded", why
        lives = self._signs.is_alive(leader, self._turned_at - self._slept)
        why = f"{peer} says that it no longer leads: it lost its majority" if lives else f"nothing is heard of {peer}"
        return "leader.missed", why

    def _wake(self, now: float, effects: list[PeerEffect]) -> None:
        """Let time pass first: a late message must not hide that the majority had lapsed before."""
        if not self._kept:
            self._kept = True
            self._keep(effects)
        if now > self._beat_at + PAUSE_BEATS * self._settings.beat:
            self._slept += now - self._beat_at
            self._beat_at = now
        if self._election.has_lapsed(now):
            self._end_lead(now, LAPSED)

    def _look_round(self, now: float) -> None:
        """Determine whether I am a candidate, and whether I stick to my favourite."""
        election, awake = self._election, now - self._slept
        # A leader is heard by a majority, and a short outage must not unseat it: P decides.
        hears = election.acting or self._hears_majority(awake)
        aside = now < self._aside_until or (self._closing and election.lead_term is None)
        if hears and not aside and self._settings.me in self._electors:
            ready = LAST_CHOICE if self.drained else ()
            if self._copies.get(self._settings.me, READY) != ready:
                self._copies.set(READY, ready)
        else:
            self._copies.delete(READY)
        if aside and election.floor < ON_NONE and now >= election.told_until:
            self._raise_floor(self._clocks.elapsed(now))
        if self.drained and election.acting and not self._was_named and self._successor is None:
            others = (self._copies.get(place, READY) for place in self._candidates(now))
            if any(ready != LAST_CHOICE for ready in others):
                self._successor = self._settings.me
        self._steady = self._sticks(now)
        if (
            self._steady
            and election.favourite is not None
            and now >= self._favoured_at + self._settings.wait
            and not self._leads(election.favourite[0])
            and self._choose(now) != election.favourite
        ):
            self._steady = False

    def _hears_majority(self, awake: float) -> bool:
        """Whether a majority of the electorate seem alive. It avoids looking at each of a hundred members."""
        if awake >= self._hears_until:
            me, signs, level = self._settings.me, self._signs, self._election.electorate.level
            heard = level({**dict(enumerate(signs.last)), me: inf})
            assert heard is not None
            self._hears_until = heard + signs.least
            if awake >= self._hears_until:
                until = level({p: inf if p == me else signs.until(p) for p in self._electors})
                assert until is not None
                self._hears_until = until
        return awake < self._hears_until

    def _beat(self, now: float, effects: list[PeerEffect]) -> None:
        # In step with the last beat, unless that time is past: beats must not follow one another without a pause.
        self._beat_at = next_at if (next_at := self._beat_at + self._interval) > now else now + self._interval
        if self._election.acting and self._two_classes:
            self._govern(now, effects)
        if self._steady:
            self._declare(now)
        else:
            self._copies.set(PULSE, (self._clocks.elapsed(now),))
        if self._settings.size > 1:
            self._urgent[self._partner(now)] = None

    def _partner(self, now: float) -> int:
        """The next exchange's partner, mostly a living one. First-class members ask their own class half the time."""
        me, pool = self._settings.me, range(self._settings.size)
        if self._two_classes and me in self._electors and self._rng.random() < 0.5:
            among = [place for place in self._electors if place != me]
        else:
            among = []
        chosen = me
        for _ in range(4):
            chosen = self._rng.choice(among) if among else self._rng.choice(pool)
            if chosen != me and self._signs.is_alive(chosen, now - self._slept):
                break
        return chosen if chosen != me else (me + 1) % self._settings.size

    def _declare(self, now: float) -> None:
        """Repeat whom I favour, as of now."""
        self._copies.set(HEARTBEAT, self._election.declare(now))

    # The favourite

    def _favour(self, now: float) -> None:
        """Choose another favourite, if the present one will not do and I am free."""
        election = self._election
        if (election.favourite is not None and self._steady) or not election.is_free(now):
            return
        chosen = self._choose(now)
        self._steady = True
        if chosen == election.favourite:
            return
        if self.favourite == self._settings.me:
            self._end_lead(now, TURNED)
        self._copies.set(HEARTBEAT, election.favour(chosen, now))
        self._favoured_at = now
        self._is_news = True

    def _sticks(self, now: float) -> bool:
        """Whether my favourite is alive and would lead."""
        if self._election.favourite is None:
            return True
        place, life = self._election.favourite
        if self._settings.me not in self._electors:
            return False
        if place == self._settings.me:
            return self._copies.get(self._settings.me, READY) is not None
        return (
            self._copies.lives[place] == life
            and self._copies.get(place, READY) is not None
            and place in self._electors
            and self._signs.is_alive(place, now - self._slept)
        )

    def _choose(self, now: float) -> tuple[int, int] | None:
        """The leader, if there is one; or the member that the last leader named; or the candidate with the highest
        uuid, with the drained ones behind all others."""
        held, favourite = self._copies.get, self.favourite
        if self._settings.me not in self._electors or not (candidates := self._candidates(now)):
            return None
        named, said = NOBODY, self._election.triplet
        # A name counts if it ends the lead that I declared last, and not an earlier one. Take two members that favour
        # each other, one of which once named the other: both would change over, and back, and so on forever.
        floor = held(favourite, FLOOR) if favourite is not None else None
        if floor and len(floor) == 2 and said is not None and said.bound <= floor[0] and floor[1] != favourite:
            named = floor[1]

        def standing(place: int) -> tuple[int, bool, bool, int]:
            is_willing = held(place, READY) != LAST_CHOICE
            return self._leads(place), place == named, is_willing, self._rank[place]

        best = max(candidates, key=standing)
        return best, self._copies.lives[best]

    def _candidates(self, now: float) -> list[int]:
        """The members that would lead, including those that are a last choice."""
        me, awake, held = self._settings.me, now - self._slept, self._copies.get
        return [
            place
            for place in dict.fromkeys(self._electors)
            if held(place, READY) is not None
            and (place == me or (self._signs.is_alive(place, awake) and self._clocks.knows(place)))
        ]

    def _leads(self, place: int) -> int:
        """The term under which this member says that it leads; 0 if it does not."""
        leads = self._copies.get(place, LEADS)
        return leads[0] if leads else 0

    # Leading

    def _lead(self, now: float, effects: list[PeerEffect]) -> None:
        """Check whether I am the leader."""
        election = self._election
        before, acted, said = election.lead_term, election.acting, election.triplet
        election.lead(now, would=self._copies.get(self._settings.me, READY) is not None, fresh=self._steady)
        if election.lead_term is None:
            if before is not None:
                self._tell_end(now, LAPSED)
            return
        if before is None:
            self._given.clear()
            self._was_named = self._is_heir() or (self._was_named and self._last_leader == self._settings.me)
            if self._named != NOBODY:  # It belonged to the end of another lead.
                self._named = NOBODY
                self._raise_floor(election.floor)
            self._keep(effects)
            if election.triplet is not None and election.triplet is not said:
                self._copies.set(HEARTBEAT, election.triplet)
            self._tell_voters()
            self.transitions["candidate", "favoured"] += 1
        if election.acting and not acted:
            self._why = LAPSED
            self.transitions["leader", "elected"] += 1
            self._copies.set(LEADS, (election.lead_term,))
            self._tell_voters()

    def _is_heir(self) -> bool:
        """Whether the last leader gave way to me."""
        last, me = self._last_leader, self._settings.me
        floor = self._copies.get(last, FLOOR) if last is not None and last != me else None
        return floor is not None and len(floor) == 2 and floor[1] == me

    def _end_lead(self, now: float, reason: str) -> None:
        if self._election.lead_term is not None:
            self._election.end(now, finished=reason == GAVE)
            self._tell_end(now, reason)

    def _tell_end(self, now: float, reason: str) -> None:
        """Announce that I no longer lead."""
        peers, me = self._settings.peers, self._settings.me
        self._why, self._lost_by = reason, reason.replace("this member", peers[me])
        self.transitions["follower", ENDS[reason]] += 1
        self._copies.delete(LEADS)
        self._named, self._successor = NOBODY if self._successor is None else self._successor, None
        if reason == GAVE and self._named not in (NOBODY, me):
            self._lost_by = f"{peers[me]} gave way to {peers[self._named]}"
        self._raise_floor(self._election.floor)
        self._tell_voters()

    def _raise_floor(self, floor: int) -> None:
        self._election.raise_floor(floor)
        self._copies.set(FLOOR, (self._election.floor, self._named))

    def _tell_voters(self) -> None:
        """Send news to the voters that wait for it."""
        others = sorted(place for place in self._election.supports if place != self._settings.me)
        for place in others if len(others) <= URGENT_MAX else self._rng.sample(others, URGENT_MAX):
            self._urgent[place] = None

    def _cede(self, partitions: Iterable[int], now: float, effects: list[PeerEffect]) -> None:
        self._given.update(partitions)
        if len(self._given) < self._settings.layout.partitions:
            return
        if self._election.lead_term is not None:
            self._aside_until = now + 2 * self._settings.wait
            self._copies.delete(READY)
            self._end_lead(now, GAVE)
        if self._closing:
            # The process ends: a voter that hears this need not wait, whatever it declares in the meantime.
            self._copies.delete(READY)
            if self._election.floor < ON_NONE and now >= self._election.told_until:
                self._raise_floor(ON_NONE)
                body = self._copies.farewell()
                effects.extend(Send(i, body) for i in range(self._settings.size) if i != self._settings.me)

    def _nominate(self, event: Nominate | Prefer | Rebalance, now: float, effects: list[PeerEffect]) -> None:
        if isinstance(event, Prefer):
            partitions = range(self._settings.layout.partitions)
            self._drain_itself(all((event.priorities or {}).get(i, 0) <= LEAST for i in partitions))
            self._was_named = False
            self._keep(effects)
            self._beat_at = min(self._beat_at, now)
            return
        if not isinstance(event, Nominate) or not 0 <= event.node < self._settings.size:
            return
        if self._election.acting:
            self._was_named = event.node == self._settings.me
            self._give_way(event.node)
        elif (leader := self.leader) is not None:
            self._copies.set(WISH, (event.node, self._leads(leader)))
            self._urgent[leader] = None

    def _drain_itself(self, drained: bool) -> None:
        self.drained = drained
        self.shed = frozenset(range(self._settings.layout.partitions) if drained else ())

    def _heed_wishes(self) -> None:
        for place in sorted(self._wishers):
            wish = self._copies.get(place, WISH)
            if wish and len(wish) == 2 and wish[1] == self._election.lead_term:
                if wish[0] == self._settings.me:
                    self._was_named = True
                else:
                    self._give_way(wish[0])

    def _give_way(self, place: int) -> None:
        """Let this member lead instead, if it would."""
        is_able = (
            place in self._electors
            and self._copies.get(place, READY) is not None
            and self._signs.is_alive(place, self._turned_at - self._slept)
        )
        if is_able and self._successor is None:
            self._successor = place

    # The electorate

    def _govern(self, now: float, effects: list[PeerEffect]) -> None:
        """Replace dead first-class citizens through a joint electorate."""
        election, awake = self._election, now - self._slept
        mine = election.electorate
        if mine.is_joint:
            if not election.settle(now):
                return
        else:
            living = [p for p in mine.new if p == self._settings.me or self._signs.is_alive(p, awake)]
            spare = [p for p in reversed(self._rank) if p not in mine.new and self._signs.is_alive(p, awake)]
            dead = [p for p in mine.new if p not in living and awake >= self._signs.last[p] + self._settings.wait]
            swapped = dict(zip(dead, spare, strict=False))
            if not swapped:
                return
            election.replace(tuple(sorted(swapped.get(p, p) for p in mine.new)))
        mine = election.electorate
        old, new = (",".join(self._settings.peers[place] for place in part) for part in (mine.old, mine.new))
        effects.append(Notice("electorate.changed", {"term": mine.term, "old": old, "new": new}))
        self._publish_electorate()
        self._keep(effects)
        self._tell_voters()

    def _take_over(self, value: tuple[int, ...] | None) -> None:
        """Take an electorate that some member published."""
        if value and len(value) >= 4 and max(value[:2]) < COUNT_MAX:
            electorate = Electorate.of(value)
            if electorate.old and electorate.new and {*electorate.old, *electorate.new} <= self._rank.keys():
                self._election.take_over(electorate)

    def _publish_electorate(self) -> None:
        """Publish the electorate before a heartbeat names it, so that no member has the heartbeat without it."""
        value = self._election.electorate.flat
        if self._two_classes and self._copies.get(self._settings.me, ELECTORATE) != value:
            self._copies.set(ELECTORATE, value)
        self._hears_until = -inf

    # Helpers

    def _begin_another_life(self, now: float, effects: list[PeerEffect]) -> None:
        """Others know a later life of mine than I do: my disk was lost. They ignore this life's messages."""
        later = self._copies.outlived
        self._end_lead(now, OUTLIVED)
        self._election.begin(incarnation_after(later, self._rng.getrandbits(16)), now)
        self._begin_life(now)
        effects.append(Notice("memory.lost", {"incarnation": self._election.life}))
        self._wake(now, effects)

    def _keep(self, effects: list[PeerEffect]) -> None:
        election = self._election
        electorate = election.electorate.flat if self._two_classes else ()
        # A member with a favourite owes nothing of an older life any longer.
        wait = max(self._owed, self._settings.wait) if election.favourite is None else self._settings.wait
        memory = _Memory(election.life, election.term, electorate, wait, self.drained, self._voters_mark)
        effects.append(Keep(encode(memory)))


def _decode_memory(memory: bytes) -> _Memory:
    try:
        return _memory.decode(memory)
    except MsgspecError:
        # As if it was lost: every peer that heard of me knows my older lives.
        return _Memory(0, 0)
