"""NeliPlugin: the parts that Airflow accepts only from a plugin. Each is imported when Airflow asks for it.

    entry point airflow.plugins --every process of Airflow, each task's, too--> NeliPlugin()
        partition_mappers, windows    asked for where a Dag that has one is read: dag processor, scheduler, API server
        fastapi_apps                  the status page, in the API server
        external_views                the page's place in the menu
        listeners                     what starts with a scheduler or a triggerer, where `[neli]` says so

Airflow refuses a Dag whose mapper or window comes from no plugin. An import at the top of this module would be an
import in each task, so the parts are properties.
"""

from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin

from airflow_provider import has_airflow

__all__ = ["NeliPlugin"]

PAGE = "NELI Router"

PREFIX = "/neli"
"""The path of the page, below the address of the API server."""


class NeliPlugin(AirflowPlugin):
    """Airflow creates one instance in each process."""

    name = "neli"

    @property
    def partition_mappers(self) -> list[Any]:  # type: ignore[override]  # Airflow only reads it.
        from airflow_provider.partitions import SlotPartitionMapper  # noqa: PLC0415 - see above.

        return [SlotPartitionMapper]

    @property
    def windows(self) -> list[Any]:  # type: ignore[override]  # As above.
        if not has_airflow(3, 3):
            return []
        from airflow_provider.partitions import AllPartitions  # noqa: PLC0415 - see above.

        return [AllPartitions]

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]  # As above.
        from airflow_provider._machinery.page import status_page  # noqa: PLC0415 - see above.

        return [{"app": status_page(), "url_prefix": PREFIX, "name": PAGE}]

    @property
    def external_views(self) -> list[dict[str, Any]]:  # type: ignore[override]  # As above.
        from airflow_provider.links import ROUTE, path_in_browser  # noqa: PLC0415 - see above.

        view = {"name": PAGE, "href": path_in_browser(f"{PREFIX}/"), "destination": "nav", "category": "browse"}
        # With its own route, Airflow shows the page in a frame.
        return [{**view, "url_route": ROUTE}]

    @property
    def listeners(self) -> list[Any]:  # type: ignore[override]  # As above.
        from airflow_provider._machinery import listener  # noqa: PLC0415 - see above.

        return [listener]
