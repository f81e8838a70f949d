"""Sensors: tasks that wait until a role has its leader, or a key its owner.

    deferrable=True       a worker asks once --expected--> done
                                             '-----------> LeaderTrigger --event--> a worker returns its leader
                            ^-- after `poke_interval`, if "here" is the worker's host, and it does not lead --'
    start_from_trigger    LeaderTrigger --> done, skipped or failed: no worker at any time
    deferrable=False      a worker asks every `poke_interval` seconds

Airflow fixes the arguments of `start_from_trigger` when it reads the Dag, and gives all instances of a mapped task the
arguments of the class. So the class has no arguments, an instance has its own, and a mapped sensor starts on a worker
and ends in the triggerer. The triggerer renders templates for arguments that have the same name in `template_fields`
and in the trigger, which is why the names here and there are the same.

**Here** is the worker's host: the worker gives the trigger the name of its own member, and asks again when the trigger
has fired, because Airflow may choose a worker on another host. With `start_from_trigger` there is no worker, and "here"
is the triggerer's host.

**A gate** decides for the tasks below it:

    run --> LeaderGateSensor, in the triggerer --this host leads-------> success: the tasks below run
                                               |--another one leads----> skipped, and all below: no worker was used
                                               |--no member leads yet--> waits, at most `timeout`
                                               '--the agent is away ---> waits, at most `timeout`, or fails

Where the same Dag runs on several installations, each installation makes a run for each interval, and the gate ends the
run in all but one. A gate decides once. If the leader dies after the others skipped, no installation does that
interval. So a Dag that must do every interval begins with a LeaderSensor, which goes on waiting, and writes through a
fence.

When a sensor is done, it names the leader at that moment. Work that may run only while a role is led must hold the
role: `@task.leader`.
"""

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowSensorTimeout,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)
from airflow.triggers.base import StartTriggerArgs

from airflow_provider import has_airflow, require_feature
from airflow_provider._arguments import (
    Expected,
    Otherwise,
    Place,
    WhenAway,
    asked_role,
    by_default,
    layout_of_run,
    led_text,
    require_choice,
    require_literals,
    require_sense,
    role_for,
    spelled_layout,
)
from airflow_provider._compat import AirflowRescheduleException
from airflow_provider.hooks.neli import CONNECTION_ID, NeliHook
from airflow_provider.links import NeliLink
from airflow_provider.triggers.neli import LEADER_KEY, LeaderTrigger, leader_of
from neli_router.errors import BadKey, ConfigError, GroupMismatch, NeliError, NoOwner

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

__all__ = ["PARTITION_KEY", "LeaderGateSensor", "LeaderSensor", "SlotOwnerSensor", "leader_from"]

GATE_TIMEOUT = timedelta(minutes=5)
"""How long a gate waits for a leader, or for an agent that is away. A takeover takes a few seconds at most; a run that
waits longer should be noticed."""

PARTITION_KEY = "{{ dag_run.partition_key or '' }}"
"""A sensor waits for this by default: the partition or the key of a partitioned run."""


def leader_from(xcom: Any) -> dict[str, Any]:
    """The leader that a sensor found, from its XCom, for the tasks below the sensor.

    If a task ends in the triggerer, Airflow 3.3 stores its result as text, as if it had always been text.

    :param xcom: the result of a sensor
    """
    found: dict[str, Any] = json.loads(xcom) if isinstance(xcom, str) else xcom
    return found


class _WaitingSensor(BaseSensorOperator):
    """Everything that both sensors share. One of `role`, `key` and `partition` is not None."""

    template_fields: Sequence[str] = ("role", "key", "partition", "expect", "neli_conn_id")
    ui_color = "#dcecf5"
    operator_extra_links = (NeliLink(),)

    role: str | int | None
    key: str | None
    partition: str | int | None
    expect: Expected
    neli_conn_id: str
    when_away: WhenAway
    otherwise: Otherwise = "wait"
    shown_partition: int | None = None
    """The partition that the link opens, once it is known."""
    _here: str | None = None
    """The member of this host, once it was asked."""
    _told = "the group did not answer"
    """The last line in the log: who is waited for, and why."""

    def execute(self, context: "Context") -> Any:
        if not self.deferrable:
            try:
                return super().execute(context)
            except AirflowSensorTimeout as error:
                raise AirflowSensorTimeout(f"{self._told}: {error}") from None
        if found := self._first_look(context):
            return found.xcom_value
        arguments, timeout = self._arguments(), timedelta(seconds=self.timeout)
        if self._means_worker and self._here:
            arguments["expect"] = self._here
        return self.defer(trigger=LeaderTrigger(**arguments), method_name="execute_complete", timeout=timeout)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: "Context") -> Any:
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowSensorTimeout as error:
            if found := self._first_look(context):  # It has come just in time.
                return found.xcom_value
            raise AirflowSensorTimeout(f"{self._told}, and the time of {self.timeout:g} s is over") from error

    def execute_complete(self, context: "Context", event: dict[str, Any]) -> dict[str, Any]:
        """The leader in the event of the trigger. Raises an error if the wait ended in any other way."""
        outcome, why, leader = event["outcome"], event["why"], {**event}
        del leader["outcome"], leader["why"]
        self.shown_partition = event.get("partition")
        if outcome == "skipped":
            raise _skipped(why, leader, context)
        if outcome != "success":
            raise AirflowException(why)
        if self._means_worker:
            if found := self._first_look(context):
                return dict(found.xcom_value)  # type: ignore[arg-type]
            self.log.info("%s leads it, and this task was started on another host, or too late", event["leader"])
            back_at = datetime.now(UTC) + timedelta(seconds=self.poke_interval)
            raise AirflowRescheduleException(back_at)  # type: ignore[no-untyped-call]
        return leader

    def poke(self, context: "Context") -> PokeReturnValue:
        """Whether the expected member leads now. Raises AirflowException for what waiting cannot fix."""
        try:
            require_sense(self._place, **self._chosen)
            with NeliHook(self.neli_conn_id) as hook:
                return self._asked(hook, context)
        except (BadKey, ConfigError, GroupMismatch) as error:
            raise AirflowException(str(error)) from error
        except NoOwner as error:
            self._go_on(f"no member leads it: {error}; waiting for {self.expect}")
        except NeliError as error:
            if self.when_away == "fail":
                raise AirflowException(str(error)) from error
            self._go_on(f"waiting until it can be asked again: {error}", logging.WARNING)
        return PokeReturnValue(is_done=False)

    @property
    def _means_worker(self) -> bool:
        """Whether a worker's host is to lead."""
        return self.expect == "here" and not self.ends_in_triggerer

    def _go_on(self, told: str, level: int = logging.INFO) -> None:
        """Wait on, and log why when that changes."""
        if told != self._told:
            self._told = told
            self.log.log(level, "%s", told)

    def _first_look(self, context: "Context") -> PokeReturnValue | None:
        """Look once on the worker, which may save the detour through the triggerer."""
        try:
            found = self.poke(context)
        except AirflowException as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise
        return found or None

    def _asked(self, hook: NeliHook, context: "Context") -> PokeReturnValue:
        # The Dag's mapper made a run by partition, and it must have the group's layout.
        seen = hook.leader(role_for(hook.layout, asked_role(*self._place)), wanted=layout_of_run(self.get_dag()))
        self._here, self.shown_partition = seen.member, seen.owner.partition
        view, is_here = seen.owner, None if seen.member is None else seen.member == seen.owner.name
        if self.expect == "here" and is_here is None:
            raise hook.no_agent("the name of this host's member")
        if is_here and self.expect in {"here", view.name}:
            is_expected = seen.may_act
        else:
            is_expected = self.expect in {"anybody", view.name}
            if not is_expected and self.otherwise != "wait":
                why = f"{self.expect!r} was to lead, but {view.name} leads, under term {view.term}"
                if self.otherwise == "skip":
                    raise _skipped(why, leader_of(self.role, view, here=is_here), context)
                raise AirflowException(why)
        if not is_expected:
            wanted = seen.member if self.expect == "here" and seen.member else self.expect
            self._go_on(led_text(self._place, view, wanted))
        return PokeReturnValue(is_expected, leader_of(self.role, view, here=is_here))

    def _arguments(self) -> dict[str, Any]:
        """The trigger's arguments."""
        layout = layout_of_run(self.get_dag())
        return {
            "layout": None if layout is None else spelled_layout(layout),
            "role": self.role,
            "key": self.key,
            "partition": self.partition,
            "expect": self.expect,
            "neli_conn_id": self.neli_conn_id,
            "otherwise": self.otherwise,
            "when_away": self.when_away,
            "ends_task": self.ends_in_triggerer,
            "soft_fail": self.soft_fail or self.never_fail,
        }

    @property
    def _chosen(self) -> dict[str, object]:
        return {"expect": self.expect, "otherwise": self.otherwise, "when_away": self.when_away}

    @property
    def _place(self) -> Place:
        return self.role, self.key, self.partition

    def _begin(self, *, deferrable: bool | None, start_from_trigger: bool) -> None:
        """The last step of a constructor: judge the arguments, and assign what Airflow needs to begin without a
        worker."""
        if start_from_trigger:
            require_feature("sensors that need no worker (start_from_trigger)")
        if deferrable is None:
            deferrable = start_from_trigger or conf.getboolean("operators", "default_deferrable", fallback=False)
        self.deferrable, self.ends_in_triggerer = deferrable, start_from_trigger
        if self.role is self.key is self.partition:
            setattr(self, by_default(self.get_dag()), PARTITION_KEY)
        require_literals(self._place, **self._chosen)
        arguments = self._arguments()
        # Only a worker knows the output of another task; the scheduler would fail on it.
        is_plain = all(isinstance(value, str | int | dict | None) for value in arguments.values())
        self.start_from_trigger = self.ends_in_triggerer and self.deferrable and is_plain
        if self.start_from_trigger:
            self.start_trigger_args = StartTriggerArgs(
                trigger_cls=f"{LeaderTrigger.__module__}.{LeaderTrigger.__qualname__}",
                trigger_kwargs=arguments,
                next_method="execute_complete",
                timeout=timedelta(seconds=self.timeout),
            )


def _skipped(why: str, leader: dict[str, Any], context: "Context") -> AirflowSkipException:
    """The end of a task that another member's lead skips. The XCom says who leads."""
    if leader:
        context["ti"].xcom_push(key=LEADER_KEY, value=leader)
    return AirflowSkipException(why)


class LeaderSensor(_WaitingSensor):
    """Waits until a role has the expected leader, and returns that leader.

    The XCom holds role, partition, leader, address, term, and `here`, which is whether this host leads: see
    `leader_from`.

    :param role: a name, or the number of a partition; by default the partition or the key of the run (templated)
    :param partition: the number of a partition, in place of a role (templated)
    :param expect: "here" (this host leads it and may act), "anybody", or the name of a member (templated)
    :param neli_conn_id: the connection to this host's agent, or to a ledger (templated)
    :param when_away: "wait", at most until `timeout`, or "fail", if the agent cannot be asked
    :param deferrable: whether to wait in the triggerer; by default, what `[operators] default_deferrable` says
    :param start_from_trigger: whether to begin and end in the triggerer, without a worker (Airflow 3.3)
    """

    def __init__(
        self,
        *,
        role: str | int | None = None,
        partition: str | int | None = None,
        expect: Expected = "here",
        neli_conn_id: str = CONNECTION_ID,
        when_away: WhenAway = "wait",
        deferrable: bool | None = None,
        start_from_trigger: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.role, self.key, self.partition = role, None, partition
        self.expect, self.neli_conn_id, self.when_away = expect, neli_conn_id, when_away
        self._begin(deferrable=deferrable, start_from_trigger=start_from_trigger)


class SlotOwnerSensor(_WaitingSensor):
    """Waits until the partition of a key has the expected owner, and returns that owner.

    Airflow stores a task's rendered arguments in its database, and thus the key; our logs and XComs never contain it.

    :param key: any text; by default the partition key of the run (templated)
    :param expect: "here" (this host leads it and may act), "anybody", or the name of a member (templated)
    :param neli_conn_id: the connection to this host's agent, or to a ledger (templated)
    :param when_away: "wait", at most until `timeout`, or "fail", if the agent cannot be asked
    :param deferrable: whether to wait in the triggerer; by default, what `[operators] default_deferrable` says
    :param start_from_trigger: whether to begin and end in the triggerer, without a worker (Airflow 3.3)
    """

    def __init__(
        self,
        *,
        key: str = PARTITION_KEY,
        expect: Expected = "here",
        neli_conn_id: str = CONNECTION_ID,
        when_away: WhenAway = "wait",
        deferrable: bool | None = None,
        start_from_trigger: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.role, self.key, self.partition = None, key, None
        self.expect, self.neli_conn_id, self.when_away = expect, neli_conn_id, when_away
        self._begin(deferrable=deferrable, start_from_trigger=start_from_trigger)


class LeaderGateSensor(_WaitingSensor):
    """Lets the run go on where this host leads a role, and skips the tasks below elsewhere, without a worker.

    Tasks below it with the trigger rule `all_success`, the default, are skipped with it. Tasks with rules such as
    `none_failed` run after a skipped task, and so do tasks that are not below the gate. A mapped gate needs a worker to
    begin with. So does each gate in Airflow 3.1 and 3.2, and without `deferrable` also to wait.

    :param role: a name, or the number of a partition; by default the partition or the key of the run (templated)
    :param partition: the number of a partition, in place of a role (templated)
    :param when_not_leading: "skip" the tasks below, or "fail"
    :param timeout: seconds, or a timedelta, to wait for a leader, or for an agent that is away
    :param expect: "here" (this host leads it and may act), "anybody", or the name of a member (templated)
    :param neli_conn_id: the connection to this host's agent (templated)
    :param when_away: "wait", at most until `timeout`, or "fail", if the agent cannot be asked
    :param deferrable: whether to wait in the triggerer; by default, what `[operators] default_deferrable` says
    :param start_from_trigger: whether to begin and end in the triggerer, without a worker (Airflow 3.3)
    """

    def __init__(
        self,
        *,
        role: str | int | None = None,
        partition: str | int | None = None,
        when_not_leading: Literal["skip", "fail"] = "skip",
        timeout: timedelta | float = GATE_TIMEOUT,
        expect: Expected = "here",
        neli_conn_id: str = CONNECTION_ID,
        when_away: WhenAway = "wait",
        deferrable: bool | None = None,
        start_from_trigger: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(timeout=timeout, **kwargs)
        require_choice("when_not_leading", when_not_leading, ("skip", "fail"))
        self.role, self.key, self.partition = role, None, partition
        self.expect, self.neli_conn_id, self.when_away = expect, neli_conn_id, when_away
        self.otherwise = when_not_leading
        start_from_trigger = has_airflow(3, 3) if start_from_trigger is None else start_from_trigger
        self._begin(deferrable=deferrable, start_from_trigger=start_from_trigger)
