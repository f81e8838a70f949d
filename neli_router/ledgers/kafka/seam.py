"""The seam: where records of one leader's time end and those of the next one's begin, the log may have been cut.

    [ ... last, epoch 4 ] | [ first, epoch 6 ...       read `last` again: the same --> go on
                          '-- another epoch                               another  --> the log was rewound

A replica that was not in sync and becomes leader drops what it never had, and the log grows again from there, under a
higher epoch. If it is longer than before when we look, no offset goes back. But then our last record is gone: whatever
stands at its offset now was written under the new epoch, or is another one. With equal epochs nothing has to be
read: one leader wrote both, one after the other.
"""

from confluent_kafka import Message

__all__ = ["Seam"]


class Seam:
    """Watches one reader's records go by, in order, from a seek on."""

    def __init__(self) -> None:
        self._last: Message | None = None
        self._sure = False
        self.asked: int | None = None
        """The offset to read again before anything else, if there is one."""
        self.found = ""
        """How the log was cut, once that is certain."""

    def take(self, records: list[Message]) -> list[Message]:
        """Those of `records` that follow what was read; none as long as something is `asked` for."""
        if not records:
            return []
        first, last = records[0], self._last
        if last is not None and self.asked is not None:
            self.asked = None
            if _marks(first) != _marks(last):
                self.found = f"the record at {last.offset()} is another one now than the one that was read there"
                return []
            self._sure, records = True, records[1:]
        elif last is not None and first.leader_epoch() != last.leader_epoch() and not self._sure:
            self.asked = last.offset()
            return []
        if records:
            self._last, self._sure = records[-1], False
        return records

    def give_up(self, start: int) -> None:
        """What is asked for cannot be read: the log starts at `start`, or the reader begins anew."""
        self._sure = self._last is not None and (self._last.offset() or 0) < start
        self.asked = None


def _marks(record: Message) -> tuple[object, ...]:
    return record.offset(), record.leader_epoch(), record.value()
