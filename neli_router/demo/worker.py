"""One worker of the demo: a process of its own that is a member, and notes what it may act for.

    start --> Member(...) --Opened--> look, every LOOK_EVERY seconds --SIGTERM--> member.close() --Left--> end
                  '-- cannot: Failed          '-- the member ended: Failed

Started as `python -m neli_router.demo.worker ORDER`. It writes notes to its standard output (see `notes.py`) and the
member's log to its standard error.

It must not outlive the demo, whatever happens to that. Its standard input ends with the demo, which is enough for a
worker that runs. One that is stopped notices nothing; so on Linux the kernel is asked to kill it when its parent dies.
"""

import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading

from neli_router.clock import host_clock
from neli_router.config import Config
from neli_router.demo.claims import Claims
from neli_router.demo.notes import Failed, Left, Note, Opened, Order, read_order, written
from neli_router.errors import NeliError
from neli_router.keyspace import Layout
from neli_router.member.member import Member

__all__ = ["LOOK_EVERY", "RECORDS_MAX", "config_of", "main"]

LOOK_EVERY = 0.005
"""Seconds between two looks at the leases. Shorter costs more of a core; longer notes the loss of a lease less sharply.
Word of a new one does not wait for it."""

GRANTED_WITHIN = 0.0005
"""The pause before asking again for the lease of a partition whose handler has only just returned."""

RECORDS_MAX = 1_000_000
"""Records between snapshots, which is to say that there are none: at the end of the demo, the ledger is read once more
from its first record, and a snapshot would allow the others to drop it."""

_STANDARD_INPUT = 0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def config_of(order: Order) -> Config:
    return Config(
        order.ledger,
        name=order.name,
        layout=Layout(partitions=order.partitions),
        lease=order.lease,
        snapshot_every=RECORDS_MAX,
    )


def main() -> int:
    """The worker's whole life; its exit code."""
    closing = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: closing.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the demo, which then ends its workers one by one.
    _end_with_the_demo()
    logging.basicConfig(format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    order = read_order(sys.argv[1])
    claims = Claims(_note, host_clock, asleep_min=order.lease)
    try:
        member = Member(config_of(order), on_event=claims.on_event)
        _note(Opened(host_clock()))
        while not closing.is_set() and not member.closed:
            claims.changed.clear()
            is_settled = claims.look(member.lease)
            claims.changed.wait(LOOK_EVERY if is_settled else GRANTED_WITHIN)
        member.close()
        member.await_closed()
    except NeliError as error:
        _note(Failed(str(error)))
        return 1
    _note(Left(host_clock()))
    return 0


def _end_with_the_demo() -> None:
    def watch() -> None:
        # Not through `sys.stdin`: a thread that waits inside it holds its lock, and the interpreter's
        # end aborts on that.
        while os.read(_STANDARD_INPUT, 1):
            pass
        os._exit(1)  # At once: nobody is left to hear of a farewell.

    threading.Thread(target=watch, name="demo-watch", daemon=True).start()
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_writing = threading.Lock()


def _note(note: Note) -> None:
    # When nobody reads any more, the end of the standard input is about to end this process, too.
    with _writing, contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(written(note) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
