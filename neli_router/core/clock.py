"""The host's clock: it counts suspended time, is never adjusted, and is shared by all processes of the host.

    CLOCK_MONOTONIC_RAW  the counter itself: steady, but it stands still while the host is suspended
    CLOCK_BOOTTIME       counts suspend, but NTP slews it: its rate may be off by 500 parts in a million and more
    CLOCK_MONOTONIC      like CLOCK_BOOTTIME, with the same slew, but without suspend

    host clock = CLOCK_MONOTONIC_RAW + (CLOCK_BOOTTIME - CLOCK_MONOTONIC)
                 steady                 exactly the time spent suspended

The owner of a lease counts its time on its own clock, and the other members count it on theirs. If that clock stopped
during a suspend, a laptop or a paused guest would wake up believing that its lease still holds, long after the others
stopped waiting. If it were slewed, the rates used to compute the wait after an expiry would be off.
`time.monotonic()` has the first fault on Linux and on macOS, and the second on Linux.

The three readings are not atomic: the thread may lose the processor between any two. CLOCK_MONOTONIC is therefore read
before (m1) and after (m2) CLOCK_BOOTTIME (b); the time spent suspended then certainly lies in [b - m2, b - m1]. It
changes only when the host wakes up. So the clock keeps its current value while that value is inside the interval, or
less than a millisecond below it, and never lowers it: the clock does not jitter by the cost of a reading, and it never
goes back.

On macOS, CLOCK_MONOTONIC_RAW alone continues during sleep and is not adjusted (clock_gettime(3) documents both there).
Any other platform is refused: a promise about leases is only as good as the clock beneath it, and no other clock was
examined.

Processes of one host read the same time line, to within a millisecond and usually within microseconds, unless they run
in separate time namespaces. Readings from two hosts are unrelated.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from neli_router.errors import ConfigError, Unsupported

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
    "require_timeout",
]

SLACK_NS = 1_000_000
"""A suspend shorter than this goes unnoticed. Raising it lets a suspend eat more of a lease unseen; lowering it to the
width of a slow reading would make the clock jitter."""

READINGS_MAX = 20
"""How many readings may compete for the first value. One is enough, except on a host so busy that it interrupts every
reading; then the narrowest wins."""

NARROW_NS = 20_000
"""A first reading this narrow is taken immediately: it pins the suspended time to twenty microseconds."""

Clock = Callable[[], float]
"""Seconds since some fixed point; never goes back."""

Reader = Callable[[int], int]
"""Nanoseconds on the clock with this number, as `time.clock_gettime_ns` returns them."""

_MONOTONIC, _MONOTONIC_RAW, _BOOTTIME = 1, 4, 7
# The numbers from linux/time.h. They are compiled into programs, so they never change; macOS uses the same number for
# RAW. Python's `time` defines each name only on the platform that has the clock.


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
        # Raw first: even if this call is interrupted after it, the sum is a moment between the call's start and end.
        raw = self._read(_MONOTONIC_RAW)
        low, high = self._suspended()
        if self._offset < low - SLACK_NS:
            self._raise_to(low, high)
        return (raw + self._offset) / 1e9

    def renew_lock(self) -> None:
        """Replace the lock: right after a fork, its holder may be a thread that does not exist in this process."""
        self._raising = threading.Lock()

    def _suspended(self) -> tuple[int, int]:
        """The minimum and maximum nanoseconds that the host can have been suspended."""
        before = self._read(_MONOTONIC)
        boot = self._read(_BOOTTIME)
        return boot - self._read(_MONOTONIC), boot - before

    def _raise_to(self, low: int, high: int) -> None:
        # Two threads that wake up together measure slightly different values. The second thread must accept the value
        # of the first, or it would set the clock back by the difference.
        with self._raising:
            if self._offset < low - SLACK_NS:
                self._offset = (low + high) // 2


def clock_of(platform: str, *, read: Reader | None = None) -> Clock:
    """The clock for `platform`, named as in `sys.platform`; on unsupported platforms, one that raises Unsupported."""
    found = f"this is {platform!r}"
    if platform in {"linux", "darwin"}:
        read = read or time.clock_gettime_ns  # Not a default in the signature: Windows lacks it.
        try:
            if platform == "linux":
                return LinuxClock(read)
            read(_MONOTONIC_RAW)  # Better to find out here than during a lease that the clock cannot be read.
        except OSError as error:
            found = f"its clocks cannot be read ({error})"
        else:
            return lambda: read(_MONOTONIC_RAW) / 1e9
    return partial(_refuse, found)


def require_supported_platform() -> None:
    """Raise Unsupported if this platform cannot time a lease. A member calls this before anything else."""
    host_clock()


def require_timeout(timeout: float | None) -> None:
    """Raise ConfigError unless a program can mean this: seconds, or None to wait for as long as it takes."""
    if timeout is not None and not timeout >= 0:  # Not `timeout < 0`, which is false for nan.
        raise ConfigError([f"timeout={timeout!r} must be at least 0 seconds, or None to wait for as long as it takes"])


def _refuse(found: str) -> NoReturn:
    raise Unsupported(
        "a host was wanted whose clock counts suspend and is not adjusted, as on Linux and macOS",
        found,
        "run the members on Linux, or on macOS for development; on Windows, WSL 2 or a Linux container will do",
    )


host_clock: Clock = clock_of(sys.platform)
"""Seconds on this host's time line. Takes under a microsecond; may be called from any thread."""

if isinstance(host_clock, LinuxClock):
    os.register_at_fork(after_in_child=host_clock.renew_lock)
