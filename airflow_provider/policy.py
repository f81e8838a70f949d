"""The policy: a Dag with the tag `neli:ROLE` runs all of its tasks under the lease of this role, without other changes.

    Dag is read --task_policy, for each task--> no such tag: nothing happens
                                            '-> the task's class becomes UnderLease, then its own class

    task starts --UnderLease.execute--> led here: the task's own `execute`, which is stopped if the lease is lost
                                    '-> led elsewhere: it waits, without a worker, until this host leads

Airflow calls the policy wherever a Dag is read: in the Dag processor, and on each worker. So each task is under its
lease. Tasks that name a role of their own keep it.

Only the class changes, because Airflow copies a task before it runs it, and makes a mapped task from its class. The
class keeps its name and module, which Airflow stores and shows. The task keeps its attributes: many operators have a
`role`, a `key` or a `timeout` that means something else, so what the policy wants is a method, `wanted`.

A task waits rather than skips: if a leader dies, the runs that wait here do what it left. They would also do again what
it had done. So tasks check that in the transaction of a fence, as in any Dag that two installations have.
"""

from functools import cache
from types import new_class
from typing import TYPE_CHECKING, Any

import pluggy

from neli_router.errors import BadKey

if TYPE_CHECKING:
    from airflow_provider._arguments import Place

__all__ = ["PREFIX", "task_policy"]

PREFIX = "neli:"

PARTITION = "partition="


@pluggy.HookimplMarker("airflow.policy")
def task_policy(task: Any) -> None:
    """Put a task of a tagged Dag under its lease. A tag that names no role is an import error of the Dag."""
    tags = sorted(tag.removeprefix(PREFIX) for tag in task.dag.tags if tag.startswith(PREFIX)) if task.dag else []
    if not tags:
        return
    from airflow.exceptions import AirflowClusterPolicyViolation  # noqa: PLC0415 - Airflow reads this in each process.

    from airflow_provider._arguments import require_literals  # noqa: PLC0415 - as above.

    if len(tags) > 1:
        raise AirflowClusterPolicyViolation(
            f"one tag that begins with {PREFIX!r} was wanted, but the Dag {task.dag.dag_id!r} has {', '.join(tags)}: "
            "leave one"
        )
    (text,) = tags
    number = text.removeprefix(PARTITION)
    place = (text, None, None) if number == text else (None, None, number)
    try:
        require_literals(place)
    except BadKey as error:
        raise AirflowClusterPolicyViolation(f"The tag {PREFIX + text!r} of {task.dag.dag_id!r}: {error}") from error
    if getattr(task, "is_mapped", False):
        task.operator_class = _under_lease(task.operator_class, place)
    else:
        kind: Any = type(task)
        task.__class__ = _under_lease(kind, place)


@cache
def _under_lease(kind: Any, place: "Place") -> Any:
    from airflow_provider._arguments import RoleWanted  # noqa: PLC0415 - as above.
    from airflow_provider.hooks.neli import CONNECTION_ID  # noqa: PLC0415
    from airflow_provider.operators.leader import UnderLease  # noqa: PLC0415

    if issubclass(kind, UnderLease) or kind.__module__.startswith("airflow_provider."):
        return kind
    wanted = RoleWanted(place, CONNECTION_ID, when_not_leading="wait")
    own = {"__module__": kind.__module__, "__doc__": kind.__doc__, "wanted": lambda _: wanted}
    return new_class(kind.__name__, (UnderLease, kind), exec_body=lambda space: space.update(own))
