"""The demo: real processes share partitions, one is killed, one is stopped, and a referee watches.

    run --> a folder with a ledger --> crew (the processes, worker.py: claims.py notes what each may act for)
                                        ^  | notes
                    story (what is done) --+--> stage (record.py: what happened) --> screen (frame.py)
                                                      '--> checks: what it means --> the exit code

`neli demo` calls `run`. Importing this package costs nothing: the workers pass through here as well, and shall start
fast; so what only the demo itself needs is imported by `run`.
"""

from pathlib import Path

__all__ = ["run"]


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
    """Run the demo on this process's main thread; the exit code: 0 only if every one of its own checks held.

    1 if one failed, or a worker did; 2 if it cannot be run with these options; 130 if it was interrupted.

    `seed` decides which member meets which fate. `live=None` draws in a terminal and prints plain lines elsewhere. The
    ledger and the workers' logs are made in `keep`, a folder that is new or empty, and stay there; without it, they are
    gone at the end.
    """
    from neli_router.demo.play import play  # noqa: PLC0415 - see the essay.

    return play(members=members, partitions=partitions, lease=lease, seconds=seconds, seed=seed, live=live, keep=keep)
