"""Queues: changes of owner, as the messages of a queue.

They depend on the version of Airflow that is checked here, before any class of Airflow is named.
"""

from airflow_provider import require_airflow

__all__: list[str] = []

require_airflow()
