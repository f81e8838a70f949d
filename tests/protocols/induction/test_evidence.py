"""Records that were read are compared with the ledger's, in any number of pieces."""

import pytest

from neli_router.errors import LedgerRewound
from neli_router.protocols.induction.evidence import EVIDENCE_MAX, Evidence

READ = [(1, b"genesis"), (2, b"join"), (4, b"beat")]


def remembering(entries: list[tuple[int, bytes]] = READ) -> Evidence:
    evidence = Evidence()
    evidence.remember(entries)
    return evidence


def test_what_is_all_there_may_come_in_pieces_and_what_comes_behind_it_is_left() -> None:
    assert Evidence().begin() is None, "before the first record there is nothing to look at"
    evidence = remembering()
    assert (1, True) == (evidence.begin(), evidence.is_checking())
    assert (2, None) == evidence.check(READ[:2], at_tip=False)
    assert (0, None) == evidence.check([], at_tip=False)
    assert evidence.is_checking()
    assert (1, None) == evidence.check([*READ[2:], (5, b"new")], at_tip=True)
    assert not evidence.is_checking()


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


def test_a_loss_behind_new_records_is_seen_too() -> None:
    """A reader of lost records may have read on in the ledger that lost them, before it met the first sign."""
    evidence = remembering([*READ, *((offset, b"new") for offset in range(5, 100))])
    evidence.begin()
    assert isinstance(evidence.check([(1, b"genesis"), (5, b"new")], at_tip=True)[1], LedgerRewound)


def test_what_is_no_longer_retained_is_no_loss() -> None:
    evidence = remembering()
    assert 2 == evidence.begin(2)
    assert (2, None) == evidence.check(READ[1:], at_tip=True)
    assert 5 == evidence.begin(9)
    assert not evidence.is_checking()


def test_no_more_is_remembered_than_a_bound() -> None:
    evidence = remembering([(offset, b"") for offset in range(EVIDENCE_MAX + 7)])
    assert 7 == evidence.begin()
