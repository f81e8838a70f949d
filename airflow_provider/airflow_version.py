"""The version of Airflow: whether the installed one has what this provider needs.

    hooks, operators, sensors ... --imported--> require_airflow --too old, or none--> ImportError, with what to do

Triggers that end a task without a worker came with Airflow 3.3. In an older Airflow the imports below would fail with
the name of some class, which means nothing to a reader of the log. So each subpackage asks here first, and so do
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
