"""A lease checked by a thread that is stopped just between its two reads: the end of the lease, and the time."""

import pytest

from neli_router.errors import LeaseLost, NeliError
from neli_router.member.leases import BaseRight


class RightOfASecond(BaseRight):
    """Read by a thread that stops for a minute after its first read."""

    def __init__(self) -> None:
        self._times = iter([0.0, 60.0, 60.0])
        super().__init__("a", lambda: next(self._times))

    def _end(self) -> float:
        next(self._times)
        return 1.0

    def _wanted(self) -> str:
        return "the right was needed"

    def _not_here(self, wanted: str) -> NeliError | None:
        return None

    def _why_lost(self, now: float) -> str:
        return f"it ended {now - 1.0:g} s ago"


def test_a_thread_that_is_stopped_between_the_two_questions_finds_its_lease_over() -> None:
    assert not RightOfASecond().holds()
    with pytest.raises(LeaseLost, match="it ended 59 s ago"):
        RightOfASecond().check()
    assert 0.0 == RightOfASecond().remaining()
