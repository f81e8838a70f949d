"""The observer: reads the ledger and computes the table, without being a member.

    READING --at the tip--> FOLLOWING --the ledger lost records, or is another group's--> STOPPED

A router needs the members' table but no seat. An observer sends nothing on its own and may not act for any partition.
It comes and goes, and no member notices. It watches for the same signs of a damaged ledger as a member.
"""

from collections.abc import Sequence
from math import inf

from neli_router.errors import NeliError
from neli_router.protocols.induction.admission import unknown_version
from neli_router.protocols.induction.events import Append, Effect, Input, LedgerBroken, Read, Recheck, Restart, Wish
from neli_router.protocols.induction.fold import State, beats_from, fold, fold_beats
from neli_router.protocols.induction.records import Beat, Record, skip_notices
from neli_router.protocols.induction.trust import LedgerTrust
from neli_router.protocols.protocol import NO_STANDING, Close, Notice, Stopped

__all__ = ["Observer"]


class Observer:
    """One reader's view. Not thread-safe. `now` is just after the read that brought `state`."""

    incarnation = ""
    standing = NO_STANDING

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.error: NeliError | None = None
        self.skipped = 0
        self.caught_up = False
        """Whether the tip was reached once, so that the table is the group's current one and not one from its past."""
        self.heard_at = now
        """When a member's record was last read, or reading began. If that is long ago, no member is alive."""
        self._trust = LedgerTrust(state)
        self._stopped = False

    @property
    def deadline(self) -> float:
        return inf if self.caught_up else -inf

    def tenures(self, now: float) -> dict[int, int]:
        return {}

    def step(self, event: Input, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self._stopped:
            return effects
        match event:
            case Read(entries, age):
                taken = 0
                while taken < len(entries) and self.error is None:
                    beats = beats_from(entries, taken)
                    self.error = self._take_beats(beats, now) if beats else self._take(*entries[taken], now, effects)
                    taken += len(beats) or 1
                self.caught_up |= age < inf and self.error is None  # Otherwise it did not come to the tip.
            case Restart(state):
                self.state, self._trust, self.caught_up = state, LedgerTrust(state), False
                effects.append(Notice("observer.restarted", {"at": state.at}))
            case Wish(record):
                effects.append(Append([record], lasting=True))
            case LedgerBroken(error):
                self.error = error
        if self._trust.doubts():
            effects.append(Recheck())
        if self.error is not None or isinstance(event, Close):
            self._stopped = True
            effects.append(Stopped(self.error))
        return effects

    def _take(self, offset: int, record: Record | None, now: float, effects: list[Effect]) -> NeliError | None:
        if record is None:
            self.skipped += 1
            effects += skip_notices(self.skipped, offset)
        if error := self._trust.before(self.state, offset, record, ()):
            return error
        self.state = fold(self.state, offset, record)
        if record is not None and record.by in self.state.seats:
            self.heard_at = now
        return unknown_version(self.state) or self._trust.after(self.state, record)

    def _take_beats(self, beats: Sequence[tuple[int, Beat]], now: float) -> NeliError | None:
        sound, error = self._trust.before_beats(self.state, beats, ())
        if sound:
            self.state, digests = fold_beats(self.state, sound)
            if any(beat.by in self.state.seats for _, beat in sound):
                self.heard_at = now
            error = unknown_version(self.state) or self._trust.after_beats(self.state, sound, digests) or error
        return error
