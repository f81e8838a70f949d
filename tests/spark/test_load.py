"""Load profiles by Spark: identical to those of columns, over all rows, with keys only on request."""

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import DataFrame, SparkSession

from dags.jobs import profile_load
from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError
from neli_router.router.loads import LoadProfile
from neli_router.spark import hot_keys, load_profile

pytestmark = pytest.mark.spark

LAYOUT = Layout(slots=64, partitions=8)
ROWS = [("ACME", 7.5), ("ACME", 8.0), ("GLOBEX", 1.25), (None, 100.0), ("", 0.0), ("Zoë\x00", 2.0)]


@pytest.fixture(name="rows")
def _rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, "`in.strument` string, load double")


def of_columns(layout: Layout, *, weighed: bool) -> LoadProfile:
    keys, weights = zip(*ROWS, strict=True)
    return LoadProfile.of_columns(pl.Series(keys), layout, weights=pl.Series(weights) if weighed else None)


def test_a_profile_is_that_of_the_same_columns(rows: DataFrame) -> None:
    for layout in (Layout(tags=True), Layout(slots=2**32, partitions=7)):
        assert of_columns(layout, weighed=True) == load_profile(rows, "in.strument", layout, weight="load")
    assert of_columns(LAYOUT, weighed=False) == load_profile(rows, "in.strument", LAYOUT), "each row counts as one"
    assert 0.0 == load_profile(rows.where("false"), "in.strument", LAYOUT).total


def test_weights_may_be_any_numbers(spark: SparkSession) -> None:
    for kind, value in (("bigint", 3), ("decimal(9,2)", Decimal(3))):
        rows = spark.createDataFrame([("ACME", value)], f"key string, weight {kind}")
        assert 3.0 == load_profile(rows, "key", LAYOUT, weight="weight").total
    weights = [None, -1.0, math.nan, math.inf, 1.0]
    rows = spark.createDataFrame([("secret", weight) for weight in weights] + [(None, None)], "key string, cost double")
    with pytest.raises(ConfigError, match="5 rows have a 'cost' that is missing, negative or not finite") as raised:
        load_profile(rows, "key", LAYOUT, weight="cost")
    assert "secret" not in str(raised.value)


def test_a_column_that_is_missing_or_no_weight_is_refused(rows: DataFrame) -> None:
    weights = {"cost": "is missing", "in.strument": "is of type string: a number was wanted as weight"}
    for weight, problem in weights.items():
        with pytest.raises(ConfigError, match=f"column '{weight}' {problem}"):
            load_profile(rows, "in.strument", LAYOUT, weight=weight)


def test_keys_are_named_on_request_the_hottest_first(spark: SparkSession) -> None:
    layout = Layout(slots=2, partitions=1)
    keys = [f"key-{n}" for n in range(20)]
    table: list[tuple[Any, ...]] = [(key, float(n)) for n, key in enumerate(keys)] * 2
    rows = spark.createDataFrame(table, "key string, cost double")
    hot = hot_keys(rows, "key", layout, [1], weight="cost", count=3)
    expected = [(1, key, 2.0 * n) for n, key in reversed(list(enumerate(keys))) if layout.slot(key) == 1]
    assert expected[:3] == [tuple(row) for row in hot.collect()]
    assert ["slot", "key", "load"] == hot.columns


def test_the_job_saves_a_profile_and_prints_keys_on_request_only(
    rows: DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.write.parquet(str(tmp_path / "rows"))
    monkeypatch.setattr(SparkSession, "__exit__", lambda *_: None)  # All tests share the session.
    saved = tmp_path / "profile.json"
    asked = ["--rows", str(tmp_path / "rows"), "--key", "in.strument", "--weight", "load", "--save", str(saved)]
    profile_load.main(asked)
    quiet = capsys.readouterr().out
    assert of_columns(Layout(), weighed=True) == LoadProfile.read(saved)
    slot = Layout().slot("ACME")
    assert f"slot {slot} (partition {slot % 256}): 15.5" in quiet
    assert "ACME" not in quiet
    profile_load.main([*asked, "--keys"])
    assert "ACME" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        profile_load.main([*asked, "--save", str(tmp_path / "nowhere" / "profile.json")])
    assert "No such file or directory" in capsys.readouterr().err
