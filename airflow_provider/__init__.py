"""NELI Router for Airflow: tasks, sensors and Spark jobs that run only where their role is led.

    Dag --operators, sensors, decorators--.
                                          v
    triggerer --triggers----------------> NeliHook --connection `neli`--> the agent of this host, or a ledger
                                          ^
    page, mappers --plugins---------------'

It is laid out like Airflow's own providers: `hooks`, `operators`, `sensors`, `triggers`, `decorators`, `plugins`.
Airflow finds it through two entry points: `get_provider_info.py` lists the classes, and `plugins/neli.py` adds what
only a plugin can. Within `neli_router`, only the laboratory's local Airflow imports the provider.

Airflow loads the first entry point in every process, whatever its version. So this package imports nothing of Airflow:
a machine that has an older Airflow and uses NELI Router for something else must keep working.

    hooks, operators, sensors ... --imported--> require_airflow --too old, or none--> ImportError, with what to do

Triggers that end a task without a worker came with Airflow 3.3. In an older Airflow our imports would fail with the
name of some class, which means nothing to a reader of the log. So each subpackage asks here first, and so do
`partitions` and `retries`, which are in no subpackage.
"""

from importlib.metadata import PackageNotFoundError, version

from neli_router.errors import how_to_install

__all__ = ["AIRFLOW_MIN", "airflow_problem", "require_airflow"]

AIRFLOW_MIN = (3, 3)


def airflow_problem() -> str:
    """Describe what is wrong with the Airflow of this environment; empty if nothing is."""
    try:
        found = version("apache-airflow-core")
    except PackageNotFoundError:
        try:
            found = version("apache-airflow")  # Before 3.0 there was one package.
        except PackageNotFoundError:
            return "it is not installed"
    return "" if tuple(map(int, found.split(".")[:2])) >= AIRFLOW_MIN else f"{found} is installed"


def require_airflow() -> None:
    """Raise ImportError if Airflow is missing or too old."""
    if problem := airflow_problem():
        wanted = ".".join(map(str, AIRFLOW_MIN))
        raise ImportError(f"Airflow {wanted} or newer was wanted, but {problem}: {how_to_install('airflow')}")
