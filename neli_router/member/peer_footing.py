"""The footing of a member whose group has neither ledger nor broker: a link to its peers, and an elector.

    pump --standing--> membership: leases and waiting calls
     '----outlook----> membership: what it knows of its peers, for people
             '-------> feed: whom it believes to lead, for look-ups

Such a member knows what it leads, and whom it supports. Its router is fed by the store of owners, where every member
tells what it leads; without one, by what this member believes itself (`believed_owners.py`).

Nothing is ever out of reach here. A member that hears no majority of its peers leads nothing, and goes on asking.
"""

import contextlib
from collections.abc import Sequence
from math import inf
from typing import Any

from neli_router.config.config import Config, my_place
from neli_router.core.keyspace import spelled
from neli_router.drivers.peers.base import PeerLink
from neli_router.drivers.peers.card import PeerCard, decoded, encoded
from neli_router.drivers.peers.outlook import Outlook, news_between
from neli_router.drivers.peers.pump import PeerPump
from neli_router.errors import NeliError
from neli_router.hosts.process import ProcessMark
from neli_router.member.believed_owners import BelievedOwners
from neli_router.member.footing import Foothold, Request
from neli_router.member.membership import Membership
from neli_router.member.runtime import Runtime
from neli_router.protocols.electors.settings import GossipSettings, TermSettings
from neli_router.protocols.electors.voter import Voter
from neli_router.protocols.gossip.elector import Gossip
from neli_router.protocols.induction.events import Wish
from neli_router.protocols.protocol import Machine, Notice
from neli_router.protocols.term.council import Council
from neli_router.router.feed import Feed

__all__ = ["PeerFooting"]

LOOK_EVERY = 0.2
"""Seconds between two outlooks. People see changes so much later; more often costs time with thousands of
partitions."""

LOOK_SOON = 0.02
"""The same if another member has come to lead: look-ups go by the outlook, and a handover takes no longer than a few of
these. What this member itself comes to lead is looked at before it is told of it."""

LATE_MAX = 1.0
"""Seconds by which a step may be late, besides a lease: a turn waits half as long for its peers."""

STOOD_STILL = "this process got no time: it was stopped, suspended or starved, or its disk gave no answer"
"""Told first: what such a member tells next of its peers, that they are silent, is of itself."""


class PeerFooting:
    """A `Footing`, opened. Raises ConfigError and PeersUnusable."""

    def __init__(
        self, config: Config, runtime: Runtime, *, membership: Membership, feed: Feed | None, foothold: Foothold
    ) -> None:
        self._feed, self._owners = feed, BelievedOwners(config.public_ledger, config.layout)
        self._membership, self._stepped, self._tell = membership, foothold.stepped, foothold.tell
        self._began = runtime.clock()
        self._look_at, self._changes = self._began, 0
        self._stepped_at = inf
        self._name, self._address = str(config.name), config.address
        self._card = PeerCard()
        self._settings = settings = config.peer_settings(my_place(config))
        self._link = runtime.link(config)
        try:
            for doubt in (*settings.doubts, *self._link.doubts):
                foothold.tell(Notice("group.doubt", {"doubt": doubt}))
            self._pump = PeerPump(
                self._link,
                _voter(settings, self._link.memory, runtime),
                clock=runtime.clock,
                publish=self._publish,
                tell=foothold.tell,
                explain=foothold.explain,
            )
        except BaseException:
            with contextlib.suppress(NeliError):  # The first failure is the one to tell.
                self.close()
            raise
        # At once, and not at the first step: the store of owners is told of this member when the engine has it.
        membership.incarnation = self._pump.machine.incarnation
        self._tell_shed(self._pump.machine)  # It may have been drained before it was started again.
        self._introduce()

    @property
    def machine(self) -> Machine[Any, Any]:
        return self._pump.machine

    def turn(self) -> None:
        self._pump.turn()

    def post(self, event: Request) -> None:
        assert not isinstance(event, Wish), "the engine refuses wishes to such a group"
        self._pump.post(event)

    def wake(self) -> None:
        self._link.wake()

    def pledge(self, until: float, processes: Sequence[ProcessMark]) -> None:
        pass  # Nobody tells of a death: a leader that is silent is missed.

    def close(self) -> None:
        self._link.close()

    def _publish(self, machine: Voter, now: float) -> None:
        if now > self._stepped_at + self._settings.lease + LATE_MAX:
            fields = {"seconds": round(now - self._stepped_at, 1), "why": STOOD_STILL}
            self._tell(Notice("member.stood_still", fields))
        self._stepped_at = now
        standing, membership = machine.standing, self._membership
        changes = machine.transitions.total() + machine.leader_changes
        if (
            now >= self._look_at
            or (changes != self._changes and now >= self._look_at - LOOK_EVERY + LOOK_SOON)
            or standing.terms != membership.standing.terms
        ):
            self._look_at, self._changes = now + LOOK_EVERY, changes
            self._look(machine, now)
        # After the look: whoever may act for a key shall be the one that a look-up of this process finds.
        membership.standing, membership.incarnation = standing, machine.incarnation
        self._tell_shed(machine)
        self._stepped(now)

    def _tell_shed(self, machine: Voter) -> None:
        membership = self._membership
        if machine.shed != membership.shed:
            membership.shed, membership.drained = machine.shed, machine.drained
            shed = sorted(machine.shed)
            fields = {"partitions": spelled(shed), "count": len(shed)}
            self._tell(Notice("member.sheds", fields) if shed else Notice("member.sheds_nothing", {}))
            self._introduce()

    def _introduce(self) -> None:
        """Tell the others what this member is called, and what it sheds."""
        membership = self._membership
        self._card = PeerCard(self._name, self._address, len(membership.shed), membership.drained)
        self._link.say(encoded(self._card))

    def _look(self, machine: Voter, now: float) -> None:
        link, settings, before = self._link, self._settings, self._membership.outlook
        after = self._membership.outlook = Outlook(
            at=now,
            began=self._began,
            peers=settings.peers,
            me=settings.me,
            heard_at=link.heard_at,
            silent=link.silent,
            refusals=_refusals(link, machine),
            leaders=tuple(machine.leaders),
            transitions=dict(machine.transitions),
            leader_changes=machine.leader_changes,
            counts=link.counts,
            cards={settings.me: self._card, **_cards(link)},
            electorates=machine.electorates,
        )
        for notice in news_between(before, after):
            self._tell(notice)
        if self._feed is not None:
            self._feed.publish(self._owners.reading(after))


def _refusals(link: PeerLink, machine: Voter) -> dict[int, str]:
    """Why nothing of a peer is taken: the link's reason is of what came last, because what the machine ignores has come
    through the link. One that is silent may have been ended to be given other settings."""
    return {**dict.fromkeys(machine.strangers - link.silent, "lease"), **link.refusals}


def _cards(link: PeerLink) -> dict[int, PeerCard]:
    return {place: card for place, word in link.words.items() if (card := decoded(word)) is not None}


def _voter(settings: TermSettings | GossipSettings, memory: bytes, runtime: Runtime) -> Voter:
    now, rng = runtime.clock(), runtime.rng()
    if isinstance(settings, TermSettings):
        return Council(settings, memory, now, rng=rng)
    return Gossip(settings, memory, now, rng=rng)
