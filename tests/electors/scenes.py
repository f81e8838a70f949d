"""A handful of electors of one partition on stage: virtual time, a queue of messages, and links that can be cut.

    scene = Scene(4, scouting=False)      peers are called A, B, C, D, which stand for the ids 0, 1, 2, 3
    scene.run(10.0)                       until that time
    scene.cut("B", "ACD")                 both ways; `cut_one_way` for one
    scene.played                          what they became, line by line

After each step the scene asks who acts. Two at once, or a term that is not above all others that acted before, fails
the test. Times are in heartbeats: the beat is 1 and the lease is 3.
"""

from heapq import heappop, heappush
from random import Random

from neli_router.electors.priority import electorate
from neli_router.electors.settings import Policy, TermSettings
from neli_router.electors.term import Became, Message, Remember, Said, Tell, TermEffect, TermElector, TermEvent
from neli_router.keyspace import Layout
from neli_router.protocol import TICK

__all__ = ["NAMES", "Scene", "new_elector", "term_settings"]

NAMES = "ABCDEFGHIJKLM"

STEPS_MAX = 200_000
"""Many times what a scene of hours takes: then an elector asks for the same deadline again and again."""


def term_settings(
    size: int = 3,
    me: int = 0,
    *,
    policy: Policy = "random",
    scouting: bool = True,
    partitions: int = 1,
    replicas: int | None = None,
    priorities: tuple[tuple[int, ...], ...] | None = None,
    term_base: int = 0,
) -> TermSettings:
    return TermSettings(
        name=NAMES[me],
        layout=Layout(slots=16, partitions=partitions),
        peers=tuple(f"{NAMES[i]}:7801" for i in range(size)),
        me=me,
        lease=3.0,
        beat=1.0,
        drift=0.0,
        policy=policy,
        scouting=scouting,
        replicas=replicas,
        priorities=priorities,
        term_base=term_base,
    )


def new_elector(
    settings: TermSettings, *, term: int = 0, now: float = 0.0, seed: int = 0, partition: int = 0
) -> TermElector:
    replicas, policy = electorate(settings, partition)
    return TermElector(settings, replicas, policy, term, now, rng=Random(seed * 101 + settings.me))


class Scene:
    def __init__(
        self,
        size: int,
        *,
        policy: Policy = "random",
        scouting: bool = True,
        priorities: tuple[int, ...] | None = None,
        partition: int = 0,
        partitions: int = 1,
        replicas: int | None = None,
        delay: float = 0.01,
        terms: tuple[int, ...] = (),
        seed: int = 0,
    ) -> None:
        self.now = 0.0
        self.delay = delay
        self.played: list[str] = []
        self.sent: list[tuple[float, int, Message]] = []
        self.kept = dict(enumerate(terms or (0,) * size))
        self.acted: list[tuple[int, int]] = []
        """The peers that acted, each with its term, in order."""
        self._partition, self._seed, self._births = partition, seed, 0
        self._settings = [
            term_settings(
                size,
                i,
                policy=policy,
                scouting=scouting,
                partitions=partitions,
                replicas=replicas,
                priorities=None if priorities is None else (priorities,) * partitions,
            )
            for i in range(size)
        ]
        self._cut: set[tuple[int, int]] = set()
        self._queue: list[tuple[float, int, int, int, Message]] = []
        self.electors: dict[int, TermElector] = {}
        for i in range(size):
            self._start(i)

    # What happens to peers and links

    def kill(self, name: str) -> None:
        del self.electors[NAMES.index(name)]

    def restart(self, name: str, *, term: int | None = None) -> None:
        """With the term that was kept, or with another."""
        i = NAMES.index(name)
        if term is not None:
            self.kept[i] = term
        self._start(i)

    def cut(self, ones: str, others: str) -> None:
        self.cut_one_way(ones, others)
        self.cut_one_way(others, ones)

    def cut_one_way(self, sources: str, targets: str) -> None:
        """Nothing that these say reaches those."""
        self._cut |= {(NAMES.index(source), NAMES.index(target)) for source in sources for target in targets}

    def heal(self) -> None:
        self._cut.clear()

    # The play

    def run(self, until: float) -> None:
        for _ in range(STEPS_MAX):
            due = min(((elector.deadline, i) for i, elector in self.electors.items()), default=(until, -1))
            if self._queue and self._queue[0][0] <= min(due[0], until):
                self.now, _, source, target, message = heappop(self._queue)
                if target in self.electors:
                    self.step(target, Said(source, message))
            elif due[0] < until:
                self.now = max(self.now, due[0])
                self.step(due[1], TICK)
            else:
                self.now = until
                return
        raise AssertionError(f"no end at {self.now}")

    def step(self, peer: int, event: TermEvent) -> list[TermEffect]:
        effects = self.electors[peer].step(event, self.now)
        self._look()
        for effect in effects:
            match effect:
                case Remember(term):
                    self.kept[peer] = term
                case Became():
                    self.played.append(self._line(peer, effect))
                case Tell(to, message):
                    for target in self.electors[peer].peers if to is None else (to,):
                        self._send(peer, target, message)
        return effects

    @property
    def acting(self) -> tuple[str, int] | None:
        """Who acts now, and under which term."""
        return next(((NAMES[i], term) for i, term in self._tenures()), None)

    @property
    def leaders(self) -> list[tuple[str, int]]:
        """Each change of who acts, so far."""
        return [(NAMES[i], term) for i, term in self.acted]

    @property
    def followed(self) -> dict[str, str | None]:
        """Whom each peer perceives as the leader."""
        return {
            NAMES[i]: None if elector.leader is None else NAMES[elector.leader]
            for i, elector in sorted(self.electors.items())
        }

    def _start(self, peer: int) -> None:
        self._births += 1
        seed = self._seed * 1000 + self._births
        settings, term = self._settings[peer], self.kept[peer]
        self.electors[peer] = new_elector(settings, term=term, now=self.now, seed=seed, partition=self._partition)

    def _send(self, source: int, target: int, message: Message) -> None:
        self.sent.append((self.now, source, message))
        if (source, target) not in self._cut:
            heappush(self._queue, (self.now + self.delay, len(self.sent), source, target, message))

    def _tenures(self) -> list[tuple[int, int]]:
        found = ((i, elector.tenure(self.now)) for i, elector in self.electors.items())
        return [(i, term) for i, term in found if term is not None]

    def _look(self) -> None:
        tenures = self._tenures()
        assert len(tenures) <= 1, f"two act at {self.now}: {tenures}"
        for acting in tenures:
            if acting not in self.acted[-1:]:
                assert all(acting[1] > term for _, term in self.acted), f"{acting} acts after {self.acted}"
                self.acted.append(acting)

    def _line(self, peer: int, became: Became) -> str:
        leader = "nobody" if became.leader is None else NAMES[became.leader]
        reason = became.reason
        for i in range(len(self._settings)):
            reason = reason.replace(f"peer {i}", NAMES[i])
        state = f"{NAMES[peer]} {became.role.value} {became.term}, leader {leader}"
        return f"{self.now:.2f} {state}: {reason}"
