"""A lease checked by a thread that is stopped just between its two reads: the end of the lease, and the time."""

import pytest

from neli_router.errors import LeaseLost, NeliError
from neli_router.member.leases import BaseRight


class StoppedThread:
    """The clock of a thread that stops for a minute after the first read."""

    def __init__(self) -> None:
        self.now, self.answers = 0.0, 0

    def stop(self) -> None:
        self.answers += 1
        self.now += 60.0 if self.answers == 1 else 0.0

    def clock(self) -> float:
        now = self.now
        self.stop()
        return now


class RightOfASecond(BaseRight):
    def __init__(self, thread: StoppedThread) -> None:
        super().__init__("a", thread.clock)
        self._thread = thread

    def _end(self) -> float:
        self._thread.stop()
        return 1.0

    def _wanted(self) -> str:
        return "the right was needed"

    def _not_here(self, wanted: str) -> NeliError | None:
        return None

    def _why_lost(self, now: float) -> str:
        return f"it ended {now - 1.0:g} s ago"


def test_a_thread_that_is_stopped_between_the_two_questions_finds_its_lease_over() -> None:
    assert not RightOfASecond(StoppedThread()).holds()
    with pytest.raises(LeaseLost, match="it ended 59 s ago"):
        RightOfASecond(StoppedThread()).check()
    assert 0.0 == RightOfASecond(StoppedThread()).remaining()
