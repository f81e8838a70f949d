"""One side: a group of processes of one protocol, at its default times or at the shortest safe ones.

"fast-neli-eager,8" --name--> protocol, partitions, way of sharing them out --> ProcessGroup, and where it appends
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks._peers.ours import ROUNDS_PER_LEASE
from benchmarks._protocols.goneli import GoneliGroup
from neli_router.config.config import Config
from neli_router.lab.processes.group import MemberProcess, ProcessGroup
from neli_router.lab.referee import Life, LifePhase
from tests.support.waiting import PATIENCE

__all__ = ["GONELI", "SIDES", "Found", "Side", "Tenures", "opened_sides"]

SIDES = (
    "induction,1",
    "neli,1",
    "fast-neli,1",
    "goneli,1",
    "induction,8",
    "neli,8",
    "fast-neli,8",
    "fast-neli-eager,8",
)

GONELI = "goneli"
EAGER = "-eager"
AS_GONELI = "?partition.assignment.strategy=range,roundrobin"

GONELI_TIMEOUT = 5.0
"""Seconds: the default of its HeartbeatTimeout. Its session is always three of these."""

SHORTEST: Mapping[str, float] = {"induction": 0.1, "neli": 1.5, "fast-neli": 2.0, GONELI: 2.0}
"""Leases. `induction` has the shortest that the benchmark `failover` tries by default. The others follow from a session
of 6 s, the shortest that brokers accept by default: T of `neli` is three times the allowed clock difference, and the
heartbeat timeout of the others is a third of a session."""


@dataclass(slots=True)
class Found:
    """Seconds, and counts by kind of change."""

    takeovers: list[float] = field(default_factory=list)
    handovers: list[float] = field(default_factory=list)
    leaderless: list[float] = field(default_factory=list)
    taken: Counter[str] = field(default_factory=Counter)


class Tenures:
    """The tenures of one member that is not involved in a change, from before it."""

    def __init__(self, life: Life) -> None:
        self._life, self._over = life, _begun(life) - _held(life)

    def ended(self) -> int:
        """How many have ended since then, including those that have begun since."""
        return len(_begun(self._life) - _held(self._life) - self._over)


@dataclass(slots=True)
class Side:
    """One group. `consumers` is the broker's consumer group that it borrows; empty for `induction`."""

    name: str
    group: ProcessGroup
    topic: str
    consumers: str
    found: Found = field(default_factory=Found)

    @property
    def lives(self) -> list[Life]:
        """The lives of the running processes."""
        return [process.life for process in self.group.running.values()]

    def leader(self) -> MemberProcess | None:
        """The process that leads partition 0, if there is one."""
        return next((process for process in self.group.running.values() if 0 in process.life.held), None)

    def led(self) -> list[tuple[str, int, int]]:
        """Processes, partitions and terms."""
        return sorted((it.label, partition, span.term) for it in self.lives for partition, span in it.held.items())

    def is_shared(self, members: int) -> bool:
        """Whether this many members lead all partitions in even shares, or none if there are more of them."""
        lives, partitions = self.lives, self.group.partitions
        shares = [len(life.held) for life in lives]
        led = {partition for life in lives for partition in life.held}
        are_members = len(lives) == members and all(life.phase is LifePhase.MEMBER for life in lives)
        return are_members and sum(shares) == len(led) == partitions and max(shares) - min(shares) <= 1

    def tenures(self, *, but: MemberProcess | None = None) -> list[Tenures]:
        """The tenures of all running processes, except `but`, which is involved in the change."""
        others = [life for life in self.lives if but is None or life is not but.life]
        return [Tenures(life) for life in others]


def _begun(life: Life) -> set[tuple[int, int]]:
    return {(span.partition, span.term) for span in life.spans}


def _held(life: Life) -> set[tuple[int, int]]:
    return {(span.partition, span.term) for span in life.held.values()}


@contextmanager
def opened_sides(folder: Path, there: str, names: Sequence[str], *, shortest: bool) -> Iterator[list[Side]]:
    """The sides of these names at the broker `there`, kafka://HOST:PORT, without any process yet."""
    with ExitStack() as stack:
        sides = [_side(folder / name, there, name, shortest=shortest) for name in names]
        for side in sides:
            stack.enter_context(side.group)
        yield sides


def _side(folder: Path, there: str, name: str, *, shortest: bool) -> Side:
    folder.mkdir()
    row, _, partitions = name.partition(",")
    protocol, group = row.removesuffix(EAGER), f"{row}-{uuid4().hex}"
    lease = {"lease": SHORTEST[protocol]} if shortest else {}
    if protocol == GONELI:
        return _goneli(folder, there.removeprefix("kafka://"), name, group, **lease)
    address = f"{there}/{group}{AS_GONELI if row.endswith(EAGER) else ''}"
    # A single broker has one replica, and may lose its tail in a power failure.
    careless = {"accept_rewinds": True} if protocol == "induction" else {}
    options: dict[str, Any] = {"protocol": protocol, **careless, **lease}
    pause = Config.of({"ledger": address, **options}).lease / ROUNDS_PER_LEASE
    made = ProcessGroup(folder, partitions=int(partitions), pause=pause, ledger=address, **options)
    borrows = protocol != "induction"
    return Side(name, made, f"{group}.{'neli' if borrows else 'ledger'}", group if borrows else "")


def _goneli(folder: Path, brokers: str, name: str, group: str, *, lease: float = GONELI_TIMEOUT) -> Side:
    topic = f"{group}.neli"
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE)  # goNELI does not create it.
    return Side(name, GoneliGroup(folder, brokers, group, topic, heartbeat_timeout=lease), topic, group)
