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


OWNING: dict[str, tuple[Reader, int | None]] = {
    "the owner acts under the present term": (owner(), 1001),
    "another owns it": (Reader().read(90.0, join("q"), join("p")).heard(100.0, 100.5), None),
    "not even a member": (Reader().heard(100.0, 100.5), None),
    "Handover sent: final, whether or not it was appended": (owner().gave(), None),
    "its own Handover gave it a new term": (owner().gave().read(101.0, Handover(by="p", partition=0, term=1001)), 1003),
    "and a new Handover was sent": (owner().gave().read(101.0, Handover(by="p", partition=0, term=1001)).gave(), None),
    "Handover sent: final, also when the target changes back": (
        owner().gave().read(101.0, join("q"), Drain(by="o", name="p"), Undrain(by="o", name="p")),
        None,
    ),
    "Leave sent: final": (owner().left(), None),
    "and whatever others do": (owner().left().read(101.0, join("q"), Leave(by="q")), None),
    "Leave was read": (owner().read(101.0, Leave(by="p")), None),
    "expired by a stranger": (owner().read(101.0, expire("q", "p", 2)), 1001),
    "expired": (owner().read(101.0, join("q"), expire("q", "p", 2)), None),
}


@pytest.mark.parametrize(("reader", "term"), OWNING.values(), ids=OWNING)
def test_condition_one(reader: Reader, term: int | None) -> None:
    assert term == reader.may(102.0)


def test_a_handover_is_about_one_partition() -> None:
    reader = owner().gave()
    assert 1001 == reader.tenure.term(reader.state, 1, 102.0)


# Condition 2: a lease from the sending of the last Beat that came back

JOINED = Reader().read(90.0, join("p"))


HEARING: dict[str, tuple[Reader, float, int | None]] = {
    "heard just now": (owner(), 100.5, 1001),
    "heard a lease ago, nearly": (owner(), 109.9, 1001),
    "heard a lease ago": (owner(), 110.0, None),
    "heard long ago": (owner(), 1e9, None),
    "never heard": (JOINED, 90.5, None),
    "counted from sending and not from reading": (Reader().read(90.0, join("p")).heard(91.0, 105.0), 105.0, None),
    "an older one that comes late takes nothing back": (owner().heard(92.0, 101.0), 109.0, 1001),
    "of a former incarnation": (
        Reader()
        .read(80.0, join("f", "p"))
        .read(90.0, join("p", "p", at=2))
        .read(101.0, Beat(by="f", sent_at=100.0, at=3, digest="0" * 16)),
        101.0,
        None,
    ),
    "of others": (Reader().read(90.0, join("p"), join("q")).read(101.0, beat("q", sent_at=100.0)), 101.0, None),
    "from before it was a member": (Reader().heard(100.0, 100.5).read(101.0, join("p")), 101.0, None),
}


@pytest.mark.parametrize(("reader", "now", "term"), HEARING.values(), ids=HEARING)
def test_condition_two(reader: Reader, now: float, term: int | None) -> None:
    assert term == reader.may(now)


# Condition 3: the wait


def free(reader: Reader, at: float, term: int) -> None:
    """The member may act from `at` on, and not before."""
    assert "p" == reader.state.owners[0]
    assert [None, term] == [reader.may(at - 0.1), reader.may(at)]


def test_a_newcomer_owes_one_wait_on_everything() -> None:
    free(Reader().read(1.0, join("p")).heard(5.0, 5.5), 12.0, 1001)


def test_a_member_that_starts_from_a_snapshot_owes_as_much() -> None:
    """Beats of q that it never read were sent before it started, and q's lease may last as long."""
    free(Reader(start=51.0, state=founded(join("q"), join("p"), expire("p", "q", 1))).heard(60.0, 60.5), 63.0, 1003)
    later = Reader(start=50.0, state=founded(join("q"), join("p"))).read(50.5, expire("p", "q", 1)).heard(55.0, 55.5)
    free(later, 62.0, 1003)  # And no shorter debt lowers it.


@pytest.mark.parametrize(
    ("start", "heard", "at"),
    [(0.0, [95.0], 107.0), (0.0, [], 102.0), (93.0, [], 105.0)],
    ids=["the read of its last Beat", "the read of its Join", "my start, if I never read either"],
)
def test_a_member_that_takes_from_the_expired_waits_since(start: float, heard: list[float], at: float) -> None:
    if start:
        reader = Reader(start, state=founded(join("q"), join("p")))
    else:
        reader = Reader().read(90.0, join("q")).read(93.0, join("p"))
    for now in heard:
        reader.read(now, beat("q"))
    reader.read(99.0, expire("p", "q", reader.state.last_beats["q"])).heard(99.5, 100.0)
    free(reader, at, reader.state.terms[0])


def test_the_time_is_that_just_after_the_read_which_may_have_waited_long() -> None:
    """q's Beat was sent while p waited for it."""
    reader = Reader().read(90.0, join("q"), join("p")).read(99.0, beat("q"), expire("p", "q", 3)).heard(105.0, 105.5)
    free(reader, 111.0, 1004)


def test_a_join_under_the_name_of_the_owner_is_an_expiry() -> None:
    """q's successor gives the partition to p, and the first q may still be acting."""
    reader = Reader().read(90.0, join("q"), join("p")).read(95.0, join("r", "q", at=3), TOOK)
    free(reader.read(95.5, Handover(by="r", partition=0, term=1003)).heard(96.0, 96.5), 102.0, 1005)


def test_i_owe_a_wait_to_my_own_former_self() -> None:
    """Or rather to a member of my name: it may be another process."""
    free(Reader().read(90.0, join("q", "p")).read(95.0, join("p", at=2)).heard(96.0, 96.5), 102.0, 1002)


def test_a_certificate_does_not_lower_what_is_owed_since_an_expire() -> None:
    """The fold takes it for nothing new; and a debt that nothing lowers needs no thought about who else is in it."""
    reader = Reader().read(90.0, join("q"), join("p"), TOOK).read(95.0, beat("q"), expire("p", "q", 4))
    free(reader.read(95.5, Certify(by="p", incarnation="q")).heard(106.0, 106.5), 107.0, 1005)


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
    free(chained(then), 102.0, 1008)


def test_a_later_owners_shorter_debt_does_not_lower_it() -> None:
    """c was last heard of before q was, so what is owed for c alone would end sooner."""
    reader = Reader().read(80.0, *CHAIN, Pin(by="o", partition=0, name="c")).read(90.0, beat("q"))
    free(reader.read(91.0, expire("c", "q", 5), TOOK, expire("p", "c", 2)).heard(96.0, 96.5), 102.0, 1008)


def test_a_later_owners_longer_debt_raises_it() -> None:
    free(chained(beat("c"), expire("p", "c", 8)).heard(100.0, 100.5), 107.5, 1009)


def test_a_debt_outlives_many_changes_of_members() -> None:
    reader = chained(Handover(by="c", partition=0, term=1006))
    reader.read(97.0, join("d"), Leave(by="d"), join("e"), beat("e"), Leave(by="c"))
    assert reader.may(101.9) is None


# Who was heard, and when

BOTH = (join("p"), join("q"))


HEARD: dict[str, tuple[Reader, dict[str, float]]] = {
    "the longest silent comes first": (
        Reader().read(80.0, *BOTH, join("r")).read(90.0, beat("p")).read(91.0, beat("q")),
        {"r": 80.0, "p": 90.0, "q": 91.0},
    ),
    "only members are heard": (
        Reader().read(80.0, *BOTH, beat("z")).read(81.0, Leave(by="q")).read(82.0, beat("q")),
        {"p": 80.0},
    ),
    "whom it never read it heard when it started": (Reader(5.0, state=founded(*BOTH)), {"p": 5.0, "q": 5.0}),
    "a replaced member is not heard of any more": (
        Reader().read(80.0, *BOTH).read(85.0, join("r", "q", at=3)),
        {"p": 80.0, "r": 85.0},
    ),
    "nor is one that was certified": (
        Reader().read(80.0, *BOTH).read(85.0, Certify(by="p", incarnation="q")),
        {"p": 80.0},
    ),
    "a join that is void is not hearing": (Reader().read(80.0, join("p")).read(85.0, join("p", "other")), {"p": 80.0}),
}


@pytest.mark.parametrize(("reader", "heard"), HEARD.values(), ids=HEARD)
def test_who_was_heard_last_and_when(reader: Reader, heard: dict[str, float]) -> None:
    assert list(heard.items()) == list(reader.tenure.heard.items())


def test_a_tenure_is_a_value_that_never_changes() -> None:
    reader = owner()
    before = reader.tenure
    kept = replace(before)
    reader.read(101.0, join("q"), beat("q")).heard(101.0, 101.5).gave().left().read(102.0, expire("q", "p", 5))
    assert kept == before
    assert ({"p": 100.5}, {}) == (before.heard, before.given)


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


def handed_over() -> Reader:
    """p handed partition 0 over to q at offset 5, under `available`."""
    reader = owner(exclusive=False).read(101.0, join("q"), Pin(by="o", partition=0, name="q")).gave()
    return reader.read(102.0, Handover(by="p", partition=0, term=1001))


def told(by: str, at: int) -> Beat:
    """A Beat of one that had read up to `at`."""
    return Beat(by=by, sent_at=0.0, at=at, digest="0" * 16)


LINGERING: dict[str, tuple[Reader, float, int | None]] = {
    "no member waits": (
        Reader(exclusive=False).read(1.0, join("q"), join("p")).read(2.0, expire("p", "q", 1)).heard(2.5, 3.0),
        3,
        1003,
    ),
    "a beat counts for a hold, nearly over": (owner(exclusive=False), 119.9, 1001),
    "a beat counts for a hold, over": (owner(exclusive=False), 120.0, None),
    "a Handover was sent": (owner(exclusive=False).gave(), 101.0, 1001),
    "its Handover was read": (handed_over(), 103.0, 1001),
    "a Leave was sent": (owner(exclusive=False).read(101.0, join("q")).left(), 101.5, 1001),
    "its Leave was read": (
        owner(exclusive=False).read(101.0, join("q")).left().read(102.0, Leave(by="p")),
        103.0,
        1001,
    ),
    "its Expire was read": (owner(exclusive=False).read(101.0, join("q"), expire("q", "p", 2)), 103.0, 1001),
    "it lingers until the hold ends": (handed_over(), 119.9, 1001),
    "it ends with the hold": (handed_over(), 120.0, None),
    "beats that come back later do not end it": (handed_over().heard(110.0, 110.5), 119.9, 1001),
    "beats that come back later do not prolong it": (handed_over().heard(110.0, 110.5), 120.0, None),
    "the new owner's beat was still in flight before": (handed_over().read(103.0, told("q", 5)), 103.5, 1001),
    "the new owner says that it knows": (handed_over().read(103.0, told("q", 6)), 103.5, None),
    "another member knows": (handed_over().read(103.0, join("r"), told("r", 7)), 103.5, 1001),
    "one that is no member knows": (handed_over().read(103.0, told("z", 7)), 103.5, 1001),
    "the owner by then knows, after q left": (
        handed_over()
        .read(103.0, join("r"), Pin(by="o", partition=0, name="r"), Leave(by="q"))
        .read(104.0, told("r", 6)),
        104.5,
        None,
    ),
    "what comes back is led under the new term at once": (handed_over().read(103.0, Leave(by="q")), 103.5, 1006),
}


@pytest.mark.parametrize(("reader", "now", "term"), LINGERING.values(), ids=LINGERING)
def test_an_owner_goes_on_until_the_next_one_is_heard_or_its_hold_ends(
    reader: Reader, now: float, term: int | None
) -> None:
    assert term == reader.may(now)


def test_a_join_of_ones_own_counts_from_when_it_was_first_asked_for() -> None:
    """The former owner may read the first Beat of p before p does; so p acts by then, on a proof as good."""
    reader = Reader(exclusive=False)
    reader.tenure = reader.tenure.asking(85.0).asking(89.0)
    reader.read(90.0, join("p"))
    assert [1001, 1001, None] == [reader.may(now) for now in (90.0, 104.9, 105.0)]


def test_under_exclusive_a_join_proves_nothing_and_no_member_lingers() -> None:
    reader = Reader()
    reader.tenure = reader.tenure.asking(89.0)
    assert reader.read(90.0, join("p")).may(90.0) is None
    reader = owner().read(101.0, join("q"), expire("q", "p", 2))
    assert ({}, None) == (reader.tenure.lingering, reader.may(101.5))


def test_a_new_incarnation_takes_over_what_lingers() -> None:
    before = handed_over()
    assert {0: Linger(1001, 5, 120.0)} == before.tenure.lingering
    reader = Reader(105.0, exclusive=False, state=before.state)
    reader.tenure = Tenure.begin(
        "p2", before.state, 105.0, exclusive=False, lasts=HOLD, wait=WAIT, lingering=before.tenure.lingering
    )
    assert [1001, None] == [reader.may(119.9), reader.may(120.0)]
    assert -inf == reader.tenure.sent
