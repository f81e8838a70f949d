"""The host's clock: seconds that no suspend hides, no adjustment bends, and all processes of the host share.

    CLOCK_MONOTONIC_RAW  the counter itself: steady, but it stands still while the host is suspended
    CLOCK_BOOTTIME       counts suspend, but NTP slews it: its rate may be off by 500 parts in a million and more
    CLOCK_MONOTONIC      as CLOCK_BOOTTIME, slewed alike, without suspend

    host clock = CLOCK_MONOTONIC_RAW + (CLOCK_BOOTTIME - CLOCK_MONOTONIC)
                 steady                 exactly the time spent suspended

A lease is time that an owner counts on its own clock while the others count theirs. A clock that stands still during
a suspend would have a laptop or a paused guest wake up in the belief that its lease still holds, long after the
others stopped waiting. A clock that is slewed would bend the rates that the wait after an expiry is computed from.
`time.monotonic()` has the first fault on Linux and on macOS, and the second on Linux.

The three readings are not one: the thread may lose the processor between any two. CLOCK_MONOTONIC is therefore read
before (m1) and after (m2) CLOCK_BOOTTIME (b), and the time spent suspended then certainly lies in [b - m2, b - m1].
It changes only when the host wakes up. So the value in use stays while it is inside that interval, or short of it by
less than a millisecond, and is never lowered: the clock neither jitters by the cost of a reading nor goes back.

On macOS, CLOCK_MONOTONIC_RAW alone goes on during sleep and is not adjusted (clock_gettime(3) there says both). Any
other platform is refused: a promise about leases is worth what the clock beneath it is, and no other was examined.

Processes of one host read one time line, to within a millisecond and as a rule within microseconds, unless they were
put into time namespaces of their own. Readings of two hosts have nothing to do with each other.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from neli_router.errors import Unsupported

__all__ = [
    "NARROW_NS",
    "READINGS_MAX",
    "SLACK_NS",
    "Clock",
    "LinuxClock",
    "Reader",
    "clock_of",
    "host_clock",
    "require_supported_platform",
]

SLACK_NS = 1_000_000
"""A suspend shorter than this goes unnoticed. Raising it makes a wake-up cost more of a lease unseen; lowering it to
the width of a slow reading would let the clock jitter."""

READINGS_MAX = 20
"""How many readings may compete for the first value. One is enough, except on a host so busy that it interrupts
every one of them; then the narrowest wins."""

NARROW_NS = 20_000
"""A first reading this narrow needs no competition: it pins the suspended time to twenty microseconds."""

Clock = Callable[[], float]
"""Seconds from some fixed point, which never go back."""

Reader = Callable[[int], int]
"""Nanoseconds of the clock with this number, as `time.clock_gettime_ns` gives them."""

_MONOTONIC, _MONOTONIC_RAW, _BOOTTIME = 1, 4, 7
# The numbers of linux/time.h, which programs are compiled with and which therefore never change (macOS has the same
# for RAW). Python's `time` has a name for each only on the platform that knows it.


class LinuxClock:
    """The host's clock on Linux. May be shared between threads and survives a fork."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self.renew_lock()
        low, high = self._suspended()
        for _ in range(READINGS_MAX - 1):
            if high - low <= NARROW_NS:
                break
            low, high = min((low, high), self._suspended(), key=lambda bounds: bounds[1] - bounds[0])
        self._offset = (low + high) // 2

    def __call__(self) -> float:
        # Raw first: even if this call is interrupted afterwards, the sum is a moment between its start and its end.
        raw = self._read(_MONOTONIC_RAW)
        low, high = self._suspended()
        if self._offset < low - SLACK_NS:
            self._raise_to(low, high)
        return (raw + self._offset) / 1e9

    def renew_lock(self) -> None:
        """Forget who holds the lock: right after a fork, its holder may be a thread that this process does not have."""
        self._raising = threading.Lock()

    def _suspended(self) -> tuple[int, int]:
        """The least and the most nanoseconds that the host can have been suspended."""
        before = self._read(_MONOTONIC)
        boot = self._read(_BOOTTIME)
        return boot - self._read(_MONOTONIC), boot - before

    def _raise_to(self, low: int, high: int) -> None:
        # Two threads that wake up together measure two slightly different values. The second must find the first
        # one's value good enough, or it would set the clock back by the difference.
        with self._raising:
            if self._offset < low - SLACK_NS:
                self._offset = (low + high) // 2


def clock_of(platform: str, *, read: Reader | None = None) -> Clock:
    """The clock of a host of this kind, named as in `sys.platform`; on others, one that raises Unsupported."""
    found = f"this is {platform!r}"
    if platform in {"linux", "darwin"}:
        read = read or time.clock_gettime_ns  # Not a default in the signature: Windows lacks it.
        try:
            if platform == "linux":
                return LinuxClock(read)
            read(_MONOTONIC_RAW)  # A clock that cannot be read is better noticed here than while a lease runs.
        except OSError as error:
            found = f"its clocks cannot be read ({error})"
        else:
            return partial(_seconds, read, _MONOTONIC_RAW)
    return partial(_refuse, found)


def require_supported_platform() -> None:
    """Raise Unsupported where there is no clock to count a lease with. A member asks this before anything else."""
    host_clock()


def _seconds(read: Reader, clock: int) -> float:
    return read(clock) / 1e9


def _refuse(found: str) -> NoReturn:
    raise Unsupported(
        "a host was wanted whose clock counts suspend and is not adjusted, as on Linux and macOS",
        found,
        "run the members on Linux, or on macOS for development; on Windows, WSL 2 or a Linux container will do",
    )


host_clock: Clock = clock_of(sys.platform)
"""Seconds on this host's time line. Costs under a microsecond; may be called from any thread."""

if isinstance(host_clock, LinuxClock):
    os.register_at_fork(after_in_child=host_clock.renew_lock)
