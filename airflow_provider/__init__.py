"""NELI Router for Airflow: tasks, sensors and Spark jobs that run only where their role is led.

    Dag --operators, sensors, decorators--.
                                          v
    triggerer --triggers----------------> NeliHook --connection `neli`--> the agent of this host, or a ledger
                                          ^
    page, mappers --plugins---------------'

It is laid out like Airflow's own providers: `hooks`, `operators`, `sensors`, `triggers`, `decorators`,
`plugins`. Airflow finds it through two entry points: `get_provider_info.py` lists the classes, and `plugins/neli.py`
adds what only a plugin can. The provider imports `neli_router`; within `neli_router`, only the laboratory's local
Airflow imports the provider.

Airflow loads the first entry point in every process, whatever its version. So this package imports nothing: a machine
that has an older Airflow and uses NELI Router for something else must keep working. The subpackages check the version.
"""

__all__: list[str] = []
