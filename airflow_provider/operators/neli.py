"""Operators: gates, which let a run go on only where its role is led.

    run --> LeaderGate, in the triggerer --this host leads-------> success: the tasks below run
                                         |--another one leads----> skipped, and all below with it: no worker was used
                                         |--no member leads yet--> waits, at most `timeout`
                                         '--the agent is away ---> waits, at most `timeout`, or fails

Where the same Dag runs on several installations, each installation makes a run for each interval, and the gate ends the
run in all but one. A gate decides once. If the leader dies after the others skipped, no installation does that
interval. So a Dag that must do every interval begins with a LeaderSensor, which goes on waiting, and writes through a
fence.

LeaderShortCircuitOperator asks once, on a worker, at any place in a Dag: put it before the tasks that are only for the
leader. None of the gates holds the role, so the tasks behind them may run after it is lost: `@task.leader` holds it.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.standard.operators.python import ShortCircuitOperator

from airflow_provider import has_airflow
from airflow_provider._arguments import require_choice
from airflow_provider.hooks.neli import CONNECTION_ID, NeliHook
from airflow_provider.links import NeliLink
from airflow_provider.operators.leader import role_here
from airflow_provider.sensors.neli import WaitingSensor

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["LeaderGate", "LeaderShortCircuitOperator"]

GATE_TIMEOUT = timedelta(minutes=5)
"""How long a gate waits for a leader, or for an agent that is away. A takeover takes a few seconds at most; a run that
waits longer should be noticed."""


class LeaderGate(WaitingSensor):
    """Lets the run go on where this host leads `role`, and skips the tasks below elsewhere, without a worker.

    Tasks below it with the trigger rule `all_success`, the default, are skipped with it. Tasks with rules such as
    `none_failed` run after a skipped task, and so do tasks that are not below the gate. `when_not_leading="fail"` fails
    the run instead. If it is mapped, it needs a worker to begin with. The other arguments are those of LeaderSensor.
    """

    def __init__(
        self,
        *,
        role: str | int | None = None,
        partition: str | int | None = None,
        when_not_leading: Literal["skip", "fail"] = "skip",
        timeout: timedelta | float = GATE_TIMEOUT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"start_from_trigger": has_airflow(3, 3), **kwargs}, timeout=timeout)
        require_choice("when_not_leading", when_not_leading, ("skip", "fail"))
        self.otherwise = when_not_leading
        self._begin(role=role, partition=partition)


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
        lease = hook.lease(role_here(hook, operator, context))
    return lease is not None and {"member": lease.member, "partition": lease.partition, "term": lease.term}
