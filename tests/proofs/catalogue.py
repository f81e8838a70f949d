"""The catalogue of proofs: every exploration, every long run of seeds and every mutant, each as one command.

    explorations, seeds    `neli explore ...`, `neli simulate ...` of the shipped code      must end with 0
    tests/mutants/*.patch  a copy with the patch applied, by the command that catches it    must end with 1

A command that catches a mutant must pass on the shipped code, or the mutant shows nothing. So each `neli` command that
a patch names is a proof of its own as well. A `pytest` command is not: `make test` runs those tests anyway.

Most take less than half a minute, because `make test` repeats whole proofs. `make explore` goes further.
"""

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MUTANTS", "Proof", "proofs"]

MUTANTS = Path(__file__).parents[1] / "mutants"

CAUGHT_BY = re.compile(r"^caught-by: (?P<command>(?:neli|pytest) .+)$", re.MULTILINE)

EXPLORATIONS = (
    "--slots 2 --apart 2 --lease 2",
    "--slots 2 --apart 2 --lease 1",
    "--slots 2 --apart 1 --lease 1 --no-certify",
    "--slots 3 --births 3 --apart 1 --lease 1 --no-leave",
    "--protocol neli --no-leave --no-crash",
    "--protocol neli --error 0 --no-leave --no-crash",
    "--protocol neli --guarantee available --no-leave --no-crash --states 12000",
    "--protocol neli --zombies --no-leave --no-crash --states 4000",
    "--protocol fast-neli --no-leave --no-crash --states 12000",
    "--protocol fast-neli --zombies --no-leave --no-crash --states 4000",
    "--protocol term --terms 1 --lease 2 --restarts 1",
    "--protocol term --terms 1 --restarts 2",
    "--protocol term --terms 2",
    "--protocol term --terms 2 --restarts 1",
    "--protocol term --terms 2 --no-cede --restarts 1 --states 40000",
    "--protocol term --terms 3 --no-cede --states 40000",
    "--protocol gossip --terms 1 --lease 1 --any",
    "--protocol gossip --terms 2 --voter-twice-as-fast",
    "--protocol gossip --terms 2 --lease 1",
    "--protocol gossip --terms 2 --lease 1 --changes 1",
    "--protocol gossip --terms 2 --lease 1 --changes 1 --separate --states 60000",
    "--protocol gossip --terms 2 --lease 1 --changes 1 --restarts 1 --states 60000",
    "--protocol gossip --terms 2 --lease 1 --restarts 1 --states 90000",
)
"""Bounds of `neli explore`. One without `--states` visits every reachable world."""

SEEDS = (
    *(f"--start {first} --seeds 100" for first in range(0, 500, 100)),
    "--guarantee exclusive --weather fair --seeds 64",
    "--guarantee exclusive --weather foul --seeds 60",
    "--guarantee exclusive --weather foul --start 220 --seeds 60",
    "--guarantee exclusive --weather slow --seeds 20",
    "--weather rewound --seeds 150",
    "--protocol neli --guarantee exclusive --weather fair --seeds 60",
    "--protocol neli --guarantee exclusive --weather foul --seeds 100",
    "--protocol neli --guarantee exclusive --weather beyond --seeds 100",
    "--protocol neli --guarantee available --weather fair --seeds 100",
    "--protocol neli --guarantee available --weather foul --seeds 20",
    "--protocol neli --guarantee available --weather beyond --seeds 20",
    "--protocol fast-neli --weather fair --seeds 100",
    "--protocol fast-neli --weather foul --seeds 20",
    "--protocol fast-neli --weather beyond --seeds 20",
    *(
        f"--protocol {protocol} --weather {weather} --seeds 30"
        for protocol in ("term", "priority", "gossip")
        for weather in ("fair", "foul")
    ),
)
"""Options of `neli simulate`."""


@dataclass(frozen=True, slots=True)
class Proof:
    """One command, and the patch that breaks the code first if this is a mutant."""

    command: str
    patch: Path | None = None

    @property
    def name(self) -> str:
        """The first column of its line in the lock file."""
        return self.command if self.patch is None else f"mutant {self.patch.stem}: {self.command}"


def proofs() -> list[Proof]:
    """All of them, in the order of the lock file."""
    mutants = [Proof(_caught_by(patch), patch) for patch in sorted(MUTANTS.glob("*.patch"))]
    shipped = {f"neli explore {bounds}" for bounds in EXPLORATIONS} | {f"neli simulate {seeds}" for seeds in SEEDS}
    shipped |= {mutant.command for mutant in mutants if mutant.command.startswith("neli ")}
    return sorted([*map(Proof, shipped), *mutants], key=lambda proof: proof.name)


def _caught_by(patch: Path) -> str:
    found = CAUGHT_BY.search(patch.read_text(encoding="utf-8"))
    assert found is not None, f"{patch.name} has no line `caught-by: neli ...` or `caught-by: pytest ...`"
    return found["command"]
