"""Exceptions: the errors by which a task ends because of leadership.

    AirflowException
    |-- LeadershipLost    also a LeaseLost: another member took the role over, or may have, while the task ran
    '-- NotLeadingHere    also a NotLeading: the task was to work, and its role is led elsewhere

    LeadershipEnding      a BaseException, and seen only by the code that it stops

Airflow retries both errors as any other. `airflow_provider.retries` knows them, and chooses the time. Each has the
three parts of the project's errors: what was wanted, what was found, and what to do.

**Two names for one loss.** A lost lease has to stop code that is written to go on: loops which log an error and try
again. So the code is stopped by an exception that is no `Exception`, as a timeout of Airflow and a cancellation of
asyncio are. Where the block of work ends, it becomes LeadershipLost, which callbacks and policies of Airflow can catch.
"""

from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

from neli_router.errors import LeaseLost, NeliError, NotLeading

__all__ = ["LeadershipEnding", "LeadershipLost", "NotLeadingHere"]


class _InThreeParts(AirflowException, NeliError):
    def serialize(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        # Airflow's own form has the composed message alone, and could not be made into an exception again.
        return f"{type(self).__module__}.{type(self).__name__}", (self.wanted, self.found, self.remedy), {}


class LeadershipLost(_InThreeParts, LeaseLost):
    """The task ran under a lease that was lost meanwhile. The work is stopped; its cause says where it was."""


class NotLeadingHere(_InThreeParts, NotLeading):
    """The task's role is not led by this host now. Nothing of the task has run."""


class LeadershipEnding(BaseException):
    """Raised in the code that runs under a lost lease, at the line where it is. Clean up in `finally`, and let it pass:
    a second one comes, and then the process ends."""
