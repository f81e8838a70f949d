"""A member of the release before: the shipped machine, with what that release did not know taken away.

    record of format 2 --as bytes that do not decode--> shipped machine --Join, Genesis: its version only--> ledger
    a group above OLDER --------------------------------------------------> GroupMismatch

In a rolling upgrade, members of two releases fold one ledger. If they counted different records, their states would
differ, and the referee compares all states. A real older release takes part in `benchmarks/upgrade.py`.
"""

from msgspec.structs import replace

from neli_router.errors import GroupMismatch
from neli_router.protocols.induction.events import Append, Effect, Input
from neli_router.protocols.induction.machine import InductionMachine
from neli_router.protocols.induction.records import BATCHES, BATCHES_SINCE, Genesis, Join, Record

__all__ = ["OLDER", "OlderMachine"]

OLDER = BATCHES_SINCE - 1
"""The only fold version that it knows."""


class OlderMachine(InductionMachine):
    """Reads and writes what the older release does."""

    def step(self, event: Input, now: float) -> list[Effect]:
        effects = super().step(event, now)
        return [
            Append([_written(record) for record in effect.records], effect.lasting)
            if isinstance(effect, Append)
            else effect
            for effect in effects
        ]

    def _take(self, offset: int, record: Record | None, now: float, effects: list[Effect]) -> None:
        if self.state.version <= OLDER:
            super()._take(offset, None if record is None or record.v >= BATCHES else record, now, effects)
        if self.state.version > OLDER:
            found = f"the ledger's group is at version {self.state.version}"
            self._fail(GroupMismatch(f"a group with fold version {OLDER} was wanted", found, "run it"), effects)


def _written(record: Record) -> Record:
    match record:
        case Join():
            return replace(record, versions=(OLDER, OLDER))
        case Genesis():
            return replace(record, version=OLDER)
        case _:
            return record
