"""Operators: a gate at the head of a Dag, which lets a run go on only where its role is led.

    run --> LeaderGate, in the triggerer --this host leads-------> success: the tasks below run
                                         |--another one leads----> skipped, and all below with it: no worker was used
                                         |--nobody leads yet-----> waits, at most `timeout`
                                         '--the agent is away ---> waits, at most `timeout`, or fails

Where the same Dag runs on several installations, each makes a run for each interval, and the gate ends it in all but
one. A gate decides once. If the leader dies after the others skipped, the interval is done by nobody: a Dag whose every
interval must be done begins with a LeaderSensor, which goes on waiting, and writes through a fence.
"""

from datetime import timedelta
from typing import Any, Literal

from airflow_provider.sensors.neli import PARTITION_KEY, WaitingSensor

__all__ = ["LeaderGate"]

GATE_TIMEOUT = timedelta(minutes=5)
"""For how long a gate waits for a leader, or for an agent that is away. A takeover takes a few seconds at most; a run
that waits for longer should be seen."""


class LeaderGate(WaitingSensor):
    """Lets the run go on where `role` is led by this host, and skips the tasks below elsewhere, without a worker.

    Tasks below with the trigger rule `all_success`, the default, are skipped with it; rules such as `none_failed` run
    after a skipped task, and so does what is not below the gate. `when_not_leading="fail"` fails the run instead.
    Mapped, it takes a worker to begin with. The other arguments are those of LeaderSensor.
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
