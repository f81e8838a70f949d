"""Every sign that a ledger lost records or that two members read it differently, and what is no sign."""

import pytest

from neli_router.errors import Diverged, LedgerRewound, NeliError
from neli_router.induction import trust as module
from neli_router.induction.fold import State, fold
from neli_router.induction.records import Beat, Drain, Leave, Record, Snapshot
from neli_router.induction.snapshots import digest_text, snapshot
from neli_router.induction.trust import OWN_MAX, RING_MAX, LedgerTrust
from tests.support.records import beat, folded, founded, genesis, join

ME = {"m": None}


class Reader:
    """Reads as a member does, and keeps the first sign."""

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
        """What was found, in the error's words; that there is a doubt; or nothing."""
        doubts = self.trust.doubts()
        return self.error.found if self.error is not None else "a doubt" if doubts else ""


def twice(record: Beat) -> tuple[Beat, Beat]:
    """A member's word counts when it says it a second time."""
    return record, record


def odd(by: str, at: int) -> Beat:
    """A Beat of one whose state below `at` is another."""
    return Beat(by=by, sent_at=0.0, at=at, digest="0123456789abcdef")


# Offsets


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_an_offset_that_is_not_above_the_last_is_a_sign(offset: int) -> None:
    reader = Reader().read(join("a"), join("b")).read_at(offset, join("c"))
    assert isinstance(reader.error, LedgerRewound)
    assert f"offset {offset} was read again" == reader.sign


def test_offsets_may_be_skipped() -> None:
    assert "" == Reader().read(join("a")).read_at(9, join("b")).sign


def test_a_record_below_the_snapshot_that_one_started_from_is_a_sign() -> None:
    assert "offset 4 was read again" == Reader(fold(founded(), 4, None)).read_at(4, None).sign


# Beats


def ahead(by: str, at: int = 99) -> Beat:
    """A Beat of one that had read further than it stands."""
    return Beat(by=by, sent_at=0.0, at=at, digest="0123456789abcdef")


@pytest.mark.parametrize(("at", "sign"), [(2, ""), (3, "a doubt")])
def test_a_beat_whose_writer_had_read_further_than_its_own_place_raises_a_doubt(at: int, sign: str) -> None:
    reader = Reader(founded(join("a")))
    assert sign == reader.read(Beat(by="a", sent_at=0.0, at=at, digest=digest_text(reader.state.digest))).sign


def test_the_second_of_one_member_in_a_row_is_a_sign() -> None:
    reader = Reader(founded(join("a"), join("b"))).read(ahead("a"), ahead("b"))
    assert "a doubt" == reader.sign
    assert "one at offset 5 says that its writer had read up to 99" == reader.read(ahead("a")).sign
    assert isinstance(reader.error, LedgerRewound)


def test_a_beat_that_cannot_be_of_the_same_writer_takes_it_back() -> None:
    """One line may be forged in a member's name, but the member goes on to beat."""
    start = founded(join("m"), join("a"), join("b"))
    reader = Reader(start)
    for _ in range(9):
        assert "a doubt" == reader.read(ahead("a")).sign
        assert "" == reader.read(beat("a", start)).sign


@pytest.mark.parametrize("by", ["nobody", "m"])
def test_no_number_of_them_by_a_stranger_or_in_my_own_name_is_a_sign(by: str) -> None:
    reader = Reader(founded(join("m"), join("a"))).read(*(ahead(by) for _ in range(9)))
    assert "a doubt" == reader.sign


def test_the_word_of_a_member_goes_with_it() -> None:
    reader = Reader(founded(join("m"), join("a"), join("b"))).read(ahead("a"), Leave(by="a"), ahead("a"), ahead("a"))
    assert "a doubt" == reader.sign


def test_a_doubt_is_told_of_once() -> None:
    reader = Reader(founded(join("a"))).read(ahead("a"))
    assert [True, False] == [reader.trust.doubts(), reader.trust.doubts()]


# Genesis


@pytest.mark.parametrize(("at", "sign"), [(0, ""), (1, "a doubt"), (9, "a doubt")])
def test_a_second_genesis_raises_a_doubt_if_its_writer_had_read_past_the_first(at: int, sign: str) -> None:
    assert sign == Reader().read(genesis("z", at=at)).sign


def test_a_race_of_two_founders_is_no_sign() -> None:
    """Both read two records that mean nothing, and found the group at once."""
    reader = Reader(State()).read(None, None, genesis("a", at=2), genesis("b", at=2))
    assert "" == reader.sign


def test_a_first_genesis_is_no_sign_however_far_its_writer_had_read() -> None:
    assert "" == Reader(State()).read(None, None, genesis("a", at=9)).sign


# Own records that were confirmed


def test_a_confirmed_record_that_is_read_at_its_place_is_no_sign() -> None:
    assert "" == Reader().acknowledged(1, 2).read(join("m"), beat("m")).sign


def test_a_confirmation_may_come_after_the_record_itself() -> None:
    assert "" == Reader().read(join("m"), join("b"), beat("m")).acknowledged(1, 3).sign


@pytest.mark.parametrize(
    "record", [join("b"), None, Drain(by="operator", name="x")], ids=["another's", "none that decodes", "a wish"]
)
def test_another_record_where_a_confirmed_one_stood_is_a_sign(record: Record | None) -> None:
    assert "" == Reader().acknowledged(2).read(record).sign
    for reader in (Reader().acknowledged(1).read(record), Reader().read(record).acknowledged(1)):
        assert isinstance(reader.error, LedgerRewound)
        assert "another one or none was read there" == reader.sign
        assert reader.error.wanted.endswith("confirmed at offset 1")


def test_a_confirmed_offset_that_was_skipped_is_a_sign() -> None:
    assert Reader().acknowledged(1).read_at(2, join("m")).sign
    assert Reader().read_at(2, join("m")).acknowledged(1).sign


def test_what_was_confirmed_below_the_start_is_of_no_concern() -> None:
    """It is part of the snapshot that this reader started from."""
    assert "" == Reader(fold(founded(), 7, None)).acknowledged(3, 7).sign


def test_own_records_are_remembered_up_to_a_bound_and_what_is_forgotten_is_no_sign() -> None:
    reader = Reader().read(join("b"), join("m"), *(beat("m") for _ in range(OWN_MAX)))
    assert "" == reader.acknowledged(2).sign
    assert "" == reader.acknowledged(1).sign  # It stood before all that are remembered, so it cannot be told.
    assert OWN_MAX == len(reader.trust._own)


def test_what_was_never_read_is_a_sign_as_long_as_nothing_was_forgotten() -> None:
    assert Reader().read(join("b"), join("m")).acknowledged(1).sign


# Digests


def test_a_member_that_agrees_is_no_sign() -> None:
    reader = Reader(founded(join("m"), join("b")))
    state = reader.state
    assert "" == reader.read(beat("b", state), beat("m", state), beat("b", state)).sign


def test_of_two_members_both_stop() -> None:
    """Neither has a majority."""
    reader = Reader(founded(join("m"), join("b"))).read(*twice(odd("b", 3)))
    assert isinstance(reader.error, Diverged)
    assert "1 hold another one at offset 3 (the last to say so was b)" == reader.sign
    assert "most of 2 members" in reader.error.wanted


def test_of_three_members_the_one_who_differs_from_both_others_stops() -> None:
    reader = Reader(founded(join("m"), join("b"), join("c"))).read(*twice(odd("b", 4)), odd("c", 4))
    assert "a doubt" == reader.sign
    assert "2 hold another one at offset 4 (the last to say so was c)" == reader.read(odd("c", 4)).sign


def test_half_of_the_members_are_no_majority() -> None:
    reader = Reader(founded(join("m"), join("b"), join("c"), join("d"))).read(*twice(odd("b", 5)))
    assert "a doubt" == reader.sign
    assert "2 hold" in reader.read(*twice(odd("c", 5))).sign


def test_one_who_repeats_itself_counts_once() -> None:
    reader = Reader(founded(join("m"), join("b"), join("c")))
    assert "a doubt" == reader.read(odd("b", 4), odd("b", 4), odd("b", 4)).sign


def test_a_member_that_agrees_again_is_forgiven() -> None:
    reader = Reader(founded(join("m"), join("b"), join("c")))
    state = reader.state
    assert "a doubt" == reader.read(*twice(odd("b", 4)), beat("b", state), *twice(odd("c", 4))).sign


def test_one_odd_digest_that_the_next_takes_back_is_no_sign() -> None:
    """One line may be forged in a member's name, also in a group of two."""
    reader = Reader(founded(join("m"), join("b")))
    state = reader.state
    assert "a doubt" == reader.read(*(odd("b", 3), beat("b", state)) * 9).sign


def test_a_member_that_departed_has_no_say() -> None:
    reader = Reader(founded(join("m"), join("b"), join("c"), join("d"), join("e")))
    assert "a doubt" == reader.read(*twice(odd("b", 6)), *twice(odd("c", 6))).sign
    assert "a doubt" == reader.read(Leave(by="b"), Leave(by="c")).read(*twice(odd("d", 6))).sign
    assert "2 hold" in reader.read(*twice(odd("e", 6))).sign


def test_a_stranger_that_beats_may_be_a_member_by_its_own_table_so_it_raises_a_doubt() -> None:
    """On a ledger that lost records, two may each have read that the other is gone, and lead side by side."""
    assert "a doubt" == Reader(founded(join("m"))).read(*twice(odd("b", 2))).sign


def test_a_line_in_my_name_that_i_did_not_write_says_nothing_of_my_table() -> None:
    reader = Reader(founded(join("m")))
    for _ in range(9):
        reader.state = fold(reader.state, reader.state.at, odd("m", 2))
        assert reader.trust.after(reader.state, odd("m", 2), forged=True) is None


def test_digests_are_compared_at_the_same_place() -> None:
    """The writer of a Beat had read less than its reader now."""
    reader = Reader(founded(join("m"), join("b")))
    earlier = reader.state
    assert "" == reader.read(join("c"), beat("b", earlier)).sign


def test_a_place_that_was_never_read_is_not_compared() -> None:
    """A reader that started from a snapshot cannot know what was before it, nor a Beat what stands in a gap."""
    start = founded(join("m"), join("b"))
    assert "" == Reader(start).read(*twice(odd("b", start.at - 1))).sign
    assert "1 hold" in Reader(start).read(*twice(odd("b", start.at))).sign
    reader = Reader(start).read_at(9, None)
    assert "" == reader.read(*twice(odd("b", 7))).sign


def test_digests_are_kept_up_to_a_bound_and_what_is_beyond_is_not_compared() -> None:
    start = founded(join("m"), join("b"))
    reader = Reader(start).read(*(None for _ in range(RING_MAX)))
    assert RING_MAX == len(reader.trust._digests)
    assert "" == reader.read(*twice(odd("b", start.at))).sign
    assert "1 hold" in reader.read(*twice(odd("b", start.at + 5))).sign


def test_a_snapshot_is_compared_as_a_beat_is() -> None:
    start = founded(join("m"), join("b"))
    good = snapshot("b", start)
    assert "" == Reader(start).read(good).sign
    bad = snapshot("b", folded(join("c"), state=founded(join("m"))))
    assert isinstance(bad, Snapshot)
    assert "a doubt" == Reader(start).read(bad).sign
    assert "1 hold another one at offset 3" in Reader(start).read(bad, bad).sign


def test_every_error_says_what_to_do() -> None:
    assert module.REMEDY.startswith("find out why")
    readers = (Reader().read_at(0, None), Reader(founded(join("m"), join("b"))).read(*twice(odd("b", 3))))
    for reader in readers:
        assert reader.error is not None
        assert reader.error.remedy
