"""Replays a transcript: one member's inputs and its answers, line by line.

    settings name=a guarantee=available       first: differences from a lease of 6 s, in which a beat is due each second
    0.25 read                                 a read that found nothing: at the tip
    0.50 read mine b:join b:beat              records, in order: the next one that the member sent, and others'
    0.75 read @9 junk                         a chosen offset for the next record, and bytes that are not a record
    1.00 read lost mine                       its next own record is lost, and the one after that is read
    1.25 read * junk*9                        all its own records that are not read yet, and nine that do not decode
    1.50 tick | away | broken | acknowledged 3 4 | released 0 1 | close | close at_once | restart b
    2.00 wish op:drain(name=b)                a record that the program wants written
    9.00 lives b c                            it lives on until then: wakes at its deadlines, reads its own records
                                              immediately, and others' Beats each second; its own Beats are not listed
    9.25 ask                                  no step: what it may act for, until when, and when it wants to be woken

Every input line is followed by its result: ` -> effect, effect` on the same line, or one indented line for each effect
if they do not fit. `.` means nothing. Lines that begin with # and empty lines are left unchanged.

A newcomer's probes come back immediately and take no place in the ledger. They are not listed, and no input names them,
unless the settings say `probes=listed`: then they are records like all others.

Members other than the one on stage are called by one letter, which is their incarnation and, unless a Join says more,
their name; `me` is the first incarnation on stage, `me2` the one after it was expired, and so on. Records land at
offset 1, 2 and so on. The base is 1000, so the term 1003 began at offset 3. Beats of others are honest: unless they say
otherwise, their writer had read as much as the member on stage. Clocks do not drift, so the wait for a lease is a
lease.
"""

import re
from collections import deque
from collections.abc import Iterator
from math import inf
from random import Random

from msgspec.structs import replace

from neli_router.core.keyspace import Layout
from neli_router.errors import LedgerUnusable
from neli_router.protocols.induction import records as kinds
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
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.machine import InductionMachine, Phase
from neli_router.protocols.induction.records import Record, decode, encode
from neli_router.protocols.protocol import TICK, Close, Released, Settings, Stopped
from tests.protocols.rules import answered, news, numbers
from tests.support.records import STOPPED_CLOCK, folded, join, parsed, table, value_of

__all__ = ["played"]

FIRST = 1
STEPS_MAX = 1000
"""Far more steps than a member takes in the longest transcript: a member that takes more is spinning."""

LINE = re.compile(r"^(?P<time>[\d.]+) (?P<input>\S.*?)(?: ->.*)?$")


def played(lines: list[str]) -> Iterator[str]:
    """`lines` with the answers of the shipped machine."""
    return _Stage().played(lines)


class _Stage:
    """One machine, and the ledger around it."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.sent: deque[Record] = deque()
        self.next = FIRST
        self.machine: InductionMachine | None = None
        self.settings = Settings(name="a", layout=Layout(slots=16, partitions=4), lease=6.0, drift=0.0)
        self.start = State()
        self.lists_probes = False
        self.now = 0.0
        self.digests: dict[int, int] = {}

    def played(self, lines: list[str]) -> Iterator[str]:
        for line in lines:
            if line.startswith("settings "):
                self._set(line)
                yield line
            elif not line or line.startswith("#"):
                yield line
            elif not line.startswith(" "):  # Indented lines are old answers, which are written again.
                match = LINE.match(line)
                assert match is not None, f"this is not a line of a transcript: {line!r}"
                asked = f"{match['time']} {match['input']}"
                yield from answered(asked, self._answers(float(match["time"]), match["input"]))

    def _set(self, line: str) -> None:
        told = dict(part.split("=") for part in line.split()[1:])
        group = told.pop("starts_from", "")
        self.lists_probes = told.pop("probes", "") == "listed"
        self.settings = replace(self.settings, **{key: value_of(text) for key, text in told.items()})
        if group:
            self.start = self._group(group)
            self.next = self.start.at

    def _group(self, letters: str) -> State:
        """A group with a member for each letter, in the form of a snapshot's state."""
        state = folded(self._record("z:genesis", State()), state=State(at=FIRST))
        for letter in letters:
            state = folded(join(letter, at=state.at), state=state)
        return state

    def _answers(self, now: float, asked: str) -> list[str]:
        if self.machine is None:
            self.machine = InductionMachine(self.settings, self.start, now, wall=STOPPED_CLOCK, rng=Random(7))
            self._name()
        if asked == "ask":
            answers = [self._standing(self.machine, now)]
        elif asked.split(maxsplit=1)[0] == "lives":
            answers = list(self._lives(self.machine, asked.split()[1:], now))
        else:
            answers = [self._told(effect) for effect in self._step(asked, now)]
        self.now = now
        return answers

    def _step(self, asked: str, now: float) -> list[Effect]:
        assert self.machine is not None
        effects = self.machine.step(self._input(asked), now)
        self._name()
        if self.machine.phase is Phase.WAITING and not self.lists_probes:
            for probe in [effect for effect in effects if _is_beat(effect)]:
                self.machine.trial.came_back(now, now)
                effects.remove(probe)
        for effect in effects:
            if isinstance(effect, Append):
                self.sent.extend(effect.records)
        return effects

    def _lives(self, machine: InductionMachine, others: list[str], end: float) -> Iterator[str]:
        now = self.now
        beat_at = now
        for _ in range(STEPS_MAX):
            asked = "read"
            if self.sent:
                asked = "read *"
            elif now >= beat_at and others:
                asked, beat_at = f"read {' '.join(f'{other}:beat' for other in others)}", beat_at + 1
            for effect in self._step(asked, now):
                if not _is_beat(effect):
                    yield f"{now:g}: {self._told(effect)}"
            if asked == "read" and not self.sent:
                wake = min(machine.deadline, beat_at if others else inf)
                if now >= end and wake > now:
                    return
                now = min(end, max(now, wake))
        raise AssertionError(f"it is still busy at {now}, with a deadline of {machine.deadline}")

    def _name(self) -> None:
        assert self.machine is not None
        if self.machine.incarnation not in self.names:
            self.names[self.machine.incarnation] = "me" if not self.names else f"me{len(self.names) + 1}"

    def _standing(self, machine: InductionMachine, now: float) -> str:
        terms, standing = machine.tenures(now), machine.standing
        ends = {standing.end(i, term) for i, term in terms.items()}
        until = f" until {' '.join(f'{end:g}' for end in sorted(ends))}" if ends else ""
        owned = self._renamed(table(machine.state))
        return (
            f"{machine.phase.name} of {owned or 'nothing'}, may act for {numbers(terms) or 'nothing'}{until}, "
            f"deadline {machine.deadline:g}"
        )

    # Inputs

    def _input(self, asked: str) -> Input:
        what, *rest = asked.split()
        match what:
            case "read":
                entries = list(self._entries(rest))
                return Read(entries, inf if entries else 0.0)
            case "tick":
                return TICK
            case "away":
                return LedgerAway()
            case "broken":
                return LedgerBroken(LedgerUnusable("a good ledger was wanted", "it is broken", "mend it"))
            case "acknowledged":
                return Acknowledged([int(offset) for offset in rest])
            case "released":
                assert self.machine is not None
                leading = self.machine.leading
                return Released({int(i): leading.get(int(i), 0) for i in rest})
            case "close":
                return Close(at_once=rest == ["at_once"])
            case "wish":
                return Wish(self._record(rest[0], State()))
            case "restart":
                return Restart(replace(self._group(rest[0]), at=self.next))
            case _:
                raise AssertionError(f"there is no input called {what!r}")

    def _entries(self, words: list[str]) -> Iterator[tuple[int, Record | None]]:
        assert self.machine is not None
        state = self.machine.state
        self.digests[state.at] = state.digest
        for repeated in words:
            word, _, times = repeated.partition("*") if len(repeated) > 1 else (repeated, "", "")
            if word.startswith("@"):
                self.next = int(word[1:])
                continue
            if word == "lost":
                self.sent.popleft()
                continue
            records: list[Record | None] = []
            match word:
                case "mine":
                    assert self.sent, "it has sent nothing that was not read"
                    records = [self.sent.popleft()]
                case "*":
                    records = list(self.sent)
                    self.sent.clear()
                case "junk":
                    records = [None] * int(times or 1)
                case _:
                    records = [self._record(word, state)] * int(times or 1)
            for record in records:
                yield self.next, None if record is None else decode(encode(record))  # Like a record from a real ledger.
                state = fold(state, max(self.next, state.at), record)
                self.digests[state.at] = state.digest
                self.next += 1

    def _record(self, word: str, state: State) -> Record:
        agreed = {"layout": self.settings.layout, "lease": self.settings.lease, "guarantee": self.settings.guarantee}
        return parsed(word, state, called=self._incarnation, digests=self.digests, agreed=agreed)

    def _incarnation(self, name: str) -> str:
        return next((incarnation for incarnation, known in self.names.items() if known == name), name)

    # Answers

    def _called(self, incarnation: str) -> str:
        return self.names.get(incarnation, incarnation)

    def _told(self, effect: Effect) -> str:
        match effect:
            case Append(records, lasting):
                return f"Append {' '.join(map(self._spelled, records))}{'' if lasting else ' (fleeting)'}"
            case Trim(before):
                return f"Trim below {before}"
            case Recheck():
                return "Recheck"
            case Stopped(error) if error is not None:
                return f"Stopped {type(error).__name__}: {self._renamed(error.found)}"
            case _:
                return self._renamed(news(effect))

    def _renamed(self, text: str) -> str:
        for incarnation, name in self.names.items():
            text = text.replace(incarnation, name)
        return text

    def _spelled(self, record: Record) -> str:
        kind = f"{self._called(record.by)}:{type(record).__name__.lower()}"
        match record:
            case kinds.Join() if record.grace:
                return f"{kind}(at={record.at},grace={record.grace:g})"
            case kinds.Leave() if record.grace:
                return f"{kind}(grace={record.grace:g})"
            case kinds.Genesis() | kinds.Join() | kinds.Beat():
                return f"{kind}(at={record.at})"
            case kinds.Expire():
                accused = (f"incarnation={self._called(q)},last_beat={at}" for q, at in record.last_beats.items())
                return f"{kind}({';'.join(accused)})"
            case kinds.Certify():
                return f"{kind}(incarnation={self._called(record.incarnation)})"
            case kinds.Handover():
                return f"{kind}({';'.join(f'partition={i},term={term}' for i, term in record.terms.items())})"
            case kinds.Snapshot():
                return f"{kind}(upto={record.upto})"
            case kinds.Drain() | kinds.Undrain():
                return f"{kind}(name={record.name})"
            case _:
                return kind


def _is_beat(effect: Effect) -> bool:
    return isinstance(effect, Append) and isinstance(effect.records[0], kinds.Beat)
