"""One member process: it acts for all that it leads, over and over, and before each act notes that it may act.

    a round  |-- clock, ask every lease, clock, note what that allows (see `notes`) --|   pause   |-- act --| ...
    Revoked  (waits for the end of a round)    |-- note that it is done with them --> return --> they are handed over

A round follows as soon as something is granted. A lease that was once lost never holds again. So a lease that holds in
two rounds held all the time in between, and that is noted, too.

If the program has an act, such as a write through a fence, it acts at the end of the pause for what it checked before
the pause. So when it is stopped, it is most likely between a check and the act that the check guards, and wakes up as
exactly the zombie that fences exist for. It acts immediately for what it has just taken over: a new owner raises the
fence first.

SIGTERM ends it gracefully. It must not outlive its parent: its standard input ends with the parent, and a running
process notices that. A stopped process notices nothing; so on Linux, the kernel is asked to kill it when its parent
dies.

    python -m neli_router.lab.processes.worker ORDER
    exit codes: 0 asked to leave, 3 replaced by a newer process of its name, 1 anything else, see its log
"""

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any

from neli_router.config.config import Config
from neli_router.core.clock import host_clock
from neli_router.errors import LeaseLost, NeliError, Replaced
from neli_router.hosts.leash import end_with_parent
from neli_router.member.member import Member
from neli_router.member.membership import Lease
from neli_router.member.runtime import THREADS, Runtime
from neli_router.protocols.protocol import Acquired, Event, Fenced, Revoked
from neli_router.status import notes
from neli_router.status.notes import Note, Notebook

__all__ = ["EXIT_REPLACED", "Worker", "main"]

EXIT_REPLACED = 3

GRANTED_WITHIN = 0.0005
"""The pause before asking again for a lease that was just granted: it is available as soon as the handler has returned.
Without any pause, the returning thread would have to wait for the processor."""

RENEWED_MIN = 1e-6
"""A renewal is noted only if it is longer than this, which is far below the difference of two clock readings."""

Act = Callable[[Mapping[int, int]], object]
"""Called with partition -> term: for what was found to be led, at the end of the pause; for new terms, immediately."""

_STANDARD_INPUT = 0


class Worker:
    """The program of a member. The member calls `on_event` on its own threads; one thread of the program calls `look`.
    If none of them ran for `asleep_min` seconds, the worker was asleep."""

    def __init__(
        self,
        note: Callable[[Note], None],
        clock: Callable[[], float],
        *,
        asleep_min: float,
        act: Act = lambda _: None,
    ) -> None:
        self.changed = threading.Event()
        """Set when there is something to look at."""
        self._note, self._clock, self._asleep_min, self._act = note, clock, asleep_min, act
        self._lock = threading.Lock()
        self._granted: dict[int, int] = {}
        """Partition -> term, as reported by the member."""
        self._held: dict[int, Lease] = {}
        self._noted: dict[int, int] = {}
        """Partition -> term, for what was noted as held and has not been lost since."""
        self._until = -inf
        self._checked: dict[int, int] = {}
        """Partition -> term, for what the last round found to be led and the next round will act for."""
        self._awake_at = clock()
        self._over = False

    def on_event(self, event: Event) -> None:
        """The member's handler: notes the event, and immediately releases what it must give up."""
        with self._lock:
            self._wake_up()
            if isinstance(event, Acquired):
                self._granted.update(event.terms)
            elif isinstance(event, Revoked):
                self._noted = _without(self._noted, self._release(event.terms))
                self._checked = _without(self._checked, event.terms)
                self._note(notes.Done(self._clock(), dict(event.terms)))
            elif isinstance(event, Fenced):
                self._lose(self._release(event.terms), self._clock())
                self._note(notes.Halted(self._clock(), len(event.terms), event.reason))
        self.changed.set()

    def look(self, lease_of: Callable[[int], Lease | None], led: Mapping[int, int]) -> bool:
        """Do one round; returns whether all grants are held. `led` is partition -> term, as the member has it."""
        with self._lock:
            self._wake_up()
            self._act(self._checked)
            # A loss reported late may remove a grant that was given again under the same term, so `led` counts, too.
            sought = (self._granted.keys() | led.keys()) - self._held.keys()
            self._held |= {partition: lease for partition in sought if (lease := lease_of(partition)) is not None}
            asked_at = self._clock()
            left = {partition: lease.remaining() for partition, lease in self._held.items()}
            answered_at = self._clock()
            self._wake_up()  # It may have slept right here, too.
            self._lose({it: self._held.pop(it).term for it in left if left[it] == 0}, answered_at)
            self._claim(asked_at + min((left[it] for it in self._held), default=0.0), answered_at)
            return self._held.keys() >= self._granted.keys()

    def work(self, member: Member, pause: float) -> None:
        """Act until `stop` is called or the member has ended."""
        while not self._over and not member.closed:
            self.changed.clear()
            is_settled = self.look(member.lease, member.led)
            self.changed.wait(pause if is_settled else GRANTED_WITHIN)

    def stop(self) -> None:
        self._over = True
        self.changed.set()

    def _claim(self, until: float, now: float) -> None:
        """Note that everything held is held from `now` to `until`, if that is later."""
        self._checked, before = {}, self._noted
        if until <= now:
            return
        self._noted = self._checked = {partition: lease.term for partition, lease in self._held.items()}
        fresh = {partition: term for partition, term in self._noted.items() if before.get(partition) != term}
        if now > self._until and before:
            self._note(notes.Acts(self._until, until, before))
        if fresh or until > self._until + RENEWED_MIN:
            self._note(notes.Acts(now, until, self._noted))
            self._until = until
        self._act(fresh)

    def _wake_up(self) -> None:
        """The first thread that runs after a sleep asks a lease before anything else."""
        now, before = self._clock(), self._awake_at
        self._awake_at = now
        if now - before >= self._asleep_min and self._held:
            refusal = ""
            try:
                next(iter(self._held.values())).check()
            except LeaseLost as error:
                refusal = error.found
            self._note(notes.Woke(now, now - before, refusal))

    def _release(self, terms: Mapping[int, int]) -> dict[int, int]:
        """Stop acting for these partitions under these terms; returns those that were held."""
        # By term: losses are reported on another thread than gains, and may arrive after them.
        for partition in [partition for partition, term in terms.items() if self._granted.get(partition) == term]:
            del self._granted[partition]
        gone = [partition for partition, lease in self._held.items() if terms.get(partition) == lease.term]
        return {partition: self._held.pop(partition).term for partition in gone}

    def _lose(self, terms: Mapping[int, int], now: float) -> None:
        if known := {partition: term for partition, term in terms.items() if self._noted.get(partition) == term}:
            self._note(notes.LeasesLost(now, known))
            self._noted = _without(self._noted, known)


def _without(terms: Mapping[int, int], gone: Iterable[int]) -> dict[int, int]:
    return {partition: terms[partition] for partition in terms.keys() - gone}


def main(
    order: dict[str, Any],
    *,
    act: Act = lambda _: None,
    runtime: Runtime = THREADS,
    config_type: type[Config] = Config,
) -> int:
    """Be the member that `order` describes: the options in `config`, the file for its `notes`, and its `pause`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # Before any other thread exists, so it applies to all.
    _end_with_the_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    config, note = config_type.of(order["config"]), Notebook(Path(order["notes"])).write
    worker = Worker(note, host_clock, asleep_min=config.lease, act=act)
    threading.Thread(target=_stop_when_told, args=(worker,), daemon=True).start()
    try:
        with Member(config, on_event=worker.on_event, wait=True, runtime=runtime) as member:
            note(notes.Opened(host_clock()))
            worker.work(member, order["pause"])
        member.wait()
    except NeliError as error:
        logging.getLogger(__name__).exception("the member ended")
        note(notes.Failed(str(error)))
        return EXIT_REPLACED if isinstance(error, Replaced) else 1
    note(notes.Left(host_clock()))
    return 0


def _stop_when_told(worker: Worker) -> None:
    # On a thread: a handler would run on the main thread, which may hold the lock that the handler needs.
    signal.sigwait({signal.SIGTERM})
    worker.stop()


def _end_with_the_parent() -> None:
    def watch() -> None:
        # Not through `sys.stdin`: a thread that reads it holds its lock, and the interpreter's exit aborts on that.
        while os.read(_STANDARD_INPUT, 1):
            pass
        os._exit(1)  # Immediately: no process is left to say goodbye to.

    threading.Thread(target=watch, daemon=True).start()
    end_with_parent()


if __name__ == "__main__":
    raise SystemExit(main(json.loads(sys.argv[1])))
