"""May it act? One table for each of the three conditions, then what is counted from when.

A lease is 10 s here and a wait 12. Partition 0 is the one in question; member `p` is us. `p` starts at 0, so what it
owes on everything has passed at 12.
"""

from dataclasses import dataclass, field
from math import inf

import pytest
from msgspec.structs import replace

from neli_router.induction.fold import State, fold
from neli_router.induction.records import Beat, Certify, Drain, Handover, Leave, Pin, Record, Undrain
from neli_router.induction.tenure import Linger, Tenure
from neli_router.protocol import DRIFT_MAX, wait_for
from tests.support.records import beat, expire, founded, join

LEASE, WAIT = 10.0, 12.0
HOLD = 20.0


@dataclass
class Reader:
    """Member p, as far as it acts: reads one record after the other and says for what it may act."""

    start: float = 0.0
    exclusive: bool = True
    state: State = field(default_factory=founded)
    tenure: Tenure = field(init=False)

    def __post_init__(self) -> None:
        self.tenure = Tenure.begin(
            "p",
            self.state,
            self.start,
            exclusive=self.exclusive,
            lasts=LEASE if self.exclusive else HOLD,
            wait=WAIT,
            lingering={},
        )

    def read(self, now: float, *records: Record | None) -> "Reader":
        for record in records:
            before = self.state
            self.state = fold(before, before.at, record)
            self.tenure = self.tenure.read(before, record, self.state, now)
        return self

    def heard(self, sent: float, now: float) -> "Reader":
        """A Beat of p that it sent at `sent` comes back at `now`."""
        return self.read(now, beat("p", self.state, sent_at=sent))

    def gave(self) -> "Reader":
        self.tenure = self.tenure.gave(0, self.state.terms[0])
        return self

    def left(self) -> "Reader":
        self.tenure = self.tenure.leaving()
        return self

    def may(self, now: float) -> int | None:
        return self.tenure.term(self.state, 0, now)


def owner(*, start: float = 0.0, exclusive: bool = True) -> Reader:
    """p owns everything under term 1001 and heard a Beat of its own that it sent at 100."""
    return Reader(start, exclusive).read(90.0, join("p")).heard(100.0, 100.5)


TOOK = Pin(by="o", partition=0, name="p")
"""Makes p the target of partition 0."""


# Condition 1: owner, and neither Handover nor Leave was sent


def test_the_owner_may_act_under_the_present_term() -> None:
    assert 1001 == owner().may(101.0)


@pytest.mark.parametrize(
    ("reader", "term"),
    [
        (Reader().read(90.0, join("q"), join("p")).heard(100.0, 100.5), None),
        (Reader().heard(100.0, 100.5), None),
        (owner().gave(), None),
        (owner().gave().read(101.0, Handover(by="p", partition=0, term=1001)), 1003),
        (owner().gave().read(101.0, Handover(by="p", partition=0, term=1001)).gave(), None),
        (owner().left(), None),
        (owner().left().read(101.0, join("q"), Leave(by="q")), None),
        (owner().read(101.0, Leave(by="p")), None),
        (owner().read(101.0, expire("q", "p", 2)), 1001),
        (owner().read(101.0, join("q"), expire("q", "p", 2)), None),
    ],
    ids=[
        "another owns it",
        "not even a member",
        "Handover sent: final, whether or not it was appended",
        "its own Handover gave it a new term",
        "and a new Handover was sent",
        "Leave sent: final",
        "and whatever others do",
        "Leave was read",
        "expired by a stranger",
        "expired",
    ],
)
def test_condition_one(reader: Reader, term: int | None) -> None:
    assert term == reader.may(102.0)


def test_a_handover_that_was_sent_stays_sent_when_the_target_changes_back() -> None:
    reader = owner().gave().read(101.0, join("q"), Drain(by="o", name="p"), Undrain(by="o", name="p"))
    assert ("p", 1001) == (reader.state.owners[0], reader.state.terms[0])
    assert reader.heard(101.5, 102.0).may(102.0) is None


def test_a_handover_is_about_one_partition() -> None:
    reader = owner().gave()
    assert 1001 == reader.tenure.term(reader.state, 1, 102.0)


# Condition 2: a lease from the sending of the last Beat that came back


@pytest.mark.parametrize(("now", "term"), [(100.5, 1001), (109.9, 1001), (110.0, None), (1e9, None)])
def test_condition_two(now: float, term: int | None) -> None:
    assert term == owner().may(now)


def test_a_member_that_never_heard_itself_may_not_act() -> None:
    assert Reader().read(90.0, join("p")).may(90.5) is None


def test_the_lease_is_counted_from_sending_and_not_from_reading() -> None:
    """A Beat that sat in a buffer proves nothing about now."""
    reader = Reader().read(90.0, join("p")).heard(91.0, 105.0)
    assert reader.may(105.0) is None


def test_an_older_beat_that_comes_late_takes_nothing_back() -> None:
    assert 1001 == owner().heard(92.0, 101.0).may(109.0)


def test_beats_of_a_former_incarnation_do_not_count() -> None:
    reader = Reader().read(80.0, join("f", "p")).read(90.0, join("p", "p", at=2))
    assert reader.read(101.0, Beat(by="f", sent_at=100.0, at=3, digest="0" * 16)).may(101.0) is None


def test_beats_of_others_do_not_count() -> None:
    assert Reader().read(90.0, join("p"), join("q")).read(101.0, beat("q", sent_at=100.0)).may(101.0) is None


def test_beats_of_mine_from_before_i_was_a_member_do_not_count() -> None:
    assert Reader().heard(100.0, 100.5).read(101.0, join("p")).may(101.0) is None


# Condition 3: the wait


@pytest.mark.parametrize(("now", "term"), [(11.9, None), (12.0, 1001)])
def test_a_newcomer_owes_one_wait_on_everything(now: float, term: int | None) -> None:
    assert term == Reader().read(1.0, join("p")).heard(5.0, 5.5).may(now)


@pytest.mark.parametrize(("now", "term"), [(62.9, None), (63.0, 1003)])
def test_a_member_that_starts_from_a_snapshot_owes_as_much(now: float, term: int | None) -> None:
    """Beats of q that it never read were sent before it started, and q's lease may last as long."""
    reader = Reader(start=51.0, state=founded(join("q"), join("p"), expire("p", "q", 1)))
    assert term == reader.heard(60.0, 60.5).may(now)


@pytest.mark.parametrize(
    ("start", "heard", "free"),
    [(0.0, [95.0], 107.0), (0.0, [], 102.0), (93.0, [], 105.0)],
    ids=["the read of its last Beat", "the read of its Join", "my start, if I never read either"],
)
def test_a_member_that_takes_from_the_expired_waits_since(start: float, heard: list[float], free: float) -> None:
    if start:
        reader = Reader(start, state=founded(join("q"), join("p")))
    else:
        reader = Reader().read(90.0, join("q")).read(93.0, join("p"))
    for now in heard:
        reader.read(now, beat("q"))
    reader.read(99.0, expire("p", "q", reader.state.last_beats["q"])).heard(99.5, 100.0)
    assert "p" == reader.state.owners[0]
    assert [None, reader.state.terms[0]] == [reader.may(free - 0.1), reader.may(free)]


def test_the_time_is_that_just_after_the_read_which_may_have_waited_long() -> None:
    """q's Beat was sent while p waited for it."""
    reader = Reader().read(90.0, join("q"), join("p")).read(99.0, beat("q"), expire("p", "q", 3)).heard(105.0, 105.5)
    assert [None, 1004] == [reader.may(110.9), reader.may(111.0)]


def test_a_join_under_the_name_of_the_owner_is_an_expiry() -> None:
    """q's successor gives the partition to p, and the first q may still be acting."""
    reader = Reader().read(90.0, join("q"), join("p")).read(95.0, join("r", "q", at=3), TOOK)
    reader.read(95.5, Handover(by="r", partition=0, term=1003)).heard(96.0, 96.5)
    assert [None, 1005] == [reader.may(101.9), reader.may(102.0)]


def test_i_owe_a_wait_to_my_own_former_self() -> None:
    """Or rather to a member of my name: it may be another process."""
    reader = Reader().read(90.0, join("q", "p")).read(95.0, join("p", at=2)).heard(96.0, 96.5)
    assert [None, 1002] == [reader.may(101.9), reader.may(102.0)]


def test_a_certificate_does_not_lower_what_is_owed_since_an_expire() -> None:
    """The fold takes it for nothing new; and a debt that nothing lowers needs no thought about who else is in it."""
    reader = Reader().read(90.0, join("q"), join("p"), TOOK).read(95.0, beat("q"), expire("p", "q", 4))
    reader.read(95.5, Certify(by="p", incarnation="q")).heard(106.0, 106.5)
    assert [None, 1005] == [reader.may(106.9), reader.may(107.0)]


def test_one_that_was_certified_is_no_longer_listened_for() -> None:
    reader = Reader().read(90.0, join("q"), join("p"), Certify(by="p", incarnation="q"))
    assert ["p"] == list(reader.tenure.heard)


@pytest.mark.parametrize(
    "gone",
    [Leave(by="q"), Handover(by="q", partition=0, term=1001), Certify(by="p", incarnation="q")],
    ids=["it left", "it handed over", "its process had ended"],
)
def test_nothing_is_owed_to_who_had_stopped_before_it_said_so(gone: Record) -> None:
    reader = Reader().read(90.0, join("q"), join("p"), TOOK).read(95.0, beat("q"), gone).heard(95.5, 96.0)
    assert 1005 == reader.may(96.0)


def test_the_debt_is_that_partitions_alone() -> None:
    reader = Reader().read(80.0, join("p"), join("q"), Handover(by="p", partition=1, term=1001))
    reader.read(90.0, beat("q")).heard(95.0, 95.5).read(96.0, expire("p", "q", 4))
    assert (1001, None) == (reader.may(96.0), reader.tenure.term(reader.state, 1, 96.0))
    assert (12.0, 102.0) == (reader.tenure.busy_until(0), reader.tenure.busy_until(1))


CHAIN = (join("q"), join("c"), join("p"))
"""q owns; it will be expired, c will have its partition and give it to p, who knows that c itself had to wait for q."""


def chained(*then: Record) -> Reader:
    """p read q's last Beat at 90 and its Expire at 95, which made c the owner."""
    reader = Reader().read(80.0, *CHAIN, Pin(by="o", partition=0, name="c")).read(90.0, beat("q"))
    reader.read(95.0, expire("c", "q", 5))
    assert "c" == reader.state.owners[0]
    return reader.read(95.5, TOOK, *then).heard(96.0, 96.5)


@pytest.mark.parametrize(
    "then",
    [Handover(by="c", partition=0, term=1006), Leave(by="c"), Certify(by="p", incarnation="c")],
    ids=["a Handover does not lower it", "a Leave does not lower it", "a certificate does not lower it"],
)
def test_a_debt_goes_with_the_partition_to_its_next_owner(then: Record) -> None:
    reader = chained(then)
    assert "p" == reader.state.owners[0]
    assert [None, 1008] == [reader.may(101.9), reader.may(102.0)]


def test_a_later_owners_shorter_debt_does_not_lower_it() -> None:
    """c was last heard of before q was, so what is owed for c alone would end sooner."""
    reader = Reader().read(80.0, *CHAIN, Pin(by="o", partition=0, name="c")).read(90.0, beat("q"))
    reader.read(91.0, expire("c", "q", 5), TOOK, expire("p", "c", 2)).heard(96.0, 96.5)
    assert [None, 1008] == [reader.may(101.9), reader.may(102.0)]


def test_a_later_owners_longer_debt_raises_it() -> None:
    reader = chained(beat("c"), expire("p", "c", 8)).heard(100.0, 100.5)
    assert "p" == reader.state.owners[0]
    assert [None, 1009] == [reader.may(107.4), reader.may(107.5)]


def test_a_debt_outlives_many_changes_of_members() -> None:
    reader = chained(Handover(by="c", partition=0, term=1006))
    reader.read(97.0, join("d"), Leave(by="d"), join("e"), beat("e"), Leave(by="c"))
    assert reader.may(101.9) is None


def test_a_newcomers_debt_is_not_lowered_by_a_shorter_one() -> None:
    reader = Reader(start=50.0, state=founded(join("q"), join("p"))).read(50.5, expire("p", "q", 1)).heard(55.0, 55.5)
    assert [None, 1003] == [reader.may(61.9), reader.may(62.0)]


# Who was heard, and when


def test_the_longest_silent_comes_first() -> None:
    reader = Reader().read(80.0, join("p"), join("q"), join("r")).read(90.0, beat("p")).read(91.0, beat("q"))
    assert [("r", 80.0), ("p", 90.0), ("q", 91.0)] == list(reader.tenure.heard.items())


def test_only_members_are_heard() -> None:
    reader = Reader().read(80.0, join("p"), join("q"), beat("z")).read(81.0, Leave(by="q")).read(82.0, beat("q"))
    assert {"p": 80.0} == reader.tenure.heard


def test_whom_i_never_read_i_heard_when_i_started() -> None:
    """They sent it before; and a member that is silent from then on is silent since then."""
    assert {"p": 5.0, "q": 5.0} == Reader(5.0, state=founded(join("p"), join("q"))).tenure.heard


def test_a_replaced_member_is_not_heard_of_any_more() -> None:
    reader = Reader().read(80.0, join("p"), join("q")).read(85.0, join("r", "q", at=3))
    assert {"p": 80.0, "r": 85.0} == reader.tenure.heard


def test_a_join_that_is_void_is_not_hearing() -> None:
    reader = Reader().read(80.0, join("p")).read(85.0, join("p", "other"))
    assert {"p": 80.0} == reader.tenure.heard


def test_a_tenure_is_a_value_that_never_changes() -> None:
    reader = owner()
    before = reader.tenure
    kept = replace(before)
    reader.read(101.0, join("q"), beat("q")).heard(101.0, 101.5).gave().left().read(102.0, expire("q", "p", 5))
    assert kept == before
    assert ({"p": 100.5}, {}) == (before.heard, before.given)


# The wait


@pytest.mark.parametrize(
    ("lease", "drift", "wait"),
    [(10.0, 0.0, 10.0), (10.0, 0.001, 10.0 * 1.001 / 0.999), (1.0, 0.05, 1.05 / 0.95)],
)
def test_the_wait_is_the_lease_of_the_slowest_clock_as_the_fastest_counts_it(
    lease: float, drift: float, wait: float
) -> None:
    assert pytest.approx(wait, rel=1e-12) == wait_for(lease, drift)


def test_unless_told_otherwise_clocks_may_be_off_by_a_thousand_parts_in_a_million() -> None:
    assert 0.001 == DRIFT_MAX
    assert wait_for(10.0) == wait_for(10.0, 0.001)


# Under `available`


def test_no_member_waits() -> None:
    reader = Reader(exclusive=False).read(1.0, join("q"), join("p")).read(2.0, expire("p", "q", 1)).heard(2.5, 3.0)
    assert 1003 == reader.may(3.0)


def test_a_beat_counts_for_a_hold() -> None:
    assert [1001, None] == [owner(exclusive=False).may(119.9), owner(exclusive=False).may(120.0)]


def test_a_join_of_ones_own_counts_from_when_it_was_first_asked_for() -> None:
    """The former owner may read the first Beat of p before p does; so p acts by then, on a proof as good."""
    reader = Reader(exclusive=False)
    reader.tenure = reader.tenure.asking(85.0).asking(89.0)
    reader.read(90.0, join("p"))
    assert [1001, 1001, None] == [reader.may(now) for now in (90.0, 104.9, 105.0)]


def test_under_exclusive_a_join_proves_nothing() -> None:
    reader = Reader()
    reader.tenure = reader.tenure.asking(89.0)
    assert reader.read(90.0, join("p")).may(90.0) is None


def handed_over() -> Reader:
    """p handed partition 0 over to q at offset 5, under `available`."""
    reader = owner(exclusive=False).read(101.0, join("q"), Pin(by="o", partition=0, name="q")).gave()
    return reader.read(102.0, Handover(by="p", partition=0, term=1001))


def test_an_owner_goes_on_after_it_sent_a_handover_and_after_it_was_read() -> None:
    reader = owner(exclusive=False).gave()
    assert 1001 == reader.may(101.0)
    assert {0: Linger(1001, 5, 120.0)} == handed_over().tenure.lingering
    assert 1001 == handed_over().may(103.0)


def test_an_owner_goes_on_after_it_sent_its_leave_and_after_it_was_read() -> None:
    reader = owner(exclusive=False).read(101.0, join("q")).left()
    assert 1001 == reader.may(101.5)
    assert 1001 == reader.read(102.0, Leave(by="p")).may(103.0)


def test_an_owner_goes_on_after_it_read_its_own_expire() -> None:
    reader = owner(exclusive=False).read(101.0, join("q"), expire("q", "p", 2))
    assert ("q", 1001) == (reader.state.owners[0], reader.may(103.0))


def test_it_ends_with_the_hold() -> None:
    assert [1001, None] == [handed_over().may(119.9), handed_over().may(120.0)]


def test_beats_that_come_back_later_do_not_prolong_it() -> None:
    reader = handed_over().heard(110.0, 110.5)
    assert [1001, None] == [reader.may(119.9), reader.may(120.0)]


@pytest.mark.parametrize(("at", "term"), [(5, 1001), (6, None)], ids=["still in flight before", "past that record"])
def test_it_ends_when_the_new_owner_says_that_it_knows(at: int, term: int | None) -> None:
    said = Beat(by="q", sent_at=0.0, at=at, digest="0" * 16)
    assert term == handed_over().read(103.0, said).may(103.5)


def test_a_beat_of_another_member_does_not_end_it() -> None:
    reader = handed_over().read(103.0, join("r"), Beat(by="r", sent_at=0.0, at=7, digest="0" * 16))
    assert 1001 == reader.may(103.5)


def test_a_beat_of_one_who_is_no_member_does_not_end_it() -> None:
    assert 1001 == handed_over().read(103.0, Beat(by="z", sent_at=0.0, at=7, digest="0" * 16)).may(103.5)


def test_it_is_the_owner_by_then_who_must_be_heard() -> None:
    """q was given the partition and left; r has it now."""
    reader = handed_over().read(103.0, join("r"), Pin(by="o", partition=0, name="r"), Leave(by="q"))
    reader.read(104.0, Beat(by="r", sent_at=0.0, at=6, digest="0" * 16))
    assert "r" == reader.state.owners[0]
    assert reader.may(104.5) is None


def test_what_comes_back_is_led_under_the_new_term_at_once() -> None:
    reader = handed_over().read(103.0, Leave(by="q"))
    assert 1006 == reader.may(103.5)


def test_under_exclusive_no_member_lingers() -> None:
    reader = owner().read(101.0, join("q"), expire("q", "p", 2))
    assert ({}, None) == (reader.tenure.lingering, reader.may(101.5))


def test_a_new_incarnation_takes_over_what_lingers() -> None:
    before = handed_over()
    reader = Reader(105.0, exclusive=False, state=before.state)
    reader.tenure = Tenure.begin(
        "p2", before.state, 105.0, exclusive=False, lasts=HOLD, wait=WAIT, lingering=before.tenure.lingering
    )
    assert [1001, None] == [reader.may(119.9), reader.may(120.0)]
    assert -inf == reader.tenure.sent
