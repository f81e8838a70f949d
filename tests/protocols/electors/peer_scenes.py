"""Peers on stage: virtual time, drifting clocks, links that can be cut one way, pauses, kills and restarts.

    scene = GossipScene(3)                members are places in the list; `scene.by_uuid` has the lowest first
    scene = Council(size=3)               the same for elections by terms, with six partitions
    scene.run(10.0)                       until that time; `advance` for some seconds
    scene.cut([0], [1, 2])                both ways; `silence` for one way, `heal` for all
    scene.acts                            who came to act, when, and under which term

`played` takes a script in place of Python, and adds the answers.

After each step the scene checks which members act. It fails if two do for one partition, or if a term is not above all
earlier acting terms.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Self

from neli_router.core.keyspace import Layout
from neli_router.protocols.electors.events import BODY_MAX, Heard, Keep, Nominate, PeerInput, Prefer, Send
from neli_router.protocols.electors.priority import LEAST
from neli_router.protocols.electors.settings import GossipSettings, TermSettings
from neli_router.protocols.gossip.machine import GossipMachine, uuid_of
from neli_router.protocols.protocol import TICK, Acquired, Close, Notice, Released, Stopped
from neli_router.protocols.term.machine import TermMachine
from tests.protocols.rules import news, numbers, performed
from tests.support.records import value_of

__all__ = ["BEAT", "LEASE", "Council", "GossipScene", "council_settings", "gossip_settings", "played"]

LAYOUT = Layout(slots=16, partitions=2)
NAMES = "ABCDEFGHI"
STEPS_MAX = 200_000
"""Many times the steps of the longest scene: beyond them, a member asks for the same deadline again and again."""


class PeerScene:
    """All members of one group, by these settings. `rates` are the speeds of their clocks; `delay` is the longest delay
    of a message.
    """

    def __init__(
        self,
        machine: Callable[..., Any],
        settings: Mapping[int, Any],
        *,
        seed: int = 1,
        delay: float = 0.01,
        rates: dict[int, float] | None = None,
        asleep: Iterable[int] = (),
    ) -> None:
        self.now = 0.0
        self.settings = dict(settings)
        self.rng = Random(seed)
        self.members: dict[int, Any] = {}
        self.disks: dict[int, bytes] = {}
        self.acts: list[tuple[float, int, int]] = []
        self.told: list[tuple[float, int, Any]] = []
        """When and what members reported to their programs and operators."""
        self.silent: set[tuple[int, int]] = set()
        self.sent: Counter[int] = Counter()
        self.most_forgot = False
        """Whether a majority lost their disks, and with them the highest term."""
        self.busy: set[int] = set()
        """Members whose programs do not release immediately what is revoked."""
        self._machine, self._delay, self._rates = machine, delay, rates or {}
        self._queue: list[tuple[float, int, int, int, bytes]] = []
        self._order = count()
        self._lives: dict[int, int] = dict.fromkeys(settings, 0)
        self._paused: dict[int, list[tuple[int, bytes]]] = {}
        self._highest: Counter[int] = Counter()
        for place in settings:
            if place not in asleep:
                self.start(place)

    # Events for members

    def clock(self, place: int) -> float:
        return 1000.0 * place + self.now * self._rates.get(place, 1.0)

    def start(self, place: int, *, remembers: bool = True) -> None:
        memory = self.disks.get(place, b"") if remembers else b""
        self._lives[place] += 1
        rng = Random(self.rng.random())
        self.members[place] = self._machine(self.settings[place], memory, self.clock(place), rng=rng)
        self.step(place, TICK)

    def kill(self, place: int) -> None:
        self.members.pop(place, None)
        self._lives[place] += 1

    def restart(self, place: int, *, remembers: bool = True) -> None:
        self.kill(place)
        self.start(place, remembers=remembers)

    def pause(self, place: int) -> None:
        self._paused[place] = []

    def resume(self, place: int) -> None:
        for sender, body in self._paused.pop(place):
            self.step(place, Heard(sender, body))
        self.step(place, TICK)

    # Events for links

    def lag(self) -> float:
        """The delay of the next message."""
        return self.rng.uniform(0, self._delay)

    def silence(self, sources: Iterable[int], targets: Iterable[int]) -> None:
        self.silent |= {(a, b) for a in sources for b in targets}

    def cut(self, some: Iterable[int], others: Iterable[int]) -> None:
        self.silence(some, others)
        self.silence(others, some)

    def heal(self) -> None:
        self.silent.clear()

    # Observation

    @property
    def acting(self) -> list[int]:
        return [place for place, member in self.members.items() if member.tenures(self.clock(place))]

    @property
    def leader(self) -> int | None:
        return self.acting[0] if self.acting else None

    def events(self, place: int, *kinds: type) -> list[Any]:
        """This member's reports, without notices unless they are asked for."""
        found = [event for _, whom, event in self.told if whom == place]
        return [one for one in found if (isinstance(one, kinds) if kinds else not isinstance(one, Notice))]

    # The run

    def step(self, place: int, event: PeerInput) -> None:
        member = self.members[place]
        for effect in member.step(event, self.clock(place)):
            match effect:
                case Send(to, body):
                    assert len(body) <= BODY_MAX
                    self.sent[place] += 1
                    if (place, to) not in self.silent:
                        self.post(self.now + self.lag(), to, place, body)
                case Keep(memory):
                    self.disks[place] = memory
                case _:
                    self.told.append((self.now, place, effect))
                    if isinstance(effect, Acquired):
                        self._began(place, effect.terms)
                    if isinstance(effect, Stopped):
                        self.kill(place)
        if place not in self.busy and member.finishing and place in self.members:
            self.step(place, Released({i: member.leading[i] for i in member.finishing}))
        acting = Counter(i for me, one in self.members.items() for i in one.tenures(self.clock(me)))
        assert {} == {i: times for i, times in acting.items() if times > 1}, f"two act at {self.now}"
        if place in self.members and member.deadline < float("inf"):
            self.post(member.deadline, place, -1, b"")

    def post(self, at: float, to: int, sender: int, body: bytes) -> None:
        """With `sender` -1, the event is a tick of the clock, and `at` is on the member's own clock."""
        if sender < 0:
            at = max(self.now, (at - 1000.0 * to) / self._rates.get(to, 1.0)) + 1e-9  # Rounding must not make it early.
            body = self._lives[to].to_bytes(4)
        heappush(self._queue, (at, next(self._order), to, sender, body))

    def run(self, end: float, *, until: Callable[[], bool] = lambda: False) -> Self:
        for _ in range(STEPS_MAX):
            if until():
                return self
            if not self._queue or self._queue[0][0] > end:
                self.now = end
                return self
            at, _, to, sender, body = heappop(self._queue)
            self.now = max(self.now, at)
            if to not in self.members:
                continue
            if sender < 0:
                if to in self._paused or int.from_bytes(body) != self._lives[to]:
                    continue
                if self.members[to].deadline <= self.clock(to):  # Other events may have moved it.
                    self.step(to, TICK)
            elif to in self._paused:
                self._paused[to].append((sender, body))
            elif (sender, to) not in self.silent:
                self.step(to, Heard(sender, body))
        raise AssertionError("too many steps")

    def advance(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
        self.run(self.now + seconds, until=until)

    def until_led(self, bound: float) -> float:
        """Run until a member acts; return how long that took."""
        began = self.now
        while not self.acting:
            assert self.now < began + bound, f"nobody leads at {self.now}"
            self.run(self.now + 0.05)
        return self.now - began

    def _began(self, place: int, terms: Mapping[int, int]) -> None:
        self.acts.append((self.now, place, max(terms.values())))
        for partition, term in terms.items():
            assert term > self._highest[partition] or self.most_forgot, f"{place} acts under {terms} at {self.now}"
            self._highest[partition] = term


class GossipScene(PeerScene):
    def __init__(
        self,
        size: int = 3,
        *,
        machine: type[GossipMachine] = GossipMachine,
        settings: dict[int, GossipSettings] | None = None,
        seed: int = 1,
        delay: float = 0.01,
        rates: dict[int, float] | None = None,
        asleep: Iterable[int] = (),
        **options: Any,
    ) -> None:
        settings = settings or {i: gossip_settings(size, i, **options) for i in range(size)}
        self.by_uuid = sorted(range(size), key=lambda i: uuid_of(settings[i].peers[i]))
        super().__init__(machine, settings, seed=seed, delay=delay, rates=rates, asleep=asleep)


def gossip_settings(size: int = 3, me: int = 0, **options: Any) -> GossipSettings:
    peers = tuple(f"10.0.0.{i}:7801" for i in range(size))
    given = {"lease": 10.0, "beat": 1.0, "drift": 0.001, **options}
    return GossipSettings(name=f"m{me}", layout=LAYOUT, peers=peers, me=me, **given)


BEAT = 0.1
LEASE = 0.3


def council_settings(me: int, *, size: int = 3, partitions: int = 6, **options: Any) -> TermSettings:
    peers = tuple(f"p{i}:1" for i in range(size))
    given = {"policy": "priority", "lease": LEASE, "beat": BEAT, "drain_timeout": 5.0, **options}
    layout = Layout(slots=64 * partitions, partitions=partitions)
    return TermSettings(name=f"m{me}", layout=layout, peers=peers, me=me, **given)


class Council(PeerScene):
    """Members by the terms of BlazingMQ, connected by a network that loses nothing."""

    def __init__(self, *, size: int = 3, partitions: int = 6, **options: Any) -> None:
        self.options: dict[str, Any] = {"size": size, "partitions": partitions, **options}
        super().__init__(TermMachine, {i: council_settings(i, **self.options) for i in range(size)})

    def lag(self) -> float:
        return 0.002

    def begin(self, me: int, **others: Any) -> None:
        """Start it, in place of itself, with other settings."""
        self.settings[me] = council_settings(me, **{**self.options, **others})
        self.restart(me)

    def await_leaders(self, seconds: float = 60.0) -> None:
        partitions = self.options["partitions"]
        self.advance(seconds, until=lambda: len(self.led()) == partitions)
        assert partitions == len(self.led())

    def led(self) -> dict[int, tuple[int, int]]:
        """Partition -> (member, term), as the programs believe."""
        return {i: (me, term) for me, one in self.members.items() for i, term in one.leading.items()}

    def shares(self) -> list[int]:
        return [len(one.leading) for _, one in sorted(self.members.items())]


class _Stage:
    """A scene whose members have letters. In a `gossip`, A has the lowest uuid."""

    def __init__(self, words: list[str]) -> None:
        protocol, size, *options = words
        told = {key: value_of(text) for key, text in (option.split("=") for option in options)}
        self.scene: PeerScene
        if protocol == "gossip":
            self.scene = gossip = GossipScene(int(size), **told)
            places = gossip.by_uuid
        else:
            self.scene, places = Council(size=int(size), **told), list(range(int(size)))
        self.names = dict(zip(places, NAMES, strict=False))
        self.places = dict(zip(NAMES, places, strict=False))
        self.run = self.scene.run

    def direct(self, words: list[str]) -> None:
        scene, (verb, *rest) = self.scene, words
        groups = [[self.places[letter] for letter in word] for word in rest if word.isupper()]
        partitions = tuple(int(word) for word in rest if word.isdecimal()) or None
        match verb:
            case "heal":
                scene.heal()
            case "cut" | "silence":
                getattr(scene, verb)(*groups)
            case "kill" | "start" | "restart" | "pause" | "resume":
                for me in groups[0]:
                    getattr(scene, verb)(me)
            case "busy":
                scene.busy.update(groups[0])
            case "ask":
                for me in sorted(scene.members, key=lambda me: self.names[me]):
                    scene.told.append((scene.now, me, self.standing(scene.members[me], scene.clock(me))))
            case _:
                if verb == "free":
                    scene.busy.difference_update(groups[0])
                for me in groups[0]:
                    scene.step(me, self.event(verb, scene.members[me], groups[-1][0], partitions))

    @staticmethod
    def event(verb: str, member: Any, node: int, partitions: tuple[int, ...] | None) -> PeerInput:
        match verb:
            case "free":
                return Released(dict(member.leading))
            case "close":
                return Close()
            case "nominate":
                return Nominate(node, partitions)
            case "drain":
                return Prefer(dict.fromkeys(partitions or range(len(member.leaders)), LEAST))
            case _:
                assert verb == "undrain", f"unknown input: {verb!r}"
                return Prefer(None)

    def standing(self, member: Any, now: float) -> str:
        """The terms under which it acts, and the leaders that it sees, and why they lead."""
        leaders = [(self.names.get(led.leader, "nobody"), led.reason) for led in member.leaders if led is not None]
        seen = dict.fromkeys(f"{leader} ({reason})" if reason else leader for leader, reason in leaders)
        shed = f", sheds {' '.join(map(str, sorted(member.shed)))}" if member.shed else ""
        acts, drained = numbers(member.tenures(now)) or "nothing", ", is drained" if member.drained else ""
        return f"acts for {acts}{drained}{shed}; it sees {', '.join(seen) or 'no leader yet'}"

    def answers(self) -> list[str]:
        told, self.scene.told = self.scene.told, []
        return [f"{at:.2f} {self.names[me]} {self.renamed(event)}" for at, me, event in told]

    def renamed(self, event: Any) -> str:
        text = event if isinstance(event, str) else news(event)
        for place, address in enumerate(self.scene.settings[0].peers):
            text = text.replace(address, self.names[place])
        return text


def played(lines: list[str]) -> Iterator[str]:
    """Each line of the script, and below it what the members reported until the next one.

    gossip 3 lease=10       the protocol, or `council`; how many members there are; differences in their settings
    30 cut A BC             at 30, both ways; also: silence A BC, heal, kill A, start A, restart A, pause A, resume A,
                            close A, drain A, drain A 0 1, undrain A, busy A, free A (its program finishes), ask
    40 nominate A C 0 1     an operator asks A to let C lead these partitions, or all of them
    """
    return performed(lines, _Stage, _Stage.direct, _Stage.answers)
