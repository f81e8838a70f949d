"""The life: one Member of one process, as its witness knows it.

    secret, 16 random bytes -----sha256, 12 digits--> life ---.
                           4 digits, a new count per Join ----+--> incarnation, as the ledger has it

A member that was expired continues under a new incarnation of the same life, so one registration covers all of them.
Every reader of the ledger sees the lives. So to register a life, a process must show its secret, which it gives only to
its witness: no process can use its own end to have another process declared dead.
"""

from dataclasses import dataclass, field
from hashlib import sha256
from random import Random

from neli_router.errors import ConfigError
from neli_router.protocols.induction.machine import LIFE_LENGTH

__all__ = ["SECRET_DIGITS", "OwnLife", "life_of"]

SECRET_DIGITS = 32


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
