"""Columns of keys: exactly what `Layout` and `Router` say for each key, in Arrow, pandas and polars."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from neli_router import Router
from neli_router.core.keyspace import SLOTS_MAX, Layout
from neli_router.errors import BadKey, NeliError, NoOwner
from neli_router.router.columns import owners_of, partitions_of
from neli_router.router.loads import LoadProfile
from neli_router.router.table import Owner
from tests.support.records import LAYOUTS
from tests.support.waiting import PATIENCE

LAW = settings(max_examples=50)
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text("{}a\n\x00")
TEXT_COLUMNS = st.lists(TEXTS | st.none(), max_size=40)
BYTES_COLUMNS = st.lists(st.binary() | TEXTS.map(str.encode) | st.none(), max_size=40)

Make = Callable[[Sequence[Any]], Any]

OF_TEXTS: dict[str, Make] = {
    "polars": lambda keys: pl.Series("key", keys, dtype=pl.String),
    "polars in pieces": lambda keys: pl.concat([pl.Series([None, "x"])[:0], pl.Series(keys, dtype=pl.String)]),
    "polars categorical": lambda keys: pl.Series(keys, dtype=pl.Categorical),
    "polars enum": lambda keys: pl.Series(keys, dtype=pl.Enum(sorted({key for key in keys if key is not None}))),
    "polars objects": lambda keys: pl.Series(keys, dtype=pl.Object),
    "arrow": lambda keys: pa.array(keys, pa.string()),
    "arrow large": lambda keys: pa.array(keys, pa.large_string()),
    "arrow view": lambda keys: pa.array(keys, pa.string_view()),
    "arrow slice": lambda keys: pa.array(["x", *keys, None], pa.string())[1 : len(keys) + 1],
    "arrow dictionary": lambda keys: pa.array(keys, pa.string()).dictionary_encode(),
    "arrow chunks": lambda keys: pa.chunked_array([keys[:3], keys[3:]], pa.string()),
    "arrow no chunk": lambda keys: pa.chunked_array([keys] if keys else [], pa.string()),
    "pandas": lambda keys: pd.Series(keys, dtype="str"),
    "pandas nullable": lambda keys: pd.Series(keys, dtype="string"),
    "pandas in Python": lambda keys: pd.Series(keys, dtype=pd.StringDtype("python")),
    "pandas objects": lambda keys: pd.Series(keys, dtype="object"),
    "pandas arrow": lambda keys: pd.Series(keys, dtype=pd.ArrowDtype(pa.string())),
    "pandas categorical": lambda keys: pd.Series(keys, dtype="object").astype("category"),
}
OF_BYTES: dict[str, Make] = {
    "polars": lambda keys: pl.Series(keys, dtype=pl.Binary),
    "arrow": lambda keys: pa.array(keys, pa.binary()),
    "arrow large": lambda keys: pa.array(keys, pa.large_binary()),
    "arrow view": lambda keys: pa.array(keys, pa.binary_view()),
    "arrow dictionary": lambda keys: pa.array(keys, pa.binary()).dictionary_encode(),
    "pandas objects": lambda keys: pd.Series(keys, dtype="object"),
    "pandas arrow": lambda keys: pd.Series(keys, dtype=pd.ArrowDtype(pa.binary())),
}

LAYOUT = Layout(slots=64, partitions=8)
OWNERS = [Owner(f"member-{p % 3}", f"10.0.0.{p % 3}:80", p, 2**53 - p) for p in range(8)]


def plain(column: Any) -> list[Any]:
    """The values, with None for a missing one."""
    values = column.to_pylist() if isinstance(column, pa.Array | pa.ChunkedArray) else column.to_list()
    return [None if not isinstance(value, dict | list) and pd.isna(value) else value for value in values]


def one_by_one(keys: Sequence[Any], layout: Layout) -> list[int | None]:
    return [None if key is None else layout.partition(key) for key in keys]


@LAW
@given(TEXT_COLUMNS, LAYOUTS)
@example(
    [*("x" * length for length in range(70)), "", "\x00", "a\x00b", "Zoë", "😀", "\ufeff", "{a}b"], Layout(tags=True)
)
@example(["日本", "{}"], Layout(slots=SLOTS_MAX, partitions=SLOTS_MAX))
def test_texts_have_the_partitions_that_they_have_one_by_one(keys: list[str | None], layout: Layout) -> None:
    expected = one_by_one(keys, layout)
    for kind, make in OF_TEXTS.items():
        assert expected == plain(partitions_of(make(keys), layout)), kind
    frame = pl.LazyFrame({"key": pl.Series(keys, dtype=pl.String)})
    assert expected == frame.with_columns(at=partitions_of(pl.col("key"), layout)).collect()["at"].to_list()


@LAW
@given(BYTES_COLUMNS, LAYOUTS)
def test_bytes_have_the_partitions_that_they_have_one_by_one(keys: list[bytes | None], layout: Layout) -> None:
    expected = one_by_one(keys, layout)
    for kind, make in OF_BYTES.items():
        assert expected == plain(partitions_of(make(keys), layout)), kind


MISSING = [None, float("nan"), pd.NA, pd.NaT]


@pytest.mark.parametrize(
    ("column", "keys"),
    [
        (pa.array([b"a\x00{b}", b"12345", None], pa.binary(5)), [b"a\x00{b}", b"12345", None]),
        (pd.Series(["a", b"a", *MISSING], dtype="object"), ["a", b"a", *[None] * 4]),
        (pl.Series([None] * 2), [None] * 2),
        (pa.nulls(2), [None] * 2),
        (pd.Series([None] * 2, dtype="object"), [None] * 2),
        (pd.Series([None] * 2, dtype="category"), [None] * 2),
    ],
)
def test_bytes_of_one_length_mixed_objects_and_missing_keys_are_as_one_by_one(column: Any, keys: list[Any]) -> None:
    assert one_by_one(keys, LAYOUT) == plain(partitions_of(column, LAYOUT))


@pytest.mark.parametrize("kind", OF_TEXTS)
def test_the_answer_is_of_the_kind_of_the_column(kind: str) -> None:
    for keys in ([], ["a"], ["a", None]):
        column = OF_TEXTS[kind](keys)
        answer = partitions_of(column, LAYOUT)
        if isinstance(column, pd.Series):
            assert ("int64[pyarrow]" if kind == "pandas arrow" else "Int64") == str(answer.dtype)
        elif isinstance(column, pl.Series):
            assert (pl.Int64, column.name) == (answer.dtype, answer.name)
        else:
            assert (pa.int64(), isinstance(column, pa.Array)) == (answer.type, isinstance(answer, pa.Array))


def test_pandas_keeps_its_index_and_its_name_and_polars_a_name_that_it_would_search_by() -> None:
    router = Router.static(OWNERS, LAYOUT)
    column = pd.Series(["b", "a"], index=["second", "first"], name="customer")
    for answer in (partitions_of(column, LAYOUT), owners_of(column, router)):
        assert (["second", "first"], "customer") == (answer.index.to_list(), answer.name)
    assert ["second", "first"] == owners_of(column, router, whole=True).index.to_list()
    searched = pl.Series("^a|b$", ["b", "a"])
    assert ["^a|b$"] * 2 == [partitions_of(searched, LAYOUT).name, owners_of(searched, router).name]


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (["secret"], "found a list"),
        ("secret", "found a str"),
        (pl.DataFrame({"key": ["secret"]}), "found a DataFrame"),
        (pd.DataFrame({"key": ["secret"]}), "found a DataFrame"),
        (pa.table({"key": ["secret"]}), "found a Table"),
        (pl.Series([77]), "found a column of Int64"),
        (pl.Series([["secret"]]), "found a column of List"),
        (pa.array([77]), "found a column of int64"),
        (pa.chunked_array([[7.7]]), "found a column of double"),
        (pa.array([77]).dictionary_encode(), "found a column of int64"),
        (pd.Series([77]), "found a column of int64"),
        (pd.Series([77], dtype="int64[pyarrow]"), "found a column of int64"),
        (pd.Series([77], dtype="category"), "found a column of int64"),
        (pd.Series([77, "secret"], dtype="object"), "found a int"),
        (pd.Series(["secret", True], dtype="object"), "found a bool"),
        (pd.Series([bytearray(b"secret")], dtype="object"), "found a bytearray of length 6"),
        (pd.Series(["ok", "secret \ud800"], dtype="object"), "found a str of length 8 with a lone surrogate"),
        (pl.Series(["ok", "secret \ud800"], dtype=pl.Object), "found a str of length 8 with a lone surrogate"),
    ],
)
def test_no_column_of_keys_is_refused_and_shows_no_key(column: Any, found: str) -> None:
    for ask in (partitions_of, lambda keys, layout: owners_of(keys, Router.static(OWNERS, layout))):
        with pytest.raises(BadKey) as raised:
            ask(column, LAYOUT)
        assert found in str(raised.value)
        error: BaseException | None = raised.value
        while error is not None:  # The errors that caused it do not, either.
            assert "secret" not in repr(error.args)
            assert "77" not in repr(error.args)
            error = error.__cause__ or error.__context__


def test_owners_are_not_named_in_an_expression_that_is_evaluated_later() -> None:
    with pytest.raises(BadKey, match="found an expression"):
        owners_of(pl.col("key"), Router.static(OWNERS, LAYOUT))


KEYS = ["customer-7", None, "", "Zoë", "a", "b", "c", "d", "e", "f"]


@pytest.mark.parametrize("kind", OF_TEXTS)
def test_owners_are_those_that_the_router_names(kind: str) -> None:
    router = Router.static(OWNERS, LAYOUT)
    expected = [None if key is None else router.owner(key) for key in KEYS]
    column = OF_TEXTS[kind](KEYS)
    assert [owner and owner.name for owner in expected] == plain(owners_of(column, router))
    whole = owners_of(column, router, whole=True)
    if isinstance(whole, pd.DataFrame):
        assert [owner or (None,) * 4 for owner in expected] == [*zip(*(plain(whole[it]) for it in whole), strict=True)]
        assert Owner._fields == (*whole,)
    else:
        assert [owner and owner._asdict() for owner in expected] == plain(whole)


@pytest.mark.parametrize(
    ("kind", "encoded"), [("polars", "Categorical"), ("arrow", "dictionary<values=string"), ("pandas", "category")]
)
def test_names_of_owners_are_encoded_and_one_without_an_owner_matters_only_to_its_keys(kind: str, encoded: str) -> None:
    hole = LAYOUT.partition("customer-7")
    router = Router.static([None if owner.partition == hole else owner for owner in OWNERS], LAYOUT)
    others = [key for key in KEYS if key is None or LAYOUT.partition(key) != hole]
    names = owners_of(OF_TEXTS[kind](others), router)
    assert [None if key is None else router.owner(key).name for key in others] == plain(names)
    assert str(names.type if kind == "arrow" else names.dtype).startswith(encoded)
    with pytest.raises(NoOwner, match=f"partition {hole} of a static table"):
        owners_of(OF_TEXTS[kind](KEYS), router)


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys({missing}))
from neli_router.router.columns import partitions_of
from neli_router.core.keyspace import Layout
import {package}
print(partitions_of({column}, Layout()).to_list())
"""


@pytest.mark.parametrize(
    ("column", "missing", "said"),
    [
        ("pandas.Series({}, dtype=object)", ["polars", "polars_hash", "pyarrow"], "[150, <NA>]\n"),
        ("polars.Series({})", ["pandas", "pyarrow"], "[150, None]\n"),
    ],
)
def test_objects_in_pandas_need_no_polars_and_vice_versa(column: str, missing: list[str], said: str) -> None:
    code = WITHOUT.format(package=column[:6], column=column.format(["customer-7", None]), missing=missing)
    assert said == subprocess.check_output([sys.executable, "-c", code], text=True, timeout=PATIENCE)


@pytest.mark.parametrize("ask", [partitions_of, LoadProfile.of_columns])
@pytest.mark.parametrize("missing", ["polars", "polars_hash"])
def test_a_missing_package_is_named_with_its_extra(ask: Any, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(NeliError, match=rf"{missing} was wanted, for .*'\.\[columns\]'"):
        ask(pa.array(["a"]), Layout())
