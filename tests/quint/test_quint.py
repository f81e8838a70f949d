"""The model in Quint accepts what our code does, and objects to what a broken copy does."""

from pathlib import Path

import pytest

from tests.conftest import require
from tests.quint.model import MODEL, mutant_traces, replay, simulate
from tests.quint.traces import of_ledger, simulated
from tests.support.servers.quint import missing

KILLED = Path(__file__).with_name("killed.ledger.jsonl")
"""Two members on SQLite; one was killed with kill -9, came back, and both left."""

SEEDS = (0,)

MUTANT, SHOWN_BY = "acts_after_handover", 1


@pytest.fixture(autouse=True)
def _installed() -> None:
    require(missing())


def test_the_model_accepts_our_traces_and_objects_to_those_of_a_mutant() -> None:
    ledger = of_ledger(KILLED.read_text(encoding="utf-8").splitlines())
    ours = [("killed", ledger), *((f"seed {seed}", simulated(seed)) for seed in SEEDS)]
    *accepted, rejected = replay([*ours, *mutant_traces(MUTANT, [SHOWN_BY])])
    assert [(name, len(events), "") for name, events in ours] == [(it.name, it.events, it.objection) for it in accepted]
    assert rejected.objection


def test_the_model_breaks_a_promise_if_an_owner_acts_on_after_its_handover(tmp_path: Path) -> None:
    rule = "m.given.at(i, -1) != s.terms.get(i),"
    model = MODEL.read_text(encoding="utf-8")
    broken = tmp_path / "broken.qnt"
    broken.write_text(model.replace(rule, ""), encoding="utf-8")
    assert 1 == model.count(rule)
    assert "[violation]" in simulate(broken, samples=300, seed=1)
