"""Spark: a job works on exactly the keys that its host owns, and a job that was deposed cannot write.

    StepLoop(source, transform, table)       a whole job: each step of its input lands once, whichever hosts lead it
    ParquetSteps, KafkaSteps                 its sources: numbered files, and a topic; NumberedFiles writes such files
    session()                                a SparkSession: Java and Python found, loopback where it is local
    with_slot, with_partition                the slot and the partition of every key, as a column
    register_functions(spark, layout)        the same in SQL: neli_slot(key), neli_partition(key)
    owned(df, key, share)                    the rows of the partitions that this host leads; reads no other file
    append_rows(rows, table, terms, batch)   a DataFrame into a fenced table (`stage_rows`: in two steps)
    read_table(spark, table)                 the rows of a fenced table, or of some partitions, at any version
    load_profile(rows, "key", layout)        the load of slots and partitions, for `neli load`; `hot_keys`
    SqlReceiver, RedisReceiver               writes from executors: each partition's batch lands once
    guarded(spark, share)                    a block whose Spark jobs are cancelled once its lease is lost
    run_job(job)                             the end of a program: exit code 75 if its lease was lost
    register_ledgers(spark)                  spark.read.format("neli"): a group's ledger as a table, or as a stream

Everything but `session` works with any SparkSession: one of `spark-submit`, of a notebook, or of a cluster. The names
come from modules that need packages of the extra `spark`, so each module is imported when its name is first used.

It may import agent, drivers, fence, router and status.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neli_router.spark.feeds import NumberedFiles
    from neli_router.spark.fenced import append_rows, read_table, stage_rows
    from neli_router.spark.guard import LeaseGuard, guarded, run_job
    from neli_router.spark.ledger_source import register_ledgers
    from neli_router.spark.load import hot_keys, load_profile
    from neli_router.spark.placement import FilesRead, files_read, owned, repartition_by_key, repartition_by_owner
    from neli_router.spark.receivers import Landing, RedisReceiver, SqlReceiver
    from neli_router.spark.runtime import SparkUnusable, java_home
    from neli_router.spark.sessions import session
    from neli_router.spark.slots import register_functions, with_partition, with_partition_of_role, with_slot
    from neli_router.spark.sources import KafkaSteps, ParquetSteps
    from neli_router.spark.steps import StepLoop

__all__ = [
    "FilesRead",
    "KafkaSteps",
    "Landing",
    "LeaseGuard",
    "NumberedFiles",
    "ParquetSteps",
    "RedisReceiver",
    "SparkUnusable",
    "SqlReceiver",
    "StepLoop",
    "append_rows",
    "files_read",
    "guarded",
    "hot_keys",
    "java_home",
    "load_profile",
    "owned",
    "read_table",
    "register_functions",
    "register_ledgers",
    "repartition_by_key",
    "repartition_by_owner",
    "run_job",
    "session",
    "stage_rows",
    "with_partition",
    "with_partition_of_role",
    "with_slot",
]

_HOMES = {
    "feeds": ("NumberedFiles",),
    "fenced": ("append_rows", "read_table", "stage_rows"),
    "guard": ("LeaseGuard", "guarded", "run_job"),
    "ledger_source": ("register_ledgers",),
    "load": ("hot_keys", "load_profile"),
    "placement": ("FilesRead", "files_read", "repartition_by_key", "owned", "repartition_by_owner"),
    "receivers": ("Landing", "RedisReceiver", "SqlReceiver"),
    "runtime": ("SparkUnusable", "java_home"),
    "sessions": ("session",),
    "sources": ("KafkaSteps", "ParquetSteps"),
    "steps": ("StepLoop",),
    "slots": ("register_functions", "with_partition", "with_partition_of_role", "with_slot"),
}
"""Module -> its names. A module must not be named like something it exports, or it would be found instead."""


def __getattr__(name: str) -> object:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from neli_router.spark.runtime import explained  # noqa: PLC0415 - nothing is imported until a name is used.

    with explained():
        return getattr(import_module(f"{__name__}.{home}"), name)
