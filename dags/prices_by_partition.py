"""Prices by partition: ticks of an instrument start the run of its partition, which works where the partition is led.

    ticks_arrive ------------ an event of `ticks` for each instrument, whose partition_key is the instrument
       |
    SlotPartitionMapper ----- instrument --slot--> partition
       v
    prices_by_partition ----- a run for each partition, of all its instruments; an event of `prices` with that partition
       |
    AllPartitions ----------- complete when each partition has reported
       v
    prices_are_published ---- one run

Trigger `ticks_arrive` by hand. In production, the writers of ticks send the events through Airflow's API.

The layout must be the group's: the task refuses a group with a different layout when it starts. There must be an
instrument for each partition, or the last run waits forever.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import (
    DAG,
    Asset,
    FixedKeyMapper,
    PartitionedAssetTimetable,
    PartitionedAtRuntime,
    RollupMapper,
    task,
)

from airflow_provider.partitions import AllPartitions, SlotPartitionMapper
from airflow_provider.retries import LeadershipRetryPolicy
from neli_router.core.keyspace import Layout

LAYOUT = Layout(partitions=8)
"""The layout of a group that `neli agent --layout-partitions 8` founds."""

INSTRUMENTS = [f"PAIR{number:02}" for number in range(100)]

START = datetime(2026, 1, 1, tzinfo=UTC)

ticks, prices = Asset("ticks"), Asset("prices")

by_slot: Any = SlotPartitionMapper(LAYOUT)
"""Any: Airflow types schedules by the classes of its own mappers for Dags, which third-party mappers do not extend."""

all_partitions: Any = AllPartitions(LAYOUT)

with DAG("ticks_arrive", schedule=PartitionedAtRuntime(), start_date=START):

    @task(outlets=[ticks])
    def arrive(outlet_events: Any = None) -> None:
        outlet_events[ticks].add_partitions(INSTRUMENTS)

    arrive()

with DAG(
    "prices_by_partition",
    schedule=PartitionedAssetTimetable(assets=ticks, default_partition_mapper=by_slot),
    start_date=START,
    catchup=False,
):
    # The role is the run's partition_key. Where it is led elsewhere, the task waits without a worker.
    @task.leader(outlets=[prices], when_not_leading="wait", retries=3, retry_policy=LeadershipRetryPolicy())
    def publish(
        lease: Any = None, triggering_asset_events: Mapping[Asset, Sequence[Any]] | None = None
    ) -> dict[str, Any]:
        told = [event.partition_key for events in (triggering_asset_events or {}).values() for event in events]
        return {"partition": lease.partition, "term": lease.term, "events": sorted(told)}

    publish()

with DAG(
    "prices_are_published",
    schedule=PartitionedAssetTimetable(
        assets=prices,
        default_partition_mapper=RollupMapper(upstream_mapper=FixedKeyMapper("all"), window=all_partitions),
    ),
    start_date=START,
    catchup=False,
):

    @task
    def tell(triggering_asset_events: Mapping[Asset, Sequence[Any]] | None = None) -> list[str]:
        told = [event.partition_key for events in (triggering_asset_events or {}).values() for event in events]
        return sorted(told)

    tell()
