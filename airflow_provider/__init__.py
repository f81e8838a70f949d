"""NELI Router for Airflow: tasks, sensors and Spark jobs that run only where their role is led.

    Dag --operators, sensors, decorators--.
                                          v
    triggerer --triggers----------------> NeliHook --connection `neli`--> the agent of this host, or a ledger
                                          ^
    page, mappers --plugins---------------'

It is laid out like Airflow's own providers: `hooks`, `operators`, `sensors`, `triggers`, `decorators`, `assets`,
`queues`, `plugins`. Airflow finds it through two entry points: `get_provider_info.py` lists the classes, and
`plugins/neli.py` adds what only a plugin can. Within `neli_router`, only the laboratory's local Airflow imports the
provider.

Airflow loads the first entry point in every process, whatever its version. So this package imports nothing of Airflow:
a machine that has an older Airflow and uses NELI Router for something else must keep working.

    hooks, operators, sensors ... --imported--> require_airflow --too old, or none--> ImportError, with what to do
    partitions, retries, start_from_trigger --------> require_feature --older than 3.3--> an error that names it

In an Airflow that is too old our imports would fail with the name of some class, which means nothing to a reader of the
log. So each subpackage asks here first. Airflow 3.3 brought partitioned runs, retry policies, and triggers that end a
task; everything else also works on 3.1 and 3.2.
"""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from neli_router.errors import how_to_install

__all__ = ["AIRFLOW_MIN", "airflow_problem", "has_airflow", "require_airflow", "require_feature"]

AIRFLOW_MIN = (3, 1)


def _installed() -> str:
    """The version of Airflow; empty if there is none."""
    for name in ("apache-airflow-core", "apache-airflow"):  # Before 3.0 there was one package.
        with suppress(PackageNotFoundError):
            return version(name)
    return ""


def has_airflow(*wanted: int) -> bool:
    """Whether an Airflow of this version or a newer one is installed, such as `has_airflow(3, 3)`."""
    return tuple(int(number) for number in _installed().split(".")[:2] if number) >= wanted


def airflow_problem() -> str:
    """Describe what is wrong with the Airflow of this environment; empty if nothing is."""
    if has_airflow(*AIRFLOW_MIN):
        return ""
    return f"{_installed()} is installed" if _installed() else "it is not installed"


def require_airflow() -> None:
    """Raise ImportError if Airflow is missing or too old."""
    if problem := airflow_problem():
        wanted = ".".join(map(str, AIRFLOW_MIN))
        raise ImportError(f"Airflow {wanted} or newer was wanted, but {problem}: {how_to_install('airflow')}")


def require_feature(what: str) -> None:
    """Raise AirflowOptionalProviderFeatureException if this Airflow does not have what came with 3.3."""
    if has_airflow(3, 3):  # First, because each look takes most of a millisecond.
        return
    require_airflow()
    from airflow.providers.common.compat.sdk import (  # noqa: PLC0415 - this package imports no Airflow.
        AirflowOptionalProviderFeatureException,
    )

    raise AirflowOptionalProviderFeatureException(
        f"Airflow 3.3 or newer was wanted for {what}, but {_installed()} is installed: upgrade it, or do without"
    )
