"""Biased clocks: what a member knows of how long each other member has been running, and never too much of it.

    clock of a          |----------------------------------------------->  C_a(a)
    told to b                 \\ "elapsed 7"        \\ "elapsed 20"
    b's estimate of it         7 . . slowed . . 15 |20 . . slowed . . >    C_b(a), below C_a(a) at any time

A member says with each declaration how long it has been running: its `elapsed`. Whoever hears it knows that the clock
shows at least that, however long the word was on its way. From then on, the hearer counts on its own clock, slowed
down by as much as the two may differ. A later word is taken if it says more than the estimate has grown to.

Two clocks that may both be off by `drift` differ by (1 - drift) / (1 + drift) at most. The text slows down by 1000 ppm
for clocks that are off by 500 ppm each, which is nearly the same.

*A clock is of one life.* It starts anew when its member does, and estimates of the older life would be far ahead of it.
"""

from math import inf

__all__ = ["TICKS", "BiasedClocks"]

TICKS = 8192
"""Times travel in ticks, of which a second has this many: whole numbers are short, and halves stay exact."""

ELAPSED_MAX = 1 << 52
"""Nobody runs for so long: it is more than ten thousand years. What is below is as exact in a float, and so is what an
estimate grows on to."""


class BiasedClocks:
    """One member's own clock, and its estimates of all others'. Not thread-safe."""

    def __init__(self, size: int, me: int, now: float, *, drift: float) -> None:
        self.lives = [0] * size
        """Whose clocks these are: the life of each place that was heard of last; 0 before the first."""
        self._me, self._rate = me, (1 - drift) / (1 + drift) * TICKS
        self._start = now
        self._bases, self._based_at = [-inf] * size, [now] * size

    def begin(self, now: float) -> None:
        """My own clock starts anew."""
        self._start = now

    def meet(self, place: int, life: int) -> None:
        """Another life runs at this place from now on."""
        self.lives[place], self._bases[place] = life, -inf

    def hear(self, place: int, elapsed: int, now: float) -> None:
        """Its clock showed this when it said so."""
        if elapsed - (now - self._based_at[place]) * self._rate > self._bases[place] and elapsed < ELAPSED_MAX:
            self._bases[place], self._based_at[place] = float(elapsed), now

    def knows(self, place: int) -> bool:
        return place == self._me or self._bases[place] > -inf

    def elapsed(self, now: float) -> int:
        """My own clock, in ticks."""
        return int((now - self._start) * TICKS)

    def read(self, place: int, now: float) -> int:
        """C_N(N'): a lower bound of that member's own clock, in ticks. Only of one that I know."""
        if place == self._me:
            return self.elapsed(now)
        return int(self._bases[place] + (now - self._based_at[place]) * self._rate)

    def when(self, elapsed: float) -> float:
        """When my own clock shows this."""
        return self._start + elapsed / TICKS
