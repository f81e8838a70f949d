"""Real processes that witness each other through their locks, and the ledger. The test gives them their seats.

    test --order--> nursery --fork--> peer: a PeerWitness for each of its lives, on a ledger of its own
      '--Join of a life, written into the ledger--> all peers read it, and find each other's locks
      '--kill, stop, SIGUSR1 (do what the order says)

So no member waits for a lease before it may join, and no member ends by one: only a certificate takes a seat away. The
nursery has imported everything, so a peer starts in milliseconds. It does not wait for its children: the dead stay
zombies.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from neli_router.core.clock import host_clock
from neli_router.core.closing import Closing
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.errors import LedgerUnavailable
from neli_router.hosts.descendants import children
from neli_router.member.witness import locks
from neli_router.member.witness.locks import PEERS, PeerWitness
from neli_router.protocols.induction.fold import FOLD_VERSIONS, State, fold
from neli_router.protocols.induction.records import Certify, Join, Leave, decode, encode
from tests.member.witness.records_of import LedgerRecords
from tests.support.processes.forked import state_of
from tests.support.records import genesis
from tests.support.waiting import until

__all__ = ["Nursery", "Peer", "Peers"]

LEASE = 1800.0


class Peer:
    """One process, with some lives."""

    def __init__(self, pid: int, lives: Sequence[str]) -> None:
        self.pid, self.lives = pid, lives

    @property
    def life(self) -> str:
        return self.lives[0]

    @property
    def incarnation(self) -> str:
        return incarnation_of(self.life)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: "T" == state_of(self.pid), "it stands still")


class Nursery(Closing):
    """The process that peers are forked from; a `prefix` can, for example, give it a namespace of its own."""

    def __init__(self, *prefix: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-P", "-m", __name__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self.said()

    def order(self, **order: Any) -> list[str]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self.said()

    def said(self) -> list[str]:
        """The next line from the nursery or a peer, in words."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], 180.0)
        assert ready, "the nursery or a peer says nothing"
        line = self._process.stdout.readline()
        assert line, "the nursery has ended"
        return line.split()

    def pid_of(self, number: str) -> int:
        """The process that has this number in the nursery's namespace."""
        own = self._process.pid  # A prefix such as `unshare --fork` is the nursery's parent.
        born = [peer for nursery in (own, *children(own)) for peer in children(nursery)]
        return next(pid for pid in born if f"\t{number}\nNSpgid" in Path(f"/proc/{pid}/status").read_text("ascii"))

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


class Peers(LedgerRecords):
    """All peers of one ledger."""

    def __init__(self, folder: Path, nursery: Nursery) -> None:
        self.path, self._nursery = folder / "ledger.db", nursery
        SqliteLedger(self.path).close()
        super().__init__(f"sqlite://{self.path}")
        self.turn = locks.TURN
        """How many seconds each peer leaves each other one to write."""
        self._born = 0
        self._all: list[Peer] = []
        self.append(genesis("x", lease=LEASE, version=FOLD_VERSIONS[1]))

    def start(self, *, lives: int = 1, then: str = "", nursery: Nursery | None = None, joined: bool = True) -> Peer:
        """A process with that many lives, which runs `then` at SIGUSR1."""
        names = [sha256(f"{self._born + place}".encode()).hexdigest()[:12] for place in range(lives)]
        self._born += lives
        nursery = nursery or self._nursery
        number, word = nursery.order(path=str(self.path), lives=names, then=then, turn=self.turn)
        assert "ready" == word
        peer = Peer(nursery.pid_of(number), names)
        self._all.append(peer)
        for life in names if joined else ():
            self.join(life)
        return peer

    def let_do(self, peer: Peer) -> str:
        """Let the process run its `then`; return what it reports."""
        os.kill(peer.pid, signal.SIGUSR1)
        return self._nursery.said()[1]

    def join(self, life: str) -> None:
        self.append(Join(by=incarnation_of(life), name=life, versions=FOLD_VERSIONS, at=self.read().at, witness=PEERS))

    def leave(self, life: str) -> None:
        self.append(Leave(by=incarnation_of(life)))

    @property
    def certificates(self) -> list[tuple[str, str]]:
        """The writer of each certificate, and the dead member."""
        return [(record.by, record.incarnation) for record in self.of(Certify)]

    def watches(self, peer: Peer, other: Peer) -> bool:
        """Whether each witness in `peer` waits for the end of each member in `other`, through a pidfd in its epoll."""
        told = {}
        for place in Path(f"/proc/{peer.pid}/fdinfo").iterdir():
            with suppress(OSError):
                told[place.name] = place.read_text("ascii")
        pidfds = {number for number, text in told.items() if f"Pid:\t{other.pid}\n" in text}
        waited_for = [re.findall(r"^tfd:\s*(\d+)", text, re.MULTILINE) for text in told.values() if "tfd:" in text]
        wanted = sum(incarnation_of(life) in self.read().seats for life in other.lives)
        return bool(waited_for) and all(len(pidfds.intersection(one)) >= wanted for one in waited_for)

    def await_watch(self, *, by: Sequence[Peer] = (), of: Sequence[Peer] = ()) -> None:
        """Wait until all peers, or those in `by`, watch all others, or those in `of`."""
        pairs = [(one, other) for one in by or self._all for other in of or self._all if one is not other]
        until(lambda: all(self.watches(*pair) for pair in pairs), "all have found each other")

    def await_end(self, *dead: Peer) -> None:
        """Wait until their deaths are certified."""
        wanted = {one.incarnation for one in dead}
        until(lambda: wanted <= {one for _, one in self.certificates}, "a certificate")

    def close(self) -> None:
        for peer in self._all:
            with suppress(ProcessLookupError):
                peer.kill()
        super().close()


def incarnation_of(life: str) -> str:
    return f"{life}0000"


def main() -> None:
    """Be the nursery."""
    say("here")
    # By its number, not through `sys.stdin`: a child must not inherit what was read ahead.
    rest = b""
    while said := os.read(0, 65536):
        *lines, rest = (rest + said).split(b"\n")
        for line in lines:
            if os.fork() == 0:
                be_peer(**json.loads(line))


def be_peer(path: str, lives: list[str], then: str, turn: float) -> None:
    locks.TURN = turn
    due: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: due.append(number))
    ledger, state = SqliteLedger(path, create=False), State()
    witnesses = {life: PeerWitness(ledger, life) for life in lives}
    say("ready")
    while True:
        for entry in ledger.read(0.05):
            state = fold(state, entry.offset, decode(entry.payload))
        for life, witness in witnesses.items():
            for certificate in witness.look(state, incarnation_of(life), host_clock()):
                with suppress(LedgerUnavailable):  # Locked by others. It is given again, as to a member.
                    ledger.append([encode(certificate)])
        if due:
            due.clear()
            exec(then, {**globals(), "ledger": ledger, "witnesses": witnesses, "lives": lives})  # noqa: S102 - our own.


def say(word: str) -> None:
    os.write(1, f"{os.getpid()} {word}\n".encode())


if __name__ == "__main__":
    main()
