"""The link: from a task that waits for a role, or holds it, to the role's partition in the page that shows who leads.

    worker, after each run or deferral --get_link--> XCom `_link_NeliLink` --> a button at the task, in Airflow's page
    trigger that ends a task -----------link_xcom--> XCom, with its last event ---^

Airflow asks a worker for the link of the task that it ran, and keeps the answer as an XCom. A task that begins and ends
in the triggerer never reaches a worker, so its trigger sends the XCom along.

A key's partition is known once the agent has answered. The operator then leaves it in `shown_partition`, where its
worker finds it without another request. Until then, the link opens the page at its top.
"""

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperator, TaskInstanceKey

__all__ = ["ROUTE", "NeliLink", "link_xcom", "path_in_browser"]

ROUTE = "neli"
"""The page is at /plugin/neli, inside a frame of Airflow's own, so that users find their way back."""


def path_in_browser(path: str) -> str:
    """A path of the API server as a browser requests it: Airflow itself may be below another path."""
    return f"{urlsplit(conf.get('api', 'base_url', fallback='') or '').path.rstrip('/')}{path}"


class NeliLink(BaseOperatorLink):
    """A button on a task that opens the page of NELI Router."""

    name = "Who leads"

    def get_link(self, operator: "BaseOperator", *, ti_key: "TaskInstanceKey") -> str:
        return _path_of(getattr(operator, "shown_partition", None))


def link_xcom(partition: int | None) -> dict[str, Any]:
    """The XCom of the link, for a task that ends without a worker."""
    return {NeliLink().xcom_key: _path_of(partition)}


def _path_of(partition: int | None) -> str:
    return path_in_browser(f"/plugin/{ROUTE}") + ("" if partition is None else f"#partition={partition}")
