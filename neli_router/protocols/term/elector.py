"""The elector of BlazingMQ's article: a majority elects the leader of one partition, under growing terms.

               no leader found, and its time to stand           support of a majority
    FOLLOWER ------------------------------------> CANDIDATE --------------------------> LEADER
      ^  ^  (scouting first: it is a FOLLOWER yet)    |                                    |
      |  |                                            |                                    |
      |  '-- time-out, or a higher term is heard -----'                                    |
      '----- a higher term is heard, its majority is lost, or it cedes --------------------'
    DORMANT: this peer is not a replica of the partition. It neither votes nor stands.

The article's rules, in our words. Every message carries a term. Every node has a term of its own, which only grows.

- A node starts as FOLLOWER and looks for a leader. If it finds none, it waits for a random time and then stands.
- To stand, a node proposes itself under its own term + 1. A node says yes to a term higher than its own, whatever its
  role, and adopts that term; otherwise it says no. A majority is N/2 + 1.
- The leader sends heartbeats. A node that discovers a leader announces its support unasked. After three missed
  heartbeats the leader counts as gone. Again each node waits for a random time, so that they do not all stand together.
- A node answers a heartbeat of a lower term with InvalidHeartbeat. An old leader learns of a new one in this way.
- A leader's messages carry a counter next to the term. The pair orders all messages of all leaders. A message that is
  not above the last one seen is stale, and ignored.
- Before a node proposes, it scouts: it asks whether the others would support term + 1. Scouting changes no state. The
  others say yes if they see no leader and the asker stands above them. So a node that cannot hear a healthy leader
  cannot unseat it: neither immediately, nor when it comes back with a term that grew in isolation.

**A lease on top.** At most one node leads a term, but a leader that is cut off believes that it leads until it hears
otherwise. So a LEADER may *act* only from `acts_from` until `acts_until`:

    leader     |--Heartbeat 7----------------------->|        lease, from the sending of what a majority answered
    supporter       |--Support(7)---------------------->|     wait: until then no other acts by my support
    successor                |--Proposal--<--Support(owed)----->| acts

Support for a leader is a promise to it that lasts for `settings.wait`. A node still honours a higher term immediately,
as the article says, but it reports to the new leader how long its promises to others still run: what it `owed`. The new
leader counts that vote for acting only after that time. Two majorities share a node. This node answered the older
leader before it supported the newer one, because afterwards the older leader's heartbeats are stale to it. So the newer
leader acts when the older one's lease is over. A leader that gives up sends Ceded, which ends the promises to it under
that term and all lower ones: it will not act under them again. A leader that a higher term unseats does not send Ceded,
and owes every peer the rest of its lease. Its program knows the end of that lease, and anyone that acts on it, such as
a client of an agent, hears of the loss only after the next leader has its votes. A node that starts owes every peer a
whole wait, because it does not know what it promised before. These rules keep two leaders from acting at the same time.
To keep two nodes from leading under one term, the term must be on disk: a node that forgot it could vote twice under
one term.

**The order of effects.** Remember comes before a vote or a proposal under that term. Became comes before the messages
that follow from it: revoke what the program may do before you send anything. A leader cedes on Cede: let its program
finish first.

The article leaves two corner cases open. *The highest node that reaches no majority*, but is heard by enough others,
would stop each scout forever. So a node proposes without a yes after STARVED_MAX rounds in which a majority answered
and none of them saw a leader. And *a preferred peer* may fail to win when a leader cedes to it. The leader then waits
twice as long before each further attempt.

All containers here are replaced and never changed, so `copy.copy` makes an independent elector. It shares `rng`.
"""

from dataclasses import dataclass, field
from enum import Enum
from math import inf, isfinite
from random import Random
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from neli_router.protocols.electors.priority import DECAY, Priorities, RandomWait
from neli_router.protocols.electors.settings import TermSettings
from neli_router.protocols.protocol import BASE_MAX, Tick

__all__ = [
    "CAUSES",
    "STARVED_MAX",
    "STEADY_TIME_OUTS",
    "Became",
    "Cede",
    "Ceded",
    "Heartbeat",
    "InvalidHeartbeat",
    "Message",
    "Proposal",
    "Rejection",
    "Remember",
    "Role",
    "Said",
    "Scouted",
    "Scouting",
    "Stand",
    "Support",
    "Supporter",
    "Tell",
    "TermEffect",
    "TermElector",
    "TermEvent",
]

STARVED_MAX = 3
"""Failed rounds of scouting before a node proposes anyway. With fewer, a higher node that is only slow loses its
precedence. With more, a group whose highest node is half cut off stays without a leader for longer."""

STEADY_TIME_OUTS = 3
"""A preferred peer is given the lead when it has supported the leader for this many time-outs in a row. A process that
keeps restarting does not get it. A longer time costs balance after each restart."""

DOUBLINGS_MAX = 8
"""A peer that never wins is tried again after 256 times as long at most: a cut heals some day."""

CAUSES = (
    *(("candidate", cause) for cause in ("ceded_to", "named", "no_leader", "scouted", "starved")),
    *(("follower", cause) for cause in ("ceded", "higher_term", "leader_ceded", "leader_found", "leader_missed")),
    *(("follower", cause) for cause in ("majority_lost", "other_proposed", "proposal_failed")),
    ("leader", "elected"),
)
"""All (role, cause) that a `Became` can have. Reasons are for people; these few causes can be counted."""

LEAP_MAX = 2**32
"""No peer is elected this many times while the others hear nothing of it."""

Term = Annotated[int, Meta(ge=0, lt=2**62)]
Count = Annotated[int, Meta(ge=0, lt=2**62)]
"""A peer's number must leave room for `+ 1` in 64 bits."""


# Messages between electors


class Proposal(Struct, frozen=True, array_like=True, tag="P"):
    """ElectionProposal: I want to lead under `term`. Its counter is 0."""

    term: Term


class Support(Struct, frozen=True, array_like=True, tag="S"):
    """Yes to a Proposal (counter 0), or the answer to a heartbeat. It is unsolicited if the heartbeat made its sender
    known. Other leaders' leases on my support end in `owed` seconds."""

    term: Term
    counter: Count
    owed: float
    priority: int


class Rejection(Struct, frozen=True, array_like=True, tag="R"):
    """No to the Proposal of `proposed`: my own term is `term`."""

    term: Term
    proposed: Term


class Heartbeat(Struct, frozen=True, array_like=True, tag="H"):
    """I lead."""

    term: Term
    counter: Count


class InvalidHeartbeat(Struct, frozen=True, array_like=True, tag="I"):
    """Your heartbeat is stale: my own term is `term`."""

    term: Term


class Scouting(Struct, frozen=True, array_like=True, tag="Q"):
    """ElectionScouting: would you support me under `term`?"""

    term: Term
    round: Count
    priority: int


class Scouted(Struct, frozen=True, array_like=True, tag="A"):
    """The answer, under my own `term`. A no states why: I see a leader (`led`), or else I stand above you."""

    term: Term
    round: Count
    yes: bool
    led: bool


class Ceded(Struct, frozen=True, array_like=True, tag="C"):
    """I no longer lead, under `term` or any lower one. `to`, if it is a peer, should lead next."""

    term: Term
    counter: Count
    to: int | None


Message = Proposal | Support | Rejection | Heartbeat | InvalidHeartbeat | Scouting | Scouted | Ceded


# Inputs and effects


@dataclass(frozen=True, slots=True)
class Said:
    """The peer `sender` said this."""

    sender: int
    message: Message
    beat: float = 0.0
    """How long the sender waits between its heartbeats; 0 if it did not say so."""


@dataclass(frozen=True, slots=True)
class Stand:
    """An operator wants this node to lead: it proposes immediately, without scouting."""


@dataclass(frozen=True, slots=True)
class Cede:
    """The program has finished: stop leading. The peer `to` should lead next."""

    to: int | None = None


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this to a peer; None means all other replicas."""

    to: int | None
    message: Message


@dataclass(frozen=True, slots=True)
class Remember:
    """Have the term on disk before any later effect is carried out."""

    term: int


class Role(Enum):
    DORMANT = "dormant"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class Became:
    """The role or the perceived leader has changed, and why."""

    role: Role
    term: int
    leader: int | None
    reason: str
    cause: str = field(default="", compare=False)
    """The reason in a word: one of CAUSES."""


TermEvent = Said | Stand | Cede | Tick
TermEffect = Tell | Remember | Became


class Supporter(NamedTuple):
    """A node that said yes to a candidate or leader."""

    sent_at: float
    """When we sent the newest message that it answered. Its support lasts for a lease from then."""
    clear_at: float
    """When its promises to others are over."""
    priority: int
    since: float
    """When we sent the first of the messages that it has answered without a gap."""


class TermElector:
    """One node's elector of one partition. Not thread-safe. `term` is the last one that was kept on disk, or 0.

    `owed` is how long the promises of its former process ran, where that may be longer than its own do.
    """

    def __init__(
        self,
        settings: TermSettings,
        replicas: tuple[int, ...],
        policy: RandomWait | Priorities,
        term: int,
        now: float,
        *,
        rng: Random,
        owed: float = 0.0,
    ) -> None:
        self.me = settings.me
        self.peers = tuple(peer for peer in replicas if peer != settings.me)
        """The other replicas."""
        self.quorum = len(replicas) // 2 + 1
        self.role = Role.FOLLOWER if settings.me in replicas else Role.DORMANT
        self.term = max(term, settings.term_base)
        self.leader: int | None = None
        self.priority = policy.priority
        """This node's own priority. `prefer` changes it."""
        self.stands = True
        """Whether this node wants to lead. A closing node votes until it is gone, and leaves standing to others."""
        self.acts_from, self.acts_until = inf, -inf
        self._settings, self._policy, self._rng = settings, policy, rng
        self._voted: int | None = None
        """The node that has our vote under the present term."""
        self._owes_until = now + max(settings.wait, owed)
        """Until then, promises of our former process to any peer may still run."""
        self._told_until = self._owes_until
        """Until when the program believes that it may act, under a term that ended early. This includes the former
        process, which may have led when it was killed: a client that acts on its lease may still be alive."""
        self._promises: dict[int, tuple[int, float]] = {}
        """Peer -> the term that we support it under, and until when no other peer acts by that support."""
        self._lsn = (0, 0)
        """The newest (term, counter) heard from a leader."""
        self._lost: int | None = None
        """The leader that was missed last."""
        self._target = policy.target(None)
        self._answers: dict[int, Scouted] | None = None
        """The answers of the present round of scouting; None between rounds."""
        self._round = 0
        self._starved = 0
        """Rounds in a row that failed although a majority answered and none of them saw a leader."""
        self._counter = 0
        self._sent: dict[int, float] = {}
        """Counter -> when we sent it, for a lease."""
        self._supporters: dict[int, Supporter] = {}
        self._rejected: frozenset[int] = frozenset()
        self._begun = False
        """Whether `acts_from` has passed."""
        self._passed: dict[int, int] = {}
        """Peer -> how often we ceded to it since it last led."""
        # A node that starts owes every peer a wait, and looks for a leader meanwhile. Only then the random wait begins.
        self._due = now + settings.wait + policy.patience(rng)

    # Questions

    @property
    def deadline(self) -> float:
        """When to step with TICK if nothing comes first; `inf` means never."""
        match self.role:
            case Role.DORMANT:
                return inf
            case Role.LEADER:
                return min(self._due, self.acts_until, inf if self._begun else self.acts_from)
            case _:
                return self._due

    def tenure(self, now: float) -> int | None:
        """The term under which this node may act at `now`."""
        return self.term if self.role is Role.LEADER and self.acts_from <= now < self.acts_until else None

    def preferred(self, now: float, *, steady: bool = True) -> int | None:
        """The peer that this leader should cede to: its priority is higher, and it has been there for a while.

        Without `steady`, any time there is enough, because an operator asks for it.
        """
        if self.tenure(now) is None:
            return None
        time_out = self._time_out
        best = max(
            (
                (supporter.priority, peer)
                for peer, supporter in self._supporters.items()
                if peer != self.me
                and supporter.priority > self.priority
                and now < supporter.sent_at + time_out
                and (
                    not steady or now >= supporter.since + STEADY_TIME_OUTS * time_out * 2 ** self._passed.get(peer, 0)
                )
            ),
            default=None,
        )
        return None if best is None else best[1]

    def heard_priority(self, peer: int) -> int | None:
        """The priority that `peer` stated when it last supported this leader or candidate."""
        return None if (supporter := self._supporters.get(peer)) is None else supporter.priority

    def beat_by(self, at: float) -> None:
        """Send the next heartbeat at `at` at the latest: the driver of many electors lets all of them beat together."""
        if self.role is Role.LEADER:
            self._due = min(self._due, at)

    def prefer(self, priority: int | None) -> None:
        """Change this node's priority; None restores the assigned one."""
        self.priority = self._policy.priority if priority is None else priority

    # The step

    def step(self, event: TermEvent, now: float) -> list[TermEffect]:
        effects: list[TermEffect] = []
        if self.role is Role.DORMANT:
            return effects
        if now >= self._told_until:
            self._told_until = -inf
        self._lapse(now, effects)  # Time first: an event that arrives late must not hide the silence before it.
        match event:
            case Said(sender, message, beat) if sender in self.peers:
                self._hear(sender, message, beat, now, effects)
            case Stand() if self.stands and self.role is Role.FOLLOWER:
                # A candidate stands already, and would lose its votes.
                self._propose(self.term + 1, "named", "an operator named it", now, effects)
            case Cede(to) if self.role is Role.LEADER:
                if to is not None:
                    self._passed = {**self._passed, to: min(DOUBLINGS_MAX, self._passed.get(to, 0) + 1)}
                whom = "" if to is None else f" to peer {to}"
                self._follow(self.term, None, "ceded", f"it ceded{whom}", effects, to=to)
                self._await(now + self._time_out + self._settings.beat)  # All others come first.
        self._turn(now, effects)
        return effects

    def _lapse(self, now: float, effects: list[TermEffect]) -> None:
        if self.role is Role.LEADER:
            if now >= self.acts_until:
                few = f"for a lease, fewer than {self.quorum} of {len(self.peers) + 1} supported it"
                self._follow(self.term, None, "majority_lost", f"it lost its majority: {few}", effects)
                self._await(now)
        elif self.leader is not None and now >= self._due:
            reason = f"{self._settings.misses} heartbeats of peer {self.leader} were missed"
            self._follow(self.term, None, "leader_missed", reason, effects)
            self._await(now)

    def _turn(self, now: float, effects: list[TermEffect]) -> None:
        """Do what is due."""
        if self.role is Role.LEADER:
            if now >= self._due:
                self._beat(now, effects)
        elif now >= self._due:
            if self.role is Role.CANDIDATE:
                self._fail("in time", now, effects)
            else:
                self._end_wait(now, effects)
        # Last: votes and its own heartbeat may have moved `acts_from` to this very moment, and then it is not due.
        self._begun = self.role is Role.LEADER and now >= self.acts_from

    # Incoming messages

    def _hear(self, sender: int, message: Message, beat: float, now: float, effects: list[TermEffect]) -> None:
        if message.term > max(self.term, BASE_MAX) + LEAP_MAX:
            return  # It would be the last term possible.
        match message:
            case Scouting(_, round_, priority):
                # Nothing changes here, not even for a higher term: a node that cannot win would unseat the leader.
                led = self.leader is not None
                yes = not led and (not self.stands or (self.priority, self.me) < (priority, sender))
                effects.append(Tell(sender, Scouted(self.term, round_, yes, led)))
            case Scouted(_, round_) if self._answers is not None and round_ == self._round:
                self._answers = {**self._answers, sender: message}
                self._count_answers(now, effects)
            case Ceded(term, counter, to):
                self._hear_ceded(sender, term, (term, counter), to, now, effects)
            case Proposal(term):
                self._hear_proposal(sender, term, now, effects)
            case Heartbeat(term, counter):
                self._hear_heartbeat(sender, term, counter, beat, now, effects)
            case Support(term) | Rejection(term) | InvalidHeartbeat(term) if term > self.term:
                self._follow(term, None, "higher_term", f"peer {sender} is at term {term}", effects)
                self._await(now)
            case Support(term) if term == self.term and isfinite(message.owed):
                self._take_support(sender, message, now, effects)
            case Rejection(_, proposed) if self.role is Role.CANDIDATE and proposed == self.term:
                self._rejected |= {sender}
                if len(self._rejected | self._supporters.keys()) > len(self.peers):
                    self._fail("and the others rejected it", now, effects)

    def _hear_proposal(self, sender: int, term: int, now: float, effects: list[TermEffect]) -> None:
        if term > self.term:
            # Always, whatever the role, even while a healthy leader is perceived: scouting protects that leader.
            reason = f"peer {sender} proposed itself under term {term}"
            self._follow(term, None, "other_proposed", reason, effects, to=sender)
            self._await(now + self._time_out)
            self._voted = sender
        elif term < self.term or sender != self._voted:
            effects.append(Tell(sender, Rejection(self.term, term)))
            return
        self._support(sender, 0, now, effects)  # Again, if the proposal was duplicated on its way.

    def _hear_heartbeat(
        self, sender: int, term: int, counter: int, beat: float, now: float, effects: list[TermEffect]
    ) -> None:
        if term < self.term:
            effects.append(Tell(sender, InvalidHeartbeat(self.term)))
            return
        if (term, counter) <= self._lsn:
            return
        if term == self.term and self.leader not in (None, sender):
            return  # Two leaders of one term: some node forgot its term. The first one heard stays.
        self._lsn = (term, counter)
        if sender != self.leader or term > self.term:
            reason = f"peer {sender} was discovered, which leads term {term}"
            self._follow(term, sender, "leader_found", reason, effects, to=sender)
            self._passed = {peer: times for peer, times in self._passed.items() if peer != sender}
            self._starved = 0
        # By the slower of both beats: a node that counted by its own alone would miss a living leader again and again.
        self._due = now + max(self._time_out, self._settings.misses * beat)
        self._support(sender, counter, now, effects)

    def _hear_ceded(
        self, sender: int, term: int, lsn: tuple[int, int], to: int | None, now: float, effects: list[TermEffect]
    ) -> None:
        promised, _ = self._promises.get(sender, (inf, 0.0))
        if promised <= term:
            # Not a later promise: the same peer may lead again, and this message may be late.
            self._promises = {peer: promise for peer, promise in self._promises.items() if peer != sender}
        fresh = lsn > self._lsn
        self._lsn = max(self._lsn, lsn)  # Otherwise a late heartbeat would bring the leader back.
        if not fresh or term != self.term or self.role is not Role.FOLLOWER:
            return
        if to == self.me and self.stands:
            self._propose(self.term + 1, "ceded_to", f"peer {sender} ceded to peer {to}", now, effects)
        elif self.leader == sender:
            whom = "" if to is None else f" to peer {to}"
            self._follow(self.term, None, "leader_ceded", f"peer {sender} ceded{whom}", effects)
            self._await(now if to is None else now + self._time_out)

    # Votes

    def _support(self, leader: int, counter: int, now: float, effects: list[TermEffect]) -> None:
        owed = self._owed(leader, now)
        running = {peer: promise for peer, promise in self._promises.items() if promise[1] > now}
        self._promises = {**running, leader: (self.term, now + self._settings.wait)}
        effects.append(Tell(leader, Support(self.term, counter, owed, self.priority)))

    def _owed(self, leader: int, now: float) -> float:
        """For how long peers other than `leader` may still act by our support."""
        others = [until for peer, (_, until) in self._promises.items() if peer != leader]
        return max(0.0, max([self._owes_until, *others]) - now)

    def _take_support(self, sender: int, support: Support, now: float, effects: list[TermEffect]) -> None:
        # Only answers to its proposal elect a candidate. Each node gives one of them a term.
        if self.role is Role.LEADER or (self.role is Role.CANDIDATE and support.counter == 0):
            self._add(sender, self._sent.get(support.counter, -inf), support.owed, support.priority, now)
            if self.role is Role.CANDIDATE:
                self._count_votes(now, effects)

    def _add(self, peer: int, sent_at: float, owed: float, priority: int, now: float) -> None:
        clear_at, since = now + owed, sent_at
        if (known := self._supporters.get(peer)) is not None:
            # Only what it owed at its first yes matters: later promises to others are of higher terms.
            clear_at = min(clear_at, known.clear_at)
            since = known.since if sent_at < known.sent_at + self._time_out else sent_at
            if sent_at < known.sent_at:  # It came late.
                sent_at, priority = known.sent_at, known.priority
        self._supporters = {**self._supporters, peer: Supporter(sent_at, clear_at, priority, since)}
        if len(self._supporters) >= self.quorum:
            clear = sorted(supporter.clear_at for supporter in self._supporters.values())
            sent = sorted((supporter.sent_at for supporter in self._supporters.values()), reverse=True)
            # A majority without this node's own vote does not know until when its program may act under an older term.
            self.acts_from = max(clear[self.quorum - 1], self._told_until)
            self.acts_until = sent[self.quorum - 1] + self._settings.lease

    def _count_votes(self, now: float, effects: list[TermEffect]) -> None:
        if len(self._supporters) >= self.quorum:
            self.role, self.leader = Role.LEADER, self.me
            votes = f"{len(self._supporters)} of {len(self.peers) + 1} support it"
            effects.append(Became(self.role, self.term, self.me, votes, "elected"))
            self._beat(now, effects)

    def _beat(self, now: float, effects: list[TermEffect]) -> None:
        self._counter += 1
        self._sent = {c: at for c, at in self._sent.items() if at > now - self._settings.lease}
        self._sent[self._counter] = now
        self._due = now + self._settings.beat
        self._add(self.me, now, self._owed(self.me, now), self.priority, now)
        effects.append(Tell(None, Heartbeat(self.term, self._counter)))

    # Standing

    @property
    def _time_out(self) -> float:
        return self._settings.time_out

    def _await(self, at: float) -> None:
        """Without a leader, let the wait before this node stands begin at `at`."""
        self._target = self._policy.target(self._lost)
        self._due = at + self._policy.patience(self._rng)

    def _end_wait(self, now: float, effects: list[TermEffect]) -> None:
        if self._answers is not None:
            unled = not any(answer.led for answer in self._answers.values())
            self._starved = self._starved + 1 if unled and len(self._answers) + 1 >= self.quorum else 0
            self._answers = None
            self._target = self._policy.target(self._lost)
        if not self.stands:
            self._due = inf  # Until it misses a leader again.
        elif self.priority < self._target:
            self._target -= DECAY
            self._due = now + self._settings.beat + self._policy.patience(self._rng)
        elif not self._settings.scouting:
            self._propose(self.term + 1, "no_leader", "it found no leader", now, effects)
        elif self._starved >= STARVED_MAX:
            reason = f"{self._starved} scouting rounds found neither a majority nor a leader"
            self._propose(self.term + 1, "starved", reason, now, effects)
        else:
            self._round += 1
            self._answers = {}
            self._due = now + self._settings.beat + self._policy.patience(self._rng)
            effects.append(Tell(None, Scouting(self.term + 1, self._round, self.priority)))
            self._count_answers(now, effects)

    def _count_answers(self, now: float, effects: list[TermEffect]) -> None:
        assert self._answers is not None
        ayes = 1 + sum(answer.yes for answer in self._answers.values())
        if ayes >= self.quorum:
            # A scout learns terms, but adopts them only now that it leaves its own.
            term = 1 + max([self.term, *(answer.term for answer in self._answers.values())])
            self._propose(term, "scouted", f"{ayes} of {len(self.peers) + 1} would support it", now, effects)

    def _propose(self, term: int, cause: str, reason: str, now: float, effects: list[TermEffect]) -> None:
        assert self.role is Role.FOLLOWER, "who stood or led has given up before"
        self.role, self.term, self.leader, self._voted = Role.CANDIDATE, term, None, self.me
        self._answers, self._starved = None, 0
        self._counter, self._sent = 0, {0: now}
        self._due = now + self._time_out
        effects += [Became(self.role, term, None, reason, cause), Remember(term)]
        self._add(self.me, now, self._owed(self.me, now), self.priority, now)
        effects.append(Tell(None, Proposal(term)))
        self._count_votes(now, effects)

    def _fail(self, how: str, now: float, effects: list[TermEffect]) -> None:
        votes = f"{len(self._supporters)} of {len(self.peers) + 1} supported its proposal"
        self._follow(self.term, None, "proposal_failed", f"{votes} {how}, and {self.quorum} must", effects)
        self._await(now + self._settings.beat)

    def _follow(
        self,
        term: int,
        leader: int | None,
        cause: str,
        reason: str,
        effects: list[TermEffect],
        *,
        to: int | None = None,
    ) -> None:
        """Be a follower under `term`, of `leader` if it is known. A former leader or candidate announces its end."""
        before, was = self.term, self.role
        # A candidate has led nothing: a counter above 0 would hide the first heartbeat of another node that won its
        # term. It has nothing to pass on, either: that other node would take it for a wish, if it heard it after a
        # restart.
        counter, to = (self._counter + 1, to) if was is Role.LEADER else (0, None)
        if self.leader != self.me:
            self._lost = self._lost if self.leader is None else self.leader
        else:
            self._lost = None
        changed = was is not Role.FOLLOWER or leader != self.leader
        is_unseated, acted_until = self._begun and term > before, self.acts_until
        self.role, self.term, self.leader, self._answers = Role.FOLLOWER, term, leader, None
        self.acts_from, self.acts_until, self._begun = inf, -inf, False
        self._sent, self._supporters, self._rejected = {}, {}, frozenset()
        if changed:
            effects.append(Became(self.role, term, leader, reason, cause))
        if is_unseated:
            # Its program could not finish: a client that acts on its lease may do so to the end, although it is fenced.
            # So its own promise, which is to no other node, lasts as long, and it does not announce that the promises
            # to it are over.
            rest = self._settings.wait - self._settings.lease
            self._owes_until = max(self._owes_until, acted_until + rest)
            self._told_until = max(self._told_until, acted_until)
        elif was is not Role.FOLLOWER and self._told_until == -inf:  # Or it would end promises of that time, too.
            effects.append(Tell(None, Ceded(before, counter, to)))
        if term > before:
            self._voted = None
            effects.append(Remember(term))
