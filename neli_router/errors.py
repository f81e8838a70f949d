"""Everything this library raises on purpose.

    NeliError
    |-- ConfigError             also a ValueError
    |-- BadKey                  also a TypeError
    |-- LedgerError
    |   |-- LedgerUnavailable, LedgerTrimmed, LedgerRewound, RecordTooLong
    |   '-- LedgerUnusable
    |       '-- LedgerMissing
    |-- LookupFailed            also a LookupError
    |   '-- NoOwner, StaleTable, Forked
    |-- NotLeading              also a TimeoutError
    |-- MissingExtra            also a ModuleNotFoundError
    |-- GroupMismatch, BeyondProtocol, PeersUnusable, Unsupported, NoAgent, Closed
    |-- Diverged, Replaced, Miscertified, NameTaken, HandlerFailed, LeaseLost
    |-- fence.Refused, FenceMisused (also a TypeError), BatchGap, TableMismatch, TableUnavailable
    '-- spark.SparkUnusable

A message says what was wanted, what was found and what to do; the three parts are also attributes. It is always one
line of text, whatever names and addresses it contains: control characters are shown as escapes.
"""

from collections.abc import Sequence

__all__ = [
    "BadKey",
    "BeyondProtocol",
    "Closed",
    "ConfigError",
    "Diverged",
    "Forked",
    "GroupMismatch",
    "HandlerFailed",
    "LeaseLost",
    "LedgerError",
    "LedgerMissing",
    "LedgerRewound",
    "LedgerTrimmed",
    "LedgerUnavailable",
    "LedgerUnusable",
    "LookupFailed",
    "Miscertified",
    "MissingExtra",
    "NameTaken",
    "NeliError",
    "NoAgent",
    "NoOwner",
    "NotLeading",
    "PeersUnusable",
    "RecordTooLong",
    "Replaced",
    "StaleTable",
    "Unsupported",
    "how_to_install",
    "plain",
]


def plain(text: str) -> str:
    """`text` on one line, with an escape for each unprintable character and each that changes the writing direction."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class NeliError(Exception):
    """The base class of all errors. `wanted`, `found` and `remedy` are the parts of the message."""

    def __init__(self, wanted: str, found: str, remedy: str) -> None:
        self.wanted, self.found, self.remedy = plain(wanted), plain(found), plain(remedy)
        super().__init__(f"{self.wanted}, but {self.found}: {self.remedy}")

    def __reduce__(self) -> tuple[type["NeliError"], tuple[str, str, str]]:
        # The default would call __init__ with the composed message alone, and unpickling would fail.
        return type(self), (self.wanted, self.found, self.remedy)


class ConfigError(NeliError, ValueError):
    """The configuration contradicts itself. `problems` lists every contradiction, not just the first."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(map(plain, problems))
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("a usable configuration was wanted", f"it has {count}", "; ".join(self.problems))
        self.args = (self.remedy,)  # Each problem says what was wanted and found, so the message is the problems alone.

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[Sequence[str]]]:  # type: ignore[override]
        return type(self), (self.problems,)


class BadKey(NeliError, TypeError):
    """A key that is neither text nor bytes, or has no UTF-8 form; or no role. It is never shown: it may be personal."""


class GroupMismatch(NeliError):
    """The group has a different layout, lease, guarantee or fold version than this program, or not all of its members
    know the fold version that it was to have."""


class LedgerError(NeliError):
    """Something is wrong with the ledger."""


class LedgerUnavailable(LedgerError):
    """The ledger cannot be read or appended to at the moment; try again."""


class LedgerTrimmed(LedgerError):
    """The reader's position is before the first record retained; it can only continue from a snapshot."""


class LedgerUnusable(LedgerError):
    """The ledger is missing, read-only, corrupt or not a ledger at all; trying again will not help."""


class LedgerMissing(LedgerUnusable):
    """The ledger does not exist, and the caller did not ask to create it."""


class LedgerRewound(LedgerError):
    """Records that were already read are gone or were replaced. No member leads on such a ledger."""


class RecordTooLong(LedgerError):
    """The ledger refused a record of that length. It took, or will take, all other records that were appended."""


class Diverged(NeliError):
    """Most members computed a different state from the same records, or no majority agrees on one."""


class Replaced(NeliError):
    """A newer process joined under the same name. The newer process wins; the older one does not rejoin."""


class Miscertified(NeliError):
    """A witness certified that this member's process has ended, but it is alive: others now lead what it led."""


class NameTaken(NeliError):
    """A living member has the name of this newcomer, and the newcomer was not configured to replace it."""


class PeersUnusable(NeliError):
    """This member cannot take or keep its place among its peers: the address, the key or the memory fails."""


class HandlerFailed(NeliError):
    """The program's event handler raised, so the member left. `__cause__` is its error."""


class LeaseLost(NeliError):
    """The lease that guarded this work ended, or a later term took its place."""


class LookupFailed(NeliError, LookupError):
    """No owner could be found for a key."""


class NoOwner(LookupFailed):
    """The group is known, but no member owns the partition now."""


class StaleTable(LookupFailed):
    """The table is missing, or older than `max_age`: an error, not a guess."""


class Forked(LookupFailed):
    """This process was forked from the process that opened the router or the member."""


class NotLeading(NeliError, TimeoutError):
    """The member did not become leader in the time allowed."""


class NoAgent(NeliError):
    """No agent answered at the address: none listens, this user may not connect, or the agent hangs."""


class Closed(NeliError):
    """The member or router was closed before this call."""


class Unsupported(NeliError):
    """This platform cannot keep the promises, so nothing is started on it."""


class BeyondProtocol(NeliError):
    """The group's protocol does not offer this, or cannot do it; another protocol can."""


class MissingExtra(NeliError, ModuleNotFoundError):
    """A package that only some programs need, and so comes with an extra, is not installed. `name` is the package."""

    @classmethod
    def of(cls, package: str, purpose: str, extra: str) -> "MissingExtra":
        """The error for a missing `package`, wanted for `purpose`, that comes with `extra`."""
        error = cls(f"{package} was wanted, {purpose}", "it is not installed", how_to_install(extra))
        error.name = package
        return error


def how_to_install(extra: str) -> str:
    """The remedy for a missing package that only `extra` needs. Every message about an extra uses this text."""
    # The project is not on a package index yet, so no message may send people to one.
    return f"install the extra {extra!r}: pip install '.[{extra}]' in a clone of the project"
