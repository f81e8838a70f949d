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
from airflow_provider._arguments import Expected, WhenAway, require_choice
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
    """Lets the run go on where this host leads a role, and skips the tasks below elsewhere, without a worker.

    Tasks below it with the trigger rule `all_success`, the default, are skipped with it. Tasks with rules such as
    `none_failed` run after a skipped task, and so do tasks that are not below the gate. If it is mapped, it needs a
    worker to begin with; so does each gate in Airflow 3.1 and 3.2.

    :param role: a name, or the number of a partition; by default the partition or the key of the run (templated)
    :param partition: the number of a partition, in place of a role (templated)
    :param when_not_leading: "skip" the tasks below, or "fail"
    :param timeout: seconds, or a timedelta, to wait for a leader, or for an agent that is away
    :param expect: "here" (this host leads it and may act), "anybody", or the name of a member (templated)
    :param neli_conn_id: the connection to this host's agent (templated)
    :param when_away: "wait", at most until `timeout`, or "fail", if the agent cannot be asked
    :param deferrable: whether to wait in the triggerer; otherwise a worker asks every `poke_interval` seconds
    :param start_from_trigger: whether to begin and end in the triggerer, without a worker (Airflow 3.3)
    """

    def __init__(
        self,
        *,
        role: str | int | None = None,
        partition: str | int | None = None,
        when_not_leading: Literal["skip", "fail"] = "skip",
        timeout: timedelta | float = GATE_TIMEOUT,
        expect: Expected = "here",
        neli_conn_id: str = CONNECTION_ID,
        when_away: WhenAway = "wait",
        deferrable: bool = True,
        start_from_trigger: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            expect=expect,
            neli_conn_id=neli_conn_id,
            when_away=when_away,
            deferrable=deferrable,
            start_from_trigger=has_airflow(3, 3) if start_from_trigger is None else start_from_trigger,
            timeout=timeout,
            **kwargs,
        )
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
        role = role_here(hook, operator, context)
        lease = hook.lease(role)
    operator.shown_partition = lease.partition if lease is not None else role if isinstance(role, int) else None
    return lease is not None and {"member": lease.member, "partition": lease.partition, "term": lease.term}
