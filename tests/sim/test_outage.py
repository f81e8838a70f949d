"""After an outage of the ledger the group is what it was before."""

import pytest

from neli_router.sim.simulate import outage


@pytest.mark.parametrize("seed", range(30))
def test_an_outage_of_three_leases_expires_no_member_changes_no_term_and_moves_nothing(seed: int) -> None:
    found = outage(seed)
    assert (0, 0, 0) == (found.expired, found.terms_changed, found.moves)
    assert found.back_after_leases <= 1.0
