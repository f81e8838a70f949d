"""NELI Router for Airflow: tasks, sensors and Spark jobs that run only where their role is led.

    Dag --operators, sensors, decorators--.
                                          v
    triggerer --triggers----------------> NeliHook --connection `neli`--> the agent of this host, or a ledger
                                          ^
    page, mappers --plugins---------------'

It is laid out as the providers of Airflow are: `hooks`, `operators`, `sensors`, `triggers`, `decorators`, `plugins`.
Airflow finds it by two entry points: `get_provider_info.py` says which classes there are, and `plugins/neli.py` brings
what only a plugin can. It imports `neli_router`, where only the laboratory's local Airflow imports it.

Airflow loads the first entry point in every process, whatever its version. So this package imports nothing at all: a
machine with an older Airflow that has NELI Router for other reasons must go on. The folders within check the version.
"""

__all__: list[str] = []
