"""docs/airflow.md: each block of Python is a file of Dags, which are run; each command is one of Airflow's.

Each public class of the provider stands in one of those blocks, or here with the reason why it does not.
"""

import importlib
import inspect
import re
from pathlib import Path

import pytest
from airflow.cli.cli_parser import get_parser
from airflow.dag_processing.dagbag import BundleDagBag

from tests.provider.test_provider_info import modules
from tests.support.given import DagTest
from tests.test_docs import SHELL, blocks

pytestmark = pytest.mark.airflow

PAGE = "docs/airflow.md"
BLOCKS = blocks(PAGE, "python")

NOT_TESTED = {
    "on_change": "an asset starts it; tests/provider/test_local.py does that on a real installation",
    "prices_of_a_partition": "its run must have a partition_key; tests/provider/test_local.py does that, as above",
    "nightly_count": "it starts a Spark; tests/provider/test_leader_pyspark.py does that",
    "nightly_prices": "its job is the reader's; tests/provider/test_installation.py runs such ones",
}
"""A Dag -> why `dag.test()` cannot run it. It is read all the same."""

WITHOUT_EXAMPLE = {
    "Away": "what the streams of changes say of an outage, to triggers",
    "Companion": "the agent that a scheduler brings, by [neli] agent_in",
    "Conclusion": "what came of a trigger's waiting",
    "HeldBlock": "what LeaderOperator holds its lease by",
    "LeaderDecoratedOperator": "the operator behind @task.leader",
    "LeaderPySparkDecoratedOperator": "the operator behind @task.leader_pyspark",
    "LeaderSparkSubmitHook": "what LeaderSparkSubmitOperator submits by",
    "LocalAirflow": "the installation of `make airflow`",
    "Moment": "what the triggers of one connection share",
    "NeliPlugin": "Airflow finds it by itself",
    "OnePerConnection": "what the triggers of one connection share",
    "Subscription": "what the triggers of one connection share",
    "Switch": "pauses and unpauses Dags in a scheduler, by [neli] switch",
    "WaitingSensor": "the base of LeaderSensor, SlotOwnerSensor and LeaderGate",
}
"""A public class that no Dag names -> what it is."""


def classes() -> set[str]:
    """Those that the provider's modules offer."""
    offered = ((module, name) for module in map(importlib.import_module, modules()) for name in module.__all__)
    return {name for module, name in offered if inspect.isclass(getattr(module, name))}


@pytest.mark.parametrize("name", sorted(classes() - set(WITHOUT_EXAMPLE)))
def test_each_class_has_an_example(name: str) -> None:
    assert any(re.search(rf"\b{name}\b", block) for block in BLOCKS), f"show {name} in {PAGE}, or say why not above"


@pytest.mark.parametrize("name", sorted(WITHOUT_EXAMPLE))
def test_no_reason_is_given_for_a_class_that_has_one_or_is_not_there(name: str) -> None:
    assert name in classes()
    assert [] == re.findall(rf"\b{name}\b", "".join(BLOCKS))


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_each_dag_of_the_page_runs(number: int, dag_test: DagTest, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(BLOCKS[number], encoding="utf-8")
    bag = BundleDagBag(tmp_path, bundle_path=tmp_path, bundle_name="page")
    assert {} == bag.import_errors
    for dag_id, dag in bag.dags.items():
        if dag_id not in NOT_TESTED:
            assert "success" == dag_test(dag).state, dag_id


def test_no_reason_is_given_for_a_dag_that_the_page_does_not_have() -> None:
    assert [] == [dag_id for dag_id in NOT_TESTED if f'"{dag_id}"' not in "".join(BLOCKS)]


@pytest.mark.parametrize("words", [words for page, words in SHELL if page == PAGE and Path(words[0]).name == "airflow"])
def test_each_command_is_one_of_airflows(words: list[str]) -> None:
    get_parser().parse_args(words[1:])
