"""A SparkSession: local and on loopback. test_guard.py tests sessions in separate drivers, and of spark-submit."""

import sys

import pytest
from pyspark.sql import SparkSession

import neli_router.spark
from neli_router.spark import session


@pytest.mark.spark
def test_a_local_session_is_on_loopback_and_that_of_the_whole_program(spark: SparkSession) -> None:
    context = spark.sparkContext
    conf = context.getConf()
    assert ("127.0.0.1", "127.0.0.1") == (conf.get("spark.driver.host"), conf.get("spark.driver.bindAddress"))
    assert context.uiWebUrl is None
    assert "false" == conf.get("spark.ui.showConsoleProgress"), "no terminal, no bars"
    assert sys.executable == context.pythonExec
    before = spark.conf.get("spark.sql.shuffle.partitions")
    assert spark is session("another", settings={"spark.sql.shuffle.partitions": "77"})
    assert before == spark.conf.get("spark.sql.shuffle.partitions") != "77"


def test_all_that_the_door_offers_can_be_had() -> None:
    assert all(callable(getattr(neli_router.spark, name)) for name in neli_router.spark.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'sesion'"):
        neli_router.spark.sesion  # noqa: B018 - the question is the test.
