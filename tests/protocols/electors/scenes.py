"""A handful of electors of one partition on stage: virtual time, a queue of messages, and links that can be cut.

    scene = Scene(4, scouting=False)      peers are called A, B, C, D, which stand for the ids 0, 1, 2, 3
    scene.run(10.0)                       until that time
    scene.cut("B", "ACD")                 both ways; `cut_one_way` for one
    scene.played                          what they became, line by line

`played` takes a script in place of Python, and adds the answers.

After each step the scene checks which peer acts. The test fails if two act at the same time, or if a term is not above
all earlier acting terms. Times are in heartbeats: the beat is 1 and the lease is 3.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from random import Random
from typing import Any

from neli_router.core.keyspace import Layout
from neli_router.protocols.electors.priority import JITTER_BEATS, Priorities, electorate
from neli_router.protocols.electors.settings import Policy, TermSettings
from neli_router.protocols.protocol import TICK
from neli_router.protocols.term.elector import (
    Became,
    Cede,
    Message,
    Remember,
    Said,
    Stand,
    Tell,
    TermEffect,
    TermElector,
    TermEvent,
)
from tests.protocols.rules import performed

__all__ = ["NAMES", "Scene", "new_elector", "played", "term_settings"]

NAMES = "ABCDEFGHIJKLM"

STEPS_MAX = 200_000
"""Many times the steps of a scene of hours: beyond them, an elector asks for the same deadline again and again."""


def term_settings(size: int = 3, me: int = 0, *, partitions: int = 1, **options: Any) -> TermSettings:
    layout, peers = Layout(slots=16, partitions=partitions), tuple(f"{NAMES[i]}:7801" for i in range(size))
    given = {"lease": 3.0, "beat": 1.0, "drift": 0.0, "policy": "random", **options}
    return TermSettings(name=NAMES[me], layout=layout, peers=peers, me=me, **given)


def new_elector(
    settings: TermSettings, *, term: int = 0, now: float = 0.0, seed: int = 0, equals: bool = False
) -> TermElector:
    replicas, policy = electorate(settings, 0)
    if equals:
        policy = Priorities((1,) * settings.size, settings.me, JITTER_BEATS * settings.beat)
    return TermElector(settings, replicas, policy, term, now, rng=Random(seed * 101 + settings.me))


class Scene:
    def __init__(
        self,
        size: int,
        *,
        policy: Policy = "random",
        scouting: bool = True,
        equals: bool = False,
        transfers: bool = False,
        terms: tuple[int, ...] = (),
        seed: int = 0,
    ) -> None:
        self.now = 0.0
        self.delay = 0.01
        self.played: list[str] = []
        self.sent: list[tuple[float, int, Message]] = []
        self.kept = dict(enumerate(terms or (0,) * size))
        self.acted: list[tuple[int, int]] = []
        """The peers that acted, each with its term, in order."""
        self.acted_at: list[float] = []
        self._seed, self._births = seed, 0
        self._transfers, self._equals = transfers, equals
        self._settings = [term_settings(size, i, policy=policy, scouting=scouting) for i in range(size)]
        self._cut: set[tuple[int, int]] = set()
        self._queue: list[tuple[float, int, int, int, Message]] = []
        self.electors: dict[int, TermElector] = {}
        for i in range(size):
            self._start(i)

    # Events for peers and links

    def kill(self, name: str) -> None:
        del self.electors[NAMES.index(name)]

    def restart(self, name: str, *, term: int | None = None) -> None:
        """Restart with the term that was kept, or with another one."""
        i = NAMES.index(name)
        if term is not None:
            self.kept[i] = term
        self._start(i)

    def cut(self, ones: str, others: str) -> None:
        self.cut_one_way(ones, others)
        self.cut_one_way(others, ones)

    def cut_one_way(self, sources: str, targets: str) -> None:
        """Block all messages from the sources to the targets."""
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
        if self._transfers and (preferred := self.electors[peer].preferred(self.now)) is not None:
            self.step(peer, Cede(preferred))  # Its program finishes in no time.
        return effects

    @property
    def acting(self) -> tuple[str, int] | None:
        """The acting peer, and its term."""
        return next(((NAMES[i], term) for i, term in self._tenures()), None)

    @property
    def leaders(self) -> list[tuple[str, int]]:
        """Each change of the acting peer so far."""
        return [(NAMES[i], term) for i, term in self.acted]

    def _start(self, peer: int) -> None:
        self._births += 1
        seed = self._seed * 1000 + self._births
        settings, term = self._settings[peer], self.kept[peer]
        self.electors[peer] = new_elector(settings, term=term, now=self.now, seed=seed, equals=self._equals)

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
                self.acted_at.append(self.now)

    def _line(self, peer: int, became: Became) -> str:
        leader = "nobody" if became.leader is None else NAMES[became.leader]
        reason = became.reason
        for i in range(len(self._settings)):
            reason = reason.replace(f"peer {i}", NAMES[i])
        state = f"{NAMES[peer]} {became.role.value} {became.term}, leader {leader}"
        return f"{self.now:.2f} {state}: {reason}"


def played(lines: list[str]) -> Iterator[str]:
    """Each line of the script, and below it what the peers became until the next one.

    # ...                           is copied
    peers 4 scouting=no term=9      how many there are; also policy=priority, transfers=yes, seed=7
    10 cut A B                      also: cut-one-way A B, heal, kill A, restart A, restart A term=0, stand A,
                                    cede A, cede A to=B, prefer A priority=1, ask
    """
    return performed(lines, _scene, _direct, _answers)


def _scene(words: list[str]) -> Scene:
    told = dict(word.split("=") for word in words if "=" in word)
    return Scene(
        int(words[1]),
        policy="priority" if told.get("policy") == "priority" else "random",
        scouting=told.get("scouting") != "no",
        terms=(int(told.get("term", "0")),) * int(words[1]),
        transfers="transfers" in told,
        seed=int(told.get("seed", "0")),
    )


def _answers(scene: Scene) -> list[str]:
    played, scene.played = scene.played, []
    return played


def _direct(scene: Scene, words: list[str]) -> None:
    verb, *who = [word for word in words if "=" not in word]
    told = dict(word.split("=") for word in words if "=" in word)
    match verb:
        case "cut" | "cut-one-way" | "heal" | "kill":
            getattr(scene, verb.replace("-", "_"))(*who)
        case "restart":
            scene.restart(*who, term=int(told["term"]) if "term" in told else None)
        case "stand":
            scene.step(NAMES.index(who[0]), Stand())
        case "cede":
            scene.step(NAMES.index(who[0]), Cede(NAMES.index(told["to"]) if "to" in told else None))
        case "prefer":
            scene.electors[NAMES.index(who[0])].prefer(int(told["priority"]))
        case "ask":
            acts = "nobody" if scene.acting is None else f"{scene.acting[0]} under {scene.acting[1]}"
            led = ((NAMES[i], elector.leader) for i, elector in sorted(scene.electors.items()))
            seen = ", ".join(f"{peer} sees {'nobody' if leader is None else NAMES[leader]}" for peer, leader in led)
            scene.played.append(f"{scene.now:.2f} {acts} acts; {seen}")
        case _:
            raise AssertionError(verb)
