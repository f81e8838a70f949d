"""SQLite ledgers with bytes changed anywhere: each opens or is refused in our words, and shows only what was written.

    a ledger's bytes --overwritten, cut, blocks swapped--> a file --> open, read, append
                                                                       '--> LedgerError, or a prefix of what was written

tests/drivers/ledgers/test_sqlite.py breaks files on purpose, each in one way with a known answer. Here the way is not
known. But three outcomes must never occur: another exception, a record that was not written, an endless loop.
"""

import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.errors import LedgerError

LAW = settings(max_examples=120)

PAYLOADS = [b'{"kind":"leave","by":"%d","v":1}' % number * (1 + 40 * (number % 3)) for number in range(60)]
READS_MAX = 10


@cache
def sound() -> bytes:
    """The bytes of a ledger with these payloads, closed properly."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        with closing(SqliteLedger(path)) as ledger:
            ledger.append(PAYLOADS)
        assert [path] == [other for other in Path(folder).iterdir() if other.stat().st_size], "closing keeps one file"
        return path.read_bytes()


PLACES = st.integers(0, 40_000) | st.integers(0, 120)  # Anywhere; and SQLite's header, where a byte matters most.
DAMAGES = st.lists(
    st.tuples(st.just("write"), PLACES, st.binary(min_size=1, max_size=64))
    | st.tuples(st.just("cut"), PLACES, st.just(b""))
    | st.tuples(st.just("zero"), PLACES, st.integers(1, 4096).map(bytes))
    | st.tuples(st.just("copy"), PLACES, st.integers(0, 9).map(lambda page: b"%d" % page)),
    min_size=1,
    max_size=5,
)


def damaged(damages: list[tuple[str, int, bytes]]) -> bytes:
    content = bytearray(sound())
    for what, anywhere, piece in damages:
        place = anywhere % max(1, len(content))
        match what:
            case "write" | "zero":
                content[place : place + len(piece)] = piece[: len(content) - place]
            case "cut":
                del content[place:]
            case "copy":  # One page over another.
                page, other = place // 4096 * 4096, int(piece) * 4096
                content[page : page + 4096] = content[other : other + 4096]
    return bytes(content)


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "ledger.db"


def told(path: Path) -> list[tuple[int, bytes]]:
    """Everything that a ledger reads from a file, until it ends or raises an error."""
    entries: list[tuple[int, bytes]] = []
    with suppress(LedgerError), closing(SqliteLedger(path, busy_max=0.05)) as ledger:
        ledger.seek(1)
        for _ in range(READS_MAX):
            entries += [(entry.offset, entry.payload) for entry in ledger.read(0)]
        ledger.append([b"one more"])
        entries += [(entry.offset, entry.payload) for entry in ledger.read(0)]
    return entries


def place(path: Path, content: bytes) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)
    path.write_bytes(content)


def test_the_sound_file_tells_everything(path: Path) -> None:
    place(path, sound())
    assert [*enumerate(PAYLOADS, start=1), (len(PAYLOADS) + 1, b"one more")] == told(path)


@LAW
@given(damages=DAMAGES)
@example(damages=[("copy", 8192, b"1")])  # A page of another table, whose rows have no payload: it was a TypeError.
@example(damages=[("write", 4091, b"\x80")])  # A schema that is not UTF-8: it was a UnicodeDecodeError.
def test_a_damaged_file_is_refused_or_tells_the_truth(path: Path, damages: list[tuple[str, int, bytes]]) -> None:
    place(path, damaged(damages))
    entries = told(path)
    written = dict(enumerate([*PAYLOADS, b"one more"], start=1))
    assert sorted(entries) == entries
    for offset, payload in entries:
        # If the end of the records and its number are both lost, our record gets that number again.
        assert payload in {written.get(offset), b"one more"}
