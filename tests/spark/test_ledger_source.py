"""The ledger as a table and as a stream, in a real Spark, over real ledgers.

The ledgers here are written by a story: records that mostly have an effect, of members who never lived. Spark's rows
are compared with those of `status/history.py`, which has its own tests.
"""

import json
import operator
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Self
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from neli_router.drivers.ledgers.base import Ledger
from neli_router.drivers.ledgers.sqlite.ledger import SqliteLedger
from neli_router.drivers.open import open_ledger
from neli_router.errors import ConfigError, LedgerMissing, LedgerRewound, LedgerTrimmed
from neli_router.protocols.induction.fold import State, fold
from neli_router.protocols.induction.records import Drain, Handover, Record, encode
from neli_router.spark import ledger_source, register_ledgers
from neli_router.spark.ledger_source import LedgerScan, LedgerSource, StreamPlace
from neli_router.status.history import record_rows, standing_rows, tenure_rows
from neli_router.status.replay import between, state_before
from tests.support.records import BASE, beat, genesis, join, next_record
from tests.support.servers.spark import begun
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.spark

COUNT = 1200
TASK = 300
SNAPSHOT_EVERY = 100

KINDS = (*["join"] * 4, *["handover"] * 4, *["undrain"] * 2, "expire", "leave", "drain", "pin", "unpin", "load", "junk")

SECRET = "hunter2"  # noqa: S105 - the password that must never be shown.


def story(state: State, count: int, *, seed: int, base: int) -> Iterator[Record | None]:
    """Records that follow `state`: mostly heartbeats, with a snapshot now and then."""
    rng = Random(seed)
    for place in range(count):
        seated = list(state.seats)
        plot = (rng.choice(KINDS), rng.randrange(8), rng.randrange(8), rng.randrange(4))
        if state.genesis is None:
            record: Record | None = replace(genesis(), base=base)
        elif place % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1:
            record = next_record(state, ("snapshot", 0, 0, 1))
        elif seated and rng.random() < 0.8:
            record = beat(rng.choice(seated), state, sent_at=float(place))
        elif plot[0] == "join":
            # A new incarnation: a departed one never comes back.
            record = join(f"{seed}-{place}", rng.choice("vwxyz"), at=state.at, address=f"host:{place}")
        else:
            record = next_record(state, plot)
        yield record
        state = fold(state, state.at, record)


def write(ledger: Ledger, count: int, *, state: State | None = None, seed: int = 1, base: int = BASE) -> State:
    """Append a story, and return the state after it."""
    state = State(at=ledger.tip()) if state is None else state
    records = list(story(state, count, seed=seed, base=base))
    ledger.append([b"junk" if record is None else encode(record) for record in records])
    for record in records:
        state = fold(state, state.at, record)
    while ledger.tip() < state.at:
        ledger.read(0.1)
    return state


def trim(ledger: Ledger, before: int) -> None:
    while ledger.start() < before:
        ledger.trim(before)


@pytest.fixture(scope="module")
def story_told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that each test copies."""
    path = tmp_path_factory.mktemp("story") / "jobs.db"
    with closing(SqliteLedger(path)) as ledger:
        write(ledger, COUNT)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def address(path: Path, story_told: Path) -> str:
    """The address of a ledger with a story. A test that also wants the ledger names that fixture after this one."""
    shutil.copy(story_told, path)
    return f"sqlite:{path}"


@pytest.fixture
def ledger(path: Path) -> Iterator[SqliteLedger]:
    with closing(SqliteLedger(path)) as ledger:
        yield ledger


def table(spark: SparkSession, address: str, **options: object) -> DataFrame:
    return spark.read.format("neli").options(ledger=address, **{key: str(it) for key, it in options.items()}).load()


def collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Sorted: by offset, and tenures by partition."""
    return sorted((tuple(row) for row in frame.collect()), key=lambda row: (row[0], row[3] if len(row) == 11 else 0))


def spoken(rows: list[Any]) -> list[tuple[Any, ...]]:
    """In the form of Spark's rows in Python."""
    return [
        tuple(row._replace(time=row.time and datetime.fromtimestamp(row.time, UTC).replace(tzinfo=None)))
        for row in rows
    ]


def expected_records(ledger: Ledger, start: int | None = None, end: int | None = None) -> list[tuple[Any, ...]]:
    start = ledger.start() if start is None else start
    state = state_before(ledger, start)
    return spoken(list(record_rows(between(ledger, start, end or ledger.tip()), state)))


def expected_tenures(ledger: Ledger, start: int | None = None) -> list[tuple[Any, ...]]:
    start = ledger.start() if start is None else start
    state = state_before(ledger, start)
    rows = [*standing_rows(state), *tenure_rows(between(ledger, start, ledger.tip()), state)]
    return sorted(spoken(rows), key=lambda row: (row[0], row[3]))


def scan_of(address: str, **options: object) -> LedgerScan:
    source = LedgerSource({"ledger": address, **{key: str(value) for key, value in options.items()}})
    return source.reader(source.schema())


def scanned(scan: LedgerScan) -> list[dict[str, Any]]:
    return read(scan, scan.partitions())


def read(reader: Any, parts: Sequence[Any]) -> list[dict[str, Any]]:
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def valued(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows]


@pytest.mark.parametrize(
    "kind", ["sqlite", pytest.param("kafka", marks=pytest.mark.kafka), pytest.param("redis", marks=pytest.mark.redis)]
)
def test_a_ledger_is_a_table_of_its_records_and_of_its_tenures(
    spark: SparkSession, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    places: dict[str, Callable[[], str]] = {
        "sqlite": lambda: f"sqlite:{tmp_path}/jobs.db",
        "kafka": lambda: f"kafka://{request.getfixturevalue('kafka')}/spark-{uuid4().hex}",
        "redis": lambda: f"{request.getfixturevalue('redis')}/spark-{uuid4().hex}",
    }
    address = places[kind]()
    with closing(open_ledger(address, create=True, patience=PATIENCE)) as ledger:
        write(ledger, COUNT)
        tip = ledger.tip()
        records = table(spark, address, records_per_task=TASK)
        assert COUNT // TASK == records.rdd.getNumPartitions()
        assert expected_records(ledger) == collected(records)
        assert expected_tenures(ledger) == collected(table(spark, address, view="tenures", records_per_task=TASK))
        assert {kind == "kafka"} == {row[1] is not None for row in expected_records(ledger)}
        some = records.where("offset >= 500 and offset < 700 and kind <> 'beat'")
        assert 1 == some.rdd.getNumPartitions(), "a filter on offsets spares the other tasks"
        rows = [row for row in expected_records(ledger, 500, 700) if row[2] != "beat"]
        assert rows == collected(some)
        assert rows
        assert tip == ledger.tip(), "a reader appends nothing"


def test_the_owners_of_now_and_a_range_of_offsets_can_be_asked_for(address: str, ledger: SqliteLedger) -> None:
    state = state_before(ledger, ledger.tip())
    assert state is not None
    owners = sorted(scanned(scan_of(address, view="tenures", start="latest")), key=lambda row: int(row["partition"]))
    wanted = [
        (partition, owner, term)
        for partition, (owner, term) in enumerate(zip(state.owners, state.terms, strict=True))
        if owner is not None
    ]
    assert wanted == [(row["partition"], row["incarnation"], row["term"]) for row in owners]
    assert wanted
    assert expected_records(ledger, 777, 801) == valued(scanned(scan_of(address, start=777, end=801)))
    assert COUNT == len(scanned(scan_of(address, start=0))), "a ledger that counts from one has no gap at zero"


def test_a_record_of_no_sane_member_stops_no_reader(spark: SparkSession, path: Path, ledger: SqliteLedger) -> None:
    odd = Handover(by="\\'\"\U0001f980" * 8, terms={2**53 - 1: 2**53 - 1})
    foul = [encode(Drain(by="\0\u2028", name="a")), encode(beat("a", sent_at=1e300)), b"\xff\0{", b""]
    ledger.append([encode(genesis()), encode(odd), encode(beat("é", sent_at=1e12)), *foul])
    rows = collected(table(spark, f"sqlite:{path}"))
    assert [None, 2**53 - 1, *[None] * 5] == [row[8] for row in rows]
    assert ["genesis", "handover", "beat", *["unreadable"] * 4] == [row[2] for row in rows]
    assert "\\xff\0{" == rows[5][-1]
    # A clock gone wrong does not stop it, either.
    times = {None: None, 0.0: 0, 1.5: 1_500_000, -1.0: None, 2.0**62: None}
    assert times == {time: ledger_source._microseconds(time) for time in times}


def test_an_empty_ledger_is_an_empty_table(tmp_path: Path, path: Path, ledger: SqliteLedger) -> None:
    for view in ("records", "tenures"):
        assert [] == scanned(scan_of(f"sqlite:{path}", view=view))
    with pytest.raises(LedgerMissing):
        scan_of(f"sqlite:{tmp_path}/none.db").partitions()
    assert not (tmp_path / "none.db").exists()
    with Run(f"sqlite:{path}", view="tenures") as run:  # A stream may begin before its group.
        assert [] == run.all().rows
        write(ledger, 100)
        assert expected_tenures(ledger) == valued(run.all().rows)


# Filters, without Spark: whichever filters it pushes down, no row is lost


numbers = st.integers(0, 130)
kinds = st.sampled_from(["beat", "join", "handover", "unreadable", "pin", "nothing"])
comparisons: dict[type[Filter], Callable[[Any, Any], Any]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, values: value in values,
}
filters: st.SearchStrategy[list[Filter]] = st.lists(
    st.one_of(
        *(st.builds(kind, st.just(("offset",)), numbers) for kind in comparisons if kind is not In),
        st.builds(In, st.just(("offset",)), st.lists(numbers, max_size=3).map(tuple)),
        st.builds(EqualTo, st.just(("kind",)), kinds),
        st.builds(In, st.just(("kind",)), st.lists(kinds, max_size=3).map(tuple)),
        st.builds(Not, st.builds(EqualTo, st.just(("kind",)), kinds)),
        st.builds(IsNotNull, st.just(("offset",))),
        st.builds(EqualTo, st.just(("term",)), numbers.map(BASE.__add__)),
    ),
    max_size=4,
)


def holds(one: Any, row: dict[str, Any]) -> bool:
    if isinstance(one, Not):
        return not holds(one.child, row)
    if isinstance(one, IsNotNull):
        return True
    (name,) = one.attribute
    return bool(comparisons[type(one)](row[name], one.value))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(filters)
@pytest.mark.parametrize("view", ["records", "tenures"])
def test_no_filter_loses_a_row(address: str, view: str, drawn: list[Filter]) -> None:
    plain = scan_of(address, end=120, records_per_task=17, view=view)
    scan = scan_of(address, end=120, records_per_task=17, view=view)
    assert drawn == list(scan.pushFilters(drawn)), "Spark applies them all again"
    assert [row for row in scanned(plain) if all(holds(one, row) for one in drawn)] == [
        row for row in scanned(scan) if all(holds(one, row) for one in drawn)
    ]


def test_a_range_that_was_dropped_is_named_also_if_that_was_after_the_plan(address: str, ledger: SqliteLedger) -> None:
    scan = scan_of(address, records_per_task=TASK)
    parts = scan.partitions()
    ledger.trim(400)
    gap = f"the records of {re.escape(address)} from offset 7 on were wanted, but those below 400 are gone"
    with pytest.raises(LedgerTrimmed, match=gap):
        scan_of(address, start=7).partitions()
    with pytest.warns(RuntimeWarning, match=gap):
        assert expected_records(ledger) == valued(scanned(scan_of(address, start=7, on_gap="warn")))
    assert expected_records(ledger) == valued(scanned(scan_of(address))), "without a start it is what is left"
    with pytest.raises(LedgerTrimmed, match="from offset 1 on were wanted"):
        read(scan, parts[:1])
    warned = scan_of(address, records_per_task=TASK, on_gap="warn")
    with pytest.warns(RuntimeWarning):
        assert [] == read(warned, parts[:1])
    with pytest.warns(RuntimeWarning):
        rows = read(warned, parts[1:2])
    assert list(range(400, 601)) == [row["offset"] for row in rows]
    assert [row[3] for row in expected_records(ledger, 400, 601)] == [row["member"] for row in rows]


def test_tenures_that_no_snapshot_left_tells_of_are_a_gap(tmp_path: Path, address: str, ledger: SqliteLedger) -> None:
    ledger.trim(150)  # The next snapshot stands at 200 and covers what is below.
    scan = scan_of(address, view="tenures")
    assert 200 == scan.partitions()[0].start
    assert expected_tenures(ledger, 200) == sorted(valued(scanned(scan)), key=lambda row: (row[0], row[3]))
    with pytest.raises(LedgerTrimmed, match=r"from offset 160 on were wanted, but .* below 200 are gone"):
        scan_of(address, view="tenures", start=160).partitions()

    with closing(SqliteLedger(tmp_path / "other.db")) as without_snapshot:
        without_snapshot.append([encode(genesis()), encode(join("a")), *[encode(beat("a"))] * 8])
        without_snapshot.trim(5)
    with pytest.raises(LedgerTrimmed, match=r"from offset 5 on were wanted, but .* below 11 are gone"):
        scan_of(f"sqlite:{tmp_path}/other.db", view="tenures").partitions()
    with pytest.warns(RuntimeWarning):
        assert [] == scanned(scan_of(f"sqlite:{tmp_path}/other.db", view="tenures", on_gap="warn"))


def test_a_ledger_made_anew_while_it_is_read_is_refused(path: Path, address: str, ledger: SqliteLedger) -> None:
    ledger.trim(400)
    scan = scan_of(address, records_per_task=TASK)
    parts = scan.partitions()
    ledger.close()
    with closing(made_anew(path)) as other:
        write(other, 2 * COUNT, base=BASE + 5)
        with pytest.raises(LedgerRewound, match="recreated while it was read"):
            read(scan, parts[-1:])


def made_anew(path: Path) -> SqliteLedger:
    for name in path.parent.glob(f"{path.name}*"):
        name.unlink()
    return SqliteLedger(path)


def test_a_stream_goes_on_where_it_ended_and_reads_a_batch_that_was_cut_short_again(
    spark: SparkSession, tmp_path: Path, address: str, ledger: SqliteLedger
) -> None:
    batches: dict[int, list[tuple[Any, ...]]] = {}
    options = {"ledger": address, "records_per_batch": "500", "records_per_task": "200"}

    def take(batch: DataFrame, number: int) -> None:
        batches[number] = collected(batch)

    def run() -> list[int]:
        """Read everything that is there now."""
        stream = spark.readStream.format("neli").options(**options).load()
        writing = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        begun(lambda: writing.trigger(availableNow=True).start().awaitTermination())
        return sorted(batches)

    assert [0, 1, 2] == run()
    for name in ("2", ".2.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    last = batches.pop(2)
    write(ledger, 300, state=state_before(ledger, ledger.tip()), seed=2)
    assert [0, 1, 2, 3] == run()
    assert last == batches[2]
    assert expected_records(ledger) == [row for number in sorted(batches) for row in batches[number]]


# Streams, without Spark: the calls that it makes, in its order


class Run:
    """One run of a query, from the place in its checkpoint."""

    def __init__(self, address: str, checkpoint: str = "", **options: object) -> None:
        source = LedgerSource({"ledger": address, **{key: str(value) for key, value in options.items()}})
        self._stream = source.streamReader(source.schema())
        self.checkpoint = checkpoint or json.dumps(self._stream.initialOffset())
        self.rows: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.stop()

    def turn(self) -> bool:
        """Take one batch; False if there is none."""
        start = json.loads(self.checkpoint)
        end = self._stream.latestOffset(start, self._stream.getDefaultReadLimit())
        if end == start:
            return False
        self.rows += read(self._stream, self._stream.partitions(start, json.loads(json.dumps(end))))
        self.checkpoint = json.dumps(end)
        return True

    def all(self) -> "Run":
        while self.turn():
            pass
        return self


def test_batches_have_the_size_asked_for_and_their_cut_does_not_matter(address: str, ledger: SqliteLedger) -> None:
    with Run(address, records_per_batch=171, records_per_task=50) as run:
        assert [171, 342] == [len(run.rows) for _ in range(2) if run.turn()]
    with Run(address, run.checkpoint, records_per_batch=333, records_per_task=77) as later:
        rows = [*run.rows, *later.all().rows]
    assert expected_records(ledger) == valued(rows)


def test_a_run_that_takes_what_there_is_now_ends_although_more_comes(address: str, ledger: SqliteLedger) -> None:
    with Run(address, records_per_batch=500) as run:
        run._stream.prepareForTriggerAvailableNow()
        write(ledger, 300, state=state_before(ledger, ledger.tip()), seed=2)
        assert COUNT == len(run.all().rows)
        assert {"offset": COUNT + 301} == run._stream.reportLatestOffset()


def test_a_first_batch_that_was_cut_short_is_read_again_from_where_it_began(address: str, ledger: SqliteLedger) -> None:
    state = state_before(ledger, ledger.tip())
    for seed, view in enumerate(("records", "tenures"), start=2):
        with Run(address, view=view, start="latest") as run:
            state = write(ledger, 50, state=state, seed=seed)
            run.turn()
        with Run(address, view=view, start="latest") as later:
            parts = later._stream.partitions(later._stream.initialOffset(), json.loads(run.checkpoint))
            assert [] != run.rows == read(later._stream, parts)


def test_tenures_that_stand_are_told_once_also_when_no_record_follows(address: str, ledger: SqliteLedger) -> None:
    with Run(address, view="tenures", start=500, records_per_batch=100) as run:
        run.turn()
    with Run(address, run.checkpoint, view="tenures") as later:
        rows = [*run.rows, *later.all().rows]
    assert expected_tenures(ledger, 500) == sorted(valued(rows), key=lambda row: (row[0], row[3]))
    with Run(address, view="tenures", start="latest") as run:
        assert [True, False] == [run.turn(), run.turn()]
    assert len(list(standing_rows(state_before(ledger, ledger.tip())))) == len(run.rows) > 0


def test_a_stream_stops_when_its_ledger_is_made_anew(path: Path, address: str, ledger: SqliteLedger) -> None:
    with Run(address) as run:
        checkpoint = run.all().checkpoint
        ledger.close()
        with closing(made_anew(path)) as other:
            with pytest.raises(LedgerRewound):
                run.turn()
            write(other, COUNT // 2)
            with Run(address, checkpoint) as later, pytest.raises(LedgerRewound, match=f"ends at {COUNT // 2 + 1}"):
                later.turn()
    with closing(made_anew(path)) as other:
        write(other, 2 * COUNT, base=BASE + 5)
        with Run(address, checkpoint) as later, pytest.raises(LedgerRewound, match="differs from the one that"):
            later.turn()
        trim(other, COUNT + 200)  # So that even the last record read cannot be compared.
        refused = pytest.raises(LedgerRewound, match=f"its genesis has the base {BASE + 5}, and that of the ledger")
        with Run(address, checkpoint, on_gap="warn") as run, refused:
            run.turn()


def test_a_batch_that_turns_out_to_be_another_one_than_the_checkpoint_says_stops_the_query(address: str) -> None:
    with Run(address, records_per_batch=500) as run:
        run.turn()
        start = json.loads(run.checkpoint)
        run.turn()
        end = json.loads(run.checkpoint)
    with Run(address, json.dumps(start)) as later:
        assert later._stream.partitions(start, end)
        with pytest.raises(LedgerRewound, match="the records up to 1001 differ from those of the checkpoint"):
            later._stream.partitions(start, {**end, "mark": "0" * 16})
        assert [] == later._stream.partitions(end, end)


def test_a_stream_whose_next_records_are_gone_stops_or_goes_on(address: str, ledger: SqliteLedger) -> None:
    with Run(address) as run:
        checkpoint = run.all().checkpoint
    state = write(ledger, 600, state=state_before(ledger, ledger.tip()), seed=2)
    write(ledger, 600, state=state, seed=3)
    trim(ledger, COUNT + 300)
    with Run(address, checkpoint) as run, pytest.raises(LedgerTrimmed, match=f"from offset {COUNT + 1} on were wanted"):
        run.turn()
    with Run(address, checkpoint, on_gap="warn", records_per_task=200) as run, pytest.warns(RuntimeWarning):
        run.all()
    assert expected_records(ledger) == valued(run.rows)
    with pytest.raises(LedgerTrimmed, match="from offset 7 on were wanted"):
        Run(address, start=7)
    with pytest.warns(RuntimeWarning):
        assert COUNT + 300 == json.loads(Run(address, start=7, on_gap="warn").checkpoint)["offset"]


@pytest.mark.kafka
def test_no_plan_page_or_checkpoint_shows_a_password(
    spark: SparkSession, kafka: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"kafka://{kafka}/spark-{uuid4().hex}?sasl.username=alice&sasl.password={SECRET}"
    with closing(open_ledger(address, create=True, patience=PATIENCE)) as ledger:
        write(ledger, 100)
    register_ledgers(spark, ledgers={"jobs": address})
    frame = table(spark, "jobs").where("offset > 3")
    assert 96 == frame.count()
    frame.explain(True)
    spark.readStream.format("neli").option("ledger", "jobs").load().explain(True)
    with pytest.raises(PySparkException) as raised:
        table(spark, "jobs", start=10**6).count()
    writing = spark.readStream.format("neli").option("ledger", "jobs").load().writeStream.format("noop")
    writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    begun(lambda: writing.start().awaitTermination())
    told = [capsys.readouterr().out, str(raised.value), *pages(spark)]
    files = [file.read_bytes().decode(errors="replace") for file in tmp_path.rglob("*") if file.is_file()]
    assert "BatchScan neli" in told[0]
    assert "StreamingRelation" in told[0]
    assert "start=1000000 is above the ledger's end" in told[1]
    assert files
    assert [] == [text for text in [*told, *files] if SECRET in text]


def pages(spark: SparkSession) -> list[str]:
    """Everything that Spark's SQL page would show of the queries so far."""
    executions = spark._jsparkSession.sharedState().statusStore().executionsList()
    each = [executions.apply(place) for place in range(executions.size())]
    texts = [one.physicalPlanDescription() + one.details() + one.description() for one in each]
    assert any("neli" in text for text in texts)
    return texts


def test_a_password_is_refused_as_an_option_and_shown_in_no_error_and_no_repr(spark: SparkSession) -> None:
    secret = f"kafka://alice:{SECRET}@localhost:9092/jobs"
    for address in (secret, f"redis://:{SECRET}@localhost/jobs", f"kafka://localhost/jobs?sasl.password={SECRET}"):
        with pytest.raises(ConfigError, match="has a password or a user, and Spark shows options") as raised:
            LedgerSource({"ledger": address})
        assert SECRET not in str(raised.value)
    source = type("Named", (LedgerSource,), {"ledgers": {"jobs": secret}})
    wanted = source({"ledger": "jobs"}).wanted
    assert SECRET in wanted.ledger
    assert SECRET not in repr(wanted)
    # A name is checked when it is registered.
    with pytest.raises(ConfigError, match=r"jobs: .*a group was wanted after the brokers") as raised:
        register_ledgers(spark, ledgers={"jobs": secret.removesuffix("jobs")})
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "no ledger is named"),
        ({"ledger": "jobs"}, "does not say what kind of ledger it is"),
        ({"ledger": "memory://jobs"}, "lives in the memory of one process"),
        ({"ledger": "sqlite:jobs.db"}, "names a file from the working folder, and Spark's processes have others"),
        ({"ledger": "sqlite:/jobs.db", "veiw": "tenures"}, "veiw is not a known option: did you mean view?"),
        ({"ledger": "sqlite:/jobs.db", "view": "moves"}, "view='moves' must be records or tenures"),
        ({"ledger": "sqlite:/jobs.db", "start": "-1"}, "start='-1' must be earliest, latest or an offset"),
        ({"ledger": "sqlite:/jobs.db", "end": "9" * 17}, "must be earliest, latest or an offset"),
        ({"ledger": "sqlite:/jobs.db", "on_gap": "skip"}, "on_gap='skip' must be error or warn"),
        ({"ledger": "sqlite:/jobs.db", "records_per_task": "0"}, "records_per_task='0' must be a number of records"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        LedgerSource(options)


def test_all_problems_are_named_and_other_columns_or_ends_refused(spark: SparkSession, address: str) -> None:
    with pytest.raises(AnalysisException) as raised:
        table(spark, "memory://jobs", view="moves", on_gap="skip")
    for part in ("memory://jobs", "view='moves'", "on_gap='skip'"):
        assert part in str(raised.value)
    with pytest.raises(PySparkException, match="has columns of its own"):
        spark.read.format("neli").option("ledger", address).schema("offset LONG").load().count()
    with pytest.raises(ConfigError, match="end=1202 is above the ledger's end, which is 1201 now"):
        scan_of(address, end=COUNT + 2).partitions()
    source = LedgerSource({"ledger": address, "end": "9"})
    with pytest.raises(ConfigError, match="a stream has no end"):
        source.streamReader(source.schema())


def test_options_may_be_written_in_capitals_and_a_name_that_is_not_registered_has_a_nearest() -> None:
    wanted = LedgerSource({"Ledger": "sqlite:/Jobs.db", "VIEW": "Tenures", "Records_Per_Task": "7"}).wanted
    assert ("sqlite:/Jobs.db", "tenures", 7) == (wanted.ledger, wanted.view, wanted.range_max)
    source = type("Named", (LedgerSource,), {"ledgers": {"prices": "sqlite:/prices.db"}})
    with pytest.raises(ConfigError, match=r"did you mean prices\?"):
        source({"ledger": "price"})
    with pytest.raises(ConfigError, match="the checkpoint has the fields offset, seen, which this release does not"):
        StreamPlace.of({"offset": 1, "seen": 2})
