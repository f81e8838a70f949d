"""Playing the demo: everything is set up, the story is told, everything is judged and taken down again.

    options --unusable--> a sentence, exit 2
       '--> folder --> screen --> crew --> story --> the ledger is read once more --> findings --> exit 0 or 1
                                             '-- a worker fails, or is late: unfinished, judged all the same --^

Whatever ends it, also SIGTERM and Ctrl-C, goes through the `with` blocks here, and no worker is left.
"""

import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from types import FrameType

from neli_router import config as configuration
from neli_router.clock import host_clock
from neli_router.config import Config
from neli_router.demo.checks import findings
from neli_router.demo.crew import Crew
from neli_router.demo.notes import Order
from neli_router.demo.record import Run
from neli_router.demo.screen import LiveScreen, PlainScreen, wants_live
from neli_router.demo.stage import Stage, Unfinished, milliseconds
from neli_router.demo.story import MEMBERS_MAX, NAMES, Story
from neli_router.demo.worker import config_of
from neli_router.errors import ConfigError, NeliError
from neli_router.induction.records import Record, decode

__all__ = ["play"]

EXIT_BROKEN = 1
EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130

MEMBERS_MIN = 2
"""With fewer, there is nobody to take anything over."""

SECONDS_MAX = 3600
"""Nobody watches for longer, and a ledger without snapshots would become large."""

_ENDING = (signal.SIGTERM, signal.SIGHUP)


def play(
    *, members: int, partitions: int, lease: float, seconds: float, seed: int, live: bool | None, keep: Path | None
) -> int:
    """See `neli_router.demo.run`."""
    try:
        with _folder(keep) as folder, _ending_in_order():
            ledger = f"sqlite://{folder / 'ledger.db'}"
            orders = _orders(members, ledger, partitions, lease, seconds)
            title = (
                f"NELI Router demo: {members} processes, {partitions} partitions, lease {milliseconds(lease)}, "
                f"seed {seed}{f', kept in {keep}' if keep else ''}"
            )
            run = Run(partitions, lease, host_clock())
            screen = LiveScreen(title, run) if (wants_live() if live is None else live) else PlainScreen(title)
            with screen:
                with Crew(folder) as crew:
                    stage = Stage(run, crew, screen)
                    try:
                        Story(stage, orders, seconds=seconds, rng=Random(seed)).tell()
                    except (Unfinished, NeliError) as error:
                        run.unfinished = str(error)
                        stage.tell("end", "all", "the story ends early, and all processes with it")
                run.ledger = _records(orders[0])
            found = findings(run)
            screen.show(found)
            return 0 if all(finding.held for finding in found) else EXIT_BROKEN
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; every process was ended\n")
        return EXIT_INTERRUPTED


def _orders(members: int, ledger: str, partitions: int, lease: float, seconds: float) -> Sequence[Order]:
    problems = []
    if not MEMBERS_MIN <= members <= MEMBERS_MAX:
        problems.append(f"members={members} must be from {MEMBERS_MIN} to {MEMBERS_MAX}")
    if 0 < partitions < members:
        problems.append(f"partitions={partitions} must be at least members={members}, or one of them has nothing to do")
    if not 0 <= seconds <= SECONDS_MAX:
        problems.append(f"seconds={seconds:g} must be from 0 to {SECONDS_MAX}")
    try:
        Config.of({"ledger": ledger, "layout": {"partitions": partitions}, "lease": lease})
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return [Order(name, ledger, partitions, lease) for name in NAMES[:members]]


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="neli-demo-") as folder:
            yield Path(folder)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        found = sorted(path.name for path in keep.iterdir())
    except OSError as error:
        raise ConfigError([f"keep={str(keep)!r} must be a folder that can be made or written to ({error})"]) from error
    if found:
        # The group of an earlier demo would still be in its ledger, with terms and members of its own.
        raise ConfigError([f"keep={str(keep)!r} must be empty, and there is {found[0]!r} in it: name another folder"])
    yield keep.absolute()


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Signals that would end us at once, and leave the workers to notice it, end the `with` blocks first."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _records(order: Order) -> Sequence[tuple[int, Record | None]]:
    """The whole ledger, from its first record; nothing of one that cannot be read, and then a check fails by that."""
    records: list[tuple[int, Record | None]] = []
    with suppress(NeliError), closing(configuration.open(config_of(order), create=False)) as ledger:
        while entries := ledger.read(0):
            records += [(entry.offset, decode(entry.payload)) for entry in entries]
        return records
    return []
