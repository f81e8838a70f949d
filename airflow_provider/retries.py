"""LeadershipRetryPolicy: whether, and when, to retry a task that ended because of leadership.

    the task's error, and all that caused it
       |-- a fence's Refused ------------------> FAIL     a newer owner writes there: the reason names its term
       |-- LeaseLost, NotLeading --------------> RETRY    after the time of a takeover
       '-- anything else ----------------------> DEFAULT  by the task's `retries` and `retry_delay`

A lost lease is not a fault of the work. Another member leads the role in a moment, and the retry runs there, or waits
there. A takeover takes about the group's lease: until then no member leads, and a retry would waste one of the task's
`retries`. A `retry_delay` of an hour would delay the work for nothing. So the delay is twice the lease, which the agent
reports.

A refused fence means that a retry would be refused as well: this task's host is deposed and did not know it. The newer
owner does the work, so the task fails immediately. If a task both lost its lease and was refused, the refusal counts.

    with DAG("nightly", default_args={"retries": 3, "retry_policy": LeadershipRetryPolicy()}): ...

Airflow asks the policy in the task's own process, and never for a task that ends in the triggerer or is killed. The
policy cannot allow more attempts than `retries`. `ChainRetryPolicy` asks several policies in turn.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider import require_feature

require_feature("retry policies")

from airflow.providers.common.compat.sdk import AirflowException, RetryDecision, RetryPolicy

from airflow_provider.hooks.neli import CONNECTION_ID, LEASES, NeliHook
from neli_router.config.config import Config
from neli_router.errors import LeaseLost, NeliError, NotLeading
from neli_router.fence import Refused

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["LeadershipRetryPolicy"]

ASK_MAX = 2.0
"""Seconds to wait for the agent's answer. The end of the task waits for it."""

CHAIN_MAX = 100
"""How many errors of a chain are examined: a group may contain many."""


class LeadershipRetryPolicy(RetryPolicy):
    """Retries a lost lease after the time of a takeover, and fails at a refused fence.

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
        """Seconds until another member leads, and where that number comes from."""
        task: Any = context["task"] if context is not None and "task" in context else None
        conn_id = self.neli_conn_id or getattr(task, "neli_conn_id", None) or CONNECTION_ID
        try:
            with NeliHook(conn_id, timeout=ASK_MAX) as hook:
                seconds = hook.takeover_max()
                return seconds, f", as a takeover takes at a lease of {seconds / LEASES:g} s"
        except (NeliError, AirflowException):
            pass  # The lease may have been lost together with the agent.
        return LEASES * Config("memory://usual").lease, ", as a takeover takes at the usual lease"

    def __repr__(self) -> str:
        return f"LeadershipRetryPolicy(neli_conn_id={self.neli_conn_id!r}, delay={self.delay!r})"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error`, and all errors that it was raised from, or while handling them."""
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
