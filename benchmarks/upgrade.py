"""A rolling upgrade of real processes from the release before fold version 3, and back, while members are killed.

    all old --one after the other--> all new --> all old --> all new --neli upgrade--> all new --> an old one is refused
             |<- kill -9 or SIGTERM, and the other release starts ->|             kills go on in all of it

The older release comes from the history of this repository. Its processes run its own package, with the interpreter and
the packages of this one, and write the same notes. Meanwhile random members of either release are killed and return. A
few have no witness, so others must expire them.

    overlaps          pairs of processes that acted for one partition together; also terms that went back
    ended             processes that ended on their own, such as by Diverged, or could not start; the first ends the run
    unequal_digests   Beats whose writer held another state than the fold of this release, over all records
    old_refused       whether a member of the older release that came after the upgrade ended with GroupMismatch
    held_back         the members that `neli upgrade` named halfway through
"""

import io
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from click.testing import Result

from benchmarks import BenchmarkOptions, Figures, option
from neli_router.drivers.ledgers.base import Entry
from neli_router.lab.processes.group import MemberProcess, ProcessGroup
from neli_router.lab.referee import LifePhase
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Beat, Join
from neli_router.status.replay import replayed
from tests.support.commands import neli
from tests.support.processes.ledger_copy import LedgerCopy

__all__ = ["OLDER", "Options", "older_release", "run"]

OLDER = "38f77bd783b5ce1ebf52157066a4c465a2bf11e1"
"""The last commit whose newest fold version is 2."""

OLD, NEW = (2, 2), (2, 3)
"""The fold versions that the Joins of the two releases name."""

ROOT = Path(__file__).parents[1]

SNAPSHOT_EVERY = 500
"""Often, so that members of each release start from snapshots of the other."""

STARTING_MAX = 2
"""How many members may be starting at the same time. The others hold the group together."""

UNSEEN = 2
"""How many of the members have no witness."""

REFUSED = 5
"""The exit code of `neli upgrade` while a member holds the group back."""


class Options(BenchmarkOptions):
    members: int = 8
    partitions: int = 256
    lease: float = 1.0
    kills: int = option(8, "of random members in each of the five parts")
    rest: float = option(1.0, "leases between one member and the next, on average")
    seed: int = 1


def run(options: Options) -> Figures:
    with tempfile.TemporaryDirectory(prefix="neli-") as folder:
        older, place = older_release(Path(folder) / "older"), Path(folder) / "group"
        place.mkdir()
        with (
            ProcessGroup(
                place,
                partitions=options.partitions,
                pause=options.lease / 10,
                lease=options.lease,
                snapshot_every=SNAPSHOT_EVERY,
            ) as group,
            LedgerCopy(group.ledger) as copy,
        ):
            started, roll = time.monotonic(), _Roll(group, older, options)
            with suppress(_EndedError):
                roll.run()
            lasted = time.monotonic() - started
        beats, unequal, joins = _read(copy.close())
        verdict = group.verdict()
        sys.stderr.writelines(f"{fault}\n" for fault in verdict.faults)
        return {
            "overlaps": len(verdict.faults),
            "ended": roll.ended,
            "unequal_digests": unequal,
            "old_refused": roll.refused,
            "held_back": roll.held_back,
            "digests": beats,
            "acts": verdict.acts,
            "handovers": verdict.handovers,
            "takeovers": verdict.takeovers,
            "joins_old": joins.count(OLD),
            "joins_new": joins.count(NEW),
            "kills": roll.kills,
            "members": options.members,
            "partitions": options.partitions,
            "lease": options.lease,
            "lasted_s": lasted,
        }


def older_release(folder: Path) -> Path:
    """A folder with the package of the commit OLDER. Raises RuntimeError if this clone does not have that commit."""
    command = ["git", "-C", str(ROOT), "archive", "--format=zip", OLDER, "neli_router"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode != 0:
        why = archive.stderr.decode(errors="replace").strip()
        raise RuntimeError(
            f"the older release is commit {OLDER} of this repository, but git cannot read it ({why}): fetch the whole "
            "history, by `git fetch --unshallow`"
        )
    with zipfile.ZipFile(io.BytesIO(archive.stdout)) as files:
        files.extractall(folder)
    return folder


class _EndedError(Exception):
    """A process ended that should run."""


class _Roll:
    """The members, each of one release at a time."""

    def __init__(self, group: ProcessGroup, older: Path, options: Options) -> None:
        self.kills = self.ended = self.held_back = 0
        self.refused = False
        self._group, self._options, self._rng = group, options, Random(options.seed)
        self._names = [f"m{number}" for number in range(1, options.members + 1)]
        self._old = {"PYTHONPATH": os.pathsep.join([str(older), *(entry or str(Path.cwd()) for entry in sys.path)])}
        self._is_new = dict.fromkeys(self._names, False)
        self._present: dict[str, MemberProcess] = {}

    def run(self) -> None:
        for name in self._names:
            self._start(name)
        self._settle()
        self._move(to_new=True)
        self._move(to_new=False)
        self._move(to_new=True, ask=True)
        self._upgrade()
        self._group.leave()

    def _move(self, *, to_new: bool, ask: bool = False) -> None:
        """Let every member change to one release. With `ask`, ask halfway which members hold the group back."""
        steps: list[str | None] = [*self._names, *([None] * self._options.kills)]
        self._rng.shuffle(steps)
        for step, name in enumerate(steps):
            if ask and step == len(steps) // 2:
                result = self._neli("upgrade", "--dry-run")
                assert result.exit_code == REFUSED, result.output
                self.held_back = len(result.stdout.splitlines()) - 1  # Without the head of the table.
            if name is None:
                self._kill(self._rng.choice(self._names))
            else:
                self._is_new[name] = to_new
                self._replace(name)
        self._settle()

    def _upgrade(self) -> None:
        """Upgrade the group, and start an older member then."""
        result = self._neli("upgrade")
        assert result.exit_code == 0, result.output
        late = self._group.start("late", environment=self._old)
        for _ in range(self._options.kills):
            self._kill(self._rng.choice(self._names))
        self._group.wait_until(lambda: late.has_ended, "an older member was to be refused")
        self._settle()
        self.refused = "GroupMismatch" in late.log and "version 3" in late.life.error and not late.life.spans

    def _neli(self, *words: str) -> Result:
        tests = [name for name in os.environ if name.startswith("NELI_TEST_")]
        return neli(*words, "--ledger", self._group.ledger, **dict.fromkeys(tests))

    def _replace(self, name: str) -> None:
        if self._rng.random() < 0.5:
            self._kill(name)
            return
        self._await_room(name)
        leaver = self._present[name]
        # Before that, SIGTERM would end it like any program.
        self._await(lambda: leaver.life.phase is not LifePhase.STARTING, f"{leaver.life.label} was to start")
        leaver.ask_to_leave()
        self._group.wait_until(lambda: not leaver.is_running, f"{leaver.life.label} was to leave")
        self._require(leaver, is_good=leaver.exit_code() == 0)
        self._start(name)

    def _kill(self, name: str) -> None:
        self._await_room(name)
        self._present[name].kill()
        self.kills += 1
        self._start(name)

    def _start(self, name: str) -> None:
        environment = {} if self._is_new[name] else self._old
        options: dict[str, Any] = {"witness": "none"} if name in self._names[-UNSEEN:] else {}
        self._present[name] = self._group.start(name, environment=environment, **options)

    def _await_room(self, name: str) -> None:
        """Rest, and wait until few members are starting. `name` may be struck while it starts."""
        time.sleep(2 * self._options.rest * self._options.lease * self._rng.random())

        def is_room() -> bool:
            others = [process for other, process in self._present.items() if other != name]
            return sum(process.life.phase is LifePhase.STARTING for process in others) < STARTING_MAX

        self._await(is_room, "members were to start")

    def _await(self, ready: Callable[[], bool], wanted: str) -> None:
        """Wait until `ready`, or until a process has ended that should run."""
        self._group.wait_until(lambda: ready() or not all(it.is_running for it in self._present.values()), wanted)
        self._look()

    def _settle(self) -> None:
        self._group.settle()
        self._look()

    def _look(self) -> None:
        for process in self._present.values():
            self._require(process, is_good=process.is_running)

    def _require(self, process: MemberProcess, *, is_good: bool) -> None:
        if not is_good:
            self.ended += 1
            sys.stderr.write(f"{process.life.label} ended with\n{process.log}\n")
            raise _EndedError


def _read(entries: Sequence[Entry]) -> tuple[int, int, list[tuple[int, int]]]:
    """How many Beats' digests were compared, how many of them differ, and the versions in each Join that counted."""
    digests, compared, joins = {0: 0}, list[bool](), list[tuple[int, int]]()
    for state, record, counts in _changes(entries):
        digests[state.at] = state.digest
        match record:
            case Join(versions=versions) if counts:
                joins.append(versions)
            case Beat(by, digest=str(digest), at=at) if by in state.seats and at in digests:
                compared.append(digests[at] == int(digest, 16))
    return len(compared), compared.count(False), joins


def _changes(entries: Iterable[Entry]) -> Iterator[tuple[State, object, bool]]:
    for _, change in replayed(entries, State()):
        yield change.after, change.record, change.counts
