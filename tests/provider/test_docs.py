"""docs/airflow.md: each block of Python is a file of Dags, which are run; each command exists in Airflow.

The first table points from each public class to the section whose blocks show it, or here is the reason why not.

Also here: the tutorial, typed word for word, in a home with the database of this session's Airflow.
"""

import importlib
import inspect
import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from airflow.cli.cli_parser import get_parser
from airflow.dag_processing.dagbag import BundleDagBag

from tests.provider.test_provider_info import modules
from tests.support.given import DagTest
from tests.test_docs import FENCED, OURS, PAGES, blocks, typed
from tests.tutorials import FOLDER, follow

pytestmark = pytest.mark.airflow

PAGE = "docs/airflow.md"
BLOCKS = blocks(PAGE, "python")

NOT_TESTED = {
    "on_change": "an asset starts it; tests/provider/test_local_airflow.py does that on a real installation",
    "prices_of_a_partition": "its run must have a partition_key; test_local_airflow.py does that, too",
    "nightly_count": "it starts a Spark; tests/provider/test_leader_pyspark.py does that",
    "nightly_invoices": "its database is the reader's; tests/provider/test_fencing.py has such tasks",
    "nightly_prices": "its job is the reader's; tests/provider/test_installation.py runs such ones",
}
"""A Dag -> why `dag.test()` cannot run it. It is parsed all the same."""

WITHOUT_EXAMPLE = {
    "LeaderHere",  # NeliHook.leader returns it.
    *("NeliMessageQueueProvider", "NeliPlugin"),  # Found by Airflow on its own.
    *("Conclusion", "LeaderSparkSubmitHook", "UnderLease"),  # Parts of others.
    *("LeaderDecoratedOperator", "LeaderPySparkDecoratedOperator"),  # Behind the decorators.
}
"""The public classes that no Dag names."""


OFFERED = {name: getattr(module, name) for module in map(importlib.import_module, modules()) for name in module.__all__}
CLASSES = {name for name, offered in OFFERED.items() if inspect.isclass(offered)}


def test_each_class_has_a_guide_with_an_example_or_a_reason_and_no_reason_is_left_over() -> None:
    guides = re.findall(r"^\| (`.+?) \|.*\]\(#([\w-]+)\) \|$", PAGES[PAGE], re.MULTILINE)
    named = [(name, place) for names, place in guides for name in re.findall(r"(\w+)`", names)]
    sections = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGES[PAGE], re.MULTILINE | re.DOTALL)
    code = {title.lower().replace(" ", "-"): "".join(map("".join, FENCED.findall(text))) for title, text in sections}
    shown = {name for name, place in named if re.search(rf"\b{name}\b", code[place])}
    assert WITHOUT_EXAMPLE == CLASSES - shown, f"show each in {PAGE}, or say why not above"
    assert [] == [dag_id for dag_id in NOT_TESTED if f'"{dag_id}"' not in "".join(BLOCKS)]


def test_each_argument_of_a_class_or_a_function_of_the_page_is_explained_in_order() -> None:
    lacking = {}
    for name in sorted(CLASSES | {name for name in OFFERED if f"{name}(" in "".join(BLOCKS)}):
        made = OFFERED[name].__dict__.get("__init__", None if name in CLASSES else OFFERED[name])
        arguments = inspect.signature(made).parameters.values() if inspect.isfunction(made) else ()
        names = [one.name for one in arguments if one.name != "self" and one.kind != one.VAR_KEYWORD]
        if names != (told := re.findall(r":param (\w+):", OFFERED[name].__doc__ or "")):
            lacking[name] = names, told
    assert {} == lacking


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_each_dag_of_the_page_runs(number: int, dag_test: DagTest, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(BLOCKS[number], encoding="utf-8")
    bag = BundleDagBag(tmp_path, bundle_path=tmp_path, bundle_name="page")
    assert {} == bag.import_errors
    for dag_id, dag in bag.dags.items():
        if dag_id not in NOT_TESTED:
            assert "success" == dag_test(dag).state, dag_id


@pytest.mark.parametrize("words", [words for words in typed(PAGE) if Path(words[0]).name == "airflow"])
def test_each_command_is_one_of_airflows(words: list[str]) -> None:
    get_parser().parse_args(words[1:])


def test_the_first_leader_only_dag(airflow_home: Path, tmp_path: Path) -> None:
    """Up to the takeover. Its last run takes ten more seconds, and test_sensors.py has what it shows."""
    (home := tmp_path / "first-dag" / "airflow").mkdir(parents=True)
    (there := tmp_path / "clone").mkdir()
    shutil.copy(airflow_home / "airflow.db", home)
    reader = {
        **OURS,
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "False",
    }
    steps = follow(FOLDER / "airflow.md", there, reader, without="airflow db migrate")
    with closing(steps):
        assert "5. Kill the leading host" in (title for title, _ in steps)
