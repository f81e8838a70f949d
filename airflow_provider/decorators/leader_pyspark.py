"""@task.leader_pyspark: a function with a Spark session that runs only where its role is led, and only while it is.

    @task.leader_pyspark(role="nightly", conn_id="spark_default", config_kwargs={"spark.driver.memory": "2g"})
    def report(spark, lease):
        rows = spark.read.parquet(...)
        append_rows(rows, table, {lease.partition: lease.term}, batch)     the fence refuses it if another member leads

    lease held --> Spark starts, in the task's process --> the function, under `guarded`
                                                             '-- lease lost: its Spark jobs are cancelled, its current
                                                                 line is interrupted, and Java is ended immediately

It combines `@task.leader` with Airflow's `@task.pyspark`. The driver is the task's own process here, so when that
process ends, Java and Spark's workers end with it, whatever the cause: Java ends when the pipe to its parent closes. To
run a job in a process of its own, or on a cluster, use LeaderSparkSubmitOperator. The session has the same settings
`spark.neli.*`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_pyspark import SPARK_CONTEXT_KEYS, PySparkOperator
from airflow.providers.common.compat.sdk import get_current_context, task_decorator_factory

from airflow_provider.decorators.leader import LeaderDecoratedOperator
from airflow_provider.exceptions import LeadershipEnding
from airflow_provider.hooks.neli import NeliHook
from airflow_provider.operators.leader import LEASE_KEY
from airflow_provider.operators.spark import right_of, settings_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import TaskDecorator

__all__ = ["LeaderPySparkDecoratedOperator", "leader_pyspark_task"]


class LeaderPySparkDecoratedOperator(LeaderDecoratedOperator, PySparkOperator):  # type: ignore[misc]  # Like Airflow's own.
    """The operator behind `@task.leader_pyspark`. The other arguments are those of `@task.leader`.

    :param python_callable: the function, which gets `spark` and `lease` if it takes them
    :param conn_id: a Spark connection; by default a local Spark (templated)
    :param config_kwargs: Spark settings (templated)
    """

    template_fields: Sequence[str] = (*LeaderDecoratedOperator.template_fields, "conn_id", "config_kwargs")
    custom_operator_name = "@task.leader_pyspark"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        conn_id: str | None = None,
        config_kwargs: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        # Airflow binds the arguments at each parse, when the session and the lease do not exist yet. Those two are
        # keywords: a parameter without a default may come after them.
        signature = inspect.signature(python_callable)
        parameters = [
            one.replace(kind=one.KEYWORD_ONLY, default=None) if one.name in (*SPARK_CONTEXT_KEYS, LEASE_KEY) else one
            for one in signature.parameters.values()
        ]
        parameters.sort(key=lambda one: one.kind)
        python_callable.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        super().__init__(python_callable=python_callable, conn_id=conn_id, config_kwargs=config_kwargs, **kwargs)

    def execute_callable(self) -> Any:
        from neli_router.spark.runtime import require_pyspark  # noqa: PLC0415 - parsing Dags needs no Spark.

        require_pyspark()
        from neli_router.spark.guard import guarded  # noqa: PLC0415 - it imports PySpark, which may be overwritten.

        right, work = right_of(get_current_context()), self.python_callable
        with NeliHook(self.neli_conn_id) as hook:
            self.config_kwargs = {**self.config_kwargs, **settings_of(right, hook.layout())}

        @functools.wraps(work)
        def under_guard(*args: Any, spark: Any, **kwargs: Any) -> Any:
            given = {**kwargs, "spark": spark} if "spark" in inspect.signature(work).parameters else kwargs
            try:
                with guarded(spark, right, end_within=None):  # The lease's own block ends a process that goes on.
                    return work(*args, **given)
            except BaseException as error:
                if isinstance(error, LeadershipEnding) or not right.holds():
                    lost.append(error)
                    _end_java()
                raise

        lost: list[BaseException] = []
        self.python_callable = under_guard
        try:
            return super().execute_callable()
        except Exception:
            if lost:
                raise lost[0] from None  # Not the error that a session without Java cannot be stopped.
            raise
        finally:
            self.python_callable = work

    def on_kill(self) -> None:
        """Make every later call of the function to Spark fail."""
        _end_java()


def leader_pyspark_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> "TaskDecorator":
    """Turn a function into a task, as `@task.leader_pyspark`.

    It takes the arguments of LeaderPySparkDecoratedOperator.

    :param python_callable: the function
    :param multiple_outputs: whether a returned dict becomes one XCom for each key
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=LeaderPySparkDecoratedOperator,
        **kwargs,
    )


def _end_java() -> None:
    """End the Java of this process, with Spark's Python workers, and let the next session start a new one."""
    from pyspark import SparkContext  # noqa: PLC0415 - as above.
    from pyspark.sql import SparkSession  # noqa: PLC0415 - as above.

    spark: Any = SparkContext
    java = getattr(spark._gateway, "proc", None)  # noqa: SLF001 - PySpark offers no other way.
    if java is None:
        return  # No Java was started, or Spark runs elsewhere.
    java.kill()
    java.wait()
    if java.stdin is not None:  # Closing it ends Java. If it stays open, Python warns about it later.
        java.stdin.close()
    spark._gateway = spark._jvm = spark._active_spark_context = None  # noqa: SLF001 - as above.
    session: Any = SparkSession
    session._instantiatedSession = None  # noqa: SLF001 - as above.
