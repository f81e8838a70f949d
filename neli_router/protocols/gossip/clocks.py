"""Biased clocks: how long each other member has been running, estimated from below.

    clock of a          |----------------------------------------------->  C_a(a)
    sent to b                 \\ "elapsed 7"        \\ "elapsed 20"
    b's estimate of it         7 . . slowed . . 15 |20 . . slowed . . >    C_b(a), below C_a(a) at any time

Each declaration of a member states how long the member has been running: its `elapsed`. A receiver knows that the
sender's clock shows at least that, however long the message travelled. From then on, the receiver counts on its own
clock, slowed down by as much as the two may differ. A later message is used if it states more than the estimate has
grown to.

Two clocks that may both be off by `drift` differ by (1 - drift) / (1 + drift) at most. For clocks that are off by 500
ppm each, the text slows down by 1000 ppm, which is nearly the same.

*A clock belongs to one life.* It starts from zero when its member restarts, and estimates of the older life would be
far ahead of it.
"""

from math import inf

__all__ = ["TICKS", "BiasedClocks"]

TICKS = 8192
"""Times travel in ticks, of which a second has this many: whole numbers are short, and halves stay exact."""

ELAPSED_MAX = 1 << 52
"""No member runs for this long: it is more than ten thousand years. Smaller numbers are exact in a float, and so are
the estimates that grow from them."""


class BiasedClocks:
    """One member's own clock, and its estimates of all others'. Not thread-safe."""

    def __init__(self, size: int, me: int, now: float, *, drift: float) -> None:
        self.lives = [0] * size
        """The lives whose clocks these are: for each place, the life that was last heard of; 0 before the first."""
        self._me, self._rate = me, (1 - drift) / (1 + drift) * TICKS
        self._start = now
        self._bases, self._based_at = [-inf] * size, [now] * size

    def begin(self, now: float) -> None:
        """Restart my own clock."""
        self._start = now

    def meet(self, place: int, life: int) -> None:
        """Another life runs at this place from now on."""
        self.lives[place], self._bases[place] = life, -inf

    def hear(self, place: int, elapsed: int, now: float) -> None:
        """Take the `elapsed` that this member stated: its clock showed this then."""
        if elapsed - (now - self._based_at[place]) * self._rate > self._bases[place] and elapsed < ELAPSED_MAX:
            self._bases[place], self._based_at[place] = float(elapsed), now

    def knows(self, place: int) -> bool:
        return place == self._me or self._bases[place] > -inf

    def elapsed(self, now: float) -> int:
        """My own clock, in ticks."""
        return int((now - self._start) * TICKS)

    def read(self, place: int, now: float) -> int:
        """C_N(N'): a lower bound of that member's own clock, in ticks. Only for a member that I know."""
        if place == self._me:
            return self.elapsed(now)
        return int(self._bases[place] + (now - self._based_at[place]) * self._rate)

    def when(self, elapsed: float) -> float:
        """When my own clock will show this."""
        return self._start + elapsed / TICKS
