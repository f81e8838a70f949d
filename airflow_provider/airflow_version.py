"""The version of Airflow: whether the one that is installed has what this provider stands on.

    hooks, operators, sensors ... --imported--> require_airflow --too old, or none--> ImportError, with what to do

Triggers that end a task without a worker came with 3.3. In an older Airflow the imports below would fail by the name of
some class, which says nothing to a reader of the log. So each folder asks here first, and so do `partitions` and
`retries`, which lie in none.
"""

from importlib.metadata import PackageNotFoundError, version

from neli_router.errors import how_to_install

__all__ = ["AIRFLOW_MIN", "airflow_problem", "require_airflow"]

AIRFLOW_MIN = (3, 3)


def airflow_problem() -> str:
    """What is wrong with the Airflow of this environment; empty if nothing is."""
    try:
        found = version("apache-airflow-core")
    except PackageNotFoundError:
        try:
            found = version("apache-airflow")  # Before 3.0 there was one package.
        except PackageNotFoundError:
            return "it is not installed"
    return "" if tuple(map(int, found.split(".")[:2])) >= AIRFLOW_MIN else f"{found} is installed"


def require_airflow() -> None:
    """Raise ImportError if there is no Airflow, or an older one."""
    if problem := airflow_problem():
        wanted = ".".join(map(str, AIRFLOW_MIN))
        raise ImportError(f"Airflow {wanted} or newer was wanted, but {problem}: {how_to_install('airflow')}")
