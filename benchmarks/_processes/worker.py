"""One member process: it acts for whatever it leads, again and again, and notes that it may before it does.

    a round  |-- clock, ask every lease, clock, note what that allows (see `notes`) --|   pause   |-- write --| ...
    Revoked  (waits for the end of a round)    |-- note to be done with these --> return --> they are handed over

What it leads next it takes up at once: a round follows as soon as a lease is given. When its standard input ends, its
parent has closed the group or is no more, and the worker leaves the group in good order.

If there is a fence to write through, it writes at the end of the pause what it checked before it: so whenever it is
stopped, it most likely is between a check and the act that this guards, and wakes up as the zombie that the fence is
there for. What it has just taken up it writes for at once, because a new owner raises the fence before all else.

    exit codes: 0 asked to leave, 3 replaced by a newer process of its name, 1 anything else, which is on standard error
"""

import json
import logging
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks._processes.notes import Acts, Done, Notebook, Refused, Wrote
from benchmarks._processes.writer import Writer
from neli_router.clock import host_clock
from neli_router.config import Config
from neli_router.errors import Replaced
from neli_router.member.lease import Lease
from neli_router.member.member import Member
from neli_router.protocol import Acquired, Event, Revoked

__all__ = ["EXIT_REPLACED", "Worker", "main"]

EXIT_REPLACED = 3

EAGER_PAUSE = 0.0005
"""Between an Acquired event and its leases lies the return of the handler, so that a worker which was told has next to
nothing to wait for; but it must let the thread that returns have the processor."""


class Worker:
    """What the program does with its member."""

    def __init__(self, notebook: Notebook, writer: Writer | None = None) -> None:
        self._notebook, self._writer = notebook, writer
        self._checked: dict[int, int] = {}
        """Partition -> term, for what the last round found to be led and the next will write for."""
        self._acting = threading.Lock()
        self._leases: dict[int, Lease] = {}
        self._coming: dict[int, int] = {}
        """Partition -> term, for what was Acquired and has not been acted for."""
        self._roused = threading.Event()
        self._over = False

    def on_event(self, event: Event) -> None:
        """The member's handler."""
        with self._acting:
            if isinstance(event, Acquired):
                self._coming.update(event.terms)
            else:
                for partition in event.partitions:
                    self._coming.pop(partition, None)
            if isinstance(event, Revoked):
                for partition in event.partitions:
                    self._leases.pop(partition, None)
                    self._checked.pop(partition, None)
                self._notebook.write(Done(host_clock(), event.terms))
        self._roused.set()

    def work(self, member: Member, pause: float) -> None:
        """Act until told to stop. Raises what ends the member."""
        while not self._over:
            with self._acting:
                self._write(self._checked)
                self._take_up(member)
                self._act()
                wait = EAGER_PAUSE if self._coming else pause
            self._roused.wait(wait)
            self._roused.clear()

    def stop(self) -> None:
        self._over = True
        self._roused.set()

    def _take_up(self, member: Member) -> None:
        """Take the leases of what is led now, and keep those there are: what was lost once must not hold again."""
        for partition, term in member.led.items():
            held = self._leases.get(partition)
            if held is None or held.term != term:
                lease = member.lease(partition)
                if lease is not None:
                    self._leases[partition] = lease
        if member.error is not None:
            raise member.error

    def _act(self) -> None:
        before = host_clock()
        remaining = {partition: lease.remaining() for partition, lease in self._leases.items()}
        after = host_clock()
        self._leases = {partition: lease for partition, lease in self._leases.items() if remaining[partition] > 0}
        terms = {partition: lease.term for partition, lease in self._leases.items()}
        until = before + min((remaining[partition] for partition in terms), default=0.0)
        if after < until:
            self._notebook.write(Acts(after, until, terms))
            fresh = {partition: term for partition, term in terms.items() if self._checked.get(partition) != term}
            self._checked = terms
            self._write(fresh)
            for partition, term in terms.items():
                if self._coming.get(partition) == term:
                    del self._coming[partition]
        else:
            self._checked = {}

    def _write(self, terms: Mapping[int, int]) -> None:
        if self._writer is None or not terms:
            return
        written, refused = self._writer.write(terms)
        if written:
            self._notebook.write(Wrote(host_clock(), written))
        if refused:
            self._notebook.write(Refused(host_clock(), refused))


def main(order: dict[str, Any]) -> int:
    """Be the member that `order` describes: the options of its `config`, the file of its `notes`, its `pause`,
    and the database that is its `fence`, if there is one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group of processes, and the parent decides.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    notes = Path(order["notes"])
    worker = Worker(Notebook(notes), Writer(Path(order["fence"]), notes.stem) if order["fence"] else None)
    threading.Thread(target=_await_the_parents_end, args=(worker,), daemon=True).start()
    try:
        with Member(Config.of(order["config"]), on_event=worker.on_event) as member:
            worker.work(member, order["pause"])
    except Replaced as error:
        logging.getLogger(__name__).warning("%s", error)
        return EXIT_REPLACED
    return 0


def _await_the_parents_end(worker: Worker) -> None:
    sys.stdin.read()
    worker.stop()


if __name__ == "__main__":
    raise SystemExit(main(json.loads(sys.argv[1])))
