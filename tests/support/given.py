"""Help for tests of the provider: connections, in the form of an environment variable, and types of fixtures."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.sdk import DAG

__all__ = ["DagTest", "spelled"]


class DagTest(Protocol):
    """The fixture `dag_test`."""

    def __call__(self, dag: "DAG", *, conf: Mapping[str, Any] | None = None) -> "DagRun": ...


def spelled(
    conn_type: str = "neli", *, password: str = "", host: str = "", port: int | None = None, **extra: Any
) -> str:
    """The text for AIRFLOW_CONN_...; `extra` are our own fields."""
    plain = {"conn_type": conn_type, "password": password, "host": host, "port": port, "extra": extra}
    return json.dumps({name: value for name, value in plain.items() if value})
