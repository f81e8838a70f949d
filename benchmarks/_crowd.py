"""A crowd: a group of many members of which only a few are real. The others are a state, and Beats in their names.

    crowd(settings) --> the state: each has joined, and all own everything in even shares
    beat_of(...)    --> the Beat of one of them, in the form of a real member's: a newer release may say more in it
    Lone(settings)  --> a shipped machine of one of them, which has joined again and reads the others' Beats

A real member joins under a name that the crowd has, as if its process had been restarted, and keeps that name's share.
"""

import time
from collections.abc import Sequence
from random import Random
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from neli_router.core.keyspace import SLOTS, Layout
from neli_router.protocols.induction.admission import genesis, join
from neli_router.protocols.induction.beats import DIGESTS_APART
from neli_router.protocols.induction.digest import difference, digest_text
from neli_router.protocols.induction.events import Append, Effect, Read
from neli_router.protocols.induction.fold import State, fold, targets_of
from neli_router.protocols.induction.machine import InductionMachine, Phase
from neli_router.protocols.induction.records import Beat, Record, Seat
from neli_router.protocols.protocol import Settings

__all__ = ["Lone", "beat_of", "crowd", "settings_of"]

_random = Random(1)

FIRST_OFFSET = 1
FOUNDER = "founder"

PERIODS_PER_STEP = 0.25
LEASES_TO_SETTLE, LEASES_COUNTED = 6, 4


def settings_of(members: int, partitions: int, lease: float) -> list[Settings]:
    layout = Layout(partitions=partitions, slots=max(SLOTS, partitions))
    return [Settings(name=f"m{number}", layout=layout, lease=lease) for number in range(members)]


def crowd(settings: Sequence[Settings]) -> State:
    """The state of a group in which all of `settings` have joined, in their order."""
    # Folding each Join would compare all members again, and no group is larger than MEMBERS_MAX. Some are, here.
    founded = fold(State(), FIRST_OFFSET, genesis(settings[0], FOUNDER, 0, FIRST_OFFSET))
    seats = [_seat(one, number, founded) for number, one in enumerate(settings)]
    state = replace(
        founded,
        at=seats[-1].joined + 1,
        seats={seat.incarnation: seat for seat in seats},
        last_beats={seat.incarnation: seat.joined for seat in seats},
    )
    owners, since = targets_of(state, state.owners), len(state.owners) * (seats[-1].joined,)
    terms = tuple(state.base + offset for offset in since)
    state = replace(state, owners=owners, targets=owners, began=since, terms=terms)
    return replace(state, digest=founded.digest ^ difference(founded, state))


def _seat(settings: Settings, number: int, founded: State) -> Seat:
    it = join(settings, f"{number:016x}", founded, "", 0)
    offset = founded.at + number
    return Seat(it.by, it.name, it.address, it.weight, it.zone, it.versions, offset, it.witness)


def beat_of(like: Beat | None, by: str, now: float, state: State) -> Beat:
    """The Beat that `by` would send `now` if it had read what led to `state`."""
    has_digest = _random.random() * (1 + len(state.seats) // DIGESTS_APART) < 1
    v: Any = 1 if has_digest else 2
    digest = digest_text(state.digest) if has_digest else UNSET
    return replace(
        like or Beat(by=by, sent_at=now, at=0), by=by, v=v, sent_at=round(now, 5), at=state.at, digest=digest
    )


class Lone:
    """The only real member of a crowd, the last of `settings`, and a ledger that only it reads.

    The clock is a number, which each step moves on. The member's own records come back in the step after.
    """

    def __init__(self, settings: Sequence[Settings]) -> None:
        state, self._now = crowd(settings), 0.0
        self.others = list(state.seats)[:-1]
        self.period = settings[-1].beat_every
        """Seconds between two Beats of each of the others."""
        self._turn = 0
        self._sent: list[Record] = []
        self._beat: Beat | None = None
        self.machine = InductionMachine(settings[-1], state, self._now, wall=0, rng=Random(1))
        while self.machine.phase is not Phase.MEMBER:
            if not (entries := self._entries([])):
                self._now = max(self._now, self.machine.deadline)
            self._take(self.machine.step(Read(entries, 0.0), self._now))
        self.period = self._own_period(settings[-1].lease)

    def _own_period(self, lease: float) -> float:
        """Seconds between two Beats of this member, once it has heard the others for some leases."""
        end, times = self._now + LEASES_TO_SETTLE * lease, dict[float, None]()
        while self._now < end:
            self.step(max(1, int(PERIODS_PER_STEP * len(self.others))))
            if self._beat is not None and self._now >= end - LEASES_COUNTED * lease:
                times[self._beat.sent_at] = None
        first, *_, last = times
        return (last - first) / (len(times) - 1)

    def beats(self, count: int) -> list[Beat]:
        """The next Beats of the others, who take turns."""
        self._turn += count
        names = (self.others[number % len(self.others)] for number in range(self._turn - count, self._turn))
        return [beat_of(self._beat, name, self._now, self.machine.state) for name in names]

    def step(self, count: int) -> tuple[float, int]:
        """One step with `count` Beats of the others: seconds of processor time, and how many records it read."""
        # In a small group they beat more often than they would: too long a step would look like a pause.
        moment = min(count / len(self.others), PERIODS_PER_STEP) * self.period
        self._now += min(moment, max(moment / 16, self.machine.deadline - self._now))
        entries = self._entries(self.beats(count))
        started = time.process_time()
        effects = self.machine.step(Read(entries, 0.0), self._now)
        took = time.process_time() - started
        self._take(effects)
        return took, len(entries)

    def takeover(self, count: int) -> float:
        """Seconds from the last Beat of a member until this one, which comes last in rank, has read that it is expired.

        Each step has `count` Beats. The time of the last step, which computes all targets again, is included.
        """
        silent, since, took = self.others[(self._turn - 1) % len(self.others)], self._now, 0.0
        self.others.remove(silent)
        while silent in self.machine.state.seats:
            took, _ = self.step(count)
        return self._now - since + took

    def _entries(self, records: Sequence[Record]) -> list[tuple[int, Record | None]]:
        """The machine's own records, and then `records`, at the offsets where it reads them now."""
        sent, self._sent = self._sent, []
        return list(enumerate([*sent, *records], start=self.machine.state.at))

    def _take(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self._sent += effect.records
                for record in effect.records:
                    self._beat = record if isinstance(record, Beat) else self._beat
