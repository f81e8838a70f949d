"""The host's clock on scripted readings, and the real clock: it only goes forward, is shared, and survives a fork."""

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from itertools import cycle

import pytest

from neli_router.core import clock
from neli_router.core.clock import SLACK_NS, LinuxClock, clock_of, host_clock, require_supported_platform
from neli_router.errors import Unsupported
from tests.support.forking import in_child

MICRO, MILLI, SECOND = 1_000, 1_000_000, 1_000_000_000
MONOTONIC, MONOTONIC_RAW, BOOTTIME = 1, 4, 7

only_on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the clocks of Linux")


class Host:
    """A host whose time passes when a clock is read, and when the test says so."""

    def __init__(self, *, suspended: int = 0, costs: Sequence[int] = (100,)) -> None:
        self.running, self.suspended = 100 * SECOND, suspended
        self.costs = cycle(costs)
        self.interrupted: int | None = None  # The thread waits 50 milliseconds before it reads this clock.
        self.before_reading: list[Callable[[int], None]] = []

    def read(self, clock: int) -> int:
        for call in self.before_reading.copy():
            call(clock)
        self.running += next(self.costs) + (50 * MILLI if clock == self.interrupted else 0)
        return {MONOTONIC: self.running, BOOTTIME: self.running + self.suspended, MONOTONIC_RAW: self._raw()}[clock]

    def _raw(self) -> int:
        # Raw counters have their own origin and rate: here, three parts in a million fast.
        return self.running - 5 * SECOND + self.running * 3 // 1_000_000

    def seconds(self) -> float:
        """The time on a perfect host clock."""
        return (self._raw() + self.suspended) / SECOND


def test_it_is_the_raw_counter_plus_the_time_spent_suspended_however_often() -> None:
    host = Host(suspended=3600 * SECOND)
    tell = LinuxClock(host.read)
    host.running += 10 * SECOND
    assert pytest.approx(host.seconds(), abs=1e-6) == tell()
    before = tell()
    for _ in range(2):
        host.suspended += 5 * SECOND
        tell()
    assert pytest.approx(before + 10, abs=1e-5) == tell()


@pytest.mark.parametrize("interrupted", [MONOTONIC, BOOTTIME, MONOTONIC_RAW])
def test_a_suspend_in_the_middle_of_a_reading_gives_a_moment_inside_it(interrupted: int) -> None:
    host = Host()
    tell = LinuxClock(host.read)

    def suspend_once(clock: int) -> None:
        if clock == interrupted:
            host.suspended += 30 * SECOND
            host.before_reading.clear()

    before = host.seconds()
    host.before_reading.append(suspend_once)
    told = tell()
    assert before <= told <= host.seconds()
    assert pytest.approx(host.seconds(), abs=1e-5) == tell()


def test_an_interrupted_reading_does_not_move_it() -> None:
    """Losing the processor between two readings widens the interval; the current value is still inside it."""
    host = Host()
    tell = LinuxClock(host.read)
    for interrupted in (MONOTONIC_RAW, MONOTONIC, BOOTTIME):
        host.interrupted = interrupted
        before = host.seconds()
        assert before <= tell() <= host.seconds()
    host.interrupted = None
    assert pytest.approx(host.seconds(), abs=1e-6) == tell()


def test_a_host_that_interrupts_every_first_reading_costs_at_most_half_of_the_narrowest() -> None:
    costs = [100, 9 * MILLI, 100, 100, 80 * MICRO, 100, *[100, 5 * MILLI, 100] * 18, 100]
    host = Host(suspended=7 * SECOND, costs=costs)
    tell = LinuxClock(host.read)
    host.running += SECOND
    before = host.seconds()
    assert before - 40e-6 <= tell() <= host.seconds() + 40e-6


def test_it_neither_jitters_nor_goes_back_with_the_time_that_seems_spent_suspended() -> None:
    """A difference smaller than the slack does not count as a suspend."""
    host = Host(suspended=10 * SECOND)
    tell = LinuxClock(host.read)
    before = tell() - host.seconds()
    host.suspended += SLACK_NS - MICRO
    assert pytest.approx(before - (SLACK_NS - MICRO) / SECOND, abs=1e-9) == tell() - host.seconds()
    told = tell()
    host.suspended = 0
    assert told < tell()


def test_two_threads_that_wake_up_together_agree_on_the_jump() -> None:
    """The second thread measures a lower value; the first value stays, or the clock would go back."""
    host = Host()
    tell = LinuxClock(host.read)
    host.suspended += 30 * SECOND
    told_by_first: list[float] = []

    def let_the_other_thread_finish(clock: int) -> None:
        if clock == MONOTONIC and not told_by_first:
            told_by_first.append(-1)  # Its own readings must not start a third thread.
            other = threading.Thread(target=lambda: told_by_first.append(tell()))
            other.start()
            other.join()

    host.before_reading.append(let_the_other_thread_finish)
    tell()
    assert told_by_first[1] < tell()
    assert pytest.approx(host.seconds(), abs=1e-5) == tell()


def test_on_macos_it_is_the_raw_clock_alone() -> None:
    host = Host()
    tell = clock_of("darwin", read=host.read)
    readings: list[int] = []
    host.before_reading.append(readings.append)
    assert pytest.approx(95.0003, abs=1e-4) == tell()
    assert [MONOTONIC_RAW] == readings


@pytest.mark.parametrize("platform", ["win32", "cygwin", "freebsd14", "emscripten"])
def test_other_platforms_are_refused_with_what_was_found_and_what_to_do(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_supported_platform()  # This one is.
    monkeypatch.setattr(clock, "host_clock", clock_of(platform))
    with pytest.raises(Unsupported, match="run the members on Linux") as caught:
        require_supported_platform()
    assert f"this is {platform!r}" == caught.value.found
    assert "Linux" in caught.value.wanted


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_host_whose_clocks_cannot_be_read_is_refused(platform: str) -> None:
    def forbidden(clock: int) -> int:
        raise PermissionError(1, "Operation not permitted")

    with pytest.raises(Unsupported, match="clocks cannot be read"):
        clock_of(platform, read=forbidden)()


# The real clock.


@only_on_linux
def test_another_process_reads_the_same_time_line() -> None:
    """The tolerance is the slack: each process measures the suspended time once, for itself."""
    program = "from neli_router.core.clock import host_clock; print(repr(host_clock()))"
    before = host_clock()
    told = float(subprocess.check_output([sys.executable, "-c", program], text=True))
    assert before - SLACK_NS / SECOND <= told <= host_clock() + SLACK_NS / SECOND


@only_on_linux
def test_a_lock_that_another_thread_held_at_the_fork_does_not_stop_the_child() -> None:
    """A child has only the thread that forked; the thread that held the lock does not exist there to release it."""
    assert isinstance(host_clock, LinuxClock)
    with host_clock._raising:
        assert in_child(lambda: host_clock._raising.acquire(timeout=1)) is True
