"""Assets: the URI `neli://group/role`.

It depends on the version of Airflow that is checked here, before any class of Airflow is named.
"""

from airflow_provider import require_airflow

__all__: list[str] = []

require_airflow()
