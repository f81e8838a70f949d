"""The port of witnesses: what a member asks of the witness that will report its death, and what it does for others.

Also a *life*: one Member of one process, as its witness knows it.

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

    secret, 16 random bytes -----sha256, 12 digits--> life ---.
                           4 digits, a new count per Join ----+--> incarnation, as the ledger has it

A member that was expired continues under a new incarnation of the same life, so one registration covers all of them.
Every reader of the ledger sees the lives. So to register a life, a process must show its secret, which it gives only to
its witness: no process can use its own end to have another process declared dead.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random

from neli_router.errors import ConfigError
from neli_router.hosts.process import ProcessMark
from neli_router.protocols.induction.fold import State
from neli_router.protocols.induction.machine import LIFE_LENGTH
from neli_router.protocols.induction.records import Certify

__all__ = ["NO_WITNESS", "SECRET_DIGITS", "OwnLife", "Witness", "life_of"]

SECRET_DIGITS = 32


class Witness:
    """One member's witness. Called on the engine's thread; `pledge` on any thread. No method may wait or raise.

    This base class reports nothing: the lease ends by time alone.
    """

    name = ""
    """Which witness will report the death, for people; it appears in the Join. Empty if there is none."""

    def look(self, state: State, incarnation: str, now: float) -> Sequence[Certify]:
        """Called after each step, before its records are appended: this member is `incarnation` from now on, and the
        table is `state`. The returned certificates, for other members that have ended, are appended."""
        return ()

    def pledge(self, until: float, processes: Sequence[ProcessMark] = ()) -> None:
        """Others may act on this member's leases until then, on the host's clock; if `processes` are named, only while
        one of them is alive. The pledge counts once this call returns. Only a child witness keeps it, and a member with
        another witness, which sees this process only, refuses it (`Member.pledge`)."""

    def close(self) -> None:
        """The member left in good order, or gave up, so its end no longer matters. May be called more than once."""


NO_WITNESS = Witness()


@dataclass(frozen=True, slots=True)
class OwnLife:
    """`secret` is in hexadecimal digits. It never appears in a log or a repr."""

    secret: str = field(repr=False)

    @classmethod
    def begin(cls, rng: Random) -> "OwnLife":
        return cls(rng.randbytes(SECRET_DIGITS // 2).hex())

    @classmethod
    def shown_by(cls, secret: object) -> "OwnLife":
        """The life whose secret was shown. Raises ConfigError if `secret` is not a valid secret."""
        if isinstance(secret, str) and len(secret) == SECRET_DIGITS and set(secret) <= set("0123456789abcdef"):
            return cls(secret)
        raise ConfigError([f"the secret of a life is {SECRET_DIGITS} hexadecimal digits, and this is something else"])

    @property
    def name(self) -> str:
        """The prefix of all its incarnations."""
        return sha256(bytes.fromhex(self.secret)).hexdigest()[:LIFE_LENGTH]


def life_of(incarnation: str) -> str:
    """The life that an incarnation of the ledger belongs to."""
    return incarnation[:LIFE_LENGTH]
