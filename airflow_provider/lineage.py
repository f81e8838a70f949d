"""Lineage: what OpenLineage's events say about the lease that a task ran under.

    [openlineage]
    custom_run_facets = airflow_provider.lineage.leadership

    START ............ nothing: the task has no lease yet
    COMPLETE, FAIL ... the run facet `neli_leadership`, if the task held a lease

Airflow's OpenLineage provider calls the function for each event of a task, and also the extractor for the task's
operator. It calls an operator's own methods only where no extractor is registered, and a method of LeaderMixin would
hide that of the operator it is combined with. So a function serves `@task.leader`, Spark jobs and users' operators
alike.

A key may be a person's name, and events are stored elsewhere. So a role is named only where the Dag gives it as one.
"""

from typing import Any

__all__ = ["leadership"]


def leadership(task_instance: Any, _: object) -> dict[str, Any]:
    held = getattr(getattr(task_instance, "task", None), "leadership", None)
    if held is None:
        return {}
    from openlineage.client.facet_v2 import RunFacet  # noqa: PLC0415 - only a caller from OpenLineage has it.

    return {"neli_leadership": RunFacet().with_additional_properties(**held)}
