"""LeaderSparkSubmitOperator: a Spark job that runs only where its role is led, and that never outlives the lease.

    task --lease, or share--> agent of this host
      |  '--each renewal: until when--> warden --> spark-submit --> driver, pyspark.daemon, workers
      |                                                               |
      |   Spark settings: layout, partitions, terms                   '--NELI_AGENT, NELI_TOKEN--> the same agent
      '-- lease lost, killed, cleared, timed out --> all of the job is ended --> LeadershipLost, or the task's own error

The job gets these values in Spark's configuration and in the driver's environment:

    spark.neli.layout       {"slots":16384,"partitions":8,"tags":false}    Layout(**json.loads(...))
    spark.neli.partitions   3,5                                            what this host leads and the task holds
    spark.neli.terms        {"3":7,"5":9}                                  partition -> term, for fences
    spark.neli.term         7                                              for a task with one role
    spark.neli.counter      1790000000123456                               of this submission, for fences, too
    spark.neli.member       host-1
    NELI_AGENT, NELI_TOKEN                                                 how `Client()` finds the agent on its own

A job that opens its own `client.share()` needs no change. Any other job reads the terms, and passes them to what it
writes to. The token is never on a command line, where all users of the host could read it.

**Its end.** Airflow's operator kills the JVM and leaves the Python driver behind. Here a warden stands in between, and
ends the whole job within a moment (`_machinery.warden`): when the task is killed or cleared, when its process
disappears in any way, and when the lease is over, even if the task's process is stopped and notices nothing. The
warden holds the role until the whole job is gone, so no other host begins before that. A job that was submitted to a
cluster with `deploy_mode="cluster"` is not a child of this host: Spark's own means kill it, and its terms keep out what
it writes until then. Its driver's host has a different agent, so neither NELI_AGENT nor NELI_TOKEN goes there.

**A retry** may find such a cluster job still running, because the worker crashed. Airflow's operator goes on with it.
This operator does so only under the same terms. Under other terms the job belongs to a deposed owner: it is killed, and
submitted again.

If a task fails after the submission, but before Airflow has stored the job's id, it kills its driver. A worker that
dies at that point leaves a driver on the cluster that no retry knows. It has the terms of the retry's driver, but a
lower counter. So a job that admits the pair of term and counter writes only if it was submitted last. The counter is
the host's time: if a clock is wrong, the later job is refused, and a retry comes later still.

**Before anything runs**, the operator refuses a missing Spark connection, which Airflow's operator would take for YARN,
and a PySpark that was overwritten by installing pyspark-client.
"""

import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException, AirflowNotFoundException, BaseHook

from airflow_provider._arguments import WhenAway, WhenNotLeading
from airflow_provider._machinery.leases import HeldBlock, holding
from airflow_provider._machinery.warden import warded
from airflow_provider.exceptions import LeadershipEnding, LeadershipLost
from airflow_provider.hooks.neli import CONNECTION_ID, NeliHook
from airflow_provider.operators.leader import LEASE_KEY, LeaderMixin
from neli_router.agent import Client
from neli_router.agent.client.leases import AgentLease, Share
from neli_router.core.clock import host_clock
from neli_router.core.exit_codes import EXIT_LOST
from neli_router.core.keyspace import Layout

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["LeaderSparkSubmitHook", "LeaderSparkSubmitOperator", "right_of", "settings_of"]

END_MAX = 10.0
"""Seconds that a task waits until its whole job is gone. That takes a fraction of a second; a process that waits for a
broken disk cannot be ended at all, and then the task logs that and goes on."""

END_WITHIN = 30.0
"""The `end_within` of a task by default. The warden ends the job before the lease ends, so the task itself may wait for
that, and say why it ended: then its retry policy is asked."""

TERMS_KEY = "neli_terms"
"""The terms under which the job was submitted that the task's store remembers."""

TERMS_MAX = 100_000
"""Maximum bytes of one setting. Linux takes 131,072 for one argument of a command."""


class LeaderSparkSubmitHook(SparkSubmitHook):
    """Submits under a warden.

    :param made: the hook as Airflow's operator made it, with its three dozen arguments; this one has the same values
    :param held: the block of the lease or share
    :param right: the lease or share itself
    :param environment: for the process of spark-submit: not on the command line, which all users of a host see
    """

    _line: socket.socket
    """The socket to the warden."""
    _shared: object = None
    """The stream whose connection was passed to the warden."""
    _is_killed = False

    def __init__(
        self, made: SparkSubmitHook, held: HeldBlock[Any], right: AgentLease | Share, environment: Mapping[str, str]
    ) -> None:
        vars(self).update(vars(made))
        self._held, self._right, self._environment = held, right, environment
        self._telling = threading.Lock()
        """The client's thread reports renewals, and this thread closes the socket that they are written to."""

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        self._require_alive()
        self._line, its_input = socket.socketpair()
        # The client's thread, which handles all leases, must not wait for a warden.
        self._line.settimeout(0)
        forget = self._right.on_news(self._tell)
        try:
            # Before the warden exists: it begins with the connection, even if this process is killed meanwhile.
            self._tell()
            with its_input:
                submitted = super().submit(application, stdin=its_input, **kwargs)
        except AirflowException as error:
            if self._submit_sp is None or self._submit_sp.returncode != EXIT_LOST:
                raise
            raise LeadershipLost(
                "the job was to end under its lease",
                "it ended because it had lost it, or was to hand over; its output says which",
                "run it again where the role is led",
            ) from error
        else:
            self._require_alive()  # It may have been killed before the id of its driver was known.
            return submitted
        finally:
            # Whatever ended it: an exception of the lease or of a timeout, or none. If starting the process fails, its
            # input is closed, and the warden then ends everything.
            forget()
            try:
                self._end()
            finally:
                with self._telling:
                    self._line.close()

    def on_kill(self) -> None:
        """Like Airflow's, but lets the warden go. Airflow calls this in a signal handler, and then the task goes on."""
        self._is_killed = True
        if (process := self._submit_sp) is not None:
            process.kill = self._let_go
            # Airflow's kills an application of YARN or a pod only as long as spark-submit runs. Ours may have ended.
            process.poll = lambda: None
        super().on_kill()

    def know(self, submitted: str) -> None:
        """Let `on_kill` end a job that an earlier attempt has submitted."""
        if self._submit_sp is None:
            self._driver_id = self._yarn_application_id = submitted
            self._kubernetes_driver_pod = submitted.rpartition(":")[2]

    def kill_former(self, submitted: str) -> None:
        """Kill the cluster job of an earlier attempt. If that fails, the fence keeps it out."""
        self.log.warning("The job %s was submitted under other terms: it is killed and submitted again", submitted)
        self.know(submitted)
        self._post_submit_commands = []  # They are for the end of the new job.
        try:
            self.on_kill()
        except Exception as error:  # noqa: BLE001 - a cluster that does not answer must not keep the new owner waiting.
            self.log.warning("It could not be killed (%s). The fence refuses what it writes", type(error).__name__)

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command = super()._build_spark_submit_command(application)
        self._env = {**self._environment, **(self._env or {})}
        return warded(command, until=self._until())

    def _until(self) -> float:
        return host_clock() + self._right.remaining()

    def _tell(self) -> None:
        """Send the warden the end of the lease: now, if it is lost. Also share the agent's connection with it."""
        with self._telling, suppress(OSError):  # The warden has ended, or is stopped and reads nothing.
            text = f"{self._until()!r}\n".encode()
            if (stream := self._held.stream) is not self._shared and stream is not None:
                with suppress(OSError):  # That connection has just broken; a new one will follow.
                    socket.send_fds(self._line, [text], [stream.fileno()])
                    self._shared = stream
                    return
            self._line.send(text)

    def _require_alive(self) -> None:
        if self._is_killed:
            raise AirflowException("a job was to be submitted, but the task was killed meanwhile")

    def _let_go(self) -> None:
        """Let the warden end the job. If the warden were killed while its guardian is stopped, the job would live
        on."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)

    def _end(self) -> None:
        """End whatever is left of the job, and wait until it is gone."""
        process = self._submit_sp
        if process is None:
            return
        self._let_go()
        if not (gone := _has_ended(process.stdout, END_MAX / 2)):
            process.send_signal(signal.SIGKILL)  # The warden may be stopped. Its guardian then sees it end.
            gone = _has_ended(process.stdout, END_MAX / 2)
        if not gone:
            self.log.error("The job was killed, and some of it is still there after %g s", END_MAX)
        process.stdout.close()
        process.wait()


class _SparkSubmission(SparkSubmitOperator):
    """The part that runs under the lease: `context["lease"]`."""

    asked: NeliHook
    """The hook that gave the lease."""
    held: HeldBlock[Any]
    _is_killed = False

    def execute(self, context: "Context") -> None:
        right = right_of(context)
        self.conf = {**(self.conf or {}), **settings_of(right, self.asked.layout())}
        made = self._get_hook()
        self._hook: Any = LeaderSparkSubmitHook(made, self.held, right, self._environment(made))
        try:
            if self._is_killed:
                self.on_kill()
            super().execute(context)
        except (LeadershipEnding, LeadershipLost):
            self.on_kill()  # A job on a cluster has no warden.
            raise

    def on_kill(self) -> None:
        """Not Airflow's: that leaves spark-submit alone if it has an application on YARN. If the task has no hook yet,
        it will submit nothing."""
        self._is_killed = True
        if self._hook is not None:
            self._hook.on_kill()

    def submit_job(self, context: "Context") -> str | None:
        try:
            submitted = super().submit_job(context)
            if (store := self._store(context)) is not None:
                store.set(self.external_id_key, submitted)
        except BaseException:
            self.on_kill()  # No retry finds a job whose id is not stored.
            raise
        return submitted

    def poll_until_complete(self, external_id: Any, context: "Context") -> None:
        self._hook.know(str(external_id))  # Airflow's could not kill an application on YARN that a retry goes on with.
        super().poll_until_complete(external_id, context)

    def _store(self, context: "Context") -> Any:
        return context.get("task_state_store") if self.durable else None

    def execute_resumable(self, context: "Context") -> Any:
        """Like Airflow's, but kills and forgets a job of other terms."""
        store = self._store(context)
        if store is None:
            return super().execute_resumable(context)
        terms, told = _terms_of(right_of(context)), store.get(TERMS_KEY)
        if told != terms:
            if (submitted := store.get(self.external_id_key)) is not None:
                copy(self._hook).kill_former(str(submitted))
                store.delete(self.external_id_key)
                store.delete(self._K8S_DRIVER_STATUS_KEY)
            # Last: if it crashes before, the next attempt finds the other terms again.
            store.set(TERMS_KEY, terms)
        return super().execute_resumable(context)

    def _environment(self, hook: SparkSubmitHook) -> dict[str, str]:
        """The environment of spark-submit's process, overridden by the task's `env_vars`."""
        from neli_router.spark.runtime import java_home  # noqa: PLC0415 - parsing Dags needs no Spark.

        told = {}
        # A standalone cluster passes spark-submit's environment on to the driver, on the host of another agent.
        if hook._connection["deploy_mode"] != "cluster":  # noqa: SLF001 - the provider has no public name.
            client = self.asked.get_conn()
            assert isinstance(client, Client), "only an agent gives leases"
            told["NELI_AGENT"] = str(client.address)
            if token := BaseHook.get_connection(self.asked.neli_conn_id).password:
                told["NELI_TOKEN"] = token
        if _is_of_this_python(self._program()):
            told["PYSPARK_DRIVER_PYTHON"] = os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable)
            if (found := find_spec("pyspark")) is not None and found.origin is not None:
                # `spark-submit` would ask that Python for it, and accepts no path with a space.
                told["SPARK_HOME"] = str(Path(found.origin).parent)
            if home := java_home({**os.environ, **(self.env_vars or {})}):
                told["JAVA_HOME"] = home
        return told

    def _program(self) -> str | None:
        """The spark-submit that will run: the task's, or its connection's."""
        named = self._spark_binary or BaseHook.get_connection(self._conn_id).extra_dejson.get("spark-binary")
        return shutil.which(named or "spark-submit")


class LeaderSparkSubmitOperator(LeaderMixin, _SparkSubmission):
    """Submits a Spark job where `role` is led, and ends all of it when the lease is lost.

    The other arguments are those of Airflow's SparkSubmitOperator. The connection `conn_id` must exist. A job that ends
    with exit code 75, like `run_job` after it lost its own lease, raises LeadershipLost.

    :param role: a name, or the number of a partition; by default the run's `partition_key` (templated)
    :param key: any text, in place of a role: the owner of this key runs the job (templated)
    :param partition: the number of a partition, in place of a role (templated)
    :param partitions: in place of a role: hold all partitions that this host leads ("led"), or those of a list that it
        leads, and lose them together (templated). Nothing is deferred then: `wait` acts like `reschedule`
    :param application: the job: a script, or a jar (templated)
    :param application_args: its arguments (templated)
    :param conn_id: the Spark connection
    :param conf: Spark settings (templated)
    :param neli_conn_id: the connection to this host's agent (templated)
    :param when_not_leading: `skip`, `fail`, `wait` or `reschedule`, as in LeaderMixin
    :param when_away: `fail` or `wait` if the agent cannot be asked; by default like when another host leads
    :param timeout: maximum seconds to wait, or a timedelta, after which the task fails; None waits forever
    :param poke_interval: seconds between two questions of a rescheduled task
    :param push_term: whether to push the lease's term as the XCom `neli_term` before the job begins
    :param end_within: seconds from the lease's end until the process of a task that goes on is ended; None means never
    """

    template_fields: Sequence[str] = (
        *LeaderMixin.template_fields,
        "partitions",
        *SparkSubmitOperator.template_fields,
    )

    def __init__(
        self,
        *,
        role: int | str | None = None,
        key: str | None = None,
        partition: int | str | None = None,
        partitions: str | Sequence[int] | None = None,
        application: str = "",
        application_args: list[Any] | None = None,
        conn_id: str = "spark_default",
        conf: dict[str, Any] | None = None,
        neli_conn_id: str = CONNECTION_ID,
        when_not_leading: WhenNotLeading = "skip",
        when_away: WhenAway | None = None,
        timeout: float | timedelta | None = None,
        poke_interval: float | timedelta = 60.0,
        push_term: bool = False,
        end_within: float | None = END_WITHIN,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            role=role,
            key=key,
            partition=partition,
            neli_conn_id=neli_conn_id,
            when_not_leading=when_not_leading,
            when_away=when_away,
            timeout=timeout,
            poke_interval=poke_interval,
            push_term=push_term,
            end_within=end_within,
            application=application,
            application_args=application_args,
            conn_id=conn_id,
            conf=conf,
            **kwargs,
        )
        self.partitions = partitions

    def execute(self, context: "Context") -> Any:
        self._require_spark()
        return super().execute(context)

    def holding(self, hook: NeliHook, context: "Context") -> "HeldBlock[Any]":
        self.asked = hook
        if self.partitions is None:
            return super().holding(hook, context)
        return holding(hook, partitions=self._wanted_partitions(self.partitions), end_within=self.end_within)

    def _wanted_partitions(self, partitions: str | Sequence[int]) -> list[int] | None:
        """The partitions to hold; None for all. A template gives a text."""
        if partitions == "led":
            return None
        words = partitions.split(",") if isinstance(partitions, str) else partitions
        try:
            return [int(word) for word in words]
        except (TypeError, ValueError):
            raise AirflowException(
                f"partitions were wanted, as 'led', a list of numbers, or a text such as '3,5', but {partitions!r:.40} "
                "was given: see what its template was rendered to in Airflow's page"
            ) from None

    def _defer(self, context: "Context", error: Any, here: str) -> Any:
        if self.partitions is None:
            super()._defer(context, error, here)
        self._reschedule(context, error)  # No trigger can wait for several partitions.

    def _require_spark(self) -> None:
        """Refuse mistakes that Spark and Airflow would report obscurely, or not at all."""
        from neli_router.spark.runtime import require_pyspark  # noqa: PLC0415 - as above.

        try:
            connection = BaseHook.get_connection(self._conn_id)
        except AirflowNotFoundException:
            raise AirflowNotFoundException(
                f"the Spark connection {self._conn_id!r} was wanted, but it is not there, and Airflow would run the "
                f"job on YARN: add it with `airflow connections add {self._conn_id} --conn-type spark "
                "--conn-host 'local[2]'`, or name another by `conn_id`"
            ) from None
        if not connection.host and connection.conn_type == "spark":
            raise AirflowException(
                f"a master was wanted from the Spark connection {self._conn_id!r}, but its host is empty: "
                "give it one, such as local[2] or spark://host"
            )
        program = self._program()
        if program is None or _is_of_this_python(program):
            require_pyspark()
        if program is None:
            raise AirflowException(
                f"{self._spark_binary or 'spark-submit'} was wanted on the PATH of the worker, but it is not there: "
                "install PySpark or a Spark there, or name the program by `spark_binary`"
            )


def settings_of(right: AgentLease | Share, layout: Layout) -> dict[str, str]:
    """The Spark settings from which a job learns what it works for."""
    terms = _terms_of(right)
    spelled = msgspec.json.encode(terms).decode()
    if len(spelled) > TERMS_MAX:
        raise AirflowException(
            f"the terms of at most some {TERMS_MAX // 12} partitions were wanted on Spark's command line, but this "
            f"host leads {len(terms)}: name fewer by `partitions`"
        )
    settings = {
        "spark.neli.layout": msgspec.json.encode(layout).decode(),
        "spark.neli.member": right.member,
        "spark.neli.counter": str(time.time_ns() // 1000),
        "spark.neli.partitions": ",".join(terms),
        "spark.neli.terms": spelled,
    }
    return settings if isinstance(right, Share) else {**settings, "spark.neli.term": str(right.term)}


def _terms_of(right: AgentLease | Share) -> dict[str, Any]:
    """Partition -> term, in JSON's form."""
    terms = right.terms if isinstance(right, Share) else {right.partition: right.term}
    return {str(partition): term for partition, term in sorted(terms.items())}


def right_of(context: "Context") -> AgentLease | Share:
    """The lease or share that the running task holds."""
    return cast("AgentLease | Share", cast("dict[str, Any]", context)[LEASE_KEY])


def _is_of_this_python(program: str | None) -> bool:
    """Whether it is the spark-submit that came with PySpark, next to this interpreter."""
    beside = program is not None and Path(program).parent == Path(sys.executable).parent
    return beside and "SPARK_HOME" not in os.environ


def _has_ended(pipe: Any, patience: float) -> bool:
    """Whether the pipe ends within `patience` seconds. It ends with the last process. Everything that arrives is
    read."""
    number, give_up_at = pipe.fileno(), time.monotonic() + patience
    while select.select([number], [], [], max(0.0, give_up_at - time.monotonic()))[0]:
        if not os.read(number, 65536):
            return True
    return False
