"""What is known of a log's tip, and as of when.

    asked_at ----- high -----> answered          all there was at `asked_at` stood below `high`
                                  |
    next >= high ----------------'--> known_at = asked_at: so old is what was read so far, at the most

An answer tells of the moment in which it was asked for, never of the one in which it came: in between, this process may
have been stopped. An answer below what was read *before it was asked for* is a sign that the log lost records. It must
come several times, because a new leader may be a moment behind what the old one showed.
"""

from math import inf

__all__ = ["Tip"]

REWOUND_LOOKS = 3
"""Answers in a row that must be below what was read."""


class Tip:
    """Of one log, for one reader. `next` is the offset that follows what was read."""

    def __init__(self, now: float) -> None:
        self.high = 0
        self.asked_at = now
        self.known_at = -inf
        self.found = ""
        """How the log lost records, once that is certain."""
        self._since = now
        self._below = 0

    def forget(self, now: float) -> None:
        """What is read begins anew elsewhere."""
        self.known_at, self._since = -inf, now

    def answered(self, high: int, asked_at: float, *, before: int, next: int) -> bool:  # noqa: A002 - see above.
        """Take an answer; `before` is what `next` was when it was asked for. False if it cannot be believed."""
        if high < before:
            self._below += 1
            if self._below >= REWOUND_LOOKS:
                self.found = f"it ends at {high}, and records up to {before} were read"
            return False
        self._below, self.high, self.asked_at = 0, high, asked_at
        self.reached(next)
        return True

    def reached(self, next: int) -> None:  # noqa: A002
        """What was read ends at `next` now."""
        if next >= self.high and self.asked_at >= self._since:
            self.known_at = max(self.known_at, self.asked_at)

    def is_all(self, next: int) -> bool:  # noqa: A002
        """Whether nothing above `next` is known to be there, by an answer that is younger than the beginning."""
        return next >= self.high and self.known_at > -inf
