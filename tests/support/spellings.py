"""One rule in Python, shell, HTTP and Airflow: text is a key, and a number is a partition."""

from collections.abc import Callable

from neli_router.core.keyspace import Layout
from neli_router.errors import BadKey

__all__ = ["SPELLINGS", "require_same"]

_KEYS = ("42", "042", " 42", "-1", "9999", "٤٢", "nightly", "")
_NUMBERS = {"42": 42, "042": 42, " 42": 42, "0": 0, "255": 255}
_NO_PARTITIONS = ("-1", "256", "9999", "4.2", "nightly", "True", "")

SPELLINGS: list[tuple[str, str, int | None]] = [
    *(("key", text, Layout().partition(text)) for text in _KEYS),
    *(("partition", text, number) for text, number in _NUMBERS.items()),
    *(("partition", text, None) for text in _NO_PARTITIONS),
]
"""The word, the text, and its only possible partition; None if every front rejects it."""


def require_same(front: Callable[[str, str], int], word: str, text: str, expected: int | None) -> None:
    """`front` gives the expected partition or rejects the spelling, with BadKey or by ending its command."""
    try:
        found = front(word, text)
    except (BadKey, SystemExit):
        assert expected is None or text != text.strip() or text in {"", "042"}, "it is rejected"
    else:
        assert expected == found
