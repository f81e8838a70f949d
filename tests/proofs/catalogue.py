"""The catalogue of proofs: every exploration, every long run of seeds and every mutant, each as one command.

    explorations, seeds    `neli explore ...`, `neli simulate ...` of the shipped code      must end with 0
    tests/mutants/*.patch  a copy with the patch applied, by the command that catches it    must end with 1
    the model in Quint     `quint ...` is `python -m tests.quint ...`. It accepts what the shipped code does, rejects
                           what a mutant does, and breaks a promise when it lacks a rule

A command that catches a mutant must pass on the shipped code, or the mutant shows nothing. So each `neli` command that
a patch names is a proof of its own as well. A `pytest` command is not: `make test` runs those tests anyway.

Most take less than half a minute, because `make test` repeats whole proofs. `make explore` goes further.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from neli_router.lab.commands.proofs import PROFILES
from tests.proofs.mutation import MUTANTS

__all__ = ["Proof", "proofs"]

CAUGHT_BY = re.compile(r"^caught-by: (?P<command>(?:neli|pytest) .+)$", re.MULTILINE)

SEEDS = (
    *(f"--start {first} --seeds 100" for first in range(0, 500, 100)),
    "--guarantee exclusive --weather fair --seeds 64",
    "--guarantee exclusive --weather foul --seeds 60",
    "--guarantee exclusive --weather foul --start 220 --seeds 60",
    "--guarantee exclusive --weather slow --seeds 20",
    "--weather rewound --seeds 150",
    "--weather rolling --seeds 150",
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
        f"--protocol {name} --weather {sky} --seeds 30"
        for name in ("term", "priority", "gossip")
        for sky in ("fair", "foul")
    ),
)
"""Options of `neli simulate`."""


REJECTED = (
    "acts_after_handover handover_to_oneself_void lease_from_receipt no_wait stale_expire_honoured "
    "two_incarnations_are_one"
)
OF_THE_MODEL = (
    "--ledger tests/quint/killed.ledger.jsonl",
    "--start 0 --seeds 20",
    "--simulate --samples 150 --seed 1",
    "--simulate --samples 150 --seed 1 --without 'm.given.at(i, -1) != s.terms.get(i),'",
    f"--mutants {REJECTED} --start 1 --seeds 2",
)
"""Options of `python -m tests.quint`."""


@dataclass(frozen=True, slots=True)
class Proof:
    """One command, and the patch that breaks the code first if this is a mutant."""

    command: str
    patch: Path | None = None

    @property
    def name(self) -> str:
        """The first column of its line in the lock file."""
        return self.command if self.patch is None else f"mutant {self.patch.stem}: {self.command}"

    @property
    def is_of_the_model(self) -> bool:
        return self.command.startswith("quint ")

    @property
    def must_be_rejected(self) -> bool:
        """Whether the model must object, or lacks a rule."""
        return "--mutants" in self.command or "--without" in self.command


def proofs() -> list[Proof]:
    """All of them, in the order of the lock file."""
    mutants = [Proof(_caught_by(patch), patch) for patch in sorted(MUTANTS.glob("*.patch"))]
    shipped = {*_explorations()} | {f"neli simulate {seeds}" for seeds in SEEDS}
    shipped |= {f"quint {options}" for options in OF_THE_MODEL}
    shipped |= {mutant.command for mutant in mutants if mutant.command.startswith("neli ")}
    return sorted([*map(Proof, shipped), *mutants], key=lambda proof: proof.name)


def _explorations() -> Iterator[str]:
    """Each profile with one set of bounds. Of the others, `test` repeats some of these, and `full` takes hours."""
    for protocol, profiles in PROFILES.items():
        for name, profile in profiles.items():
            if len(profile.bounds) == 1:
                yield f"neli explore --protocol {protocol} --profile {name}"


def _caught_by(patch: Path) -> str:
    found = CAUGHT_BY.search(patch.read_text(encoding="utf-8"))
    assert found is not None, f"{patch.name} has no line `caught-by: neli ...` or `caught-by: pytest ...`"
    return found["command"]
