"""The machinery behind the provider's classes.

    subscription  one stream of changes for all triggers of a connection
    leases        a task works under a lease, and ends with it
    warden        ends a job in another process with its lease
    listener      starts the agent with a scheduler or a triggerer
    page          the status page, in the API server

Users import nothing from here: it may change in any release.
"""

from airflow_provider import require_airflow

__all__: list[str] = []

require_airflow()
