"""The claims of a worker: never more than its leases give, and until the end that it last noted.

The members are real ones in memory; time is moved by hand.
"""

from collections.abc import Iterator
from typing import cast

import pytest

from neli_router.lab.processes.worker import Worker
from neli_router.lab.referee import judged
from neli_router.member.membership import Lease
from neli_router.protocols.protocol import BEATS_PER_LEASE, Acquired, Fenced
from neli_router.status.notes import Acts, Halted, LeasesLost, Note, Woke
from tests.lab.demo.miniature import NAMES, STEP, Miniature, miniature


def fresh(small: Miniature) -> list[Note]:
    """The notes since the last call."""
    notes, small.notes[:] = list(small.notes), []
    return notes


@pytest.fixture(name="small")
def _small() -> Iterator[Miniature]:
    with miniature(partitions=6) as small:
        small.rest(*NAMES)
        yield small


def test_what_is_led_is_held_for_no_longer_than_the_lease_and_renewed_by_every_heartbeat(small: Miniature) -> None:
    assert [2, 2, 2] == [len(life.held) for life in small.run.lives]
    fresh(small)
    small.advance(1.0)
    assert len(NAMES) * BEATS_PER_LEASE == sum(isinstance(note, Acts) for note in fresh(small))
    for life in small.run.lives:
        for partition, span in life.held.items():
            lease = small.group[life.name].lease(partition)
            assert lease is not None
            assert (lease.term, True) == (span.term, span.until <= small.group.now + lease.remaining() + 1e-9)


def test_a_stopped_process_keeps_its_claim_until_its_lease_ends_and_is_refused_when_it_wakes(small: Miniature) -> None:
    alpha = small.run.lives[0]
    until, held = alpha.until, dict(alpha.held)
    small.stop("alpha")
    small.advance(3.0)
    fresh(small)
    small.wake("alpha")
    small.advance(STEP)
    woke, lost, halted = (note for note in fresh(small) if not isinstance(note, Acts))
    assert isinstance(woke, Woke)
    assert (True, True) == (abs(woke.asleep - 3.0) < 2 * STEP, "no Beat of this member" in woke.refusal)
    assert isinstance(lost, LeasesLost)
    assert {partition: span.term for partition, span in held.items()} == lost.terms
    assert {until} == {span.until for span in held.values()}
    assert isinstance(halted, Halted)
    assert (2, {}) == (halted.partitions, alpha.held)


def test_who_goes_on_under_the_same_terms_after_an_outage_claims_anew(small: Miniature) -> None:
    for name in ("bravo", "charlie"):
        small.leave(name)
    small.advance(0.5)
    alpha = small.run.lives[0]
    before = {partition: span.term for partition, span in alpha.held.items()}
    # It was cut off for longer than its lease, but none took its place, so it goes on under the same terms.
    small.group.cut("alpha")
    small.advance(2.0)
    assert {} == alpha.held
    small.group.heal("alpha")
    small.advance(2.0)
    assert before == {partition: span.term for partition, span in alpha.held.items()}
    assert [] == judged(small.run.lives).faults


class Granted:
    """A lease that ends when the test decides."""

    def __init__(self, partition: int, term: int) -> None:
        self.partition, self.term, self.left = partition, term, 1.0

    def remaining(self) -> float:
        return self.left


def looking(now: list[float], *leases: Granted) -> tuple[Worker, list[Note]]:
    """A worker that was granted these leases, on the clock `now`; and its notes."""
    notes: list[Note] = []
    worker = Worker(notes.append, lambda: now[0], asleep_min=60.0)
    worker.on_event(Acquired({lease.partition: lease.term for lease in leases}))
    return worker, notes


def test_a_lease_that_is_lost_hides_no_other_claim() -> None:
    now, one, other = [5.0], Granted(0, 7), Granted(1, 8)
    worker, notes = looking(now, one, other)
    assert worker.look(lambda partition: cast("Lease", (one, other)[partition]), {})
    now[0], one.left = 5.5, 0.0
    assert not worker.look(lambda _: None, {})
    assert [Acts(5.0, 6.0, {0: 7, 1: 8}), LeasesLost(5.5, {0: 7}), Acts(5.5, 6.5, {1: 8})] == notes


def test_a_lease_that_holds_again_held_all_the_time_in_between() -> None:
    now, lease = [5.0], Granted(0, 7)
    worker, notes = looking(now, lease)
    assert worker.look(lambda _: cast("Lease", lease), {})
    now[0] = 8.0
    assert worker.look(lambda _: None, {})
    assert [Acts(5.0, 6.0, {0: 7}), Acts(6.0, 9.0, {0: 7}), Acts(8.0, 9.0, {0: 7})] == notes


def test_a_loss_that_is_told_after_the_same_term_was_gained_again_hides_no_claim() -> None:
    """Fenced comes on its own thread, so it may come after the Acquired that follows it."""
    now, lost, again = [5.0], Granted(0, 7), Granted(0, 7)
    worker, notes = looking(now, lost)
    assert worker.look(lambda _: cast("Lease", lost), {0: 7})
    now[0], lost.left = 8.0, 0.0
    worker.on_event(Acquired({0: 7}))
    worker.on_event(Fenced({0: 7}, "no Beat came back"))
    assert worker.look(lambda _: cast("Lease", again), {0: 7})
    assert Acts(8.0, 9.0, {0: 7}) == notes[-1]
