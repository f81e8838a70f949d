"""Every name of Airflow, its Spark provider and PySpark that is private, and that we use: each must still be there."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest
from airflow.sdk.execution_time.comms import CommsDecoder

import airflow_provider
from airflow_provider._machinery.leases import TALKING

pytestmark = pytest.mark.airflow

PROVIDER = Path(airflow_provider.__file__).parent

NAMES = {
    # The process of spark-submit and how it was asked to run: there is no public name for either.
    "airflow.providers.apache.spark.hooks.spark_submit:SparkSubmitHook": {"_connection", "_spark_binary", "_submit_sp"},
    "airflow.providers.apache.spark.operators.spark_submit:SparkSubmitOperator": {"_K8S_DRIVER_STATUS_KEY", "_conn_id"},
    # The values that a mapped task instance will get, before it starts.
    "airflow.serialization.definitions.mappedoperator:SerializedMappedOperator": {
        "_expand_input",
        "_get_specified_expand_input",
    },
    # To end Java, and let the next session start another.
    "pyspark:SparkContext": {"_active_spark_context", "_gateway", "_jvm"},
    "pyspark.sql:SparkSession": {"_instantiatedSession"},
}


@pytest.mark.parametrize("place", NAMES)
def test_it_is_there(place: str) -> None:
    module, _, name = place.partition(":")
    kind = getattr(importlib.import_module(module), name)
    text = "".join(inspect.getsource(base) for base in kind.__mro__ if base is not object)
    assert set() == {private for private in NAMES[place] if private not in text}


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
    private = {name for name in used - ours if name.startswith("_") and not name.startswith("__")}
    assert private <= set().union(*NAMES.values())
