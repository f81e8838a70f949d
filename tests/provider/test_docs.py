"""docs/airflow.md: each block of Python is a file of Dags, which are run; each command is one of Airflow's."""

from pathlib import Path

import pytest
from airflow.cli.cli_parser import get_parser
from airflow.dag_processing.dagbag import BundleDagBag

from tests.provider.given import DagTest
from tests.test_docs import SHELL, blocks

pytestmark = pytest.mark.airflow

PAGE = "docs/airflow.md"
BLOCKS = blocks(PAGE, "python")

NOT_TESTED = {
    "on_change": "an asset starts it; tests/provider/test_waiting.py does that on a real installation",
    "prices_of_a_partition": "its run must have a partition_key; tests/provider/test_dags.py does that, as above",
}
"""A Dag -> why `dag.test()` cannot run it. It is read all the same."""


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
