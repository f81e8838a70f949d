"""The parts of the fuzz, each one of our doors and a source of inputs for it: how to write one, and shared inputs.

    opened()  --once-->  attempt(rng)  --again and again-->  texts that a person would see
                              '--raises one of DOCUMENTED: the input was refused, as it should be
                              '--raises anything else, or never ends: a crash

A part is a module with `DOCUMENTED`, the errors that its door is documented to raise, and `opened()`, a context around
all of its attempts. `PARTS` in `benchmarks/fuzz.py` lists it. An attempt draws everything from its `rng` and starts
from the same state each time, so the same seed and number give the same input again. It puts `secret(rng)` wherever
people put secrets, and yields the door's output: a repr, a table, a page. Output before an error counts, too.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

__all__ = ["MARKER", "Attempt", "FuzzPart", "any_bytes", "any_text", "mutated", "secret"]

MARKER = "Tr0ub4dor"
"""The sign of a secret. No name contains it, so a text that contains it shows a secret or a piece of one."""

Attempt = Callable[[random.Random], Iterable[str]]


class FuzzPart(NamedTuple):
    """A part: the contents of its module."""

    documented: tuple[type[Exception], ...]
    opened: Callable[[], AbstractContextManager[Attempt]]


SIGNS = ":/?#[]@!$&'()*+,;=%~ \t\\\"{}<>|^`._-"
ODD = (
    "\0",
    "\n",
    "\r",
    "\x1b[31m",
    "\x7f",
    "\x85",
    "\u2028",
    "\u202e",
    "\ufeff",
    "\udcff",
    "ß",
    "漢",
    "😀",
    "%00",
    "%0a",
)
HUGE = ("9" * 5000, "1e999", "-1", "0", "nan", "A" * 3000, "[" * 3000, "%" * 100, "@" * 100)

PIECE_MAX = 12


def secret(rng: random.Random) -> str:
    """A secret. It has the marker twice, between characters that split an address, so even its tail is detected."""
    return rng.choice((MARKER, f"{MARKER}{rng.choice(SIGNS)}{MARKER}", f"{MARKER}%{rng.randrange(256):02x}{MARKER}"))


def any_text(rng: random.Random, *, size_max: int = 20) -> str:
    """Letters, punctuation, and characters that no terminal should get."""
    kinds = ("abcXYZ019", SIGNS, ODD)
    return "".join(rng.choice(rng.choice(kinds)) for _ in range(rng.randint(0, size_max)))


def any_bytes(rng: random.Random, *, size_max: int = 20) -> bytes:
    return rng.randbytes(rng.randint(0, size_max))


def mutated(rng: random.Random, text: str, others: Sequence[str], *, times_max: int = 3) -> str:
    """`text` after up to `times_max` accidents: pieces lost, doubled, overwritten, or taken from one of `others`.

    The marker stays whole: half of it would be a secret that the fuzz cannot find again.
    """
    pieces = [piece for part in text.split(MARKER) for piece in (MARKER, *part)][1:]
    for _ in range(rng.randint(0, times_max)):
        start = rng.randint(0, len(pieces))
        end = rng.randint(start, min(len(pieces), start + PIECE_MAX))
        new: list[str] = []
        match rng.randrange(6):
            case 0:
                new = pieces[start:end] * 2
            case 1:
                end, new = start, [rng.choice(SIGNS)]
            case 2:
                end, new = start, [rng.choice(rng.choice((ODD, HUGE)))]
            case 3:
                other = rng.choice(others)
                at = rng.randint(0, len(other))
                end, new = start, [other[at : at + rng.randint(1, 2 * PIECE_MAX)]]
            case 4:
                new = [
                    piece if piece == MARKER else "".join(f"%{byte:02X}" for byte in piece.encode(errors="replace"))
                    for piece in pieces[start:end]
                ]
        pieces[start:end] = new
    return "".join(pieces)
