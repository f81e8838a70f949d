"""The answers of a fence: its errors, and the tally of both answers that metrics read.

    admit --term >= admitted--> admitted += 1
          --term <  admitted--> refused  += 1, raise Refused          a zombie was stopped
          --not a term, no transaction--> raise FenceMisused          a program is wrong; not counted

A refused write is rolled back, and a count in the same database would be rolled back with it. So the tally lives in the
process that was refused, and that process exports it to its metrics. A fork starts with an empty tally, because
otherwise the parent's refusals would be reported twice.
"""

import os
import threading

from neli_router.errors import NeliError

__all__ = ["BatchGap", "FenceMisused", "Refused", "TableMismatch", "TableUnavailable", "Tally", "tally"]


class Refused(NeliError):
    """A higher term was admitted to `resource`: the holder of `term` no longer owns it, and must not write.

    Or the terms of its group have fallen, and no member may write. A fence cannot distinguish the two, so the remedy
    names both.
    """

    resource: str = ""
    term: int = 0
    admitted: int | None = None

    @classmethod
    def of(cls, resource: str, term: int, admitted: int | None) -> "Refused":
        least = "a higher term_base" if admitted is None else f"a term_base of at least {admitted}"
        refused = cls(
            f"term {term} was to be admitted to {resource!r}",
            f"{'a higher one' if admitted is None else f'term {admitted}'} was already",
            "roll this transaction back and stop the work: a newer owner has taken it over. If every member is "
            "refused, the group's terms started over (another ledger, or state folders that were lost): start all with "
            f"{least}",
        )
        refused.resource, refused.term, refused.admitted = resource, term, admitted
        return refused

    @classmethod
    def of_pair(cls, resource: str, term: int, counter: int) -> "Refused":
        refused = cls(
            f"the pair ({term}, {counter}) was to be admitted to {resource!r}",
            "it, or a greater one, was already",
            "roll this transaction back: what has this number was written before, or a later one overtook it",
        )
        refused.resource, refused.term, refused.admitted = resource, term, term
        return refused

    def __reduce__(self) -> tuple[type["Refused"], tuple[str, str, str], dict[str, object]]:  # type: ignore[override]
        return type(self), (self.wanted, self.found, self.remedy), self.__dict__


class FenceMisused(NeliError, TypeError):
    """The fence was given an invalid term, an invalid resource name, or a connection that it cannot guard."""


class BatchGap(NeliError):
    """A batch does not begin where the last one of its partition ended: one is missing, or the input was cut
    differently."""


class TableMismatch(NeliError):
    """A table, or rows for it, with another format, layout or schema than wanted. Nothing was written."""


class TableUnavailable(NeliError):
    """The table could not be written now, and holds what it held before. Repeat the same batch."""


class Tally:
    """How many terms were admitted and refused in this process. May be used from any thread."""

    def __init__(self) -> None:
        self.forget()

    def count(self, *, refused: bool) -> None:
        with self._lock:  # `+=` is three steps: two threads that take them together would count once.
            if refused:
                self.refused += 1
            else:
                self.admitted += 1

    def forget(self) -> None:
        """Start from zero, with a new lock: another thread may have held the old one during a fork."""
        self._lock = threading.Lock()
        self.admitted = self.refused = 0


tally = Tally()
"""The tally of this process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=tally.forget)
