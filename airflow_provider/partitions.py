"""Partitions of a Dag: runs and roll-ups by the partitions that a group's keys belong to.

    event "EURUSD" --SlotPartitionMapper: slot, partition--> the run with partition_key "3"     starts, or is joined
    event "GBPUSD" --'                                          |
                                                 its role, by default: partition 3
                                                                |
    events "0" .. "7", of those runs --AllPartitions--> one run, when the last of all partitions has reported

Airflow maps an event where it receives it: normally in its API server. That process has no agent, and must not wait. So
a mapper knows a layout (slots, partitions, tags) and computes the same partition as every member, bit for bit. The
layout is an argument, or comes from the `[neli]` section of the Dag processor's configuration. Either way it travels
with the Dag, so all processes of Airflow map alike. A group with another layout would give the run to the wrong host.
So a task learns from `layout_of_run` which layout its run was made with, and code that acts for the run's partition
first compares the group's layout with it.

**Join or start.** Airflow lets an event join a run that is not created yet: in each of its rounds, the scheduler
creates the runs that wait. So the events of one task become one run per partition, and events that trickle in become
several. Each run gets only its own events (`triggering_asset_events`), and gets each event once.

**Partitions without a key** report nothing, and a roll-up over all of them waits forever: emit an event for all of
them, or wait for fewer, with Airflow's `wait_policy=MinimumCount(...)`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Self

from airflow_provider import require_feature

require_feature("partitioned runs")

from airflow.partition_mappers.base import PartitionMapper
from airflow.partition_mappers.window import Window

from airflow_provider._arguments import configured_layout, spelled_layout
from neli_router.core.keyspace import Layout

__all__ = ["AllPartitions", "SlotPartitionMapper"]


class SlotPartitionMapper(PartitionMapper):
    """Maps each key to the run of its partition: "EURUSD" to the run "3", and perhaps "GBPUSD" to the same run.

    The `partition_key` of a run is then the number of a partition, and by default also the role of the run's tasks.

        PartitionedAssetTimetable(assets=prices, default_partition_mapper=SlotPartitionMapper(Layout(partitions=8)))

    A key without a UTF-8 form raises BadKey; Airflow logs it, and drops the event.

    :param layout: the group's; by default, that of the `[neli]` section
    :param max_downstream_keys: Airflow's limit of the runs that one event starts; here it starts one
    """

    def __init__(self, layout: Layout | None = None, *, max_downstream_keys: int | None = None) -> None:
        super().__init__(max_downstream_keys=max_downstream_keys)
        self.layout = layout if layout is not None else configured_layout()

    def to_downstream(self, key: str) -> str:
        return str(self.layout.partition(key))

    def serialize(self) -> dict[str, Any]:
        return {**super().serialize(), **spelled_layout(self.layout)}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        return cls(_layout(data), max_downstream_keys=data.get("max_downstream_keys"))


class AllPartitions(Window):
    """All partitions of a group, as the window of a roll-up: complete when each of them has reported.

        RollupMapper(upstream_mapper=FixedKeyMapper("all"), window=AllPartitions(Layout(partitions=8)))

    The events are those of runs by partition, and carry their `partition_key`.

    :param layout: the group's; by default, that of the `[neli]` section
    """

    def __init__(self, layout: Layout | None = None) -> None:
        super().__init__()
        self.layout = layout if layout is not None else configured_layout()

    def to_upstream(self, decoded_downstream: Any) -> Iterator[str]:
        return map(str, range(self.layout.partitions))

    def serialize(self) -> dict[str, Any]:
        return spelled_layout(self.layout)

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        return cls(_layout(data))


def _layout(data: Mapping[str, Any]) -> Layout:
    return Layout(**{name: data[name] for name in Layout.__struct_fields__})
