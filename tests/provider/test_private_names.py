"""Every name of Airflow, its Spark provider and PySpark that is private, and that we use: each must still be there."""

import ast
import importlib
import inspect
import textwrap
from pathlib import Path

import pytest
from airflow.sdk.execution_time.comms import CommsDecoder

import airflow_provider
from airflow_provider._machinery.leases import TALKING

pytestmark = pytest.mark.airflow

PROVIDER = Path(airflow_provider.__file__).parent

NAMES = {
    # The process of spark-submit, how it was asked to run, and which job it made: none has a public name.
    "airflow.providers.apache.spark.hooks.spark_submit:SparkSubmitHook": {
        "_build_spark_submit_command",
        "_connection",
        "_driver_id",
        "_env",
        "_kubernetes_driver_pod",
        "_post_submit_commands",
        "_submit_sp",
        "_yarn_application_id",
    },
    "airflow.providers.apache.spark.operators.spark_submit:SparkSubmitOperator": {
        "_K8S_DRIVER_STATUS_KEY",
        "_conn_id",
        "_get_hook",
        "_hook",
        "_spark_binary",
    },
    # The values that a mapped task instance will get, before it starts.
    "airflow.serialization.definitions.mappedoperator:SerializedMappedOperator": {"_get_specified_expand_input"},
    "airflow.serialization.definitions.taskgroup:SerializedMappedTaskGroup": {"_expand_input"},
    # To end Java, and let the next session start another.
    "pyspark:SparkContext": {"_active_spark_context", "_gateway", "_jvm"},
    "pyspark.sql:SparkSession": {"_instantiatedSession"},
}

REPLACED = "airflow.providers.apache.spark."
"""Classes of which we also replace or set private attributes."""


@pytest.mark.parametrize("place", NAMES)
def test_it_is_there(place: str) -> None:
    assert NAMES[place] <= attributes_of(place)


def attributes_of(place: str) -> set[str]:
    """Every attribute that a class and its bases have, set or use."""
    module, _, name = place.partition(":")
    kind = getattr(importlib.import_module(module), name)
    sources = [inspect.getsource(base) for base in kind.__mro__ if base is not object]
    nodes = [node for source in sources for node in ast.walk(ast.parse(textwrap.dedent(source)))]
    return set(dir(kind)) | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def test_airflow_talks_to_its_supervisor_in_the_module_that_no_task_is_stopped_in() -> None:
    assert TALKING == CommsDecoder.__module__
    assert callable(CommsDecoder.send)


def test_no_other_is_used() -> None:
    used, ours = set[str](), set[str]()
    for node in (node for path in PROVIDER.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))):
        match node:
            case ast.Attribute(attr=name, ctx=context):
                (ours if isinstance(context, ast.Store) and isinstance(node.value, ast.Name) else used).add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                ours.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                ours.add(name)
    replaced = ours & set().union(*(attributes_of(place) for place in NAMES if place.startswith(REPLACED)))
    replaced -= {"_log"}  # The logger of each of our modules.
    private = {name for name in replaced | used - ours if name.startswith("_") and not name.startswith("__")}
    assert private <= set().union(*NAMES.values())
