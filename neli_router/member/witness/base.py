"""The port of witnesses: what a member asks of the one who will tell its death, and what it does for others.

    member --pledge, look--> Witness --lives on--> its process ends --the kernel's word--> Certify --> ledger
                                                                                             no wait is owed

A lease is for hosts that fall silent. A process that dies on a host that lives is known to be dead at once, to whoever
holds its pidfd (`process`). That one says so in the ledger, and the others take over without waiting for the lease.

    registration   the host's agent
    child          a small process of the member's own
    locks          on a SQLite ledger, the other members of the host

**Why nobody acts beside a successor.** A certificate is written only by who has seen the end of all threads, so the
process sends nothing more. What it sent before may still arrive: in the ledger it is void, as after a Leave; at a
database, the successor's term refuses it (`fence`). What acts for it elsewhere is not seen by its pidfd: so a member
that gives its lease to another process *pledges* first until when, and is certified after that.

**Why nothing is needed from it.** It may die with the member, or before; the ledger may be away. Then the lease ends
by time, as it does where there is no witness at all. It can only make that sooner.
"""

from collections.abc import Sequence
from typing import Protocol

from neli_router.hosts.process import ProcessMark
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.records import Certify

__all__ = ["NO_WITNESS", "NoWitness", "Witness"]


class Witness(Protocol):
    """One member's own. It is called on the engine's thread, but `pledge` on any. None of it may wait or raise."""

    @property
    def name(self) -> str:
        """Who will tell, for people: it stands in the Join. Empty if nobody will."""

    def look(self, state: State, incarnation: str, now: float) -> Sequence[Certify]:
        """After each step, before its records are appended: this member is `incarnation` from now on, and the table is
        `state`. What is known of other members' ends is appended."""

    def pledge(self, until: float, processes: Sequence[ProcessMark] = ()) -> None:
        """Others may act on this member's leases until then, on the host's clock; if `processes` are told, no longer
        than one of these lives. It counts from this call's return. Only a child keeps it, and a member with another
        witness refuses it (`Member.pledge`)."""

    def close(self) -> None:
        """The member left in good order, or gave up: its end is of no interest any more. Twice is fine."""


class NoWitness:
    """The lease ends by time alone."""

    name = ""

    def look(self, state: State, incarnation: str, now: float) -> Sequence[Certify]:
        return ()

    def pledge(self, until: float, processes: Sequence[ProcessMark] = ()) -> None:
        pass

    def close(self) -> None:
        pass


NO_WITNESS = NoWitness()
