"""NeliMessageQueueProvider: changes of owner, for Dags that name their queue only by a scheme.

    AssetWatcher --> MessageQueueTrigger(scheme="neli", role="nightly") --> OwnershipTrigger(role="nightly")

Airflow stores the trigger on the right with the Dag, and the triggerer runs that one. So it shares the stream of its
connection, and remembers what it has reported, as if the Dag had named it.

MessageQueueTrigger is in a package that few have. Without it, Airflow leaves this queue out and logs why.
"""

from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

from airflow_provider.triggers.neli import OwnershipTrigger
from neli_router.errors import how_to_install

try:
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
except ImportError as error:
    raise AirflowOptionalProviderFeatureException(
        f'apache-airflow-providers-common-messaging was wanted for MessageQueueTrigger(scheme="neli"), but {error}: '
        f"{how_to_install('messaging')}"
    ) from error

__all__ = ["NeliMessageQueueProvider"]


class NeliMessageQueueProvider(BaseMessageQueueProvider):
    """Gives `MessageQueueTrigger(scheme="neli", ...)` an OwnershipTrigger, which takes the other arguments."""

    scheme = "neli"

    def trigger_class(self) -> type[OwnershipTrigger]:
        return OwnershipTrigger
