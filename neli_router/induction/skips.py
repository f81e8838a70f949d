"""Records that nobody can read: everyone skips them alike, and says so without filling a log with it.

the 1st --> told, the 2nd --> told, the 3rd, the 4th --> told, ... the 8th --> told        whoever writes them may
                                                                                           write a thousand a second
"""

from neli_router.protocol import Notice

__all__ = ["told_of"]


def told_of(skipped: int, offset: int) -> list[Notice]:
    """What to say when the record at `offset` is skipped, which makes it `skipped` of them."""
    if skipped.bit_count() == 1:
        return [Notice("record.skipped", {"offset": offset, "skipped": skipped})]
    return []
