"""Names that have moved from one version of Airflow to the next, at one place for all of them.

    3.1               airflow.exceptions has the exceptions
    3.2 and newer     airflow.sdk.exceptions has them
    3.3 and newer     triggers of one connection can share a stream

On an older Airflow each trigger follows its connection on its own.
"""

from typing import TYPE_CHECKING, Any

from airflow_provider import has_airflow

if TYPE_CHECKING or has_airflow(3, 2):
    from airflow.sdk.exceptions import AirflowRescheduleException, TaskDeferralTimeout
else:
    from airflow.exceptions import AirflowRescheduleException, TaskDeferralTimeout

if TYPE_CHECKING or has_airflow(3, 3):
    from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer
else:
    AdvanceItem, SharedStreamProducer = Any, object

__all__ = ["AdvanceItem", "AirflowRescheduleException", "SharedStreamProducer", "TaskDeferralTimeout"]
