"""The model of the protocol in Quint, and whether it allows what our code does.

    python -m tests.quint --simulate                     draws worlds of the model, and checks the promises in each
    python -m tests.quint --seeds 500                    the model must accept what happens in groups of our simulator
    python -m tests.quint --ledger FILE                  and a copy of a real ledger, by `neli ledger export`
    python -m tests.quint --mutants no_wait --seeds 5    and must object to what a broken copy of our code does: exit 1

    induction.qnt   the model: records, fold, tenure, promises, and a group drawn at random
    replay.qnt      an event of a trace --> a step of the model, or an objection
    traces.py       simulator, ledger --> events
    replay.cjs      runs Quint's own evaluator on them

Quint is a package for Node. `make quint` installs it into .make/quint. `make prove` runs some of this, and records it.
"""

import argparse
import json
import sys
from itertools import chain
from pathlib import Path

from tests.quint.model import Verdict, mutant_traces, replay, simulate
from tests.quint.traces import of_ledger, simulated
from tests.support.servers.quint import missing

__all__ = ["main"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.quint", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--simulate", action="store_true", help="draw worlds of the model")
    parser.add_argument("--samples", type=int, default=300, help="how many (300)")
    parser.add_argument("--seed", type=int, help="draw the same worlds again")
    parser.add_argument("--without", default="", help="a rule, as the model has it, to leave out")
    parser.add_argument("--seeds", type=int, default=0, help="how many seeds of our simulator")
    parser.add_argument("--start", type=int, default=0, help="the first of them (0)")
    parser.add_argument("--ledger", type=Path, help="a copy of a ledger")
    parser.add_argument("--mutants", nargs="+", default=[], help="the names of patches in tests/mutants")
    parser.add_argument("--record", action="store_true", help="print the traces instead of replaying them")
    asked = parser.parse_args()
    seeds = range(asked.start, asked.start + asked.seeds)
    if asked.record:
        for seed in seeds:
            sys.stdout.write(json.dumps([f"seed {seed}", simulated(seed)]) + "\n")
        return 0
    if why := missing():
        sys.exit(f"Quint was wanted, but {why}")
    if asked.simulate:
        is_kept, output = simulate(samples=asked.samples, seed=asked.seed, without=asked.without)
        sys.stdout.write(output)
        found = "every promise was kept" if is_kept else "a promise was broken"
        sys.stdout.write(f"{asked.samples} worlds drawn at most, {found}\n")
        return 0 if is_kept else 1
    if asked.ledger:
        return _say(replay([(asked.ledger.name, of_ledger(asked.ledger.read_text(encoding="utf-8").splitlines()))]))
    if asked.mutants:
        verdicts = replay(chain.from_iterable(mutant_traces(mutant, seeds) for mutant in asked.mutants))
        rejected = {verdict.name.partition(",")[0] for verdict in verdicts if verdict.objection}
        _say(verdicts)
        return 1 if rejected == {*asked.mutants} else 0
    return _say(replay((f"seed {seed}", simulated(seed)) for seed in seeds))


def _say(verdicts: list[Verdict]) -> int:
    for verdict in verdicts:
        if verdict.objection:
            sys.stdout.write(f"{verdict.name}: event {verdict.events} of {verdict.of}: {verdict.objection}\n")
    events = sum(verdict.events for verdict in verdicts)
    rejected = sum(bool(verdict.objection) for verdict in verdicts)
    sys.stdout.write(f"{len(verdicts)} traces of {events} events, {rejected} rejected\n")
    return 1 if rejected else 0


if __name__ == "__main__":
    sys.exit(main())
