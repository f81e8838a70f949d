"""Routing: shares out a Dag's work by ownership. Work is mapped over what a host leads, or queued for the owner.

    owned_partitions() --on the host of the task--> [3, 17, 42] --work.expand(role=...)--> one mapped task for each

    a task instance is made --task_instance_mutation_hook--> queue_of_owner(...) --> its queue: "prices-b"
                                                                  |
                             one thread of the scheduler: partition -> owner <--pushed-- the agent, or a ledger

              in both: led elsewhere by now? skipped, or waits, as @task.leader says  <--when the task starts

Both answers are true when they are given, but the task starts later. So they decide only how to share out the work; the
lease that each task takes when it starts decides who may do it. A wrong queue costs time, and never causes work to be
done twice.

**In the scheduler, nothing waits.** Airflow calls the hook when it makes a task instance, several times and within a
transaction that holds up all Dags. So a thread follows the owners (with a Subscription, like the triggerer), and the
hook reads what that thread last heard, which takes microseconds. The first call of a process waits up to START_MAX for
the first owners. A forked process starts its own thread at its first call.

**Never an error.** An error in a hook ends the scheduler, and with it all Dags. So a pattern is checked when the
configuration is read. Later, a task whose owner is unknown keeps its queue, and the log says why, once.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from asgiref.sync import ThreadSensitiveContext

from airflow_provider._arguments import asked_role, by_default
from airflow_provider._machinery.subscription import Subscription
from airflow_provider.hooks.neli import CONNECTION_ID, NeliHook
from neli_router.core.keyspace import Layout
from neli_router.errors import ConfigError, NeliError, NoOwner

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance

__all__ = ["owned_partitions", "queue_of_owner"]

START_MAX = 1.0
"""Seconds that the first task instance of a process waits for the owners. An agent sends them within milliseconds."""

QUEUE_MAX = 256
"""Characters of a queue's name in Airflow's database. Writing a longer name would end the scheduler."""

TOLD_MAX = 1000
"""How many logged reasons are remembered. A scheduler may see many Dags in its life."""

log = logging.getLogger(__name__)


def owned_partitions(neli_conn_id: str = CONNECTION_ID) -> list[int]:
    """The partitions that this host leads now, in order: for a task that other tasks are mapped over.

        @task
        def mine():
            return owned_partitions()

        @task.leader(partition="{{ task.op_kwargs['number'] }}")
        def work(number, lease): ...

        work.expand(number=mine())

    Raises ConfigError if the connection is to a ledger, which does not know this host.

    :param neli_conn_id: the connection to this host's agent
    """
    with NeliHook(neli_conn_id) as hook:
        return hook.led()


def queue_of_owner(
    *,
    key_from: str | None = None,
    partition_from: str | None = None,
    queue: str | Callable[[str], str] = "{member}",
    neli_conn_id: str = CONNECTION_ID,
) -> "Callable[[TaskInstance, DagRun | None], None]":
    """Sets the queue of a task instance according to the owner of its key: for `task_instance_mutation_hook`.

        by_symbol = queue_of_owner(key_from="symbol", queue="prices-{member}")

        def task_instance_mutation_hook(task_instance, dag_run):
            if task_instance.dag_id == "prices_of_each_symbol":
                by_symbol(task_instance, dag_run)

    Without `key_from` and `partition_from`, the run's `partition_key` counts: as a partition if our mapper made the
    run, and otherwise as a key. Raises ConfigError for invalid arguments. The function that it returns never waits and
    never raises. The values must be written in the Dag: the scheduler does not know values that another task returns.

    :param key_from: the name of the argument that the task is mapped over, if its values are keys
    :param partition_from: the name of that argument, if its values are partitions
    :param queue: a pattern, or a function of the member's name
    :param neli_conn_id: the connection to an agent or a ledger, as the scheduler reaches it
    """
    name_of = queue if callable(queue) else _pattern(queue)
    if key_from is not None and partition_from is not None:
        raise ConfigError(["key_from or partition_from was wanted, but both were given: leave one of them out"])

    def route(task_instance: "TaskInstance", dag_run: "DagRun | None") -> None:
        try:
            if (role := _asked(task_instance, dag_run, key_from, partition_from)) is None:
                return
            chosen = name_of(_following(neli_conn_id).owner(role))
            if len(chosen) > QUEUE_MAX:
                raise _unknown(f"the queue's name would have {len(chosen)} characters", "make it shorter")
            task_instance.queue = chosen
        except NeliError as error:
            _tell(task_instance, error.found, error)
        except Exception as error:  # noqa: BLE001 - a user's function must not end the scheduler, either.
            _tell(task_instance, type(error).__name__, error)

    return route


# The key or role of a task instance


def _asked(
    task_instance: "TaskInstance", dag_run: "DagRun | None", key_from: str | None, partition_from: str | None
) -> int | str | None:
    """The key or partition of a task instance. None if it has none yet: Airflow asks again when it has."""
    name = key_from or partition_from
    task: Any = getattr(task_instance, "task", None)  # None if it was read from the database.
    if name is None:
        # Airflow also calls the hook for an instance that has no run yet.
        if dag_run is None or (dag := getattr(task, "dag", None)) is None:
            return None
        return asked_role(**{by_default(dag): _given(dag_run.partition_key)})
    if task is None or task_instance.map_index < 0:
        return None
    value = _given(_mapped_value(_expansion(task), name, task_instance.map_index))
    if key_from is None:
        return asked_role(partition=value)
    # A task's template turns a number into text, and the task takes the lease of that key.
    return asked_role(key=str(value) if type(value) is int else value)


def _given(value: Any) -> Any:
    if value is None:
        raise _unknown("the run has no partition_key, or the value is None", "start the run for a partition")
    if isinstance(value, str) and ("{{" in value or "{%" in value):
        raise _unknown(
            "the value is a template, which is rendered when the task runs", "map over the values themselves"
        )
    return value


def _expansion(task: Any) -> Any:
    """The values that a task is mapped over: its own, or those of the group that contains it."""
    # Airflow has no public name for these. The tests compare them with what Airflow passes to its tasks.
    if hasattr(task, "_get_specified_expand_input"):
        return task._get_specified_expand_input().value  # noqa: SLF001 - as above.
    group = task.get_closest_mapped_task_group()
    return None if group is None else group._expand_input.value  # noqa: SLF001 - as above.


def _mapped_value(expansion: Any, name: str, index: int) -> Any:
    """The value of the argument `name` for one mapped instance, as Airflow itself will pass it to the task."""
    if isinstance(expansion, Mapping):  # expand(a=..., b=...): all combinations; the last argument varies fastest.
        for argument in reversed(list(expansion)):
            values = expansion[argument]
            if not isinstance(values, Sequence) or not values:
                break
            if argument == name:
                return values[index % len(values)]
            index //= len(values)
    elif isinstance(expansion, Sequence):  # expand_kwargs([{...}, {...}])
        # Airflow also asks for an instance that a Dag, after it has shrunk, has no values for.
        arguments = expansion[index] if index < len(expansion) else None
        if isinstance(arguments, Mapping) and name in arguments:
            return arguments[name]
    raise _unknown(
        f"the task is not mapped over {name!r}, or over values that another task returns",
        "map over a list that stands in the Dag, or route by the run's partition_key",
    )


def _pattern(queue: str) -> Callable[[str], str]:
    try:
        queue.format(member="a")
    except (LookupError, ValueError, AttributeError):
        raise ConfigError([f"queue={queue!r} must be a pattern such as 'prices-{{member}}', or a function"]) from None
    return lambda member: queue.format(member=member)


# The owners


class _Owners:
    """The owner of each partition, through one connection, as a thread of this process last heard."""

    def __init__(self, conn_id: str) -> None:
        self._conn_id, self._heard = conn_id, threading.Event()
        # Layout and owners in one attribute: the thread must not change one of them while the other is read.
        self._picture: tuple[Layout, Mapping[int, str | None]] | NoOwner = _unknown(
            "the owners are not known yet", "the next task instance asks again"
        )
        threading.Thread(target=self._run, name=f"neli-routing[{conn_id}]", daemon=True).start()

    def await_first(self) -> None:
        self._heard.wait(START_MAX)

    def owner(self, role: int | str) -> str:
        """The member that owns the partition. Raises NoOwner, BadKey."""
        picture = self._picture
        if isinstance(picture, NoOwner):
            raise NoOwner(picture.wanted, picture.found, picture.remedy)
        layout, owners = picture
        if (name := owners.get(layout.partition_of_role(role))) is None:
            raise _unknown("its partition has no owner now", "a takeover takes a moment")
        return name

    def _run(self) -> None:
        try:
            asyncio.run(self._follow())
        except RuntimeError:
            # When a process ends, its thread pools take no work any longer. That is not worth logging.
            if threading.main_thread().is_alive():
                raise
        finally:
            # The last known owners do not stay true.
            self._picture = _unknown("the thread that follows the owners has ended", "see above why, then restart")

    async def _follow(self) -> None:
        subscription = Subscription(self._conn_id)
        # Airflow asks its database for a connection through asgiref, with one thread for a whole process. That thread
        # may be busy with another question, and does not exist in a fork. This context has a thread of its own.
        async with ThreadSensitiveContext(), aclosing(subscription.follow()) as moments:
            async for _ in moments:
                # Owners from before an outage are not believed: their queues may have no worker during it.
                if why := subscription.wrong or subscription.away:
                    self._picture = _unknown("the owners cannot be asked", why)
                elif subscription.layout is not None:
                    names = {partition: view.name for partition, view in subscription.owners.items()}
                    self._picture = subscription.layout, names
                self._heard.set()


_followed: dict[str, _Owners] = {}
_left_behind: list[_Owners] = []
_told: set[tuple[str, ...]] = set()
_lock = threading.Lock()


def _following(conn_id: str) -> _Owners:
    if (found := _followed.get(conn_id)) is not None:
        return found
    with _lock:
        if (found := _followed.get(conn_id)) is not None:
            return found
        found = _followed[conn_id] = _Owners(conn_id)
    found.await_first()
    return found


def _after_fork() -> None:
    """In a child: the parent's threads do not exist here. Keep what they hold: freeing it would act for the parent."""
    global _lock  # noqa: PLW0603 - another thread may have held it, and never releases it here.
    _lock = threading.Lock()
    _left_behind.extend(_followed.values())
    _followed.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _unknown(found: str, remedy: str) -> NoOwner:
    return NoOwner("the owner of a task's key was wanted, to choose its queue", found, remedy)


def _tell(task_instance: "TaskInstance", why: str, error: Exception) -> None:
    about = task_instance.dag_id, task_instance.task_id, why
    if about in _told:
        return
    if len(_told) >= TOLD_MAX:
        _told.clear()
    _told.add(about)
    trace = None if isinstance(error, NeliError) else error
    log.warning("%s.%s keeps its queue %s: %s", *about[:2], task_instance.queue, error, exc_info=trace)
