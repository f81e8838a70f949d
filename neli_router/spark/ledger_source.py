"""The ledger as a table: a data source of Spark, in Python, over any ledger that other processes can reach.

    register_ledgers(spark)
    spark.read.format("neli").option("ledger", "kafka://host:9092/jobs").load()              one row per record
    spark.read.format("neli").option("ledger", ...).option("view", "tenures").load()         one row per tenure
    spark.readStream.format("neli").option("ledger", ...).load()                             the same, without end

    driver     LedgerScan --plans--> OffsetRange [0, 50000)  [50000, 100000)  ...
    executors     each range alone: open the ledger, find the fold's state below it, read, fold --> rows

Spark needs nothing else: no jar, no connector, and the same options for Kafka, Redis and SQLite. `status/history.py`
says what the rows mean. A scan appends nothing and joins nothing, so the group does not notice it.

**Streams.** A ledger is totally ordered, so a stream's offset is one number, and a batch is a range. The driver folds
along, and passes each range the state at its beginning. A checkpoint holds the place, and how to recognize the ledger:
the `base` of its genesis, and the hash of the last record read. So a restart goes on exactly where the last batch
ended. A ledger that lost records, was recreated, or is a different one is refused, even if it is longer by now. While
the query runs, the driver's handle detects the same.

    StreamPlace(offset, base, last, mark, ...) --restart--> the record at `last` has this mark, the genesis this base?
                                                            yes: read on   no: LedgerRewound   gone: the base decides

**Gaps.** Members drop old records. If a record is gone when it is to be read, that is an error, which names the missing
range; with `on_gap=warn` it is a warning, and the table goes on with what is left. `start=earliest` reads what is
there, and so begins without a gap.

**Secrets.** Spark shows the options of a stream unchanged in its plans. So an address with a password is refused as an
option, before there is a plan. Give it a name instead, `register_ledgers(spark, ledgers={"jobs": address})`, and write
`option("ledger", "jobs")`. Addresses travel to the executors inside pickled objects, which no plan, page or log shows;
the checkpoint contains no address.
"""

import hashlib
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, ClassVar, get_args, get_type_hints

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from neli_router.drivers.addresses import problems_of, public_address, unknown
from neli_router.drivers.ledgers.base import Entry, Ledger
from neli_router.drivers.open import open_ledger
from neli_router.errors import ConfigError, LedgerRewound, LedgerTrimmed
from neli_router.status.history import RecordRow, TenureRow, record_rows, standing_rows, tenure_rows
from neli_router.status.replay import State, between, patiently, replayed, state_before, tip_above

__all__ = ["LedgerScan", "LedgerSource", "LedgerStream", "OffsetRange", "StreamPlace", "Wanted", "register_ledgers"]

FORMAT = "neli"

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Without it, Spark refuses a Python data source that can take filters."""

TYPES: Mapping[object, DataType] = {
    bool: BooleanType(),
    int: LongType(),
    float: DoubleType(),
    str: StringType(),
    list[int]: ArrayType(IntegerType()),
}


def _schema(row: type[RecordRow | TenureRow]) -> StructType:
    """The fields of a row, each of which may be missing."""
    schema = StructType()
    for name, hint in get_type_hints(row).items():
        kind = next(one for one in (hint, *get_args(hint)) if one in TYPES)
        schema.add(name, TimestampType() if name == "time" else TYPES[kind])
    return schema


VIEWS = {"records": _schema(RecordRow), "tenures": _schema(TenureRow)}

EARLIEST, LATEST = "earliest", "latest"

RANGE_MAX = 50_000
"""Records in one task. More records waste less on finding the state at its beginning, which reads some 10,000; fewer
let more executors help."""

BATCH_MAX = 100_000
"""Records in one batch of a stream. More records catch up faster; fewer lose less work when a batch fails."""

ROWS_MAX = 10_000
"""Rows handed to Spark in one piece: a bound for the memory of a task."""

OPEN_PATIENCE = 1.0
"""Seconds that a record may wait for a broker. Nothing is appended here."""

SECONDS_MAX = 253_402_300_799
"""The end of the year 9999, the last that Spark's timestamps support in Python."""

_OPTIONS = ("end", "ledger", "on_gap", "records_per_batch", "records_per_task", "start", "view")


def register_ledgers(spark: SparkSession, *, ledgers: Mapping[str, str] | None = None) -> None:
    """Let `spark` read ledgers with `format("neli")`. Calling it twice is fine: the last `ledgers` count.

    `ledgers` maps names to addresses, for `option("ledger", NAME)`: the only way for an address with a password. Raises
    ConfigError if one of them is not the address of a ledger that Spark can read.
    """
    named = dict(ledgers or {})
    if problems := [f"{name}: {problem}" for name, address in named.items() for problem in _problems(address)]:
        raise ConfigError(problems)

    # A class of its own, because Spark makes the source from nothing but a class and its options: a value that must not
    # be an option can only be an attribute of the class.
    class Registered(LedgerSource):
        ledgers = named

    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(Registered)


@dataclass(frozen=True)
class Wanted:
    """The options, checked."""

    ledger: str = field(repr=False)
    """The ledger's address, perhaps with a password."""
    view: str
    start: str | int
    end: str | int
    warns: bool
    """Whether a gap is a warning."""
    range_max: int
    batch_max: int

    @property
    def schema(self) -> StructType:
        return VIEWS[self.view]

    def opened(self) -> Ledger:
        """A handle of the ledger, which the caller closes. Raises LedgerError."""
        return patiently(lambda: open_ledger(self.ledger, create=False, patience=OPEN_PATIENCE))

    def gap(self, wanted: int, there: int) -> None:
        """The records from `wanted` up to but not including `there` are gone: raise LedgerTrimmed, or warn."""
        error = LedgerTrimmed(
            f"the records of {public_address(self.ledger)} from offset {wanted} on were wanted",
            f"those below {there} are gone: the group dropped them",
            "read from `earliest` on, or set on_gap to `warn` to go on with what is left; a stream that keeps up, or "
            "a larger snapshot_every, loses none",
        )
        if not self.warns:
            raise error
        warnings.warn(str(error), RuntimeWarning, stacklevel=2)


class LedgerSource(DataSource):
    """The format `neli`; see `register_ledgers`."""

    ledgers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, options: Mapping[str, str]) -> None:
        self.wanted = _wanted(options, self.ledgers)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return self.wanted.schema

    def reader(self, schema: StructType) -> "LedgerScan":
        self._require(schema)
        return LedgerScan(self.wanted)

    def streamReader(self, schema: StructType) -> "LedgerStream":  # noqa: N802 - Spark's name, here and below.
        self._require(schema)
        if self.wanted.end != LATEST:
            raise ConfigError([f"end={self.wanted.end} is for spark.read: a stream has no end; stop the query instead"])
        return LedgerStream(self.wanted)

    def _require(self, schema: StructType) -> None:
        if schema != self.wanted.schema:
            raise ConfigError([f"the view {self.wanted.view} has columns of its own: leave .schema(...) out"])


class OffsetRange(InputPartition):
    """The records of one task: from `start` up to but not including `end`."""

    def __init__(self, start: int, end: int, *, base: int | None, state: State | None, standing: bool) -> None:
        self.start, self.end = start, end
        self.base = base
        """The base of the ledger's genesis, if it is known."""
        self.state = state
        """The state at `start`; None if the task must find it."""
        self.standing = standing
        """Whether the tenures that had begun before `start` belong to this range."""

    def __repr__(self) -> str:
        return f"OffsetRange({self.start}, {self.end})"


class LedgerScan(DataSourceReader):
    """One scan. Filters on `offset` narrow the range; filters on `kind` drop rows before Spark sees them."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._low, self._high = 0, 2**63
        self._kinds: Collection[str] | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for one in filters:
            match one:
                case EqualTo(("offset",), int(value)) | EqualNullSafe(("offset",), int(value)):
                    self._narrow(value, value + 1)
                case GreaterThan(("offset",), int(value)):
                    self._narrow(value + 1, self._high)
                case GreaterThanOrEqual(("offset",), int(value)):
                    self._narrow(value, self._high)
                case LessThan(("offset",), int(value)):
                    self._narrow(self._low, value)
                case LessThanOrEqual(("offset",), int(value)):
                    self._narrow(self._low, value + 1)
                case In(("offset",), values) if values and all(isinstance(value, int) for value in values):
                    self._narrow(min(values), max(values) + 1)
                case EqualTo(("kind",), str(value)):
                    self._keep({value})
                case In(("kind",), values):
                    self._keep({value for value in values if isinstance(value, str)})
                case _:
                    pass
        return filters  # Spark applies them all again, so ours may be coarse.

    def _narrow(self, low: int, high: int) -> None:
        self._low, self._high = max(self._low, low), min(self._high, high)

    def _keep(self, kinds: Collection[str]) -> None:
        self._kinds = set(kinds) if self._kinds is None else set(kinds) & set(self._kinds)

    def partitions(self) -> list[OffsetRange]:
        wanted = self._wanted
        with closing(wanted.opened()) as ledger:
            first, tip = patiently(ledger.start), patiently(ledger.tip)
            end = _resolved("end", wanted.end, first, tip)
            start, state = _beginning(ledger, wanted, first, tip, self._low)
        end = max(start, min(end, self._high))
        # At least one range, even an empty one: tenures may stand at its beginning.
        return [
            OffsetRange(
                at,
                min(end, at + wanted.range_max),
                base=_base_of(state),
                state=state if at == start else None,
                standing=at == start,
            )
            for at in range(start, max(end, start + 1), wanted.range_max)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRange)
        return _batches(self._wanted, partition, self._kinds)


@dataclass(frozen=True)
class StreamPlace:
    """How far a stream has read, and how to verify that the ledger is still the same."""

    offset: int
    """The offset of the next record."""
    began: int
    """Where the stream began. Spark does not store where a first batch began: it asks again, and `latest` has moved."""
    base: int | None
    """The base of the genesis, once it is known."""
    told: bool
    """Whether the tenures that stood at the beginning of the stream were delivered."""
    last: int | None = None
    """The offset of the last record read; None before the first."""
    mark: str | None = None
    """The hash of that record."""

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> "StreamPlace":
        """Read a place from a checkpoint."""
        try:
            return cls(**said)
        except TypeError:
            found = f"the checkpoint has the fields {', '.join(map(str, said))}, which this release does not write"
            raise ConfigError([f"{found}: start the query with a new one"]) from None


class LedgerStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one query, in a process of the driver that lives as long as the query."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._ledger: Ledger | None = None
        self._initial: StreamPlace | None = None
        self._place: StreamPlace | None = None
        """The place that `_state` belongs to."""
        self._state: State | None = None
        self._target: int | None = None
        self._planned: dict[tuple[StreamPlace, StreamPlace], list[OffsetRange]] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if self._initial is None:
            ledger = self._opened()
            first, tip = patiently(ledger.start), patiently(ledger.tip)
            start, state = _beginning(ledger, self._wanted, first, tip)
            self._initial = StreamPlace(start, start, _base_of(state), told=self._wanted.view != "tenures")
        return asdict(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._wanted.batch_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = patiently(self._opened().tip)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"offset": patiently(self._opened().tip)}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        place = StreamPlace.of(start)
        tip = tip_above(self._opened(), place.offset)
        end = tip if self._target is None else min(tip, max(self._target, place.offset))
        if isinstance(limit, ReadMaxRows):
            end = min(end, place.offset + limit.max_rows)
        return start if end == place.offset and place.told else asdict(self._plan(place, end))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[OffsetRange]:
        begins, ends = StreamPlace.of(start), StreamPlace.of(end)
        if begins == ends:
            return []
        if begins.offset == begins.began != ends.began:
            begins = replace(begins, offset=ends.began, began=ends.began)
        # After a restart the last batch is planned again, and the plan must be the same.
        if (begins, ends) not in self._planned and (found := self._plan(begins, ends.offset)) != ends:
            raise self._rewound(f"the records up to {ends.offset} differ from those of the checkpoint ({found})")
        return self._planned[begins, ends]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, OffsetRange)
        return _batches(self._wanted, partition, None)

    def stop(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def _opened(self) -> Ledger:
        if self._ledger is None:
            self._ledger = self._wanted.opened()
        return self._ledger

    def _plan(self, start: StreamPlace, end: int) -> StreamPlace:
        """Fold from `start` to `end`, and cut that into ranges. Returns the place there."""
        if self._place != start or self._state is None:
            self._resume(start)
        self._place = None  # If this fails, the state stands somewhere in between.
        cuts, count, last = [(start.offset, self._state)], 0, None
        for state, entries in _runs(self._opened(), self._wanted, start.offset, end, self._state):
            self._state = state
            for entry, change in replayed(entries, state):
                if count == self._wanted.range_max:
                    cuts.append((entry.offset, self._state))
                    count = 0
                self._state = change.after if change.is_known else self._state
                count, last = count + 1, entry
        place = StreamPlace(
            offset=end,
            began=start.began,
            base=self._same_base(start),
            told=True,
            last=start.last if last is None else last.offset,
            mark=start.mark if last is None else _mark(last),
        )
        ends = [*(at for at, _ in cuts[1:]), end]
        self._planned = {
            (start, place): [
                OffsetRange(at, until, base=place.base, state=state, standing=not start.told and at == start.offset)
                for (at, state), until in zip(cuts, ends, strict=True)
            ]
        }
        self._place = place
        return place

    def _resume(self, place: StreamPlace) -> None:
        """Find the state at `place`, and verify that this is the ledger that was read up to there."""
        ledger = self._opened()
        first = patiently(ledger.start)
        if place.last is not None and place.last >= first:
            found = next(between(ledger, place.last, place.last + 1), None)
            if found is None or _mark(found) != place.mark:
                raise self._rewound(f"the record at offset {place.last} differs from the one that was read there")
        self._state = state_before(ledger, place.offset)
        self._same_base(place)

    def _same_base(self, place: StreamPlace) -> int | None:
        """The base that is known now. Raises LedgerRewound if it was different at `place`."""
        base = _base_of(self._state)
        if base is not None and place.base is not None and base != place.base:
            raise self._rewound(f"its genesis has the base {base}, and that of the ledger read so far was {place.base}")
        return place.base if base is None else base

    def _rewound(self, found: str) -> LedgerRewound:
        return LedgerRewound(
            f"the ledger {public_address(self._wanted.ledger)} with all that this stream has read was wanted",
            found,
            "if it was recreated on purpose, or is another one, start the query with a new checkpoint; otherwise find "
            "out what happened to it",
        )


def _wanted(options: Mapping[str, str], ledgers: Mapping[str, str]) -> Wanted:
    """Parse the options. Raises ConfigError with all problems."""
    said = {name.lower(): value for name, value in options.items()}
    problems = [unknown("option", name, _OPTIONS) for name in said if name not in _OPTIONS]

    def chosen(name: str, default: str, fits: Callable[[str], bool], what: str) -> str:
        value = said.get(name, default).strip().lower()
        if fits(value):
            return value
        problems.append(f"{name}={value!r:.60} must be {what}")
        return default

    def is_count(value: str) -> bool:
        return value.isascii() and value.isdigit() and 1 <= len(value) <= 16

    address = said.get("ledger", "")
    if address in ledgers:
        address = ledgers[address]
    elif not address:
        problems.append("no ledger is named: say .option('ledger', 'kafka://host:9092/jobs')")
    elif public_address(address) != address:
        problems.append(
            f"ledger={public_address(address)!r:.200} has a password or a user, and Spark shows options in its plans: "
            "give it a name, register_ledgers(spark, ledgers={'jobs': address}), and say .option('ledger', 'jobs')"
        )
    elif ":" not in address and ledgers:
        problems.append(unknown("name of a registered ledger", address, ledgers))
    else:
        problems += _problems(address)
    view = chosen("view", "records", VIEWS.__contains__, " or ".join(VIEWS))
    ends = {
        name: chosen(
            name, default, lambda value: value in {EARLIEST, LATEST} or is_count(value), "earliest, latest or an offset"
        )
        for name, default in (("start", EARLIEST), ("end", LATEST))
    }
    on_gap = chosen("on_gap", "error", {"error", "warn"}.__contains__, "error or warn")
    counts = {
        name: int(chosen(name, str(default), lambda value: is_count(value) and int(value) > 0, "a number of records"))
        for name, default in (("records_per_task", RANGE_MAX), ("records_per_batch", BATCH_MAX))
    }
    if problems:
        raise ConfigError(problems)
    start, end = (int(value) if is_count(value) else value for value in (ends["start"], ends["end"]))
    return Wanted(address, view, start, end, on_gap == "warn", counts["records_per_task"], counts["records_per_batch"])


def _problems(address: str) -> list[str]:
    """A sentence for each reason why Spark cannot read the ledger at `address`."""
    if problems := problems_of(address):
        return problems
    kind, _, rest = address.partition(":")
    if kind == "memory":
        why = "lives in the memory of one process, and Spark's are others"
        return [f"ledger={address!r:.200} {why}: use a ledger in SQLite, Redis or Kafka"]
    if kind == "sqlite" and not rest.removeprefix("//").startswith("/"):
        why = "names a file from the working folder, and Spark's processes have others"
        return [f"ledger={address!r:.200} {why}: write sqlite:///var/lib/jobs/ledger.db"]
    return []


def _resolved(option: str, value: str | int, first: int, tip: int) -> int:
    if value == EARLIEST:
        return first
    if value == LATEST:
        return tip
    assert isinstance(value, int)
    if value > tip:
        raise ConfigError([f"{option}={value} is above the ledger's end, which is {tip} now"])
    return max(value, min(first, 1))  # Most ledgers count from 1, so nothing was ever below 1.


def _beginning(ledger: Ledger, wanted: Wanted, first: int, tip: int, low: int = 0) -> tuple[int, State | None]:
    """Where reading begins, at `low` or above, and the state there. Tenures begin where the state can be known."""
    start = _resolved("start", wanted.start, first, tip)
    if start < first:
        wanted.gap(start, first)
    start = min(max(start, first, low), tip)
    state = state_before(ledger, start)
    if wanted.view == "records" or (state is not None and state.at <= start):
        return start, state
    tip = patiently(ledger.tip)
    there = tip if state is None else min(tip, state.at)
    if state is None or wanted.start != EARLIEST:
        wanted.gap(start, there)
    return there, state


def _base_of(state: State | None) -> int | None:
    """The base of the Genesis, which distinguishes two ledgers at one address; None before there is a Genesis."""
    return None if state is None or state.genesis is None else state.genesis.base


def _mark(entry: Entry) -> str:
    return hashlib.sha256(entry.payload).hexdigest()[:16]


def _runs(
    ledger: Ledger, wanted: Wanted, start: int, end: int, state: State | None
) -> Iterator[tuple[State | None, Iterator[Entry]]]:
    """The entries from `start` up to but not including `end`, with the state before the first; again after each gap."""
    position = start

    def entries() -> Iterator[Entry]:
        nonlocal position
        try:
            for entry in between(ledger, position, end):
                position = entry.offset + 1
                yield entry
            position = end
        except LedgerTrimmed:
            return  # The remaining records begin above.

    while position < end:
        yield state, entries()
        if position < end:
            first = max(position, patiently(ledger.start))
            wanted.gap(position, first)
            position = min(end, first)
            state = state_before(ledger, position)


def _rows(wanted: Wanted, part: OffsetRange) -> Iterator[RecordRow] | Iterator[TenureRow]:
    with closing(wanted.opened()) as ledger:
        state = state_before(ledger, part.start) if part.state is None else part.state
        if part.base is not None and _base_of(state) not in {None, part.base}:
            raise LedgerRewound(
                f"the ledger {public_address(wanted.ledger)} whose genesis has the base {part.base} was wanted",
                f"it has the base {_base_of(state)} now",
                "it was recreated while it was read: start the query again",
            )
        if part.standing and wanted.view == "tenures":
            yield from standing_rows(state)
        rows = record_rows if wanted.view == "records" else tenure_rows
        for known, entries in _runs(ledger, wanted, part.start, part.end, state):
            yield from rows(entries, known)


def _batches(wanted: Wanted, part: OffsetRange, kinds: Collection[str] | None) -> Iterator[pa.RecordBatch]:
    """The rows of one range, in the form that Spark takes fastest."""
    schema = to_arrow_schema(wanted.schema, timezone="UTC")
    rows = (row for row in _rows(wanted, part) if kinds is None or row.kind in kinds)
    while some := list(islice(rows, ROWS_MAX)):
        columns = dict(zip(schema.names, zip(*some, strict=True), strict=True))
        columns["time"] = tuple(map(_microseconds, columns["time"]))
        arrays = [pa.array(columns[column.name], column.type) for column in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _microseconds(time: float | None) -> int | None:
    """A time in Spark's form; None for a broken clock's value, which must not stop the reading of all other rows."""
    return None if time is None or not 0 <= time <= SECONDS_MAX else round(time * 1e6)
