"""Publish prices: each host turns the ticks of its own instruments into bars and last prices, and lands them once.

    ticks --slot--> the ticks this host owns --bars--> fenced commit --> one table, of all hosts

    spark-submit dags/jobs/publish_prices.py --ticks TICKS --table TABLE

This job runs on every host, next to the host's agent. TICKS is a folder that `neli ticks` fills, or a topic,
`kafka://HOST:PORT/TOPIC`. TABLE is a folder that all hosts see: a Delta table with a row for each instrument and bar,
with open, high, low, close, volume and the last quote. The last price of an instrument is the close of its newest bar,
so both land in one commit, and never disagree.

**A bar may come in parts.** A step of a folder ends with an interval, so no bar spans two steps if an interval is a
whole number of bars. A step of a topic ends anywhere. So each row records the sequence numbers of the ticks that it is
made of. `whole` combines the parts, and the result is exact: the first part has the open, the last part the close, and
the rest is a maximum, a minimum or a sum of whole numbers.

It ends as `run_job` says: with 0 when it is done, and with 75 when the host lost partitions that it was working on, or,
with `--when-revoked stop`, when partitions moved. Then start it again.
"""

import argparse
import logging

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from neli_router.agent import Client
from neli_router.spark import KafkaSteps, ParquetSteps, StepLoop, run_job, session

__all__ = ["bars", "from_messages", "last_prices", "publish", "whole"]

KEY = "instrument"

TICK_IN_JSON = "instrument string, sequence long, at long, bid double, ask double, price double, size long"
TICK = TICK_IN_JSON.replace("at long", "at timestamp")


def bars(ticks: DataFrame, *, seconds: int) -> DataFrame:
    """One row for each instrument and bar of `seconds`. `ticks` has the column `partition`."""
    # Each tick is a part of a bar.
    parts = ticks.select(
        *("partition", KEY, "bid", "ask"),
        sql.window("at", f"{seconds} seconds")["start"].alias("begins"),
        *(sql.col("price").alias(name) for name in ("open", "high", "low", "close")),
        sql.col("size").alias("volume"),
        sql.col("at").alias("last_at"),
        sql.lit(1).alias("ticks"),
        *(sql.col("sequence").alias(name) for name in ("first_sequence", "last_sequence")),
    )
    return whole(parts)


def whole(parts: DataFrame) -> DataFrame:
    """The bars of the table `parts`, each merged into one row."""
    return parts.groupBy("partition", KEY, "begins").agg(
        sql.min_by("open", "first_sequence").alias("open"),
        sql.max("high").alias("high"),
        sql.min("low").alias("low"),
        sql.sum("volume").alias("volume"),
        *(sql.max_by(name, "last_sequence").alias(name) for name in ("close", "bid", "ask", "last_at")),
        sql.sum("ticks").alias("ticks"),
        sql.min("first_sequence").alias("first_sequence"),
        sql.max("last_sequence").alias("last_sequence"),
    )


def last_prices(parts: DataFrame) -> DataFrame:
    """The newest price and quote of each instrument in the table `parts`."""
    newest = sql.max_by(sql.struct("close", "bid", "ask", "last_at"), "last_sequence")
    return (
        parts.groupBy(KEY)
        .agg(newest.alias("newest"))
        .select(
            KEY,
            sql.col("newest.close").alias("price"),
            sql.col("newest.bid"),
            sql.col("newest.ask"),
            sql.col("newest.last_at").alias("at"),
        )
    )


def from_messages(messages: DataFrame) -> DataFrame:
    """The ticks in the messages of a topic."""
    tick = sql.from_json(sql.col("value").cast("string"), TICK_IN_JSON, {"mode": "FAILFAST"}).alias("tick")
    at = sql.timestamp_micros("at").alias("at")
    return messages.select("partition", tick).select("partition", "tick.*").withColumn("at", at)


def publish(options: argparse.Namespace) -> bool:
    """Run the job. Returns whether it is done."""

    def bars_of(rows: DataFrame) -> DataFrame:
        return bars(from_messages(rows) if is_topic else rows, seconds=options.seconds)

    is_topic = options.ticks.startswith("kafka:")
    ticks = (
        KafkaSteps(options.ticks, longest=options.longest)
        if is_topic
        else ParquetSteps(options.ticks, KEY, schema=TICK, longest=options.longest)
    )
    with Client(options.agent) as client:
        client.layout()  # First: Spark takes seconds to start, and without an agent there is nothing to do.
        with session("publish prices", master=options.master) as spark:
            job = StepLoop(ticks, bars_of, options.table, client=client, spark=spark)
            return job.run("now" if options.once else options.until, reopen=options.when_revoked == "go-on")


def positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ticks", required=True, help="a folder of intervals, or kafka://HOST:PORT/TOPIC")
    parser.add_argument("--table", required=True, help="the folder of the table; it is made if it is not there")
    parser.add_argument("--agent", help="the host's agent; by default NELI_AGENT, or its default socket")
    parser.add_argument("--master", help="Spark's master, if it is not spark-submit that starts this")
    parser.add_argument("--seconds", type=positive, default=60, help="of a bar (default: 60)")
    parser.add_argument(
        "--longest",
        type=positive,
        default=1,
        help="intervals, or offsets of a topic, that a step takes at most (default: 1)",
    )
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--until", type=positive, help="end when the whole table, of all hosts, has landed this step")
    ends.add_argument(
        "--once", action="store_true", help="end when this host's partitions have landed what is there now"
    )
    parser.add_argument(
        "--when-revoked",
        choices=["go-on", "stop"],
        default="go-on",
        help="after partitions moved: go on with those that are left, or end with 75 (default: go-on)",
    )
    return parser.parse_args()


if __name__ == "__main__":
    chosen = _options()
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(message)s", level=logging.WARNING)
    logging.getLogger("neli_router").setLevel(logging.INFO)
    run_job(lambda: publish(chosen))
