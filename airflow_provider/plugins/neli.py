"""NeliPlugin: what Airflow takes only from a plugin. Each part is imported when Airflow asks for it.

    entry point airflow.plugins --every process of Airflow, each task's, too--> NeliPlugin()
        partition_mappers, windows    asked for where a Dag that has one is read: dag processor, scheduler, API server

Airflow refuses a Dag whose mapper or window no plugin brings. An import here would be an import in each task, so the
parts are properties.
"""

from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin

__all__ = ["NeliPlugin"]


class NeliPlugin(AirflowPlugin):
    """Airflow makes one of it in each process."""

    name = "neli"

    @property
    def partition_mappers(self) -> list[Any]:  # type: ignore[override]  # Airflow only reads it.
        from airflow_provider.partitions import SlotPartitionMapper  # noqa: PLC0415 - see above.

        return [SlotPartitionMapper]

    @property
    def windows(self) -> list[Any]:  # type: ignore[override]  # As above.
        from airflow_provider.partitions import AllPartitions  # noqa: PLC0415 - see above.

        return [AllPartitions]
