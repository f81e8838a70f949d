"""Induction: leadership induced by one shared ledger, for one member.

    READING --at the tip--> FOUNDING --a Genesis was read--> WAITING --on trial, or no member exists ------> JOINING
                                                                ^                                               |
                                   expired: a new incarnation --'-- MEMBER <--own Join was read-----------------'
                                                                      |
              STOPPED <--own Leave was read-- LEAVING <--Close--------'      (an error stops from anywhere)

A member reads the ledger and folds it (`fold`). It tracks for which partitions it may act (`tenure`) and which of them
its program knows about (`program_view`). While it waits, it finds out whether its records return soon enough to lead at
all (`admission`). It accuses members that are silent (`suspicion`), and checks whether the ledger can be trusted
(`trust`). This module only decides which records to send, and when. Its decisions cannot make the group unsafe: only
fold and tenure determine who may act. The decisions are good if partitions move rarely, soon and once.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from math import inf
from random import Random
from typing import Literal, TypeVar

from msgspec.structs import replace

from neli_router.errors import Diverged, NeliError, Replaced
from neli_router.protocols.induction.admission import (
    NameWatch,
    Trial,
    genesis,
    join,
    miscertified,
    mismatch,
    replaced,
)
from neli_router.protocols.induction.beats import BeatSchedule
from neli_router.protocols.induction.events import (
    Acknowledged,
    Append,
    Effect,
    Input,
    LedgerAway,
    LedgerBroken,
    Read,
    Recheck,
    Restart,
    Trim,
    Wish,
)
from neli_router.protocols.induction.fold import MEMBERS_MAX, State, beats_from, fold, fold_beats
from neli_router.protocols.induction.program_view import ProgramView
from neli_router.protocols.induction.records import (
    BATCHES,
    BATCHES_SINCE,
    Beat,
    Certify,
    Expire,
    Handover,
    Join,
    Leave,
    Record,
    Seat,
    Snapshot,
    skip_notices,
)
from neli_router.protocols.induction.snapshots import Archive, snapshot
from neli_router.protocols.induction.suspicion import Suspicion
from neli_router.protocols.induction.tenure import Linger, Tenure
from neli_router.protocols.induction.trust import LedgerTrust
from neli_router.protocols.protocol import Close, Notice, Released, Settings, Standing, Stopped

__all__ = ["AUTHORS_MAX", "LIFE_LENGTH", "POWERLESS_TOLD_EVERY", "InductionMachine", "Phase"]

AUTHORS_MAX = 1024
"""How many names of this process's own records to remember: its incarnations, and the names that wishes were recorded
under. A confirmation that arrives after this many other names would be mistaken for a lost record."""

LIFE_LENGTH = 12
"""How many digits of an incarnation identify its life: one member in one process, from start to end. The other digits,
four or more if needed, count the incarnations. So a witness that knows the life knows all its incarnations, future ones
too, and no two are equal."""

POWERLESS_REMEDY = "find what makes the ledger slow, or give the group a longer lease: neli doctor says how long"

WAITS_REMEDY = (
    "find what makes the ledger slow for this process or pauses it, or give the group a longer lease: neli doctor says "
    "how long"
)

POWERLESS_TOLD_EVERY = 600.0
"""Seconds between two log lines saying that this member cannot expire others, or that it is too slow to join. Either
lasts until a person acts."""

Key = TypeVar("Key")

Phase = Enum("Phase", "READING FOUNDING WAITING JOINING MEMBER LEAVING STOPPED")


class InductionMachine:
    """One member's protocol. Not thread-safe. `now` is the host's clock just after the read that brought `state`.

    `wall` is the wall clock in microseconds at `now`: no term of this member is below it. `life` is the first
    LIFE_LENGTH digits of its incarnations, in hexadecimal, if a witness knows the member by them; `witness` is the name
    of that witness in the Join.
    """

    state: State
    tenure: Tenure
    phase: Phase
    _suspicion: Suspicion
    _beats: BeatSchedule
    _trust: LedgerTrust
    _archive: Archive
    trial: Trial
    _namesakes: NameWatch
    _retry_at: float
    """When to repeat a Genesis, Join, Handover or Leave that was sent and has not come back."""
    _free_at: float
    """When the next wait on an owned partition ends."""
    _give_up_at: float
    _accuse_at: float
    """When to look again for members that are silent."""
    _dirty: bool
    """Whether the set of partitions that we may act for may have changed."""

    def __init__(
        self,
        settings: Settings,
        state: State,
        now: float,
        *,
        wall: int,
        rng: Random,
        life: str = "",
        witness: str = "",
    ) -> None:
        self.settings = settings
        self.error: NeliError | None = None
        self.skipped = 0
        self._wall, self._began = wall, now
        self._life, self._incarnations = life or f"{rng.getrandbits(4 * LIFE_LENGTH):0{LIFE_LENGTH}x}", 0
        assert len(self._life) == LIFE_LENGTH, "callers that look up a life in an incarnation use this many digits"
        self._witness = witness
        self._authors: dict[str, None] = {}
        self._program = ProgramView(settings)
        self._closing = self._told = self._was_member = False
        self._powerless_told_at = self._waits_told_at = -inf
        self.trial = Trial(settings)
        self._stepped_at = now
        self._start_from(state, now)

    # Questions

    @property
    def caught_up(self) -> bool:
        return self.phase is not Phase.READING

    @property
    def heard_at(self) -> float:
        """When a sign of life of any member was last read; without any, when this one began or was last stepped."""
        return self.tenure.heard_at if self.tenure.heard else self._stepped_at

    @property
    def incarnation(self) -> str:
        return self.tenure.incarnation

    @property
    def standing(self) -> Standing:
        """The partitions that the program believes it leads (`leading`), and until when it may act for them."""
        leading, until = self._program.leading, self.tenure.sent + self.tenure.lasts
        ends = {i: linger.until for i, linger in self.tenure.lingering.items() if leading.get(i) == linger.term}
        draining = dict.fromkeys(self._program.draining, until)
        return Standing(dict(leading), until, self._program.bounded({**draining, **ends}))

    @property
    def leading(self) -> dict[int, int]:
        """Partition -> term, for each partition that the program was notified it Acquired and not yet that it lost."""
        return dict(self._program.leading)

    @property
    def finishing(self) -> tuple[int, ...]:
        """The Revoked partitions that the program has not let go of yet. They will be handed over."""
        return tuple(self._program.draining)

    def tenures(self, now: float) -> dict[int, int]:
        owned = () if self.phase is Phase.STOPPED else self._program.owned
        return self.tenure.terms(self.state, owned, now)

    @property
    def is_powerless(self) -> bool:
        """Whether this member's Beats come back, but too late for it to expire a member that died."""
        return self.phase in (Phase.MEMBER, Phase.LEAVING) and self._suspicion.is_powerless(self._stepped_at)

    @property
    def deadline(self) -> float:
        wake = [linger.until for linger in self.tenure.lingering.values()]
        wake.append(self._silent_at)
        match self.phase:
            case Phase.READING:
                return -inf
            case Phase.FOUNDING | Phase.JOINING:
                wake.append(self._retry_at)
            case Phase.WAITING:
                wake.append(self._joins_at)
                if self._has_company:
                    wake.append(self.trial.due)
            case Phase.MEMBER | Phase.LEAVING:
                wake += [self._free_at, self._accuse_at, self._program.deadline]
                if not self.tenure.left:
                    wake.append(self._beats.due())
                if self.phase is Phase.MEMBER:
                    wake.append(self._program.resumes_at)
                if not (self._must_let_go if self.phase is Phase.LEAVING else self._beats.silent):
                    wake.append(self._retry_at)
        return min(wake, default=inf)

    @property
    def _silent_at(self) -> float:
        """When leadership ends unless a Beat of this incarnation comes back; lingering partitions end separately."""
        leading, lingering = self._program.leading, self.tenure.lingering
        if lingering and all(i in lingering and lingering[i].term == term for i, term in leading.items()):
            return inf
        return self.tenure.sent + self.tenure.lasts if leading else inf

    @property
    def _joins_at(self) -> float:
        """When a newcomer may join, unless the group has no member or a probe is late until then."""
        if not self._has_company:
            return self.tenure.settled
        older = self.state.holder(self.settings.name)
        # No other member leads what is kept for me, so it waits for nothing else.
        is_awaited = older is not None and older.incarnation in self.state.away
        return self.trial.passed_at if is_awaited else max(self.tenure.settled, self.trial.passed_at)

    @property
    def _has_company(self) -> bool:
        """Whether a member was heard lately. The dead hand nothing over, and a slow leader is better than none."""
        silent_at = self.tenure.heard_at + 2 * self.settings.lease
        return len(self.state.seats) > len(self.state.away) and self._stepped_at < silent_at

    @property
    def _must_let_go(self) -> bool:
        """Under `exclusive`, the program must let go before the member leaves."""
        return self.settings.exclusive and bool(self._program.leading)

    # The step

    def step(self, event: Input, now: float) -> list[Effect]:
        self._stepped_at = now
        effects: list[Effect] = []
        if not self._told:  # Time first: an input that arrives late must not hide the silence before it.
            self._lapse(now, effects)
        if self._told:
            return effects
        match event:
            case Read(entries):
                self._beats.read(bool(entries), now)
                taken = 0
                # The records after a fault do not matter.
                while taken < len(entries) and (self.error is None or self.tenure.lingering):
                    if beats := beats_from(entries, taken, self.incarnation):
                        self._take_beats(beats, now, effects)
                    else:
                        self._take(*entries[taken], now, effects)
                    taken += len(beats) or 1
            case LedgerAway():
                self._beats.away()
            case LedgerBroken(error):
                self._fail(error, effects)
            case Wish(record):
                self._sign_as(record.by)
                effects.append(Append([record], lasting=True))
            case Restart(state):
                self._restart(state, now, effects)
            case Acknowledged(offsets):
                self._fail(self._trust.acknowledge(offsets, self.state.at), effects)
            case Released(terms):
                released = self._program.release(terms)
                if self.phase is Phase.MEMBER:
                    self._give(released, now, effects)
            case Close():
                self._closing = True
                if event.at_once:
                    self._break_off(event, effects)
        if self._trust.doubts():
            effects.append(Recheck())
        self._act(now - event.age if isinstance(event, Read) and event.age < inf else None, now, effects)
        self._settle(now, effects)
        return effects

    def _lapse(self, now: float, effects: list[Effect]) -> None:
        """End what time alone has ended."""
        self._suspicion.lapse(now)
        was_silent = self._beats.silent
        self._beats.lapse(self.tenure.sent, now)
        if self.phase is Phase.MEMBER and self._beats.silent and not was_silent:
            # If the ledger is now shorter than what I read, I see nothing until others have written past its old end.
            # Then my Beats would come back, in a group that does not know me.
            effects.append(Recheck())
        lasts = f"{self.tenure.lasts:g} s"
        if any(now >= linger.until for linger in self.tenure.lingering.values()):
            lingering = {i: linger for i, linger in self.tenure.lingering.items() if now < linger.until}
            self.tenure, self._dirty = replace(self.tenure, lingering=lingering), True
            self._program.reason = f"no successor was heard in the {lasts} that this member holds on for"
            self._settle(now, effects)
        if now >= self._silent_at:
            self._program.reason, self._dirty = f"no Beat of this member came back for {lasts}", True
            self._settle(now, effects)

    def _take(self, offset: int, record: Record | None, now: float, effects: list[Effect]) -> None:
        """One record of the ledger, other than a Beat of another."""
        before = self.state
        forged = isinstance(record, Beat) and record.by == self.incarnation and not self._beats.came_back(record)
        if self._fail(self._trust.before(before, offset, record, self._authors), effects):
            return
        after = self.state = fold(before, offset, record)
        if isinstance(record, Join) and record.by in after.seats and record.by not in before.seats:
            self._program.joined(offset, now)
        if isinstance(record, Beat):
            self._hear([record], now, forged=forged)
        else:
            self.tenure = self.tenure.read(before, record, after, now)
        tables = (after.owners, before.owners), (after.targets, before.targets), (after.standbys, before.standbys)
        if any(new is not old for new, old in tables):
            self._look()
        if after.seats is not before.seats:
            self._count()
        match record:
            case Beat(by):
                if self.phase is Phase.WAITING and not forged:
                    self.trial.came_back(record.sent_at, now)
                if by in after.seats and not forged:
                    self._suspicion.hear(record.sent_at, now)
                    self._tell_if_powerless(now - record.sent_at, now, effects)
                    self._dirty |= len(self._program.leading) < len(self._program.owned)
            case Join() | Leave() | Expire() | Certify():
                self._fate(before, record, now, effects)
            case Snapshot() if self._trust.vouches(record):
                superseded = self._archive.read(record)
                if superseded is not None and record.by in self._authors:
                    effects.append(Trim(superseded))
            case None:
                self.skipped += 1
                effects += skip_notices(self.skipped, offset)
        if after.version != before.version or after.genesis is not before.genesis:
            self._fail(mismatch(self.settings, after), effects)
        self._fail(self._trust.after(after, record, forged=forged), effects)

    def _take_beats(self, beats: Sequence[tuple[int, Beat]], now: float, effects: list[Effect]) -> None:
        """Beats of others in a row. They change neither members nor owners, so they are taken together."""
        sound, error = self._trust.before_beats(self.state, beats, self._authors)
        if sound:
            self.state, digests = fold_beats(self.state, sound)
            heard = [beat for _, beat in sound]
            self._hear(heard, now)
            if not self._was_member:
                for beat in heard:
                    self._namesakes.read(beat, self.state)
            self._fail(self._trust.after_beats(self.state, sound, digests), effects)
        self._fail(error, effects)

    def _hear(self, beats: Sequence[Beat], now: float, *, forged: bool = False) -> None:
        lingering = self.tenure.lingering
        self.tenure = self.tenure.hear(beats, self.state, now, forged=forged)
        if lingering is not self.tenure.lingering:
            heard_of = lingering.keys() - self.tenure.lingering.keys()
            self._program.succeeded(heard_of - set(self._program.owned))  # I am not my own successor.
            self._dirty = True

    def _act(self, tip_at: float | None, now: float, effects: list[Effect]) -> None:
        """Do what is due in this phase. When a phase ends, the next one continues in the same step.

        Everything that the ledger held at `tip_at` has been read; None if the latest input does not say so.
        """
        at_tip = tip_at is not None
        match self.phase:
            case Phase.READING:
                self._act_reading(at_tip, now, effects)
            case Phase.FOUNDING:
                self._act_founding(at_tip, now, effects)
            case Phase.WAITING:
                self._act_waiting(at_tip, now, effects)
            case Phase.JOINING:
                self._act_joining(now, effects)
            case Phase.MEMBER:
                self._act_as_member(tip_at, now, effects)
            case Phase.LEAVING:
                self._act_leaving(tip_at, now, effects)

    def _act_reading(self, at_tip: bool, now: float, effects: list[Effect]) -> None:
        if at_tip:
            self.phase = Phase.FOUNDING
            self._namesakes.begin(self.state.at)
            if not self._fail(mismatch(self.settings, self.state), effects):
                self._act_founding(at_tip, now, effects)
        elif self._closing:
            self._stop(None)

    def _act_founding(self, at_tip: bool, now: float, effects: list[Effect]) -> None:
        if self._closing:
            self._stop(None)
        elif self.state.genesis is not None:
            self.phase = Phase.WAITING
            self._act_waiting(at_tip, now, effects)
        elif now >= self._retry_at:
            self._retry_at = now + self.settings.lease
            founding = genesis(self.settings, self.incarnation, self._wall, self.state.at)
            effects.append(Append([founding], lasting=True))

    def _act_waiting(self, at_tip: bool, now: float, effects: list[Effect]) -> None:
        self.trial.lapse(now)
        if self._closing:
            self._stop(None)
        elif now >= self._joins_at or (at_tip and not self._has_company):
            verdict = None if self._was_member else self._namesakes.verdict(self.state)
            if isinstance(verdict, Notice):
                effects.append(verdict)
            elif self._fail(verdict, effects):
                return
            self.phase, self._retry_at = Phase.JOINING, -inf
            self._act_joining(now, effects)
        elif self._has_company:
            self._tell_if_it_waits(now, effects)
            if now >= self.trial.due:
                self.trial.sent(self._append_beat(now, effects).sent_at)

    def _act_joining(self, now: float, effects: list[Effect]) -> None:
        if self._closing:  # One writer's records keep their order, so this undoes a Join still in flight.
            effects.append(Append([Leave(by=self.incarnation, grace=self.settings.grace)], lasting=True))
            self._stop(None)
        elif now >= self._retry_at:
            self._retry_at = now + self.settings.lease / 2
            self.tenure = self.tenure.asking(now)
            wall = self._wall + int(1e6 * (now - self._began))
            effects.append(
                Append([join(self.settings, self.incarnation, self.state, self._witness, wall)], lasting=True)
            )

    def _act_as_member(self, tip_at: float | None, now: float, effects: list[Effect]) -> None:
        if self._closing:
            self.phase, self._retry_at = Phase.LEAVING, -inf
            self._act_leaving(tip_at, now, effects)
            return
        self._beat(now, effects)
        self._accuse(tip_at, now, effects)
        repeat = now >= self._retry_at and not self._beats.silent  # If silent, sent records may be there, unread.
        gives, told = self._program.to_give(self.state, self.tenure, now, repeat=repeat)
        if repeat:
            self._retry_at = inf
        effects += told
        self._give(gives, now, effects)

    def _act_leaving(self, tip_at: float | None, now: float, effects: list[Effect]) -> None:
        self._beat(now, effects)
        self._accuse(tip_at, now, effects)
        if self._must_let_go:
            _, told = self._program.drain(self._program.leading, now)
            effects += told
        if now >= self._retry_at and not self._must_let_go:
            self._give_up_at = min(self._give_up_at, now + self.settings.lease)
            self._retry_at = now + self.settings.lease / 4
            self.tenure = self.tenure.leaving()
            effects.append(Append([Leave(by=self.incarnation, grace=self.settings.grace)], lasting=True))
        if now >= self._give_up_at:
            self._program.reason = "the ledger did not take this member's Leave for a lease"
            self._stop(None)  # The others will notice our silence.

    def _settle(self, now: float, effects: list[Effect]) -> None:
        """Report to the program which partitions it may now act for, or no longer."""
        if self._dirty or now >= self._free_at:
            self._dirty = False
            effects += self._program.settle(self.tenures(now), take=not self._closing)
            effects += self._program.stand_by()
            waits = (self.tenure.busy_until(i) for i in self._program.owned if i not in self._program.leading)
            self._free_at = min((at for at in waits if at > now), default=inf)
        if self.phase is Phase.STOPPED and not self.tenure.lingering and not self._told:
            self._told = True
            effects.append(Stopped(self.error))

    # A life

    def _start_from(self, state: State, now: float) -> None:
        """Read from `state` to the tip, and trust nothing that contradicts it."""
        self.state = state
        self._trust = LedgerTrust(state)
        self._archive = Archive(self.settings.snapshot_every, state.at)
        self._namesakes = NameWatch(self.settings)
        self._begin(Phase.READING, now, lingering={})

    def _begin(self, phase: Phase, now: float, lingering: dict[int, Linger]) -> None:
        """Begin a new incarnation, which owes a wait on everything."""
        incarnation = f"{self._life}{self._incarnations:04x}"
        self._incarnations += 1
        self._sign_as(incarnation)
        self.tenure = Tenure.begin(incarnation, self.settings, self.state, now, lingering)
        self.phase = phase
        self._suspicion, self._beats = Suspicion(self.settings, incarnation), BeatSchedule(self.settings)
        self.trial.begin()
        self._retry_at, self._free_at, self._give_up_at, self._accuse_at = -inf, inf, inf, inf
        self._count()
        self._look()

    def _sign_as(self, by: str) -> None:
        """From now on, my records may carry the name `by`."""
        self._authors.pop(by, None)
        self._authors[by] = None
        if len(self._authors) > AUTHORS_MAX:
            del self._authors[next(name for name in self._authors if name != self.incarnation)]

    def _restart(self, state: State, now: float, effects: list[Effect]) -> None:
        self._program.reason = "the records that this member had yet to read are no longer retained"
        effects.append(Notice("member.restarted", {"was_at": self.state.at, "at": state.at}))
        self._start_from(state, now)
        if (successor := self._successor()) is not None:
            self._fail(replaced(self.settings, successor.address), effects)

    def _count(self) -> None:
        """The members changed."""
        members = len(self.state.seats)
        self._beats.among(members)
        self._suspicion.among(members)
        self.trial.among(members)

    def _look(self) -> None:
        """The table changed."""
        self._dirty = True
        owned = None if self.settings.exclusive else self._program.owned
        self._program.look(self.state, self.incarnation)
        # Under `available`, the former owner goes on until it hears that we know of our ownership.
        if owned is not None and not set(self._program.owned) <= set(owned):
            self._beats.at_once()

    def _fate(self, before: State, record: Join | Leave | Expire | Certify, now: float, effects: list[Effect]) -> None:
        """Handle what a change of members means for this member."""
        me = self.incarnation
        if isinstance(record, Certify):
            # This applies before I have joined, too: all of my Joins would be void. I do not rejoin under a new
            # incarnation as after an Expire: a witness that is wrong about me will certify my death again, and each
            # time others take over without a wait.
            if record.incarnation == me and (me in self.state.departed or me in self.state.away):
                self._fail(miscertified(self.settings, before, record), effects)
        elif self.state.is_member(me):
            if me not in before.seats:
                self.phase, self._retry_at, self._was_member = Phase.MEMBER, inf, True
                self._beats.joined(now)
                self.trial.joined(now)
                effects.append(Notice("member.joined", {"incarnation": me, "members": len(self.state.seats)}))
        elif before.is_member(me):
            if isinstance(record, Join):
                self._fail(replaced(self.settings, record.address), effects)
            elif isinstance(record, Leave):
                self._stop(None)
            else:
                by = before.seats[record.by].name
                self._program.reason = f"{by} expired this member, having heard nothing of it for a lease"
                effects.append(Notice("member.expired", {"incarnation": me, "by": record.by}))
                if self._closing:
                    self._stop(None)
                else:
                    self.trial.expired(now)
                    self._begin(Phase.WAITING, now, self.tenure.lingering)
        elif isinstance(record, Join) and (successor := self._successor()) is not None:
            self._fail(replaced(self.settings, successor.address), effects)
        elif self.phase is Phase.JOINING and record.by == me:
            if len(self.state.seats) < MEMBERS_MAX:
                self._retry_at = -inf  # Void: a member with my name joined after I had looked. Now I have seen it.
            else:
                effects.append(Notice("member.group_is_full", {"members": MEMBERS_MAX}))

    def _successor(self) -> Seat | None:
        """The newer process that now has my name, if I had it once. I must not take the name back."""
        holder = self.state.holder(self.settings.name) if self._was_member else None
        return None if holder is None or holder.incarnation in self._authors else holder

    def _stop(self, error: NeliError | None) -> None:
        self.error, self.phase, self._dirty = error, Phase.STOPPED, True
        if error is not None:
            self._program.reason = str(error)
            if not isinstance(error, Replaced):  # A successor under our name is like any other successor.
                self.tenure = replace(self.tenure, lingering={})

    def _fail(self, error: NeliError | None, effects: list[Effect]) -> bool:
        if error is not None and self.phase is not Phase.STOPPED:
            self._stop(error)
            if isinstance(error, Diverged):
                self.tenure = self.tenure.leaving()
                effects += self._program.settle({}, take=False)  # The program stops first; then the Leave says so.
                effects.append(Append([Leave(by=self.incarnation)], lasting=True))
        return error is not None

    def _break_off(self, close: Close, effects: list[Effect]) -> None:
        """Leave without waiting for the program, which is fenced in this same step, as after `drain_timeout`."""
        self._program.reason = close.reason
        effects += self._program.settle({}, take=False)
        if self.phase in (Phase.JOINING, Phase.MEMBER, Phase.LEAVING):
            grace = 0.0 if close.error else self.settings.grace
            effects.append(Append([Leave(by=self.incarnation, grace=grace)], lasting=True))
        if self.phase is not Phase.STOPPED:  # A stopped member was only lingering, and keeps its error.
            self._stop(close.error)
        self.tenure = replace(self.tenure.leaving(), lingering={})

    # The records of a member

    def _beat(self, now: float, effects: list[Effect]) -> None:
        if now < self._beats.due() or self.tenure.left:
            return
        state, me = self.state, self.incarnation
        self._append_beat(now, effects)
        rank = self._suspicion.rank(state.seats, self.tenure.heard, now, state.away)
        if self._archive.due(state, rank):
            effects.append(Append([snapshot(me, state)], lasting=True))

    def _append_beat(self, now: float, effects: list[Effect]) -> Beat:
        beat = self._beats.next(self.incarnation, self.state, now, is_clear=self._tells_clear(now))
        self._beats.sent(beat, now)
        effects.append(Append([beat], lasting=False))
        return beat

    def _tells_clear(self, now: float) -> bool:
        """Whether I owe no wait on what I own, and the others do not know. It spares my next process the wait."""
        settings, state, me, owned = self.settings, self.state, self.incarnation, self._program.owned
        if not (settings.grace and settings.exclusive and owned and state.version >= BATCHES_SINCE):
            return False
        return state.clear.get(me, -1) <= self._program.newest and now >= max(map(self.tenure.busy_until, owned))

    def _accuse(self, tip_at: float | None, now: float, effects: list[Effect]) -> None:
        # My last Beat that came back was sent at `sent`, so I have read everything that the ledger held then. Under a
        # steady stream of records this is the only way to know: a read may never find the tip. And if a read does, the
        # ledger may have reported its tip a while ago: the Beat that we miss may be on its way to us.
        at_tip, state = tip_at is not None, self.state
        as_of = self.tenure.sent if tip_at is None else max(self.tenure.sent, tip_at)
        look = self._suspicion.look(state.seats, self.tenure.heard, state.away, as_of=as_of, now=now, at_tip=at_tip)
        self._accuse_at = look.again_at
        if look.is_too_old:
            self._beats.at_once()
        if not look.accused:
            return
        last_beats = {q: state.last_beats[q] for q in look.accused}
        accusations = [Expire(by=self.incarnation, last_beats=some, v=v) for v, some in self._batched(last_beats)]
        effects.append(Append(accusations, lasting=True))
        for q, last_beat in last_beats.items():
            fields = {"name": state.seats[q].name, "incarnation": q, "last_beat": last_beat}
            effects.append(Notice("member.suspected", fields))

    def _tell_if_powerless(self, round_trip: float, now: float, effects: list[Effect]) -> None:
        if self._suspicion.is_powerless(now) and now >= self._powerless_told_at + POWERLESS_TOLD_EVERY:
            self._powerless_told_at = now
            fields = {"round_trip": round(round_trip, 4), "lease": self.settings.lease, "remedy": POWERLESS_REMEDY}
            effects.append(Notice("member.powerless", fields))

    def _tell_if_it_waits(self, now: float, effects: list[Effect]) -> None:
        """Report a newcomer that is still on trial when it has waited for as long as all do."""
        if now >= max(self.tenure.settled, self._waits_told_at + POWERLESS_TOLD_EVERY):
            self._waits_told_at = now
            fields = {"round_trip": round(self.trial.round_trip, 4), "lease": self.settings.lease}
            effects.append(Notice("member.waits", {**fields, "expiries": self.trial.expiries, "remedy": WAITS_REMEDY}))

    def _give(self, partitions: Iterable[int], now: float, effects: list[Effect]) -> None:
        terms = {i: self.state.terms[i] for i in partitions}
        if terms:
            self.tenure = self.tenure.gave(terms)
            self._retry_at, self._dirty = now + self.settings.beat_every, True
            handovers = [Handover(by=self.incarnation, terms=some, v=v) for v, some in self._batched(terms)]
            effects.append(Append(handovers, lasting=True))

    def _batched(self, all_of_them: dict[Key, int]) -> Iterator[tuple[Literal[1, 2], dict[Key, int]]]:
        """The contents of as few records as the group's version allows, with their format."""
        if self.state.version >= BATCHES_SINCE:
            yield BATCHES, all_of_them
        else:
            yield from ((1, {key: value}) for key, value in all_of_them.items())
