"""A small elector that is right, so that the simulator's checkers can be tried on one that is not.

Each candidate asks all for a lease; a peer promises it to one at a time, counts from when it took the question, and
promises nothing for as long after a start. Terms are kept before they are promised.
"""

from collections.abc import Iterable
from math import inf
from random import Random

from neli_router.electors.events import Keep, Nominate, PeerEffect, Prefer, Rebalance, Send
from neli_router.electors.settings import PeerSettings
from neli_router.electors.voter import Voter

__all__ = ["ToyVoter"]


class ToyVoter(Voter):
    """It leads all partitions, or none. Promises last for `share` of a lease; `quiet` is the silence after a start."""

    def __init__(
        self, settings: PeerSettings, memory: bytes, now: float, *, rng: Random, share: float = 1.0, quiet: bool = True
    ) -> None:
        super().__init__(settings, now, rng=rng)
        self._rng = rng
        self._wait = settings.wait * share
        self._term = self._seen = int(memory or b"0")
        self._promised_to, self._promised_until = -1, (now + settings.wait if quiet else now)
        self._asks_under = 0
        self._answered: dict[int, float] = {}
        self._next_at = now + settings.wait + rng.random() * settings.lease

    def _hear(self, sender: int, body: bytes, now: float, effects: list[PeerEffect]) -> None:
        what, term_text, at_text = body.decode().split()
        term, at = int(term_text), float(at_text)
        self._seen = max(self._seen, term)
        if what == "yes":
            if term == self._asks_under:
                self._answered[sender] = max(at, self._answered.get(sender, -inf))
        elif what == "ask":
            yes = self._promise(sender, term, now, effects)
            effects.append(Send(sender, f"{'yes' if yes else 'no'} {term if yes else self._term} {at!r}".encode()))

    def _promise(self, to: int, term: int, now: float, effects: list[PeerEffect]) -> bool:
        renews = to == self._promised_to and term == self._term
        if not renews and (now < self._promised_until or term <= self._term):
            return False
        if not renews:
            self._term = term
            effects.append(Keep(str(term).encode()))
        self._promised_to, self._promised_until = to, now + self._wait
        if to != self._peer.me:
            self._asks_under = 0
            self._next_at = now + self._wait + self._rng.random() * self._peer.lease
        return True

    def _turn(self, now: float, effects: list[PeerEffect]) -> None:
        if now < self._next_at or self._closing:
            return
        if self._asks_under and now >= self._until():
            self._asks_under = 0
            self._next_at = max(now, self._promised_until) + (0.1 + self._rng.random()) * self._peer.lease
            return
        term = self._asks_under or max(self._seen, self._term) + 1
        self._next_at = now + self._peer.beat
        if self._promise(self._peer.me, term, now, effects):
            if term != self._asks_under:
                self._answered = {}
            self._asks_under = term
            self._answered[self._peer.me] = now
            ask = f"ask {term} {now!r}".encode()
            effects += [Send(peer, ask) for peer in range(self._peer.size) if peer != self._peer.me]

    def _until(self) -> float:
        if not self._asks_under or len(self._answered) < self._peer.quorum:
            return -inf
        return sorted(self._answered.values(), reverse=True)[self._peer.quorum - 1] + self._peer.lease

    def tenures(self, now: float) -> dict[int, int]:
        return dict.fromkeys(range(self._peer.layout.partitions), self._asks_under) if now < self._until() else {}

    def _ends(self, partition: int) -> float:
        return self._until()

    def _unwanted(self, now: float) -> Iterable[int]:
        return ()

    def _cede(self, partitions: Iterable[int], now: float, effects: list[PeerEffect]) -> None:
        self._asks_under, self._answered = 0, {}

    def _due(self) -> float:
        return inf if self._closing else self._next_at

    @property
    def _loss(self) -> str:
        return "no majority promised its lease"

    def _nominate(self, event: Nominate | Prefer | Rebalance, now: float, effects: list[PeerEffect]) -> None:
        pass
