"""Hosts, each with an installation of Airflow and an agent beside it: of one group, on one ledger.

    host a: Airflow (its own database) --neli_default--> agent a --.
                                                                    ledger
    host b: Airflow (its own database) --neli_default--> agent b --'

Both have the same Dags, as two regions have. `AIRFLOW_CONN_NELI_DEFAULT` is all in which they differ.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.agents.processes import AgentProcess, agents
from tests.support.servers.airflow import Airflow, AirflowApi

__all__ = ["Host", "hosts"]


@dataclass(frozen=True)
class Host:
    """What runs on one host."""

    agent: AgentProcess
    airflow: Airflow

    @property
    def name(self) -> str:
        return self.agent.name

    @property
    def api(self) -> AirflowApi:
        return self.airflow.api


@contextmanager
def hosts(
    folder: Path,
    *names: str,
    dags: Path | None = None,
    lease: float = 3.0,
    drain_timeout: float = 5.0,
    environment: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[list[Host]]:
    """So many of them, when all is healthy and the partitions are shared out. `dags` is copied for each.

    The lease is one that agents keep while installations start, which takes both cores.
    """
    with agents(folder, *names, lease=lease, drain_timeout=drain_timeout) as group:
        environments = [{"AIRFLOW_CONN_NELI_DEFAULT": one.connection, **(environment or {})} for one in group]
        with Airflow.all_started(environments, dags=dags, settings=settings) as installations:
            yield [Host(agent, airflow) for agent, airflow in zip(group, installations, strict=True)]
