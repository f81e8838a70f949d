"""`tests/proofs.lock`: what each proof has shown, and for which sources.

    COMMAND | HASH OF THE SOURCES | PROCESSOR SECONDS | RESULT

It works like a package manager's lock file: `make prove` writes it, developers commit it, and `make test` fails while a
line is stale. A line is fresh if its hash matches the present sources. The seconds are those of the machine that ran
the proof; they only decide what runs first, and what fits into a sample.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.proofs.catalogue import Proof
from tests.proofs.sources import sources_hash

__all__ = ["LOCK", "Line", "read", "sample", "stale", "write"]

LOCK = Path(__file__).parents[1] / "proofs.lock"

HEAD = "# Written by `make prove`. COMMAND | HASH OF THE SOURCES | PROCESSOR SECONDS | RESULT\n"


@dataclass(frozen=True, slots=True)
class Line:
    """The record of one proof."""

    name: str
    sources: str
    seconds: int
    result: str

    def __str__(self) -> str:
        return f"{self.name} | {self.sources} | {self.seconds} | {self.result}\n"


def read(path: Path = LOCK) -> dict[str, Line]:
    """Name -> its line. Contains only recorded proofs."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [line.split(" | ", 3) for line in lines if line and not line.startswith("#")]
    return {name: Line(name, sources, int(seconds), result) for name, sources, seconds, result in found}


def write(lines: Iterable[Line], path: Path = LOCK) -> None:
    """Write in one step, so that an interrupted run leaves a whole file behind."""
    text = HEAD + "".join(str(line) for line in sorted(lines, key=lambda line: line.name))
    written = path.with_suffix(".new")
    written.write_text(text, encoding="utf-8")
    written.replace(path)


def stale(proofs: Iterable[Proof], lines: Mapping[str, Line]) -> list[Proof]:
    """The proofs without a line, or whose line belongs to other sources."""
    return [it for it in proofs if it.name not in lines or lines[it.name].sources != sources_hash(it)]


def sample(proofs: Iterable[Proof], lines: Mapping[str, Line], commit: str, seconds: float) -> list[Proof]:
    """Proofs to repeat, which take about `seconds` of processors according to the lock.

    All proofs are dealt into hands of that size, and the commit's hash draws one. So each proof comes up equally often,
    and a proof that takes longer than that has its own hand.
    """
    costs = {proof: max(lines[proof.name].seconds, 1) for proof in proofs}
    hands: list[list[Proof]] = [[] for _ in range(max(1, round(sum(costs.values()) / seconds)))]
    filled = [0] * len(hands)
    for proof in sorted(costs, key=lambda it: (-costs[it], it.name)):
        emptiest = filled.index(min(filled))
        hands[emptiest].append(proof)
        filled[emptiest] += costs[proof]
    return hands[int.from_bytes(hashlib.sha256(commit.encode()).digest()) % len(hands)]
