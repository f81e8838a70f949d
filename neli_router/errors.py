"""Everything this library raises on purpose.

    NeliError
    |-- ConfigError         the configuration contradicts itself; lists every problem (also a ValueError)
    |-- BadKey              a key that is neither str nor bytes, or a role that is no role (also a TypeError)
    |-- GroupMismatch       the ledger belongs to a group with other settings or another fold version
    |-- LedgerError
    |   |-- LedgerUnavailable   cannot read or append now; may heal by itself
    |   |-- LedgerTrimmed       the record asked for is no longer retained: start again from a snapshot
    |   |-- LedgerUnusable      will not heal by itself: missing, read-only, corrupt, not ours
    |   |-- LedgerRewound       the ledger lost records that had already been read
    |   '-- RecordTooLong       the ledger takes no record of that length; it takes all others
    |-- Diverged            this member's table is not the one that most members computed
    |-- Replaced            a newer process joined under this member's name
    |-- Miscertified        a witness certified this member's death, and it lives
    |-- NameTaken           a living member has this newcomer's name
    |-- PeersUnusable       the place among the peers cannot be taken or held: its address, its key or its memory
    |-- HandlerFailed       the program's handler of events raised; the cause is its error
    |-- LeaseLost           the work was guarded by a lease that no longer holds
    |-- LookupFailed
    |   |-- NoOwner             the group is known, and no member owns the key now
    |   |-- StaleTable          the table is older than `max_age`, or there is none yet
    |   '-- Forked              this process is a fork: reopen before use
    |-- NotLeading          waited for leadership in vain
    |-- NoAgent             no agent answered at its address
    |-- Closed              used after `close()`
    |-- Unsupported         this platform cannot keep the promises
    |-- MissingExtra        a package that an extra brings is not installed (also a ModuleNotFoundError)
    |-- fence.Refused       a higher fencing term was admitted: a newer owner writes there
    |-- fence.FenceMisused  the fence was given no term or no transaction (also a TypeError)
    |-- fence.BatchGap      a batch of a fenced table does not begin where the last one ended
    |-- fence.TableMismatch a table, or rows for it, with another format, layout or schema
    |-- fence.TableUnavailable  the table could not be written now; repeating the batch is right
    '-- spark.SparkUnusable Spark cannot be started here: no Java, an old one, or a PySpark that was overwritten

A message says what was wanted, what was found and what to do; the three parts stay as attributes. It is one line of
text whatever the names and addresses in it are: what a terminal or a log would obey is shown as an escape.
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
    """`text` on one line, with an escape for each character that is no text, or that turns the direction of writing."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class NeliError(Exception):
    """The base of all. `wanted`, `found` and `remedy` are the parts of the message."""

    def __init__(self, wanted: str, found: str, remedy: str) -> None:
        self.wanted, self.found, self.remedy = plain(wanted), plain(found), plain(remedy)
        super().__init__(f"{self.wanted}, but {self.found}: {self.remedy}")

    def __reduce__(self) -> tuple[type["NeliError"], tuple[str, str, str]]:
        # The default would call __init__ with the one composed message, and fail to unpickle.
        return type(self), (self.wanted, self.found, self.remedy)


class ConfigError(NeliError, ValueError):
    """The configuration contradicts itself. `problems` names every contradiction, not just the first."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(map(plain, problems))
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("a usable configuration was wanted", f"it has {count}", "; ".join(self.problems))

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[Sequence[str]]]:  # type: ignore[override]
        return type(self), (self.problems,)


class BadKey(NeliError, TypeError):
    """Neither text nor bytes, or text that has no UTF-8 form. The key itself is never shown: it may be personal."""


class GroupMismatch(NeliError):
    """The ledger was made with another layout, lease, guarantee or fold version than this program has."""


class LedgerError(NeliError):
    """Something is wrong with the ledger."""


class LedgerUnavailable(LedgerError):
    """The ledger can neither be read nor appended to at this moment; trying again is right."""


class LedgerTrimmed(LedgerError):
    """The reader's position is below the first record retained: only a snapshot can bring it back."""


class LedgerUnusable(LedgerError):
    """The ledger is missing, read-only, corrupt or something else altogether; trying again will not help."""


class LedgerMissing(LedgerUnusable):
    """There is no ledger there, and the caller did not want one made."""


class LedgerRewound(LedgerError):
    """Records that had been read are gone or were replaced. Nothing leads on such a ledger."""


class RecordTooLong(LedgerError):
    """The ledger does not take a record of that length, and took or will take all others that were appended."""


class Diverged(NeliError):
    """Most members computed another state from the same records, or no majority agrees on any."""


class Replaced(NeliError):
    """A newer process joined under the same name. The newer wins; this one does not come back to fight."""


class Miscertified(NeliError):
    """A witness certified that this member's process has ended, and it lives: others lead what it led."""


class NameTaken(NeliError):
    """A member that lives has the name of this newcomer, which was not told to replace it."""


class PeersUnusable(NeliError):
    """This member cannot take its place among its peers, or not keep it: the address, the key or the memory fails."""


class HandlerFailed(NeliError):
    """The program's handler of events raised, so the member left. `__cause__` is its error."""


class LeaseLost(NeliError):
    """The lease that guarded this work ended, or a later term took its place."""


class LookupFailed(NeliError, LookupError):
    """No owner could be named for a key."""


class NoOwner(LookupFailed):
    """The group is known, and no member owns the partition now."""


class StaleTable(LookupFailed):
    """There is no table yet, or it is older than `max_age`: an error, not a guess."""


class Forked(LookupFailed):
    """This process was forked from the one that opened the router or the member."""


class NotLeading(NeliError, TimeoutError):
    """Leadership did not come in the time allowed."""


class NoAgent(NeliError):
    """No agent answered at the address: none listens, this user may not connect, or it hangs."""


class Closed(NeliError):
    """The member or router was closed before this call."""


class Unsupported(NeliError):
    """This platform cannot keep the promises, so nothing is started on it."""


class BeyondProtocol(NeliError):
    """The group's protocol does not know this, or cannot do it; another can."""


class MissingExtra(NeliError, ModuleNotFoundError):
    """A package is not installed that only some programs need, so that an extra brings it. `name` is the package's."""

    @classmethod
    def of(cls, package: str, purpose: str, extra: str) -> "MissingExtra":
        """`package` was wanted, `purpose`, and `extra` brings it."""
        error = cls(f"{package} was wanted, {purpose}", "it is not installed", how_to_install(extra))
        error.name = package
        return error


def how_to_install(extra: str) -> str:
    """The remedy when a package is missing that only `extra` needs. Every message about an extra takes it from here."""
    # There is no release on an index yet, so no message may send people to one.
    return f"install the extra {extra!r}: pip install '.[{extra}]' in a clone of the project"
