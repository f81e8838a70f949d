"""The machines that a test's members run on: each can be paused, cut off from the ledger, and switched off.

Host ----- boots ---> Member, whose runtime it is: it keeps the member's loops, and the world turns them
   '------ holds ---> Line, which can be cut ---> the world's one log
"""

from collections.abc import Callable, Sequence
from random import Random
from threading import Condition
from typing import Protocol

from neli_router.config import Config
from neli_router.errors import Closed, LedgerUnavailable
from neli_router.ledgers.base import Entry, Ledger
from neli_router.ledgers.memory import MemoryLedger, MemoryLog
from neli_router.member.engine import Engine
from neli_router.member.events import Event, Handler
from neli_router.member.member import Member
from neli_router.member.runtime import Loop

__all__ = ["Host", "Line", "World"]

BASE = 1_700_000_000_000_000
"""The wall clock at the start, in microseconds; only terms show it."""


class World(Protocol):
    """What hosts have in common."""

    now: float
    log: MemoryLog
    random: Random
    raised: list[BaseException]
    outage: bool

    def wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Turn the clock until `ready()`."""


class Line:
    """A member's line to the ledger: it can be cut, and reading it never waits for real time."""

    def __init__(self, log: MemoryLog, is_cut: Callable[[], bool]) -> None:
        self._inner, self._is_cut = MemoryLedger(log), is_cut

    promises, doubts = MemoryLedger.promises, MemoryLedger.doubts
    address = "memory://test"

    def append(self, payloads: Sequence[bytes], *, lasting: bool = True) -> None:
        self._whole().append(payloads, lasting=lasting)

    def acknowledged(self) -> list[int]:
        return self._inner.acknowledged()

    def read(self, timeout: float) -> list[Entry]:
        return self._whole().read(0.0)

    def age(self) -> float:
        return self._inner.age()

    def seek(self, offset: int) -> None:
        self._inner.seek(offset)

    def start(self) -> int:
        return self._whole().start()

    def tip(self) -> int:
        return self._whole().tip()

    def trim(self, before: int) -> None:
        self._whole().trim(before)

    def wake(self) -> None:
        self._inner.wake()

    def close(self) -> None:
        self._inner.close()

    def _whole(self) -> Ledger:
        if self._is_cut():
            raise LedgerUnavailable("the ledger in memory was wanted", "the test has cut the line to it", "heal it")
        return self._inner


class Host:
    """The machine that one member runs on, which is also its runtime."""

    is_turned = True

    def __init__(self, world: World, config: Config, on_event: Handler | None, told: list[Event]) -> None:
        self._world, self._config, self._on_event, self._told = world, config, on_event, told
        self.loops: list[Loop] = []
        self.paused = self.is_cut = False
        self.boot()

    def boot(self) -> None:
        self.paused = self.is_cut = False
        self.member = Member(self._config, on_event=self._tell, runtime=self)

    def kill(self) -> None:
        dead, self.loops = self.loops, []
        for loop in dead:
            if isinstance(loop, Engine):
                loop.membership.make_void(
                    Closed(f"member {self._config.name} was needed", "the test killed it", "restart it")
                )
                loop.feed.close()

    @property
    def is_up(self) -> bool:
        """Whether it can be expected to take part."""
        return not self.paused and not self.is_cut and not self.member.closed

    def spelled(self) -> str:
        plight = "paused" if self.paused else "cut off" if self.is_cut else "up" if self.loops else "killed"
        return f"is {plight} as {self.member!r}"

    def _tell(self, event: Event) -> None:
        self._told.append(event)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except BaseException as error:
                self._world.raised.append(error)
                raise

    # What a member asks of its runtime

    def clock(self) -> float:
        return self._world.now

    def wall(self) -> int:
        return BASE + int(self._world.now * 1e6)

    def rng(self) -> Random:
        return Random(self._world.random.getrandbits(64))

    def ledger(self, config: Config) -> Ledger:
        line = Line(self._world.log, lambda: self.is_cut or self._world.outage)
        line.start()  # Who opens a ledger that is away is told so.
        return line

    def start(self, loop: Loop) -> None:
        self.loops.append(loop)

    def pause(self, seconds: float) -> None:
        """Nothing: the clock stands still, and the next turn is the next try."""

    def wait(self, changed: Condition, ready: Callable[[], bool], timeout: float | None) -> bool:
        return self._world.wait(ready, timeout)
