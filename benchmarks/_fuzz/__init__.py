"""A part of the fuzz: one door of ours, and a source of inputs for it. How to write one, and what all draw from.

    opened()  --once-->  attempt(rng)  --again and again-->  texts that a person would see
                              '--raises one of DOCUMENTED: the input was refused, as it should be
                              '--raises anything else, or never ends: a crash

A part is a module with `DOCUMENTED`, the errors that its door is documented to raise, and `opened()`, a context around
all of its attempts. It is named in `PARTS` of `benchmarks/fuzz.py`. An attempt draws everything from its `rng` and
starts from the same state each time, so the same seed and number give the same input again. It puts `secret(rng)`
wherever people put secrets, and yields what the door showed: a repr, a table, a page. What it showed before it raised
counts, too.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

__all__ = ["MARKER", "Attempt", "FuzzPart", "any_bytes", "any_text", "mutated", "secret"]

MARKER = "Tr0ub4dor"
"""The sign of a secret. It stands in no name, so a text that has it shows a secret or a piece of one."""

Attempt = Callable[[random.Random], Iterable[str]]


class FuzzPart(NamedTuple):
    """A part: what its module has."""

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
    """A secret. Between signs that part an address it has the marker twice, so that its tail alone is seen, too."""
    return rng.choice((MARKER, f"{MARKER}{rng.choice(SIGNS)}{MARKER}", f"{MARKER}%{rng.randrange(256):02x}{MARKER}"))


def any_text(rng: random.Random, *, size_max: int = 20) -> str:
    """Letters, signs, and what no terminal should get."""
    kinds = ("abcXYZ019", SIGNS, ODD)
    return "".join(rng.choice(rng.choice(kinds)) for _ in range(rng.randint(0, size_max)))


def any_bytes(rng: random.Random, *, size_max: int = 20) -> bytes:
    return rng.randbytes(rng.randint(0, size_max))


def mutated(rng: random.Random, text: str, others: Sequence[str], *, times_max: int = 3) -> str:
    """`text` after up to so many accidents: pieces lost, doubled, overwritten, or taken from one of `others`.

    The marker stays whole: half of it would be a secret that no one finds again.
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
