"""A member that speaks for other programs: what a server, such as the agent's, needs beyond what a program does.

    programs --ask--> server --standing, leads, why_not, hold ...--> ServedMember
                        ^-----------observe: something changed------------'

A program that is a member itself needs none of this, so that `Member` stays short.
"""

from collections.abc import Callable, Sequence

from neli_router.drivers.peers.outlook import Outlook
from neli_router.errors import NotLeading
from neli_router.member.held_partitions import HeldPartitions
from neli_router.member.member import Member
from neli_router.protocols.induction.events import Wish
from neli_router.protocols.induction.records import Certify
from neli_router.protocols.protocol import Standing

__all__ = ["ServedMember"]


class ServedMember(Member):
    """A Member, and what others may know and do through it."""

    @property
    def standing(self) -> Standing:
        """Which partitions this member may act for, and until when."""
        return self._membership.standing

    @property
    def obstacle(self) -> str:
        """Why the ledger cannot be reached, in its driver's words; empty if it can be."""
        return self._membership.obstacle

    @property
    def is_powerless(self) -> bool:
        """Whether this member's heartbeats come back, but too late for it to expire a dead member."""
        return self._membership.is_powerless and not self.closed

    @property
    def outlook(self) -> Outlook | None:
        """This member's view of its peers; None if it has none, or has not begun to listen yet."""
        return self._membership.outlook

    @property
    def closing(self) -> bool:
        """Whether this member was asked to leave."""
        return self._membership.closing

    def hold(self, partitions: Sequence[int]) -> HeldPartitions:
        """Hold those of `partitions` that are led now, for work on them, until the returned object is closed."""
        return HeldPartitions(self._membership, partitions)

    def leads(self, partition: int) -> bool:
        return self._membership.period(partition) is not None

    def why_not(self, partition: int) -> str:
        """Why this member does not lead `partition`."""
        return self._membership.why_not(partition)

    def not_leading(self, partition: int, timeout: float) -> NotLeading:
        """The error raised when a wait for `partition` times out."""
        return self._membership.not_leading(partition, timeout)

    def certify(self, incarnation: str) -> None:
        """Record in the ledger that the process of `incarnation` has ended with all its threads. Does not wait.

        Other members then take over immediately, so only a server that saw the process end may call this."""
        # Before this member has joined, readers cannot resolve its incarnation to a name.
        by = self.incarnation if self.incarnation in self.state.seats else self.name
        self._engine.post(Wish(Certify(by=by, incarnation=incarnation)))

    def require_open(self) -> None:
        """Raise the error that ended this member, or Closed if it was asked to leave."""
        self._membership.require_open()

    def observe(self, changed: Callable[[], None], turned: Callable[[float], None]) -> Callable[[], None]:
        """Call `changed` whenever a partition is led or lost and when this member ends, and `turned` with the time
        after every step of its thread. Neither may wait or raise. The returned function stops both."""
        self._membership.changed.tell(changed)
        self._engine.oversee(turned)

        def end() -> None:
            self._membership.changed.forget(changed)
            self._engine.neglect(turned)

        return end

    def ask_close(self) -> None:
        """Begin to leave, without waiting for the end."""
        self._engine.ask_close()
