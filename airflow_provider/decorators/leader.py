"""@task.leader: a function that runs as a task only where its role is led, and only while it is.

    @task.leader(role="nightly", when_not_leading="wait", retries=3, retry_policy=LeadershipRetryPolicy())
    def report(lease):
        rows = read()
        if lease.revoked:                       another member is to take the role: finish soon
            ...
        write(rows, term=lease.term)            the fence refuses it if another member leads by then

    function --LeaderMixin: the lease is held--> called with `lease`, if it takes one
       ^                                              '-- the lease is lost: stopped at that line, LeadershipLost
       '------ retried where the role is led

A coroutine function is cancelled when the lease is lost, by asyncio's own means. Its lease answers without waiting; to
wait, use `await asyncio.to_thread(lease.revoked.wait)`. Everything else works as with `@task`: arguments from upstream
tasks, `.expand` over many, the return value as XCom. A task that lost its lease returns nothing.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import DecoratedOperator, task_decorator_factory
from airflow.providers.standard.operators.python import PythonOperator

from airflow_provider.operators.leader import LEASE_KEY, LeaderMixin

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context, TaskDecorator

__all__ = ["LeaderDecoratedOperator", "leader_task"]


class LeaderDecoratedOperator(LeaderMixin, DecoratedOperator, PythonOperator):
    """The operator behind `@task.leader`. The other arguments are those of LeaderMixin and of any operator.

    :param python_callable: the function
    :param op_args: its arguments by position (templated)
    :param op_kwargs: its arguments by name, without the lease (templated)
    """

    template_fields: Sequence[str] = ("templates_dict", "op_args", "op_kwargs", *LeaderMixin.template_fields)
    template_fields_renderers = {"templates_dict": "json", "op_args": "py", "op_kwargs": "py"}  # noqa: RUF012 - like Airflow's own.
    custom_operator_name = "@task.leader"

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        given = dict(op_kwargs or {})
        if LEASE_KEY in given:
            raise ValueError(
                f"the argument {LEASE_KEY!r} was wanted from the task itself, but the Dag gives it: leave it out of "
                "the call, or choose another name for it"
            )
        # Airflow binds the arguments at each parse, before any lease exists.
        bound = {**given, LEASE_KEY: None} if LEASE_KEY in inspect.signature(python_callable).parameters else given
        super().__init__(
            kwargs_to_upstream={"python_callable": python_callable, "op_args": op_args, "op_kwargs": given},
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=bound,
            **kwargs,
        )
        self.op_kwargs = given

    async def aexecute(self, context: "Context") -> Any:
        self.held.cancel_this_task()
        return await super().aexecute(context)  # type: ignore[no-untyped-call]


def leader_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool | None = None, **kwargs: Any
) -> "TaskDecorator":
    """Turn a function into a task, as `@task.leader`.

    It takes the arguments of LeaderMixin and of any operator.

    :param python_callable: the function
    :param multiple_outputs: whether a returned dict becomes one XCom for each key
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=LeaderDecoratedOperator,
        **kwargs,
    )
