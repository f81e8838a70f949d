"""LeadershipRetryPolicy: when a task that ended because of leadership is tried again, and whether.

    the task's error, and all that caused it
       |-- a fence's Refused ------------------> FAIL     a newer owner writes there: the reason names its term
       |-- LeaseLost, NotLeading --------------> RETRY    after as long as a takeover takes
       '-- anything else ----------------------> DEFAULT  as `retries` and `retry_delay` of the task say

A lost lease says nothing against the work. Another member leads the role in a moment, and the retry runs there, or
waits there. A takeover takes about the group's lease: until then nobody leads, and a retry would use up one of the
task's `retries` for nothing. An hour of `retry_delay` would keep everybody waiting. So the delay is twice the lease,
which the agent is asked for.

A refused fence says that the retry would be refused as well: this task's host is deposed and did not know it. The newer
owner does the work, so the task fails at once. Of a task that lost its lease and was refused, the fence's word counts.

    with DAG("nightly", default_args={"retries": 3, "retry_policy": LeadershipRetryPolicy()}): ...

Airflow asks the policy in the task's own process, and never for a task that ends in the triggerer or is killed. It
cannot give more tries than `retries`. `ChainRetryPolicy` asks several policies in turn.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider.airflow_version import require_airflow

require_airflow()

from airflow.providers.common.compat.sdk import AirflowException, RetryDecision, RetryPolicy

from airflow_provider.hooks.neli import CONNECTION_ID, NeliHook
from neli_router.agent import Client
from neli_router.config.config import Config
from neli_router.errors import LeaseLost, NeliError, NotLeading
from neli_router.fence import Refused

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["LeadershipRetryPolicy"]

ASK_MAX = 2.0
"""Seconds for the agent's answer. The task's end waits for it."""

CHAIN_MAX = 100
"""How many errors of a chain are looked at: there may be many in a group."""

LEASES = 2.0
"""A takeover takes one lease, and a suspicion. In twice that time the next leader has begun."""


class LeadershipRetryPolicy(RetryPolicy):
    """Retries a lost lease after a takeover's time, and fails at a refused fence.

    :param neli_conn_id: the connection to the agent that knows the lease; by default the task's, if it has one
    :param delay: seconds until the retry, instead of twice the lease
    """

    def __init__(self, *, neli_conn_id: str | None = None, delay: float | None = None) -> None:
        self.neli_conn_id, self.delay = neli_conn_id, delay

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: "Context | None" = None
    ) -> RetryDecision:
        errors = list(_chain(exception))
        refused = next((error for error in errors if isinstance(error, Refused)), None)
        if refused is not None:
            return RetryDecision.fail(f"a newer owner writes there: {refused}")
        lost = next((error for error in errors if isinstance(error, LeaseLost | NotLeading)), None)
        if lost is None:
            return RetryDecision.default()
        delay, how = (self.delay, "") if self.delay is not None else self._takeover(context)
        return RetryDecision.retry(timedelta(seconds=delay), f"tried again in {delay:g} s{how}: {lost}")

    def _takeover(self, context: "Context | None") -> tuple[float, str]:
        """Seconds until another member leads, and how that is known."""
        task: Any = context["task"] if context is not None and "task" in context else None
        conn_id = self.neli_conn_id or getattr(task, "neli_conn_id", None) or CONNECTION_ID
        try:
            with NeliHook(conn_id, timeout=ASK_MAX) as hook:
                conn = hook.get_conn()
                if isinstance(conn, Client):
                    lease = conn.status().lease
                    return LEASES * lease, f", as a takeover takes at a lease of {lease:g} s"
        except (NeliError, AirflowException):
            pass  # The agent may be what the lease was lost with.
        return LEASES * Config("memory://usual").lease, ", as a takeover takes at the usual lease"

    def __repr__(self) -> str:
        return f"LeadershipRetryPolicy(neli_conn_id={self.neli_conn_id!r}, delay={self.delay!r})"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error`, and all that it was raised from, or while."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < CHAIN_MAX:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        behind = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        several = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        waiting += [*several, *([behind] if behind is not None else [])]
