"""What a worker claims: never more than its leases give, and until when it was last said.

The members are real ones in memory; time is turned by hand.
"""

import pytest

from neli_router.demo.checks import overlaps
from neli_router.demo.notes import Ended, Fenced, Held, Note, Order, Renewed, Woke, read_note, read_order, written
from tests.demo.miniature import NAMES, STEP, Miniature, miniature


def fresh(small: Miniature) -> list[Note]:
    """What was noted since the last call."""
    notes, small.notes[:] = list(small.notes), []
    return notes


def test_what_is_led_is_held_and_renewed_by_every_heartbeat() -> None:
    with miniature(partitions=6) as small:
        small.rest(*NAMES)
        assert [2, 2, 2] == [len(life.held) for life in small.run.lives]
        fresh(small)
        small.advance(1.0)
        beats_per_lease = 6
        assert len(NAMES) * beats_per_lease == sum(isinstance(note, Renewed) for note in fresh(small))


def test_a_claim_never_outlasts_the_lease() -> None:
    with miniature(partitions=6) as small:
        small.rest(*NAMES)
        for life in small.run.lives:
            for partition, tenure in life.held.items():
                lease = small.group[life.name].lease(partition)
                assert lease is not None
                assert (lease.term, True) == (tenure.term, tenure.end <= small.group.now + lease.remaining() + 1e-9)


def test_a_killed_process_claims_what_its_last_heartbeat_proved() -> None:
    with miniature(partitions=6) as small:
        small.rest(*NAMES)
        small.kill("alpha")
        dead = small.run.lives[0]
        assert 0 < dead.until - small.group.now <= small.run.lease
        small.advance(3.0)
        assert {dead.until} == {tenure.end for tenure in dead.held.values()}
        assert [] == overlaps(small.run)


def test_a_stopped_process_keeps_its_claim_until_its_lease_ends_and_is_refused_when_it_wakes() -> None:
    with miniature(partitions=6) as small:
        small.rest(*NAMES)
        alpha = small.run.lives[0]
        until, held = alpha.until, dict(alpha.held)
        small.stop("alpha")
        small.advance(3.0)
        fresh(small)
        small.wake("alpha")
        small.advance(STEP)
        woke, ended, fenced = (note for note in fresh(small) if not isinstance(note, Renewed))
        assert isinstance(woke, Woke)
        assert (True, True) == (abs(woke.asleep - 3.0) < 2 * STEP, "no Beat of this member" in woke.refusal)
        assert Ended(until, {partition: tenure.term for partition, tenure in held.items()}) == ended
        assert isinstance(fenced, Fenced)
        assert (2, {}) == (fenced.partitions, alpha.held)


def test_who_is_asked_to_leave_claims_nothing_from_then_on() -> None:
    with miniature(partitions=6) as small:
        small.rest(*NAMES)
        fresh(small)
        small.leave("alpha")
        at = small.group.now
        (ended,) = (note for note in fresh(small) if isinstance(note, Ended))
        assert (2, True) == (len(ended.terms), ended.at <= at)
        small.advance(0.1)
        assert [3, 3] == [len(life.held) for life in small.run.lives[1:]]
        assert [] == overlaps(small.run)


def test_who_goes_on_under_the_same_terms_after_an_outage_claims_anew() -> None:
    with miniature(partitions=6) as small:
        small.rest(*NAMES)
        for name in ("bravo", "charlie"):
            small.leave(name)
        small.advance(0.5)
        alpha = small.run.lives[0]
        before = {partition: tenure.term for partition, tenure in alpha.held.items()}
        # It was cut off for longer than its lease, nobody took its place, and so it goes on under the same terms.
        small.group.cut("alpha")
        small.advance(2.0)
        assert {} == alpha.held
        small.group.heal("alpha")
        small.advance(2.0)
        assert before == {partition: tenure.term for partition, tenure in alpha.held.items()}
        assert [] == overlaps(small.run)


@pytest.mark.parametrize(
    "note",
    [
        Held(12.25, 12.75, {0: 1_700_000_000_000_002, 7: 1_700_000_000_000_005}),
        Fenced(12.25, 85, "no Beat of this member came back for 0.5 s"),
        Woke(12.25, 1.5, ""),
    ],
)
def test_a_note_arrives_as_it_was_written(note: Note) -> None:
    assert note == read_note(written(note))


def test_half_a_line_is_no_note() -> None:
    line = written(Held(12.25, 12.75, {0: 5}))
    assert {None} == {read_note(line[:length]) for length in range(len(line))}


def test_an_order_arrives_as_it_was_given() -> None:
    order = Order("alpha", "sqlite:///var/lib/ledger.db", 256, 0.5)
    assert order == read_order(written(order).decode())
