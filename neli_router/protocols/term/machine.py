"""The machine of `term`: the electors of all partitions of one member, which travel together.

    peers --bodies--> TermMachine --Said--> TermElector of partition 0, 1, 2 ... --Tell--> outbox --bodies--> peers
                         |   <-----------------Became, Remember------------'
                         |--> tenures, notices: the program and people
                         '--> all kept terms: the disk, once a step

Each partition that this member is a replica of has an elector of its own, so each may have another leader. All messages
to one peer in one step share a few bodies. Equal messages are sent once, together with the partitions that they are
about. Heartbeats are equal for most partitions, and those of all partitions are sent at the same moment. So a group of
256 partitions costs hardly more datagrams than one of a single partition.

The machine handles these for all electors together:

- *The disk first.* Whatever an elector must remember is on disk before anything is sent or acquired in the same step.
  The memory holds all terms. It is written once a step, however many of them grew.
- *Losses before words.* The program is fenced before a peer hears that a partition was given up.
- *The program before the successor.* The peer that should lead next, because an operator named it or because it is
  preferred, is noted as the target. The program finishes, and then the elector cedes to the target. A closing member
  cedes everything to living peers that are not closing themselves, so that no peer has to miss it first.
- *Load sheds by priority.* A drained member is the last to lead a partition, under either policy, and passes it to
  another member that is alive. The memory holds this, too: an operator who drained a host expects it to stay drained
  after a restart.

A closing member still votes but no longer stands. If it is elected all the same, it cedes immediately.

Two members with different leases would break their promises to each other, because a supporter waits as long as its own
lease lasts. So each body states the lease, and bodies with another lease are ignored, with a notice. A member restarted
with a shorter lease still owes what it promised under the longer one. So the memory holds the wait next to the terms.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from neli_router.core.keyspace import spelled
from neli_router.errors import LedgerUnusable
from neli_router.protocols.electors.events import BODY_MAX, Keep, Led, Nominate, PeerEffect, Prefer, Rebalance, Send
from neli_router.protocols.electors.machine import PeerMachine
from neli_router.protocols.electors.priority import LEAST, Priorities, electorate
from neli_router.protocols.electors.settings import TermSettings
from neli_router.protocols.protocol import TICK, Acquired, Notice
from neli_router.protocols.term.elector import (
    CAUSES,
    Became,
    Cede,
    Message,
    Remember,
    Role,
    Said,
    Stand,
    Tell,
    TermElector,
    TermEvent,
)

__all__ = ["Body", "Memory", "TermMachine", "packed"]

SILENCE = "for a lease, too few of the peers supported it"
"""Why a tenure ended if no other reason is known."""

FRAME_MAX = 64
"""Bytes of a body besides the messages and nominations: the lease, the flag, and the lengths."""

NAMED_MAX = 100
"""Nominations in one body: at most eight bytes each, so that they fit into one datagram."""

CEDED = frozenset({"ceded_to", "leader_ceded"})
"""Causes by which a leader is missed although it gave up in good order: no sign of trouble."""

UNHEARD = "this member has not heard of one yet"
"""Why a member that has just started knows no leader."""

PEER = re.compile(r"\bpeer (\d+)\b")
"""Electors know each other by their places in the list, which mean nothing to an operator."""

IT = re.compile(r"^it ")
"""How an elector refers to itself."""

PARTITION_MAX = 3
"""Bytes of a partition's number: there are at most 4096."""


class Body(Struct, frozen=True, array_like=True):
    """One member's message to another at one moment."""

    lease: float
    leaving: bool
    """The sender closes: cede nothing to it."""
    said: list[tuple[Message, list[int]]]
    """A message, and the partitions whose electors sent it."""
    named: list[tuple[int, int]] = []
    """(partition, peer): an operator wants the peer to lead it."""
    beats: Annotated[int, Meta(ge=0)] = 0
    """How many heartbeats the sender has in its lease, rounded down: this takes one byte, and a beat would take nine.
    An older release sends 0."""


class Memory(Struct, frozen=True, array_like=True):
    """The memory: the last term of each partition, less the lowest of them; and how long promises may run."""

    lowest: int
    above: list[int]
    wait: float = 0.0
    """How long promises run that were given since, or before and may still run. Memories of older releases lack it."""
    told: dict[int, int] = {}
    """Partition -> the priority that an operator gave this member, in place of the assigned one."""


_ENCODER = msgspec.msgpack.Encoder()
_BODIES = msgspec.msgpack.Decoder(Body)
_MEMORIES = msgspec.msgpack.Decoder(Memory)


class TermMachine(PeerMachine):
    """One member's machine. `memory` is the last one that it kept; empty for a member that never voted."""

    _settings: TermSettings

    def __init__(self, settings: TermSettings, memory: bytes, now: float, *, rng: Random) -> None:
        super().__init__(settings, CAUSES, rng=rng)
        self._time_out = settings.time_out
        self._beats = int(settings.lease / settings.beat * (1 + 1e-9))
        kept = _remembered(memory)
        self._terms = [kept.lowest + above for above in kept.above]
        self._terms += [0] * (settings.layout.partitions - len(self._terms))
        self._policies = [electorate(settings, i) for i in range(settings.layout.partitions)]
        self._electorates = frozenset(replicas for replicas, _ in self._policies)
        self.electors = {
            i: TermElector(settings, replicas, policy, self._terms[i], now, rng=rng, owed=kept.wait)
            for i, (replicas, policy) in enumerate(self._policies)
            if settings.me in replicas
        }
        """Partition -> its elector, for each partition that this member is a replica of."""
        self._chosen: dict[int, int] = {}
        """Partition -> the priority that an operator gave this member."""
        self._dues = {i: elector.deadline for i, elector in self.electors.items()}
        self._leads: set[int] = set()
        """The partitions whose elector is LEADER."""
        self._beat_at = -inf
        """When all of these electors send their heartbeats."""
        self._targets: dict[int, int] = {}
        """Partition that this member leads -> the peer that should lead it next."""
        self._named: set[int] = set()
        """The partitions that an operator named this member for. It keeps them, even if another peer is preferred."""
        self._seen: dict[int, float] = {}
        """Peer -> when it last said something."""
        self._leaving: set[int] = set()
        self._outbox: dict[int, dict[Message, list[int]]] = {}
        self._nominations: dict[int, list[tuple[int, int]]] = {}
        self._is_changed = False
        """Whether a term has to be kept."""
        self._kept_wait = kept.wait
        self._wait = max(kept.wait, settings.wait)
        """The wait that the memory must state before this member promises anything."""
        self._owes_older_until = now + self._wait
        self._last_leaders: dict[int, int] = {}
        """Partition -> the leader that was known last."""
        self._reasons: dict[int, str] = {}
        """Partition -> why its leader changed."""
        self._why = SILENCE
        self._news: dict[tuple[str, int], dict[int, str]] = {}
        """(event, peer) -> partition -> reason: the news to report once a beat has passed."""
        self._news_due = inf
        self._prefer(kept.told)

    # Questions of the voter

    def tenures(self, now: float) -> dict[int, int]:
        electors = self.electors
        return {i: term for i in sorted(self._leads) if (term := electors[i].tenure(now)) is not None}

    def _ends(self, partition: int) -> float:
        return self.electors[partition].acts_until

    def _unwanted(self, now: float) -> Iterable[int]:
        return self._targets

    def _due(self) -> float:
        return min(self._news_due, min(self._dues.values(), default=inf))

    @property
    def leaders(self) -> Sequence[Led | None]:
        electors = (self.electors.get(i) for i in range(self._settings.layout.partitions))
        return [
            None if elector is None else Led(elector.leader, elector.term, self._reasons.get(i, UNHEARD))
            for i, elector in enumerate(electors)
        ]

    @property
    def electorates(self) -> Collection[tuple[int, ...]]:
        return self._electorates

    # The step

    def _hear(self, sender: int, body: bytes, now: float, effects: list[PeerEffect]) -> None:
        try:
            heard = _BODIES.decode(body)
        except msgspec.DecodeError:
            return
        if heard.lease != self._settings.lease:
            if sender not in self.strangers:
                self.strangers.add(sender)
                effects.append(
                    self._notice("peers.lease_differs", sender, theirs=heard.lease, ours=self._settings.lease)
                )
            return
        self.strangers.discard(sender)
        self._seen[sender] = now
        (self._leaving.add if heard.leaving else self._leaving.discard)(sender)
        for partition, peer in heard.named:
            self._take_nomination(partition, peer, now)
        for message, partitions in heard.said:
            said = Said(sender, message, heard.lease / heard.beats if heard.beats else 0.0)
            for i in partitions:
                if i in self.electors:
                    self._let(i, said, now)

    def _turn(self, now: float, effects: list[PeerEffect]) -> None:
        if now >= self._owes_older_until:
            self._wait = self._settings.wait  # Otherwise each later restart would owe the longest wait that ever was.
        if self._closing:
            for elector in self.electors.values():
                elector.stands = False
        if self._leads and now >= self._beat_at:
            self._beat_at = now + self._settings.beat
            for i in self._leads:
                self.electors[i].beat_by(now)
                self._dues[i] = now
            self._choose_targets(now)
        for i in [i for i, due in self._dues.items() if due <= now]:
            self._let(i, TICK, now)
        if self._closing:
            self._cede(self._leads - self._belief.leading.keys(), now, effects)
        if now >= self._news_due:
            for (event, peer), reasons in self._news.items():
                if reasons:
                    told = {"partitions": spelled(sorted(reasons)), "count": len(reasons), "reason": _reason(reasons)}
                    effects.append(self._notice(event, peer, **told))
            self._news, self._news_due = {}, inf

    def _cede(self, partitions: Iterable[int], now: float, effects: list[PeerEffect]) -> None:
        for i in sorted(self._leads.intersection(partitions)):
            target = self._targets.get(i)
            if target is None or not self._lives(target, now):
                target = self._heir(i, now)
            elif i in self._named:
                self._nominations.setdefault(target, []).append((i, target))
            self._let(i, Cede(target), now)

    def _close_step(self, effects: list[PeerEffect]) -> None:
        self._why = SILENCE
        if self._is_changed or (self._outbox and self._kept_wait != self._wait):
            self._is_changed, self._kept_wait = False, self._wait
            lowest = min(self._terms)
            above = [term - lowest for term in self._terms]
            memory = _ENCODER.encode(Memory(lowest, above, self._wait, self._chosen))
            # Fenced need not wait for the disk. Acquired must: a term that is acted on and then forgotten comes twice.
            first = next((i for i, effect in enumerate(effects) if isinstance(effect, Acquired)), len(effects))
            effects.insert(first, Keep(memory))
        for to in sorted(self._outbox.keys() | self._nominations.keys()):
            said, named = self._outbox.get(to, {}), self._nominations.get(to, [])
            bodies = packed(self._settings.lease, self._beats, self._closing, said, named)
            effects += [Send(to, body) for body in bodies]
        self._outbox, self._nominations = {}, {}

    # Operators

    def _nominate(self, event: Nominate | Prefer | Rebalance, now: float, effects: list[PeerEffect]) -> None:
        match event:
            case Nominate(node, partitions):
                for i in range(len(self._policies)) if partitions is None else partitions:
                    self._nominate_one(i, node, now)
            case Prefer(priorities):
                self._prefer(priorities or {})
                self._is_changed = True
                for i in self._leads & self.shed:
                    self._named.discard(i)
                    self._choose_target(i, now, steady=False)
            case Rebalance():
                self._named.clear()
                for i in self._leads:
                    self._choose_target(i, now, steady=False)

    def _prefer(self, priorities: Mapping[int, int]) -> None:
        self._chosen = {i: priority for i, priority in sorted(priorities.items()) if i in self.electors}
        for i, elector in self.electors.items():
            elector.prefer(self._chosen.get(i))
        self.shed = frozenset(i for i, elector in self.electors.items() if elector.priority <= LEAST)
        self.drained = bool(self.shed) and self.shed == self.electors.keys()

    def _nominate_one(self, partition: int, node: int, now: float) -> None:
        """Let `node` lead `partition`, or pass the nomination on to a peer that can see to it."""
        if not 0 <= partition < len(self._policies) or node not in self._policies[partition][0]:
            return
        elector = self.electors.get(partition)
        leader = None if elector is None else elector.leader
        if partition in self._leads or (node == self._settings.me and leader is None):
            self._take_nomination(partition, node, now)
        else:
            to = node if leader is None else leader
            self._nominations.setdefault(to, []).append((partition, node))

    def _take_nomination(self, partition: int, node: int, now: float) -> None:
        if (elector := self.electors.get(partition)) is None or node not in self._policies[partition][0]:
            return
        if node == self._settings.me:
            self._named.add(partition)
            self._targets.pop(partition, None)
            if elector.leader is None:
                self._let(partition, Stand(), now)
        elif partition in self._leads and self._lives(node, now):  # Otherwise it would be given away, and come back.
            self._named.add(partition)
            self._targets[partition] = node

    def _choose_targets(self, now: float) -> None:
        """Note the peers that are preferred to this member, for the partitions that it leads."""
        shares_out = self._settings.transfer and self._settings.policy == "priority"
        for i in (self._leads if shares_out else self._leads & self.shed) - self._named - self._targets.keys():
            self._choose_target(i, now, steady=True)

    def _choose_target(self, partition: int, now: float, *, steady: bool) -> None:
        peer = self.electors[partition].preferred(now, steady=steady)
        if peer is not None and self._lives(peer, now):
            self._targets[partition] = peer

    # Helpers

    def _lives(self, peer: int, now: float) -> bool:
        return peer not in self._leaving and now < self._seen.get(peer, -inf) + self._time_out

    def _heir(self, partition: int, now: float) -> int | None:
        """The living peer that should get `partition` when this member closes."""
        replicas, policy = self._policies[partition]
        ranks: dict[int, int] = {}
        for peer in replicas:
            if peer != self._settings.me and self._lives(peer, now):
                heard = self.electors[partition].heard_priority(peer)  # It may have shed the partition.
                assigned = policy.row[peer] if isinstance(policy, Priorities) else policy.priority
                ranks[peer] = assigned if heard is None else heard
        best = [peer for peer, rank in ranks.items() if rank == max(ranks.values())]
        return best[partition % len(best)] if best else None  # Spread them if several are equal.

    def _let(self, partition: int, event: TermEvent, now: float) -> None:
        """Pass `event` to one elector, and carry out its effects."""
        elector = self.electors[partition]
        leader = elector.leader
        for effect in elector.step(event, now):
            match effect:
                case Tell(to, message):
                    for peer in elector.peers if to is None else (to,):
                        self._outbox.setdefault(peer, {}).setdefault(message, []).append(partition)
                case Remember(term):
                    self._terms[partition], self._is_changed = term, True
                case Became():
                    leader = self._became(partition, effect, leader, now)
        self._dues[partition] = elector.deadline

    def _became(self, partition: int, became: Became, leader: int | None, now: float) -> int | None:
        """Return the new leader, as this member sees it. `leader` was the one before."""
        self.transitions[became.role.value, became.cause] += 1
        if became.leader is not None and self._last_leaders.get(partition) != became.leader:
            self.leader_changes += partition in self._last_leaders
            self._last_leaders[partition] = became.leader
        peers, me = self._settings.peers, self._settings.me
        reason = IT.sub(f"{peers[me]} ", PEER.sub(lambda found: peers[int(found[1])], became.reason))
        if became.leader != leader:
            # The peer that another one followed is half of the story. The other half is why the last leader gave up.
            told = "" if became.cause == "leader_found" else reason
            lost = self._reasons.get(partition, "") if leader is None and became.leader is not None else ""
            self._reasons[partition] = "; ".join(filter(None, (lost, told)))
        if became.leader not in (None, self._settings.me):
            self._named.discard(partition)  # The operator's wish was for this lead only.
        if became.role is Role.LEADER:
            if not self._leads or self._beat_at <= now:
                self._beat_at = now + self._settings.beat
            self._leads.add(partition)
            self._tell_later("election.won", self._settings.me, partition, reason, now)
        elif partition in self._leads:
            self._leads.discard(partition)
            self._targets.pop(partition, None)
            self._named.discard(partition)
            self._why = reason
        if became.leader not in (leader, self._settings.me, None):
            assert became.leader is not None
            self._tell_later("leader.found", became.leader, partition, reason, now)
        elif became.leader is None and leader not in (None, self._settings.me):
            assert leader is not None
            event = "leader.ceded" if became.cause in CEDED else "leader.missed"
            self._tell_later(event, leader, partition, reason, now)
        return became.leader

    def _tell_later(self, event: str, peer: int, partition: int, reason: str, now: float) -> None:
        # Not immediately: when a peer dies, its partitions are missed and found again one after another. A member that
        # was paused may hear of several leaders of a partition in one moment. Only the last of them is found, and it is
        # reported last.
        for (earlier, _), reasons in self._news.items():
            if earlier == "leader.found":
                reasons.pop(partition, None)
        reasons = self._news.pop((event, peer), {})
        reasons[partition] = reason
        self._news[event, peer] = reasons
        self._news_due = min(self._news_due, now + self._settings.beat)

    def _notice(self, event: str, peer: int, **fields: object) -> Notice:
        return Notice(event, {"peer": self._settings.peers[peer], **fields})


def _reason(reasons: Mapping[int, str]) -> str:
    """The reason if all these partitions share one; otherwise the first partition's reason, with its number."""
    first = min(reasons)
    return reasons[first] if len(set(reasons.values())) == 1 else f"partition {first}: {reasons[first]}"


def packed(
    lease: float, beats: int, leaving: bool, said: dict[Message, list[int]], named: list[tuple[int, int]]
) -> list[bytes]:
    """Pack all this into as few bodies as possible, none longer than BODY_MAX."""
    parts = [named[start : start + NAMED_MAX] for start in range(0, len(named), NAMED_MAX)]
    bodies = [Body(lease, leaving, [], part, beats) for part in parts]
    items: list[tuple[Message, list[int]]] = []
    room = BODY_MAX - FRAME_MAX
    left = room
    for message, partitions in said.items():
        size = len(_ENCODER.encode(message)) + PARTITION_MAX + 1
        rest = partitions
        while rest:
            if left < size + PARTITION_MAX:
                bodies.append(Body(lease, leaving, items, beats=beats))
                items, left = [], room
            fit = (left - size) // PARTITION_MAX
            items.append((message, rest[:fit]))
            left -= size + PARTITION_MAX * min(fit, len(rest))
            rest = rest[fit:]
    if items:
        bodies.append(Body(lease, leaving, items, beats=beats))
    return [_ENCODER.encode(body) for body in bodies]


def _remembered(memory: bytes) -> Memory:
    if not memory:
        return Memory(0, [])
    try:
        kept = _MEMORIES.decode(memory)
    except msgspec.DecodeError as error:
        # Do not start without a memory instead: a member that forgets its terms votes twice under one.
        raise LedgerUnusable(
            "the terms that this member voted under were wanted",
            f"what was kept of them cannot be read ({error})",
            "run the release that kept it, or newer; or end all members of the group, delete it and start them again "
            "with a higher term_base",
        ) from None
    return kept
