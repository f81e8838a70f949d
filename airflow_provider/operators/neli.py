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

from airflow_provider.hooks.neli import CONNECTION_ID, NeliHook
from airflow_provider.links import NeliLink
from airflow_provider.operators.leader import role_here
from airflow_provider.sensors.neli import PARTITION_KEY, WaitingSensor

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
        role: str | int = PARTITION_KEY,
        when_not_leading: Literal["skip", "fail"] = "skip",
        timeout: timedelta | float = GATE_TIMEOUT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"start_from_trigger": True, **kwargs}, timeout=timeout)
        self.role, self.key, self.otherwise = role, None, when_not_leading
        self._start_in_triggerer()


class LeaderShortCircuitOperator(ShortCircuitOperator):
    """Skips all tasks below it unless this host leads the role now. Its XCom holds the term, or is false.

    If the agent is away, the task fails, because it is unknown who leads; it is retried as configured.

    :param role: the role, a number or a name; the run's `partition_key` unless a role or a key is given (templated)
    :param key: a key, in place of a role: its partition's owner goes on (templated)
    :param neli_conn_id: the connection to this host's agent (templated)
    """

    template_fields = ("role", "key", "neli_conn_id")
    operator_extra_links = (NeliLink(),)

    def __init__(
        self,
        *,
        role: int | str | None = None,
        key: str | None = None,
        neli_conn_id: str = CONNECTION_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(python_callable=_leader, **kwargs)
        self.role = role
        self.key = key
        self.neli_conn_id = neli_conn_id

    def execute(self, context: "Context") -> Any:
        self.op_args = (self, context)
        return super().execute(context)


def _leader(operator: LeaderShortCircuitOperator, context: "Context") -> dict[str, Any] | bool:
    """This host's lease, in a form for XCom; False if it has none."""
    with NeliHook(operator.neli_conn_id) as hook:
        lease = hook.lease(role_here(hook, operator.role, operator.key, context))
    return lease is not None and {"member": lease.member, "partition": lease.partition, "term": lease.term}
