"""LeaderShortCircuitOperator: skips the tasks below it where their role is not led.

    worker --asks once--> this host leads: the tasks below run
                      |-> it does not:     they are skipped, whatever their trigger rule is
                      '-> no agent:        the task fails

It may stand at any place in a Dag: put it before the tasks that are only for the leader. It does not hold the role, so
the tasks behind it may run after the role is lost: `@task.leader` holds it.
"""

from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.python import ShortCircuitOperator

from airflow_provider.hooks.neli import CONNECTION_ID, NeliHook
from airflow_provider.links import NeliLink
from airflow_provider.operators.leader import role_here

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["LeaderShortCircuitOperator"]


class LeaderShortCircuitOperator(ShortCircuitOperator):
    """Skips all tasks below it unless this host leads the role now. Its XCom holds the term, or is false.

    If the agent is away, the task fails, because it is unknown who leads; it is retried as configured.

    :param role: a name, or the number of a partition; by default the run's `partition_key` (templated)
    :param key: any text, in place of a role: the owner of this key goes on (templated)
    :param partition: the number of a partition, in place of a role (templated)
    :param neli_conn_id: the connection to this host's agent (templated)
    """

    template_fields = ("role", "key", "partition", "neli_conn_id")
    operator_extra_links = (NeliLink(),)
    shown_partition: int | None = None
    """The partition that the link opens, once it is known."""

    def __init__(
        self,
        *,
        role: int | str | None = None,
        key: str | None = None,
        partition: int | str | None = None,
        neli_conn_id: str = CONNECTION_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(python_callable=_leader, **kwargs)
        self.role = role
        self.key = key
        self.partition = partition
        self.neli_conn_id = neli_conn_id

    def execute(self, context: "Context") -> Any:
        self.op_args = (self, context)
        return super().execute(context)


def _leader(operator: LeaderShortCircuitOperator, context: "Context") -> dict[str, Any] | bool:
    """This host's lease, in a form for XCom; False if it has none."""
    with NeliHook(operator.neli_conn_id) as hook:
        role = role_here(hook, (operator.role, operator.key, operator.partition), context)
        lease = hook.lease(role)
    operator.shown_partition = lease.partition if lease is not None else role if isinstance(role, int) else None
    return lease is not None and {"member": lease.member, "partition": lease.partition, "term": lease.term}
