"""Audit ownership: what a group did over months, as tables and a report.

    ledger --spark.read.format("neli")--> new records --> archive (Parquet), which grows with each run
                                                             |
    Spark reads the archive, sorts it, hands it over --> driver: one fold, one audit --> tenures, moves, takeovers ...
                                                                                             |
    Spark cuts tenures into hours, and counts  <---------------------------------------------'
         '--> by_member_and_hour, by_hour, by_partition --> Delta tables

    spark-submit dags/jobs/audit_ownership.py LEDGER --archive ARCHIVE --table TABLES [--notes NOTES] [--report FILE]

Members trim their ledger, so its history survives only if it is copied in time. Run this every hour, for instance: it
appends the new records to ARCHIVE, and audits the whole archive. It stops with an error if records were trimmed before
it copied them, or if the archive comes from another ledger: a recreated ledger counts its records from the beginning.

**Division of work.** The fold is sequential: the meaning of a record depends on all records before it. So one process,
the driver, does the fold, at about twenty thousand records a second. Spark does what can run in parallel. Before the
fold, it reads the archive's files, drops the records that two runs copied, and sorts. After the fold, tenures are rows
like any other: Spark cuts them at the hours and sums up by member, hour and partition. The driver holds the tenures,
not the records.

Like `neli audit`, it exits with 1 if a promise was broken.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from neli_router.commands.audit import acts_in
from neli_router.core.exit_codes import EXIT_BROKEN
from neli_router.drivers.addresses import public_address
from neli_router.drivers.ledgers.base import Entry
from neli_router.errors import NeliError
from neli_router.protocols.induction.records import Genesis, Snapshot, decode
from neli_router.spark import register_ledgers, session
from neli_router.spark.fenced import to_read, to_write
from neli_router.status.annals import Annals
from neli_router.status.audit import Audit
from neli_router.status.audit_report import html_of
from neli_router.status.audit_table import tables_of, write_tables

__all__ = ["archived", "by_hour", "by_member_and_hour", "by_partition", "copy_new", "entries_of", "main"]

COPIED = ("offset", "time", "payload")
"""The columns of an archive: a record's offset, when it was written, and the record. The rest follows from these."""

SCHEMA = StructType(
    [StructField("offset", LongType()), StructField("time", TimestampType()), StructField("payload", StringType())]
)

NAME = "audited"
"""The ledger's name in Spark. Its address may contain a password, which plans would show."""

HOUR = 3600.0


def copy_new(spark: SparkSession, ledger: str, archive: Path) -> None:
    """Append the records that the archive lacks. Raises NeliError if the archive comes from another ledger."""
    register_ledgers(spark, ledgers={NAME: ledger})

    def records(start: str) -> DataFrame:
        return spark.read.format("neli").option("ledger", NAME).option("start", start).load().select(*COPIED)

    start = "earliest"
    if archive.exists():
        there = archived(spark, archive)
        known, begun = there.agg(sql.max("offset").alias("last")).collect()[0]["last"], beginning(there)
        if begun is not None and begun != beginning(records("earliest")):
            raise NeliError(
                "the ledger that the archive was made of was wanted",
                "this one began in another way: it was recreated, or it is another group's",
                "give it an archive of its own",
            )
        start = start if known is None else str(known + 1)
    records(start).write.mode("append").parquet(to_write(archive))


def beginning(records: DataFrame) -> tuple[Genesis, int] | None:
    """The Genesis of a group and its offset: no other ledger has both. A Snapshot repeats them for a trimmed ledger."""
    kind = sql.get_json_object("payload", "$.kind")
    for row in records.where(kind.isin("genesis", "snapshot")).orderBy("offset").toLocalIterator():
        match decode(row["payload"].encode()):
            case Genesis() as genesis:
                return genesis, row["offset"]
            case Snapshot(state=state):
                return state.genesis, state.genesis_at
    return None


def archived(spark: SparkSession, archive: Path) -> DataFrame:
    """The records of an archive, each once. Simultaneous runs may have copied a record twice. Raises NeliError."""
    if not archive.exists():
        raise NeliError("an archive was wanted", f"there is no {archive}", "name a ledger, and one is made of it")
    return spark.read.schema(SCHEMA).parquet(to_read(archive)).dropDuplicates(["offset"])


def entries_of(records: DataFrame) -> Iterator[Entry]:
    """The records as the fold needs them: in the ledger's order, with only a part of them in memory at a time."""
    ordered = records.select("offset", sql.col("time").cast("double").alias("time"), "payload").orderBy("offset")
    for row in ordered.toLocalIterator(prefetchPartitions=True):
        yield Entry(row["offset"], row["payload"].encode(), row["time"])


def by_member_and_hour(tenures: DataFrame) -> DataFrame:
    """How long each member led in each hour, and how many partitions, from tenures as `tables_of` makes them."""
    hours = tenures.where("led_from IS NOT NULL").select(
        "member",
        "partition",
        "led_from",
        "led_until",
        sql.explode(
            sql.sequence(
                _hour(sql.col("led_from")), _hour(sql.greatest(sql.col("led_from"), sql.col("led_until") - 1e-6))
            )
        ).alias("hour"),
    )
    start, end = sql.col("hour") * HOUR, (sql.col("hour") + 1) * HOUR
    led = sql.least(sql.col("led_until"), end) - sql.greatest(sql.col("led_from"), start)
    return (
        hours.groupBy("hour", "member")
        .agg(
            sql.sum(led).alias("partition_seconds"),
            sql.countDistinct("partition").alias("partitions"),
            sql.sum((sql.col("led_from") >= start).cast("long")).alias("began"),
        )
        .withColumn("mean_led", sql.col("partition_seconds") / HOUR)
        .orderBy("hour", "member")
    )


def by_hour(moves: DataFrame, takeovers: DataFrame, members: DataFrame) -> DataFrame:
    """Moves, takeovers and their times, joins and ends, for each hour that had any."""
    moved = moves.groupBy(_hour(sql.col("time")).alias("hour")).agg(sql.count("*").alias("moves"))
    taken = takeovers.groupBy(_hour(sql.col("died")).alias("hour")).agg(
        sql.count("*").alias("takeovers"),
        sql.percentile("seconds", 0.5).alias("takeover_p50"),
        sql.percentile("seconds", 0.9).alias("takeover_p90"),
        sql.max("seconds").alias("takeover_longest"),
    )
    joined = members.groupBy(_hour(sql.col("since")).alias("hour")).agg(sql.count("*").alias("joins"))
    ended = (
        members.where("ended_by IS NOT NULL")
        .groupBy(_hour(sql.col("until")).alias("hour"))
        .agg(
            sql.count_if(sql.col("ended_by") == "expire").alias("expired"),
            sql.count_if(sql.col("ended_by") == "certify").alias("certified"),
            sql.count_if(sql.col("ended_by") == "leave").alias("left"),
            sql.count_if(sql.col("ended_by") == "replaced").alias("replaced"),
        )
    )
    whole = moved.join(taken, "hour", "full").join(joined, "hour", "full").join(ended, "hour", "full")
    return whole.fillna(0, ["moves", "takeovers", "joins", "expired", "certified", "left", "replaced"]).orderBy("hour")


def by_partition(tenures: DataFrame) -> DataFrame:
    """How often each partition changed hands, among how many members, and how long it was led."""
    return (
        tenures.groupBy("partition")
        .agg(
            sql.count("*").alias("tenures"),
            sql.countDistinct("member").alias("members"),
            sql.coalesce(sql.sum(sql.col("led_until") - sql.col("led_from")), sql.lit(0.0)).alias("led_seconds"),
            sql.max(sql.col("until") - sql.col("since")).alias("longest_tenure"),
        )
        .orderBy("partition")
    )


def _hour(time: Column) -> Column:
    """The number of the hour on the audit's axis."""
    return sql.floor(time / HOUR)


def audit_archive(spark: SparkSession, archive: Path, notes: Path | None = None) -> Audit:
    """The audit of the whole archive. Raises NeliError."""
    annals = Annals()
    annals.read(entries_of(archived(spark, archive)))
    return Audit(annals, () if notes is None else acts_in(notes))


def statistics_of(spark: SparkSession, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The statistics that Spark computes from the audit's tables. They are small, so the driver writes them, without a
    Delta jar."""
    frames = {name: spark.createDataFrame(table) for name, table in tables.items()}
    statistics = {
        "by_member_and_hour": by_member_and_hour(frames["tenures"]),
        "by_hour": by_hour(frames["moves"], frames["takeovers"], frames["members"]),
        "by_partition": by_partition(frames["tenures"]),
    }
    return {name: rows.toArrow() for name, rows in statistics.items()}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Audit a group's ownership over its whole history.")
    parser.add_argument("ledger", help="the address of the group's ledger, or - to audit the archive alone")
    parser.add_argument("--archive", type=Path, required=True, help="the records, as Parquet: a folder that Spark sees")
    parser.add_argument("--table", type=Path, required=True, help="the folder for the Delta tables")
    parser.add_argument("--notes", type=Path, help="a folder of the members' notes of when they acted")
    parser.add_argument("--report", type=Path, help="write a report with pictures, as HTML")
    options = parser.parse_args(arguments)
    try:
        with session("audit_ownership") as spark:
            if options.ledger != "-":
                copy_new(spark, options.ledger, options.archive)
            found = audit_archive(spark, options.archive, options.notes)
            tables = tables_of(found)
            write_tables({**tables, **statistics_of(spark, tables)}, options.table)
        if options.report is not None:
            address = str(options.archive) if options.ledger == "-" else public_address(options.ledger)
            options.report.write_text(html_of(found, address), encoding="utf-8")
    except (NeliError, OSError) as error:
        sys.stderr.write(f"audit_ownership: {error}\n")
        return EXIT_BROKEN
    sys.stdout.write(f"{found.verdict}: {found.records} records, {len(found.tenures)} tenures, {found.moved} moves\n")
    return EXIT_BROKEN if found.verdict == "broken" else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
