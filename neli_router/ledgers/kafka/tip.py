"""What is known of a log's tip, and as of when.

    asked_at ----- high -----> answered          all there was at `asked_at` stood below `high`
                                  |
    next >= high ----------------'--> known_at = asked_at: so old is what was read so far, at the most

    no answer for QUIET_MAX, or "no such topic" --> doubtful --the topic's identity was asked for--> assured

An answer tells of the moment in which it was asked for, never of the one in which it came: in between, this process
may have been stopped. An answer below what was read *before it was asked for* comes from a broker that was the leader
and does not know yet that it is no more; it is as good as none. Whether the log lost records, the fetches tell: they
carry the leader's epoch, and a leader of the past refuses them.
"""

from math import inf

__all__ = ["QUIET_MAX", "Tip"]

QUIET_MAX = 1.0
"""Seconds without an answer after which silence is not taken for peace, and the topic may have been made anew."""


class Tip:
    """Of one log, for one reader. `next` is the offset that follows what was read."""

    def __init__(self, now: float) -> None:
        self.high = 0
        self.asked_at = now
        self.known_at = -inf
        self.doubtful = False
        """Whether it may be another topic now."""
        self._since = self._assured_at = now

    def missed(self, asked_at: float, *, unknown: bool) -> None:
        """A question of `asked_at` had no answer, or the one that there is no such topic."""
        self.doubtful |= unknown or asked_at - max(self.asked_at, self._assured_at) > QUIET_MAX

    def assured(self, now: float) -> None:
        """It is the topic that it was."""
        self.doubtful, self._assured_at = False, now

    def forget(self, now: float) -> None:
        """What is read begins anew elsewhere."""
        self.known_at, self._since = -inf, now

    def answered(self, high: int, asked_at: float, *, before: int, next: int) -> bool:  # noqa: A002 - see above.
        """Take an answer; `before` is what `next` was when it was asked for. False if it cannot be believed."""
        if high < before:
            self.missed(asked_at, unknown=False)
            return False
        self.high, self.asked_at = high, asked_at
        self.reached(next)
        return True

    def reached(self, next: int) -> None:  # noqa: A002
        """What was read ends at `next` now."""
        if next >= self.high and self.asked_at >= self._since:
            self.known_at = max(self.known_at, self.asked_at)

    def is_all(self, next: int) -> bool:  # noqa: A002
        """Whether nothing above `next` is known to be there, by an answer that is younger than the beginning."""
        return next >= self.high and self.known_at > -inf and not self.doubtful
