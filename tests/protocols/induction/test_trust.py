"""Every sign that a ledger lost records or that two members read it differently, and events that are not signs."""

import pytest

from neli_router.errors import Diverged, LedgerRewound, NeliError
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.records import Beat, Drain, Leave, Record
from neli_router.protocols.induction.snapshots import snapshot
from neli_router.protocols.induction.trust import OWN_MAX, RING_MAX, Evidence, LedgerTrust
from tests.support.records import beat, folded, founded, genesis, join

ME = {"m": None}


class Reader:
    """Reads like a member, and keeps the first sign."""

    def __init__(self, state: State | None = None) -> None:
        self.state = founded() if state is None else state
        self.trust = LedgerTrust(self.state)
        self.error: NeliError | None = None

    def read(self, *records: Record | None) -> "Reader":
        for record in records:
            self.read_at(self.state.at, record)
        return self

    def read_at(self, offset: int, record: Record | None) -> "Reader":
        self.error = self.error or self.trust.before(self.state, offset, record, ME)
        if self.error is None:
            self.state = fold(self.state, offset, record)
            self.error = self.trust.after(self.state, record)
        return self

    def acknowledged(self, *offsets: int) -> "Reader":
        self.error = self.error or self.trust.acknowledge(offsets, self.state.at)
        return self

    @property
    def sign(self) -> str:
        """The finding: the error's words, a doubt, or nothing."""
        doubts = self.trust.doubts()
        return self.error.found if self.error is not None else "a doubt" if doubts else ""


def told(by: str, at: int) -> Beat:
    """A Beat whose writer had read up to `at`, and has another state there."""
    return Beat(by=by, sent_at=0.0, at=at, digest="0123456789abcdef")


def group(names: str) -> Reader:
    """A reader that starts from a group of these members."""
    return Reader(founded(*map(join, names)))


MB, MBC = founded(join("m"), join("b")), founded(join("m"), join("b"), join("c"))

NO_SIGN: dict[str, Reader] = {
    "offsets are skipped": Reader().read(join("a")).read_at(9, join("b")),
    "a second genesis whose writer had not read the first": Reader().read(genesis("z", at=0)),
    # Both read two records that mean nothing, and found the group together.
    "a race of two founders": Reader(State()).read(None, None, genesis("a", at=2), genesis("b", at=2)),
    "a first genesis, however far its writer had read": Reader(State()).read(None, None, genesis("a", at=9)),
    "a confirmed record that is read at its place": Reader().acknowledged(1, 2).read(join("m"), beat("m")),
    "a confirmation after the record": Reader().read(join("m"), join("b"), beat("m")).acknowledged(1, 3),
    "a confirmation that is to come": Reader().acknowledged(2).read(join("b")),
    # It is part of the snapshot that this reader started from.
    "a confirmation of what is below the start": Reader(fold(founded(), 7, None)).acknowledged(3, 7),
    "a member that agrees": Reader(MB).read(beat("b", MB), beat("m", MB), beat("b", MB)),
    # The writer of a Beat had read less than its reader now.
    "a digest of an earlier place": Reader(MB).read(join("c"), beat("b", MB)),
    # A reader that started from a snapshot has no digest for an earlier place, and none for a place in a gap.
    "a place before the start": Reader(MB).read(*[told("b", MB.at - 1)] * 2),
    "a place in a gap": Reader(MB).read_at(9, None).read(*[told("b", 7)] * 2),
    "a snapshot that agrees": Reader(MB).read(snapshot("b", MB)),
}


@pytest.mark.parametrize("reader", NO_SIGN.values(), ids=NO_SIGN)
def test_it_is_no_sign(reader: Reader) -> None:
    assert "" == reader.sign


OTHER = snapshot("b", folded(join("c"), state=founded(join("m"))))

DOUBTS: dict[str, Reader] = {
    "a beat whose writer had read further than its own place": group("a").read(told("a", 3)),
    "one each of two members": group("ab").read(told("a", 99), told("b", 99)),
    "any number by a stranger": group("ma").read(*[told("z", 99)] * 9),
    "any number in my own name": group("ma").read(*[told("m", 99)] * 9),
    "of a member that goes": group("mab").read(told("a", 99), Leave(by="a"), told("a", 99), told("a", 99)),
    "a second genesis whose writer had read the first": Reader().read(genesis("z", at=1)),
    "a second genesis whose writer had read much": Reader().read(genesis("z", at=9)),
    "one of three that differs": group("mbc").read(*[told("b", 4)] * 2, told("c", 4)),
    "half of the members": group("mbcd").read(*[told("b", 5)] * 2),
    "one who repeats itself": group("mbc").read(*[told("b", 4)] * 3),
    "a member that agrees again": Reader(MBC).read(*[told("b", 4)] * 2, beat("b", MBC), *[told("c", 4)] * 2),
    # One line may be forged in a member's name, even in a group of two.
    "an odd digest that the next takes back": Reader(MB).read(*(told("b", 3), beat("b", MB)) * 9),
    # On a ledger that lost records, two members may each have read that the other is gone, and both lead.
    "a stranger that beats, who may be a member by its own table": group("m").read(*[told("b", 2)] * 2),
    "one other snapshot": Reader(MB).read(OTHER),
}


@pytest.mark.parametrize("reader", DOUBTS.values(), ids=DOUBTS)
def test_it_raises_a_doubt_and_is_no_sign(reader: Reader) -> None:
    assert [True, False] == [reader.trust.doubts(), reader.trust.doubts()], "a doubt is told of once"
    assert reader.error is None


SIGNS: dict[str, tuple[Reader, str]] = {
    **{
        f"the offset {at} is not above the last": (
            Reader().read(join("a"), join("b")).read_at(at, join("c")),
            f"offset {at} was read again",
        )
        for at in (0, 1, 2)
    },
    "a record below the start": (Reader(fold(founded(), 4, None)).read_at(4, None), "offset 4 was read again"),
    "a second beat beyond its place": (
        group("ab").read(told("a", 99), told("b", 99), told("a", 99)),
        "one at offset 5 says that its writer had read up to 99",
    ),
    "another's record where a confirmed one stood": (Reader().acknowledged(1).read(join("b")), "another one or none"),
    "a wish where a confirmed one stood": (
        Reader().acknowledged(1).read(Drain(by="op", name="x")),
        "another one or none was read there",
    ),
    "a confirmation of what is another's": (Reader().read(join("b")).acknowledged(1), "another one or none"),
    "a confirmation of bytes": (Reader().read(None).acknowledged(1), "another one or none was read there"),
    "a confirmed offset that was skipped": (Reader().acknowledged(1).read_at(2, join("m")), "another one or none"),
    "a confirmation of a skipped offset": (Reader().read_at(2, join("m")).acknowledged(1), "another one or none"),
    # As long as nothing was forgotten
    "a confirmation of what was never read": (Reader().read(join("b"), join("m")).acknowledged(1), "another one"),
}


@pytest.mark.parametrize(("reader", "found"), SIGNS.values(), ids=SIGNS)
def test_it_is_a_sign_that_the_ledger_lost_records(reader: Reader, found: str) -> None:
    assert isinstance(reader.error, LedgerRewound)
    assert found in reader.sign
    assert reader.error.remedy.startswith("find out why")
    assert "another one" not in found or reader.error.wanted.endswith("confirmed at offset 1")


DIVERGED: dict[str, tuple[Reader, str]] = {
    # Neither has a majority.
    "of two members both": (
        group("mb").read(*[told("b", 3)] * 2),
        "1 hold another one at offset 3 (the last to say so was b)",
    ),
    "of three the one who differs from both": (
        group("mbc").read(*[told("b", 4)] * 2, *[told("c", 4)] * 2),
        "2 hold another one at offset 4 (the last to say so was c)",
    ),
    "of four the one who differs from two": (group("mbcd").read(*[told("b", 5)] * 2, *[told("c", 5)] * 2), "2 hold"),
    "where a reader started": (Reader(MB).read(*[told("b", MB.at)] * 2), "1 hold"),
    "by a snapshot": (Reader(MB).read(OTHER, OTHER), "1 hold another one at offset 3"),
}


@pytest.mark.parametrize(("reader", "found"), DIVERGED.values(), ids=DIVERGED)
def test_members_with_other_tables_than_most_stop(reader: Reader, found: str) -> None:
    assert isinstance(reader.error, Diverged)
    assert found in reader.sign
    assert f"most of {len(reader.state.seats)} members" in reader.error.wanted
    assert reader.error.remedy


def test_a_beat_that_cannot_be_of_the_same_writer_takes_it_back_and_a_line_in_my_name_says_nothing() -> None:
    """One line may be forged in a member's name, but the real member keeps beating."""
    reader = group("mab")
    start = reader.state
    assert "" == group("a").read(beat("a", founded(join("a")))).sign
    for _ in range(9):
        assert "a doubt" == reader.read(told("a", 99)).sign
        assert "" == reader.read(beat("a", start)).sign
    reader = group("m")
    for _ in range(9):
        reader.state = fold(reader.state, reader.state.at, told("m", 2))
        assert reader.trust.after(reader.state, told("m", 2), forged=True) is None


def test_a_member_that_departed_has_no_say() -> None:
    reader = group("mbcde").read(*[told("b", 6)] * 2, *[told("c", 6)] * 2)
    assert "a doubt" == reader.sign
    assert "a doubt" == reader.read(Leave(by="b"), Leave(by="c")).read(*[told("d", 6)] * 2).sign
    assert "2 hold" in reader.read(*[told("e", 6)] * 2).sign


def test_digests_and_own_records_are_kept_up_to_a_bound_and_what_is_beyond_is_not_compared() -> None:
    reader = Reader(MB).read(*(None for _ in range(RING_MAX)))
    assert RING_MAX == len(reader.trust._digests)
    assert "" == reader.read(*[told("b", MB.at)] * 2).sign
    assert "1 hold" in reader.read(*[told("b", MB.at + 5)] * 2).sign
    reader = Reader().read(join("b"), join("m"), *(beat("m") for _ in range(OWN_MAX)))
    assert "" == reader.acknowledged(2).sign
    assert "" == reader.acknowledged(1).sign  # It stood before all remembered records, so it cannot be checked.
    assert OWN_MAX == len(reader.trust._own)


# Evidence: records that were read are compared with the ledger's, in any number of pieces

READ = [(1, b"genesis"), (2, b"join"), (4, b"beat")]


def remembering(entries: list[tuple[int, bytes]] = READ) -> Evidence:
    evidence = Evidence()
    evidence.remember(entries)
    return evidence


def test_what_is_all_there_may_come_in_pieces_and_no_more_is_remembered_than_a_bound() -> None:
    assert Evidence().begin() is None, "before the first record there is nothing to look at"
    evidence = remembering()
    assert (1, True) == (evidence.begin(), evidence.is_checking())
    assert (2, None) == evidence.check(READ[:2], at_tip=False)
    assert (0, None) == evidence.check([], at_tip=False)
    assert evidence.is_checking()
    assert (1, None) == evidence.check([*READ[2:], (5, b"new")], at_tip=True)
    assert not evidence.is_checking()
    evidence = remembering([(offset, b"") for offset in range(RING_MAX + 7)])
    assert 7 == evidence.begin()


@pytest.mark.parametrize(
    ("there", "lost"),
    [
        ([READ[0], (2, b"other"), READ[2]], 2),
        ([READ[0], READ[2]], 2),
        ([*READ[:2], (3, b"beat")], 4),
        ([*READ[:2], (9, b"new")], 4),
        (READ[:2], 4),
        ([], 1),
    ],
    ids=["other bytes", "a gap", "moved", "gone from the end", "too few", "none"],
)
def test_what_is_not_there_any_more_is_a_loss(there: list[tuple[int, bytes]], lost: int) -> None:
    evidence = remembering()
    evidence.begin()
    _, error = evidence.check(there, at_tip=True)
    assert isinstance(error, LedgerRewound)
    assert f"the record that was read at offset {lost} was to be there" == error.wanted


def test_a_loss_behind_new_records_is_seen_too_and_what_is_no_longer_retained_is_no_loss() -> None:
    """A reader of lost records may have read on in the ledger that lost them, before it met the first sign."""
    evidence = remembering([*READ, *((offset, b"new") for offset in range(5, 100))])
    evidence.begin()
    assert isinstance(evidence.check([(1, b"genesis"), (5, b"new")], at_tip=True)[1], LedgerRewound)
    evidence = remembering()
    assert 2 == evidence.begin(2)
    assert (2, None) == evidence.check(READ[1:], at_tip=True)
    assert 5 == evidence.begin(9)
    assert not evidence.is_checking()
