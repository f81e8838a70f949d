"""The kinds of faults of a group that shares a ledger. `strikes` decides when they come and which members they hit.

It takes pairs to break a protocol: a member is expired while it is stopped, and its successor is drained before the
wait is over.

The strongest faults are lines that no member's machine wrote. Slander is a record in the name of one member that
expires another member, which is alive: safety must not depend on who expires a member, or why. A forgery is a Beat in a
member's name from the future: only what a member sent may lengthen its lease. A stranger's lines mention records that
the ledger never had: a single line stops no member.
"""

from collections.abc import Callable
from typing import Literal

from msgspec.structs import replace

from neli_router.lab.sim.induction.group import SimulatedGroup
from neli_router.lab.sim.induction.older import OLDER
from neli_router.lab.sim.induction.options import RunOptions
from neli_router.lab.sim.induction.process import Process
from neli_router.lab.sim.strikes import Strikes
from neli_router.lab.sim.world import World
from neli_router.protocols.induction.digest import digest_text
from neli_router.protocols.induction.events import Wish
from neli_router.protocols.induction.records import (
    Beat,
    Drain,
    Expire,
    Load,
    Pin,
    Record,
    Undrain,
    Unpin,
    Upgrade,
    Weigh,
    encode,
)
from neli_router.protocols.induction.snapshots import snapshot
from neli_router.protocols.protocol import Close

__all__ = ["Faults"]

OPERATOR = "operator"
"""The author of wishes."""

LATE_SHARE = 0.1
"""How often a process is of the older release after the others were replaced. An upgraded group refuses it."""

REPLACING = 0.7
"""How often a namesake is started to take over the name. The others give up when they hear the current holder."""


class Faults(Strikes[Process]):
    """Phase one. `stop` ends it."""

    plots = frozenset({"inheritance", "waver"})
    plot_weight = 4
    """Most have no effect, for lack of members or luck."""

    def __init__(self, world: World, group: SimulatedGroup, options: RunOptions) -> None:
        self._group, self._options = group, options
        self._lies_of_members = 1
        """How many lines that contradict the ledger may still be forged in a member's name. Two in a row would count as
        its own word, and stop others."""
        kinds: dict[str, Callable[[Process], None]] = {
            "close": self._close,
            "deafen": self._deafen,
            "drain": self._drain,
            "forgery": self._forgery,
            "inheritance": self._inheritance,
            "isolate": self._isolate,
            "join": self._join,
            "kill": self._kill,
            "load": self._load,
            "misfit": self._misfit,
            "mute": self._mute,
            "namesake": self._namesake,
            "outage": self._outage,
            "pause": self._pause,
            "pin": self._pin,
            "reboot": self._reboot,
            "slander": self._slander,
            "sleep": self._sleep,
            "snapshot": self._snapshot,
            "stranger": self._stranger,
            "waver": self._waver,
            "weigh": self._weigh,
        }
        super().__init__(
            world,
            group,
            kinds,
            faults=options.faults,
            names=options.names,
            unit=options.lease,
            faults_per_unit=options.faults_per_lease,
            follow_up=options.follow_up,
        )

    def begin(self) -> None:
        super().begin()
        if self._options.rolling:
            self._later(self._span(2.0, 8.0), self._roll)
            self._upgrade()

    # Releases

    def _roll(self) -> None:
        """The members of the older release are replaced, one after the other."""
        self._group.older_share = LATE_SHARE
        for process in self._group.older():
            self._later(self._span(0.0, 4.0), self._renew, process)

    def _renew(self, process: Process) -> None:
        name = self._group.name(process)
        if process.alive:
            process.kill()
            self._restart(name, rebooted=False)

    def _upgrade(self) -> None:
        self._append(Upgrade(by=OPERATOR, version=OLDER + 1))
        self._later(self._span(0.1, 2.0), self._upgrade)

    # Processes

    def _kill(self, victim: Process) -> None:
        self._revive(victim, rebooted=False)

    def _reboot(self, victim: Process) -> None:
        self._revive(victim, rebooted=True)

    def _revive(self, victim: Process, *, rebooted: bool) -> None:
        name = self._group.name(victim)
        victim.kill()
        if self._world.random.random() < 0.8:
            rest = self._span(0.0, self._world.random.choice((0.05, 1.0, 3.0)))
            self._later(rest, self._restart, name, rebooted)

    def _restart(self, name: str, rebooted: bool) -> None:
        if not self._group.named(name):
            self._group.start(name, rebooted=rebooted)

    def _join(self, _: Process) -> None:
        self._join_absent()

    def _namesake(self, victim: Process) -> None:
        name = self._group.name(victim)
        if len(self._group.named(name)) < 2:
            self._group.start(name, replace=self._world.random.random() < REPLACING)

    def _misfit(self, _: Process) -> None:
        if self._group.referee.state.genesis is not None:
            self._group.start("misfit", misfit=True)

    def _close(self, victim: Process) -> None:
        victim.post(Close())
        if "deafen" in self._options.faults:  # Otherwise it reads its own Leave before others act on it.
            self._later(self._span(0.0, 0.3), self._deafen, victim)

    def _pause(self, victim: Process) -> None:
        seconds = self._span(0.0, self._world.random.choice((0.3, 1.5, 4.0)))
        if self._world.random.random() < 0.5:
            victim.pause_inside(seconds)
        else:
            victim.pause(seconds)

    def _sleep(self, victim: Process) -> None:
        """Long enough for others to write, and to drop, several snapshots."""
        victim.pause(self._span(5.0, 15.0))

    # The network

    def _deafen(self, victim: Process) -> None:
        victim.ledger.deaf_until = max(victim.ledger.deaf_until, self._world.now + self._span(0.1, 4.0))

    def _mute(self, victim: Process) -> None:
        victim.ledger.mute_until = max(victim.ledger.mute_until, self._world.now + self._span(0.1, 4.0))

    def _isolate(self, victim: Process) -> None:
        self._deafen(victim)
        victim.ledger.mute_until = max(victim.ledger.mute_until, victim.ledger.deaf_until)

    def _outage(self, _: Process) -> None:
        log = self._group.log
        log.away_until = max(log.away_until, self._world.now + self._span(0.1, 4.0))

    # The ledger

    def _slander(self, victim: Process) -> None:
        if (accused := self._group.incarnation_of(victim)) is not None:
            if self._world.random.random() < 0.6:
                victim.pause(self._span(0.0, 1.5))  # Otherwise it often reads it before others act on it.
            self._accuse(accused)

    def _accuse(self, accused: str) -> None:
        random, state = self._world.random, self._group.referee.state
        if others := [seat for seat in state.seats if seat != accused]:
            last_beat = state.last_beats[accused] - (random.random() < 0.1)
            # Format 2 is void in a group of the older version.
            v: Literal[1, 2] = random.choice((1, 2)) if self._options.rolling else 1
            self._append(Expire(by=random.choice(others), v=v, last_beats={accused: max(0, last_beat)}))

    def _forgery(self, victim: Process) -> None:
        """A Beat in its name from the future; then it is cut off, so that only its own clock can end its lease."""
        state, incarnation = self._group.referee.state, self._group.incarnation_of(victim)
        if incarnation is not None:
            sent_at, digest = victim.now + self._span(0.1, 20.0), digest_text(state.digest)
            self._append(Beat(by=incarnation, sent_at=sent_at, at=state.at, digest=digest))
            self._later(self._span(0.05, 0.5), self._deafen, victim)

    def _inheritance(self, victim: Process) -> None:
        """A member inherits from one that may still act, and passes on before that member's lease has ended."""
        random, group, state = self._world.random, self._group, self._group.referee.state
        active = [process for process in group.living if group.acting.terms(process)]
        victim = random.choice(active) if active else victim
        accused = group.incarnation_of(victim)
        left = [partition for partition, owner in enumerate(state.owners) if owner == accused]
        if accused is None or not left:
            return
        partition = random.choice(left)
        victim.pause(self._span(0.7, 1.6))
        self._accuse(accused)
        if random.random() < 0.4:  # The heir is a newcomer that starts late, and has read none of this.
            heir = self._name()
            self._append(Pin(by=OPERATOR, partition=partition, name=heir))
            self._snapshot(victim)
            if len(group.named(heir)) < 2:
                group.start(heir)
        self._pass_on_soon(partition)

    def _pass_on_soon(self, partition: int) -> None:
        self._later(self._span(0.01, 0.5), self._pass_on, partition)

    def _pass_on(self, partition: int) -> None:
        random, state = self._world.random, self._group.referee.state
        owner = state.owners[partition] if state.owners else None
        if owner is None:
            return
        name = state.seats[owner].name
        killed = ("kill", "kill") if self._options.witnessed else ()  # Its certificate passes on what it waited for.
        match random.choice(("accuse", "close", "close", "drain", "pin", "pin", *killed)):
            case "accuse":
                self._accuse(owner)
            case "close":
                for process in self._group.named(name):
                    process.post(Close())
            case "kill":
                for process in self._group.named(name):
                    process.kill()
            case "drain":
                self._append(Drain(by=OPERATOR, name=name))
            case "pin":
                heir = random.choice([seat.name for seat in state.seats.values()])
                self._append(Pin(by=OPERATOR, partition=partition, name=heir))
        if random.random() < 0.5:
            self._pass_on_soon(partition)

    def _waver(self, victim: Process) -> None:
        """A partition is moved away and back again, while nothing that its owner says about it arrives."""
        state, owner = self._group.referee.state, self._group.incarnation_of(victim)
        owned = [partition for partition, holder in enumerate(state.owners) if holder == owner]
        if owner is not None and owned:
            partition = self._world.random.choice(owned)
            rest = self._span(0.1, 0.9)
            victim.ledger.mute_until = max(victim.ledger.mute_until, self._world.now + rest)
            self._append(Pin(by=OPERATOR, partition=partition, name=self._name()))
            self._later(rest, self._append, Unpin(by=OPERATOR, partition=partition))

    def _snapshot(self, _: Process) -> None:
        """A member writes a snapshot earlier than it had to."""
        state = self._group.referee.state
        if state.genesis is not None and state.seats:
            self._append(snapshot(self._world.random.choice(list(state.seats)), state))

    def _stranger(self, _: Process) -> None:
        """Bytes that no member wrote, and records that no member would write."""
        random, state = self._world.random, self._group.referee.state
        beat = encode(Beat(by="somebody", sent_at=0.0, at=0, digest="0" * 16))
        old = random.choice(state.departed) if state.departed else "nobody"
        liar = random.choice([old, *state.seats]) if self._lies_of_members else old
        lies: list[Record] = [Beat(by=liar, sent_at=0.0, at=state.at + random.choice((0, 9, 10**9)), digest="f" * 16)]
        if liar != old:
            self._lies_of_members -= 1
        if state.genesis is not None:
            lies.append(replace(state.genesis, by="nobody", at=state.at + 1))
        nonsense = (
            *(encode(lie) for lie in lies for _ in range(3)),
            b"",
            b"\xff\xfe\x00",
            b"[" * 5000,
            b'{"kind":"beat","v":2,"by":"m1"}',
            beat[:-1] + b',"more":1}',
            beat,
            encode(Expire(by=old, last_beats={next(iter(state.seats), "nobody"): 0})),
            encode(Upgrade(by=OPERATOR, version=99)),
        )
        self._group.log.extend(None, [random.choice(nonsense)])

    def _append(self, record: Record) -> None:
        self._group.log.extend(None, [encode(record)])

    # Wishes

    def _drain(self, victim: Process) -> None:
        drains = list(self._group.referee.state.drains)
        undrain = drains and self._world.random.random() < 0.6
        name = self._world.random.choice(drains) if undrain else self._name()
        victim.post(Wish(Undrain(by=OPERATOR, name=name) if undrain else Drain(by=OPERATOR, name=name)))

    def _pin(self, victim: Process) -> None:
        pins = sorted(self._group.referee.state.pins)
        if pins and self._world.random.random() < 0.5:
            victim.post(Wish(Unpin(by=OPERATOR, partition=self._world.random.choice(pins))))
        else:
            partition = self._world.random.randrange(self._options.partitions + 1)  # One of them does not exist.
            victim.post(Wish(Pin(by=OPERATOR, partition=partition, name=self._name())))

    def _weigh(self, victim: Process) -> None:
        weight = self._world.random.choice((None, 0, 1, 3))
        victim.post(Wish(Weigh(by=OPERATOR, name=self._name(), weight=weight)))

    def _load(self, victim: Process) -> None:
        random, partitions = self._world.random, self._options.partitions
        measured = random.sample(range(partitions), random.randint(1, partitions))
        loads = {partition: random.choice((0.0, 1.0, 2.5, 100.0)) for partition in measured}
        victim.post(Wish(Load(by=OPERATOR, loads=loads)))

    def _name(self) -> str:
        return f"m{self._world.random.randint(1, self._options.names)}"
