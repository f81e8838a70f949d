"""LeaderSQLExecuteQueryOperator: SQL that runs where its role is led, and that the database refuses of a deposed task.

    execute --the role is led here--> context["lease"] --one transaction--> admit its term, all of `sql`, COMMIT
                                                           '--a higher term was admitted--> Refused, nothing is written

A lease cannot stop a statement of a process that is paused, and wakes up after another host took over. So the term is
admitted in the transaction of the statements: see `airflow_provider.fencing`. Any number of tasks may write to one
resource, but all for one role: the terms of two partitions cannot be compared.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from airflow.providers.common.compat.sdk import AirflowOptionalProviderFeatureException

from airflow_provider.fencing import fenced
from airflow_provider.operators.leader import LEASE_KEY, LeaderMixin
from neli_router.fence import FenceMisused

try:
    from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator
except ModuleNotFoundError as error:
    raise AirflowOptionalProviderFeatureException(
        "Airflow's provider common.sql was wanted for operators of SQL, but it is not installed: "
        "pip install apache-airflow-providers-common-sql"
    ) from error

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["LeaderSQLExecuteQueryOperator"]


class _FencedExecution(SQLExecuteQueryOperator):
    """The part that runs under the lease: `context["lease"]`."""

    resource: str
    paramstyle: str | None

    def execute(self, context: "Context") -> Any:
        hook, lease = self.get_db_hook(), cast("dict[str, Any]", context)[LEASE_KEY]
        # A class may make a hook for each call, and only this one is fenced.
        self.__dict__["get_db_hook"] = lambda: hook
        with fenced(hook, lease, self.resource, paramstyle=self.paramstyle):
            return super().execute(context)  # type: ignore[no-untyped-call]


class LeaderSQLExecuteQueryOperator(LeaderMixin, _FencedExecution):
    """Runs all of `sql` in one transaction that admits the term of the role's lease, on SQLite or PostgreSQL.

    :param resource: the name under which the database remembers the term: what `sql` writes to, such as "invoices"
        (templated)
    :param paramstyle: that of the driver's module, if the fence does not know the driver

    The other arguments are those of LeaderMixin and of Airflow's SQLExecuteQueryOperator, except `autocommit`: the
    fence would be down again before the write. `airflow_provider.fencing.install` makes the table of terms.
    """

    template_fields: Sequence[str] = (
        *LeaderMixin.template_fields,
        "resource",
        *SQLExecuteQueryOperator.template_fields,
    )

    def __init__(self, *, resource: str, paramstyle: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.resource = resource
        self.paramstyle = paramstyle
        if self.autocommit:
            raise FenceMisused(
                "all of `sql` was wanted in the transaction that admits the term",
                "autocommit=True commits each statement on its own",
                "leave it out, or do what allows no transaction in a task without a fence",
            )
