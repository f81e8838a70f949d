"""The port of witnesses: what a member asks of the witness that will report its death, and what it does for others.

    member --pledge, look--> Witness --lives on--> its process ends --the kernel's word--> Certify --> ledger
                                                                                             no wait is owed

A lease is for hosts that fall silent. If a process dies while its host lives, a holder of the process's pidfd knows
immediately (`process`). That holder, the witness, records the death in the ledger, and the other members take over
without waiting for the lease.

    registration   the host's agent
    child          a small process of the member's own
    locks          on a SQLite ledger, the other members of the host

**Why nothing acts alongside a successor.** A witness writes a certificate only after it has seen all threads end, so
the process sends nothing more. Earlier messages may still arrive: in the ledger they are void, as after a Leave; at a
database, the fence refuses them because of the successor's term (`fence`). The pidfd does not cover other processes
that act for the member. So a member that gives its lease to another process first *pledges* until when that process may
act, and is certified only after that time.

**Why nothing depends on a witness.** It may die with the member or earlier, and the ledger may be unreachable. Then the
lease ends by time, just like without a witness. A witness can only make a take-over faster.
"""

from collections.abc import Sequence
from typing import Protocol

from neli_router.hosts.process import ProcessMark
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Certify

__all__ = ["NO_WITNESS", "NoWitness", "Witness"]


class Witness(Protocol):
    """One member's witness. Called on the engine's thread; `pledge` on any thread. No method may wait or raise."""

    @property
    def name(self) -> str:
        """Which witness will report the death, for people; it appears in the Join. Empty if there is none."""

    def look(self, state: State, incarnation: str, now: float) -> Sequence[Certify]:
        """Called after each step, before its records are appended: this member is `incarnation` from now on, and the
        table is `state`. The returned certificates, for other members that have ended, are appended."""

    def pledge(self, until: float, processes: Sequence[ProcessMark] = ()) -> None:
        """Others may act on this member's leases until then, on the host's clock; if `processes` are named, only while
        one of them is alive. The pledge counts once this call returns. Only a child witness keeps it, and a member with
        another witness refuses it (`Member.pledge`)."""

    def close(self) -> None:
        """The member left in good order, or gave up, so its end no longer matters. May be called more than once."""


class NoWitness:
    """No witness: the lease ends by time alone."""

    name = ""

    def look(self, state: State, incarnation: str, now: float) -> Sequence[Certify]:
        return ()

    def pledge(self, until: float, processes: Sequence[ProcessMark] = ()) -> None:
        pass

    def close(self) -> None:
        pass


NO_WITNESS = NoWitness()
