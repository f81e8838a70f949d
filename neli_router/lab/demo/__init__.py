"""The demo: real processes share partitions, one is killed, one is stopped, and a referee watches.

    options --unusable--> an error message, exit 2
       '--> a folder with a ledger --> processes (see `processes`)
                                        ^  | notes
                    story (what is done) --+--> scene (the record) --> screen
                       |                             '--> checks, with the ledger read once more --> exit 0 or 1
                       '-- a process fails, or is late: unfinished, judged all the same --^

Every exit, also by SIGTERM or Ctrl-C, goes through the `with` blocks here and leaves no process behind.
"""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.core.exit_codes import EXIT_BROKEN, EXIT_INTERRUPTED, EXIT_USAGE
from neli_router.errors import ConfigError, NeliError
from neli_router.lab.demo.checks import checked
from neli_router.lab.demo.place import a_folder, ending_in_order, records_of
from neli_router.lab.demo.scene import Run, Scene, Unfinished
from neli_router.lab.demo.screen import LiveScreen, PlainScreen, frame, wants_live
from neli_router.lab.demo.story import MEMBERS_MAX, NAMES, Story
from neli_router.lab.processes.group import ProcessGroup

__all__ = ["run"]

MEMBERS_MIN = 2
"""With fewer, no member is left to take anything over."""

SECONDS_MAX = 3600
"""Longer than anyone watches; and a ledger without snapshots would become large."""

LOOK_EVERY = 0.005
"""Seconds between two looks of a process at its leases. Shorter costs more of a core; longer notes the loss of a lease
less precisely."""

GRACE_MAX = 2.0
"""How long processes may take to leave when the demo ends early. A member closes in a few milliseconds."""

RECORDS_MAX = 1_000_000
"""Records between snapshots: high enough that there are none. At the end, the demo reads the ledger once more from its
first record, and a snapshot would allow the members to drop that record."""


def run(
    *,
    members: int = 3,
    partitions: int = 256,
    lease: float = 0.5,
    seconds: float = 20.0,
    seed: int = 1,
    live: bool | None = None,
    keep: Path | None = None,
) -> int:
    """Run the demo on this process's main thread. Returns the exit code: 0 only if every one of its checks held.

    The code is 1 if a check or a process failed, 2 if the demo cannot run with these options, and 130 if it was
    interrupted.

    `seed` decides what happens to which member. `live=None` draws in a terminal and prints plain lines elsewhere. The
    ledger, the notes and the logs are made in `keep`, a folder that must be new or empty, and stay there. Without
    `keep`, they are deleted at the end.
    """
    try:
        with a_folder(keep, "neli-demo-") as folder, ending_in_order():
            ledger = f"sqlite://{folder / 'ledger.db'}"
            options: dict[str, Any] = {"lease": lease, "snapshot_every": RECORDS_MAX}
            config = _checked_config(
                members, seconds, {"ledger": ledger, "layout": {"partitions": partitions}, **options}
            )
            title = (
                f"NELI Router demo: {members} processes, {partitions} partitions, lease {lease * 1000:.0f} ms, "
                f"seed {seed}{f', kept in {keep}' if keep else ''}"
            )
            run = Run(partitions, lease, host_clock())
            draw = partial(frame, run, title=title)
            with LiveScreen(draw) if (wants_live() if live is None else live) else PlainScreen(title) as screen:
                with ProcessGroup(
                    folder, partitions=partitions, pause=LOOK_EVERY, ledger=ledger, leave_within=GRACE_MAX, **options
                ) as group:
                    scene = Scene(run, group, screen)
                    try:
                        Story(scene, NAMES[:members], config, seconds=seconds, rng=Random(seed)).tell()
                    except (Unfinished, NeliError) as error:
                        run.unfinished = str(error)
                        scene.tell("end", "all", "the story ends early, and all processes with it")
                run.ledger = records_of(config)
            checks = checked(run)
            screen.show(checks)
            return 0 if all(check.held for check in checks) else EXIT_BROKEN
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; every process was ended\n")
        return EXIT_INTERRUPTED


def _checked_config(members: int, seconds: float, options: Mapping[str, Any]) -> Config:
    """The configuration of the members and of the demo's own router."""
    problems, partitions = [], options["layout"]["partitions"]
    if not MEMBERS_MIN <= members <= MEMBERS_MAX:
        problems.append(f"members={members} must be from {MEMBERS_MIN} to {MEMBERS_MAX}")
    if 0 < partitions < members:
        problems.append(f"partitions={partitions} must be at least members={members}, or one of them has nothing to do")
    if not 0 <= seconds <= SECONDS_MAX:
        problems.append(f"seconds={seconds:g} must be from 0 to {SECONDS_MAX}")
    try:
        config = Config.of(options)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return config
