"""Exceptions: the errors that end a task because of leadership.

    AirflowException
    |-- LeadershipLost    also a LeaseLost: another member took the role over, or may have, while the task ran
    '-- NotLeadingHere    also a NotLeading: the task was to work, and its role is led elsewhere

        LeadershipEnding      a BaseException, seen only by the code that it stops

Airflow retries both errors like any other. `airflow_provider.retries` recognizes them and chooses the delay. Each has
the three parts of the project's errors: what was wanted, what was found, and what to do.

**Two names for one loss.** A lost lease has to stop code that is written to go on: loops that log an error and try
again. So the exception that stops the code is not an `Exception`, just like a timeout of Airflow and a cancellation of
asyncio. At the end of the block it becomes LeadershipLost, which Airflow's callbacks and policies can catch.
"""

from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

from neli_router.agent.wire import OwnerView
from neli_router.errors import LeaseLost, NeliError, NotLeading

__all__ = ["LeadershipEnding", "LeadershipLost", "NotLeadingHere"]


class _InThreeParts(AirflowException, NeliError):
    def serialize(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        # Airflow's own form has only the composed message, which cannot be turned back into an exception.
        return f"{type(self).__module__}.{type(self).__name__}", (self.wanted, self.found, self.remedy), {}


class LeadershipLost(_InThreeParts, LeaseLost):
    """The task's lease was lost while it ran. The work is stopped; the cause says where it was."""


class NotLeadingHere(_InThreeParts, NotLeading):
    """This host does not lead the task's role now. Nothing of the task has run."""

    leader: OwnerView | None = None
    """The member that leads it instead."""
    nobody_leads = False
    """Whether no member leads it, for the length of a takeover."""


class LeadershipEnding(BaseException):
    """Raised in the code that runs under a lost lease, at its current line. Clean up in `finally`, and let it pass: a
    second one follows, and then the process ends."""
