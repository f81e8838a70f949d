"""Measurements of `neli doctor` on this host, and the shortest lease that they allow.

    |<- beat ->|<- trip + overshoot ->|         within half a lease, or a member does not hear itself
    |<-------- half a lease --------->|

A member that has not read back a Beat of the last half lease stops accusing others, and soon leads nothing. A Beat goes
out every sixth of a lease, so trip and overshoot have a third of a lease. A host that needs more than that at its 99th
percentile loses its lease every few seconds. A host that needs half of that has no room for a bad day; it gets a
warning.

Nothing is appended to the ledger in use. A scratch ledger in the same folder is on the same disk, under the same file
system, with the same flushes. On a server, a scratch topic or stream would need rights that a member does not need. So
the server gets a query instead, which takes no longer than an append: a lease that is too short for the query is too
short, and a lease that is long enough for the query may still be too short.
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Literal

from neli_router.core.clock import Clock, host_clock
from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.member.wishes import NEWEST, held_back_by, known
from neli_router.protocols.protocol import BEATS_PER_LEASE, DRIFT_MAX
from neli_router.status.replay import State

__all__ = [
    "Diagnosis",
    "HostTiming",
    "Trips",
    "judge_clock",
    "judge_digests",
    "judge_expiry",
    "judge_lease",
    "judge_space",
    "judge_version",
    "measure_asks",
    "measure_host",
    "measure_trips",
    "percentile",
    "timed",
]

TRIPS_MAX = 200
TRIPS_SECONDS = 2.0
"""With two hundred trips, two of them decide the 99th percentile. A disk that cannot flush that many in two seconds is
judged by fewer."""

NAP = 0.001
"""The sleep of a pump that waits for its next Beat; longer naps would be too few in a second."""

PAIRS = 9
"""Readings of two clocks. The narrowest counts, because an interrupted pair says nothing."""

RATE_DOUBTFUL = 0.0005
"""The rate at which NTP may slew a clock. At a higher rate, one of the two clocks or the hypervisor's is broken."""

NAMES_MAX = 8

TRIP_SHARE = 1 / 3
"""The share of a lease that a round trip may take, as in `judge_lease`."""

SPACE_MIN = 16 * 2**20
SPACE_LOW = 256 * 2**20
"""Bytes. A full group with its write-ahead log has a few MiB; other files on the disk grow faster."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check."""

    name: str
    verdict: Literal["fine", "warning", "failed", "skipped"]
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Trips:
    """Seconds from before an append until the record was read back, or for the operation that `what` names."""

    p50: float
    p99: float
    count: int
    what: str = "append, flush and read take"


@dataclass(frozen=True, slots=True)
class HostTiming:
    """`overshoot` is how much too long sleeps took; `rate_error` is how much faster our clock ran than NTP's."""

    overshoot_p50: float
    overshoot_p99: float
    rate_error: float
    suspended: float


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def measure_trips(folder: Path) -> Trips:
    """Append and read back in a temporary scratch ledger in `folder`. Raises LedgerError, OSError."""
    with (
        tempfile.TemporaryDirectory(prefix=".neli-doctor-", dir=folder) as scratch,
        closing(SqliteLedger(Path(scratch) / "ledger.db")) as ledger,
    ):

        def trip() -> None:
            # Lasting, because flushes for others hold up a Beat that needs none itself.
            ledger.append([b'{"kind":"nothing"}'], lasting=True)
            while not ledger.read(TRIPS_SECONDS):
                pass

        return timed(trip)


def measure_asks(ledger: Ledger) -> Trips:
    """Ask where `ledger` ends, again and again. Raises LedgerError."""
    what = "nothing was appended here; a question, which is the least that an append can be, takes"
    return replace(timed(ledger.tip), what=what)


def timed(trip: Callable[[], object]) -> Trips:
    """How long `trip` takes: at most TRIPS_MAX times, within TRIPS_SECONDS."""
    times: list[float] = []
    give_up_at = host_clock() + TRIPS_SECONDS
    while len(times) < TRIPS_MAX and (not times or host_clock() < give_up_at):
        started = host_clock()
        trip()
        times.append(host_clock() - started)
    return Trips(percentile(times, 0.5), percentile(times, 0.99), len(times))


def measure_host(seconds: float = 1.0, *, clock: Clock = host_clock) -> HostTiming:
    """Sleep and look at the clocks, for `seconds`. Raises Unsupported if the host has no clock for leases."""
    first_offset, first_at = _offset(clock)
    overshoots: list[float] = []
    while not overshoots or clock() < first_at + first_offset + seconds:
        started = clock()
        time.sleep(NAP)
        overshoots.append(max(0.0, clock() - started - NAP))
    last_offset, last_at = _offset(clock)
    boot = getattr(time, "CLOCK_BOOTTIME", None)  # macOS has none, and does not need it.
    return HostTiming(
        percentile(overshoots, 0.5),
        percentile(overshoots, 0.99),
        (last_offset - first_offset) / max(last_at - first_at, NAP),
        0.0 if boot is None else max(0.0, time.clock_gettime(boot) - time.monotonic()),
    )


def _offset(clock: Clock) -> tuple[float, float]:
    """How far our clock is ahead of the clock that NTP slews, and the time by the latter."""
    readings = []
    for _ in range(PAIRS):
        before, ours, after = time.monotonic(), clock(), time.monotonic()
        readings.append((after - before, ours - (before + after) / 2, after))
    _, offset, at = min(readings)
    return offset, at


def judge_lease(lease: float, trips: Trips, host: HostTiming) -> Diagnosis:
    """Whether a lease is long enough for what was measured."""
    needed = trips.p99 + host.overshoot_p99
    has = lease / 2 - lease / BEATS_PER_LEASE
    found = (
        f"lease {lease:g} s leaves {_ms(has)} for a round trip and a late wake-up; the 99th percentiles are "
        f"{_ms(trips.p99)} and {_ms(host.overshoot_p99)}"
    )
    # Rounded up, so that the advice itself passes the check.
    advice = f"make the lease at least {_rounded_up(2 * needed * lease / has):g} s, or find what makes this host slow"
    if needed > has:
        return Diagnosis("lease", "failed", found, advice)
    return Diagnosis("lease", "warning", found, advice) if 2 * needed > has else Diagnosis("lease", "fine", found)


def judge_expiry(lease: float, powerless: Mapping[str, float], members: int) -> Diagnosis:
    """Whether a member that dies would be expired. `powerless` could not do it: name -> round trip."""
    if not powerless:
        return Diagnosis("expiry", "fine", "nothing in the ledger says that heartbeats come back too late to expire")
    longest = max(powerless.values())
    names = ", ".join([*powerless][:NAMES_MAX]) + (", ..." if len(powerless) > NAMES_MAX else "")
    found = f"heartbeats take up to {longest:.3g} s of a lease of {lease:g} s to come back to {names}"
    advice = (
        f"find what makes the ledger slow, or start the group again, on a new ledger, with a lease of at least "
        f"{_rounded_up(longest / TRIP_SHARE):g} s"
    )
    if len(powerless) < members:
        return Diagnosis("expiry", "warning", f"{found}: they cannot expire a member that dies, others can", advice)
    return Diagnosis("expiry", "failed", f"{found}: no member can expire one that dies", advice)


def judge_digests(digests: Mapping[str, tuple[int, bool]]) -> Diagnosis:
    """Whether the members hold the state that this release makes of the same records."""
    if not digests:
        return Diagnosis("digests", "skipped", "no member's digest can be compared: they compare them among themselves")
    differing = {name: at for name, (at, agrees) in digests.items() if not agrees}
    if not differing:
        return Diagnosis("digests", "fine", f"the last digest of {', '.join(digests):.200} is this release's, too")
    found = ", ".join(f"{name} at offset {at}" for name, at in differing.items())
    if len(differing) == len(digests):
        remedy = "run the doctor of the release that the members run, and then all members with one release"
        return Diagnosis(
            "digests", "failed", f"no member holds the state that this release computes: {found:.200}", remedy
        )
    remedy = "start these with the release of the others; if they have it, test their hosts' memory"
    return Diagnosis("digests", "failed", f"some members hold another state than the others: {found:.200}", remedy)


def judge_version(state: State) -> Diagnosis:
    """Whether the group could be upgraded to the newest fold version that this release knows."""
    found = f"the group's fold version is {state.version}"
    if state.version == NEWEST:
        return Diagnosis("version", "fine", f"{found}, the newest that this release knows")
    if not state.members:
        return Diagnosis("version", "fine", f"{found}, and no member is there to raise it")
    if behind := held_back_by(state):
        named = ", ".join(f"{seat.name} (knows {known(seat)})" for seat in behind)
        remedy = f"restart these with this release, then say `neli upgrade`; the group works at {state.version}, too"
        return Diagnosis("version", "warning", f"{found}; these members do not know {NEWEST}: {named:.200}", remedy)
    remedy = "say `neli upgrade` when all agents and routers have this release, too: older ones cannot return then"
    return Diagnosis("version", "warning", f"{found}, and all members know {NEWEST}", remedy)


def judge_clock(host: HostTiming) -> Diagnosis:
    """Whether this host's clock may count leases."""
    found = (
        f"it runs {abs(host.rate_error) * 1e6:.0f} millionths off the adjusted clock; the host was suspended for "
        f"{host.suspended:.3g} s since it started, all of it counted"
    )
    remedy = "see whether the hypervisor gives the guest a stable clock (`dmesg | grep -i clocksource`)"
    if abs(host.rate_error) > DRIFT_MAX:
        return Diagnosis("clock", "failed", f"{found}; members allow each other {DRIFT_MAX * 1e6:.0f}", remedy)
    doubtful = abs(host.rate_error) > RATE_DOUBTFUL
    return Diagnosis("clock", "warning", found, remedy) if doubtful else Diagnosis("clock", "fine", found)


def judge_space(folder: Path) -> Diagnosis:
    """Whether the disk has room. Raises OSError."""
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    found, remedy = f"{free / 2**20:,.0f} MiB are free in {folder}", "free some space, or move the ledger"
    if free < SPACE_MIN:
        return Diagnosis("space", "failed", found, remedy)
    return Diagnosis("space", "warning", found, remedy) if free < SPACE_LOW else Diagnosis("space", "fine", found)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _rounded_up(seconds: float) -> float:
    step = 0.01 if seconds < 0.1 else 0.05 if seconds < 1 else 0.5
    return ceil(seconds / step) * step
