"""LeaderShortCircuitOperator: skips the tasks below it where their role is not led.

    worker --asks once--> this host leads: the tasks below run
                      |-> it does not:     they are skipped, whatever their trigger rule is
                      '-> no agent:        the task fails

It may stand at any place in a Dag: put it before the tasks that are only for the leader. It does not hold the role, so
the tasks behind it may run after the role is lost: `@task.leader` holds it.
"""

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator, SkipMixin

from airflow_provider.hooks.neli import CONNECTION_ID, NeliHook
from airflow_provider.links import NeliLink
from airflow_provider.operators.leader import role_here

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["LeaderShortCircuitOperator"]


class LeaderShortCircuitOperator(BaseOperator, SkipMixin):
    """Skips all tasks below it unless this host leads the role now. Its XCom holds the term, or is false.

    If the agent is away, the task fails, because it is unknown who leads; it is retried as configured.

    :param role: a name, or the number of a partition; by default the run's `partition_key` (templated)
    :param key: any text, in place of a role: the owner of this key goes on (templated)
    :param partition: the number of a partition, in place of a role (templated)
    :param neli_conn_id: the connection to this host's agent (templated)
    :param ignore_downstream_trigger_rules: whether all tasks below are skipped; if not, only those directly below, and
        the trigger rules of the others decide
    """

    template_fields = ("role", "key", "partition", "neli_conn_id")
    operator_extra_links = (NeliLink(),)
    inherits_from_skipmixin = True
    shown_partition: int | None = None
    """The partition that the link opens, once it is known."""

    def __init__(
        self,
        *,
        role: int | str | None = None,
        key: str | None = None,
        partition: int | str | None = None,
        neli_conn_id: str = CONNECTION_ID,
        ignore_downstream_trigger_rules: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.role = role
        self.key = key
        self.partition = partition
        self.neli_conn_id = neli_conn_id
        self.ignore_downstream_trigger_rules = ignore_downstream_trigger_rules

    def execute(self, context: "Context") -> dict[str, Any] | bool:
        with NeliHook(self.neli_conn_id) as hook:
            role = role_here(hook, (self.role, self.key, self.partition), context)
            lease = hook.lease(role)
        if lease is not None:
            self.shown_partition = lease.partition
            return {"member": lease.member, "partition": lease.partition, "term": lease.term}
        self.shown_partition = role if isinstance(role, int) else None
        task = context["task"]
        below = task.get_flat_relatives if self.ignore_downstream_trigger_rules else task.get_direct_relatives
        if skipped := [other for other in below(upstream=False) if not other.is_teardown]:
            self.log.info("This host does not lead the role: %d tasks are skipped", len(skipped))
            self.skip(ti=context["ti"], tasks=skipped)
        return False
