"""LeaderMixin: the first base of operators whose work runs only where a role is led, under its lease.

    execute --led here--> the lease is held: context["lease"], and then the operator's own execute
       |                     '-- lost meanwhile --> LeadershipLost
       '--led elsewhere--> skip         the task is skipped
                           fail         NotLeadingHere, which Airflow retries as the task says
                           wait         deferred: LeaderTrigger waits without a worker; `resume` asks again
                           reschedule   the worker is free for `poke_interval`, then the task asks again

**Here** is the host of the worker that runs the task. The triggerer may be on another host, so the worker gives the
trigger the name of its own member. The role may be lost between the trigger's event and the start on a worker, and
Airflow may choose a worker on another host. So the task always asks again itself. If it does not lead then, it comes
back after `poke_interval`, and waits again. `timeout` counts from the first time that the task waited.

**The agent is away.** Then it is unknown who leads. A task that would wait for the role waits for the agent, too. Other
tasks fail, with the reason: if a task were skipped just because no agent answered, perhaps no host would do its work.
`when_away` chooses.

Derive from it as the first base, `class MyOperator(LeaderMixin, TheirOperator)`, and it holds the lease around
`TheirOperator.execute`. If that defers, the lease is given back, and `TheirOperator` continues under a lease, too. If
the role is led elsewhere by then, the task fails, because what it began here is no longer its own.

`UnderLease` is the same without arguments, for the tasks of a Dag with the tag `neli:ROLE` (`policy`).
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException, BaseOperator, Stats, conf

from airflow_provider._arguments import (
    Place,
    RoleWanted,
    WhenAway,
    WhenNotLeading,
    asked_role,
    layout_of_run,
    led_text,
    require_literals,
    role_for,
    seconds_of,
)
from airflow_provider._compat import AirflowRescheduleException, TaskDeferralTimeout
from airflow_provider._machinery.leases import END_MAX, HeldBlock, holding
from airflow_provider.exceptions import NotLeadingHere
from airflow_provider.hooks.neli import CONNECTION_ID, NeliHook
from airflow_provider.links import NeliLink
from airflow_provider.triggers.neli import LEADER_KEY, LeaderTrigger, leader_of
from neli_router.agent.client.leases import AgentLease, Share
from neli_router.core.keyspace import Role
from neli_router.errors import NeliError, NoAgent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.providers.common.compat.sdk import Context

__all__ = ["FACET", "LEASE_KEY", "TERM_KEY", "LeaderMixin", "UnderLease", "role_here"]

LEASE_KEY = "lease"
"""The key of the lease in the context, while the task works under it and in the callbacks of its end."""

FACET = "airflow_provider.lineage.leadership"
"""The function that users name in `[openlineage] custom_run_facets`."""

TERM_KEY = "neli_term"
"""The XCom with the lease's term, for downstream tasks and their templates, if `push_term` asks for it."""

FAILED = "__fail__"
"""The method by which Airflow resumes a task whose trigger failed, or whose time is over."""


class UnderLease(BaseOperator):
    """Runs the operator that it is combined with under the lease that it wants."""

    operator_extra_links = (NeliLink(),)
    shown_partition: int | None = None
    """The partition that the link opens, once it is known."""
    leadership: dict[str, Any] | None = None
    """The lease that the task holds or held, without any key, for OpenLineage's events."""
    _give_up_at: float | None = None
    """When to stop waiting, by the wall clock: a waiting task moves from one host to another."""
    _has_waited = False
    _asked_at: datetime | None = None
    """When the task first asked for its lease, by the wall clock of the host on which it was then."""

    def wanted(self) -> RoleWanted:
        """The role that the task wants."""
        raise NotImplementedError

    def holding(self, hook: NeliHook, context: "Context") -> "HeldBlock[Any]":
        """The block that the operator's `execute` runs in."""
        wanted = self.wanted()
        return holding(hook, role_here(hook, wanted.place, context), end_within=wanted.end_within)

    def execute(self, context: "Context") -> Any:
        wanted = self.wanted()
        self._asked_at = self._asked_at or datetime.now(UTC)
        with NeliHook(wanted.conn_id) as hook:
            try:
                held = self.holding(hook, context)
                held.take()
            except NotLeadingHere as error:
                self._put_off(context, error, hook.member())
            except NoAgent as error:
                if wanted.if_away() == "fail":
                    raise
                self._put_off(context, error, "here")
            if context.get("task_reschedule_count"):
                self._asked_at = context["ti"].get_first_reschedule_date(context) or self._asked_at
            Stats.timing("neli.wait", datetime.now(UTC) - self._asked_at, tags=self._tags())
            return self._work(context, hook, held, partial(super().execute, context))

    def _work(self, context: "Context", hook: NeliHook, held: "HeldBlock[Any]", work: Callable[[], Any]) -> Any:
        wanted, held.tags = self.wanted(), self._tags()
        with held as right:
            self.held, space = held, cast("dict[str, Any]", context)
            space[LEASE_KEY] = right  # A key of our own in a TypedDict.
            self.leadership = _told(hook, wanted.place[0], right)
            self.shown_partition = self.leadership.get("partition")
            if wanted.push_term and hasattr(right, "term"):  # A share has several.
                context["ti"].xcom_push(key=TERM_KEY, value=right.term)
            return work()

    def resume(
        self, context: "Context", event: Any = None, give_up_at: float | None = None, asked_at: float | None = None
    ) -> Any:
        """The trigger has fired: either this host led the role a moment ago, or waiting is useless."""
        if event is not None and event["outcome"] != "success":
            raise AirflowException(event["why"])
        self._give_up_at, self._has_waited = give_up_at, True
        self._asked_at = None if asked_at is None else datetime.fromtimestamp(asked_at, UTC)
        return self.execute(context)

    def resume_execution(self, next_method: str, next_kwargs: "dict[str, Any] | None", context: "Context") -> Any:
        go_on, wanted = partial(super().resume_execution, next_method, next_kwargs, context), self.wanted()
        with NeliHook(wanted.conn_id) as hook:
            if next_method not in {"resume", FAILED}:  # Not our deferral, but that of the operator.
                return self._work(context, hook, self.holding(hook, context), go_on)
            try:
                return go_on()
            except TaskDeferralTimeout as error:
                if wanted.timeout is None:
                    raise  # Not ours, either.
                try:
                    seen = hook.leader(role_here(hook, wanted.place, context))
                    found = led_text(wanted.place, seen.owner, seen.member or "here")
                except NeliError as unknown:
                    found = str(unknown)
                raise wanted.in_vain(found) from error

    def _tags(self) -> dict[str, str]:
        return {"dag_id": self.dag_id, "task_id": self.task_id}

    # Not leading

    def _put_off(self, context: "Context", error: NeliError, here: str) -> NoReturn:
        """Leave the worker in the way that the task chose; `error` is the reason, `here` the member to wait for."""
        wanted = self.wanted()
        way: WhenNotLeading = wanted.when_not_leading
        leader = getattr(error, "leader", None)
        self.shown_partition = None if leader is None else leader.partition
        if isinstance(error, NoAgent) and way in {"skip", "fail"}:
            way = "reschedule"  # Nothing can be decided until the agent answers.
        if way == "skip" and isinstance(error, NotLeadingHere) and error.nobody_leads:
            way = "fail"  # If every host skipped it, no host would do it.
        if way == "skip":
            if leader is not None:
                context["ti"].xcom_push(key=LEADER_KEY, value=leader_of(wanted.place[0], leader, here=False))
            raise AirflowSkipException(str(error)) from error
        if way == "fail":
            raise error
        self.log.info("The task waits: %s", error)
        if way == "wait" and not self._has_waited:
            self._defer(context, error, here)
        self._reschedule(context, error)

    def _defer(self, context: "Context", error: NeliError, here: str) -> NoReturn:
        wanted, now = self.wanted(), datetime.now(UTC).timestamp()
        if wanted.timeout is not None and self._give_up_at is None:
            self._give_up_at = now + wanted.timeout
        if self._give_up_at is not None and now >= self._give_up_at:
            raise wanted.in_vain(error.found) from error
        asked = asked_role(*wanted.place, context=context)
        place: dict[str, Any] = {"key" if isinstance(asked, str) else "partition": asked}
        trigger = LeaderTrigger(**place, expect=here, neli_conn_id=wanted.conn_id, when_away=wanted.if_away())
        limit = None if self._give_up_at is None else timedelta(seconds=self._give_up_at - now)
        times = {"give_up_at": self._give_up_at, "asked_at": self._asked_at and self._asked_at.timestamp()}
        self.defer(trigger=trigger, method_name="resume", kwargs=times, timeout=limit)

    def _reschedule(self, context: "Context", error: NeliError) -> NoReturn:
        wanted, now = self.wanted(), datetime.now(UTC)
        since = context["ti"].get_first_reschedule_date(context) or now
        if wanted.timeout is not None and now >= since + timedelta(seconds=wanted.timeout):
            raise wanted.in_vain(error.found) from error
        raise AirflowRescheduleException(now + timedelta(seconds=wanted.poke_interval))  # type: ignore[no-untyped-call]


class LeaderMixin(UnderLease):
    """Runs the operator that it is combined with under the lease of a role.

    :param role: a name, or the number of a partition; by default the run's `partition_key` (templated)
    :param key: any text, in place of a role: the owner of this key runs the task (templated)
    :param partition: the number of a partition, in place of a role (templated)
    :param neli_conn_id: the connection to this host's agent (templated)
    :param when_not_leading: `skip` (fails if no member leads for the length of a takeover), `fail`, `wait` (deferred,
        without a worker) or `reschedule`
    :param when_away: `fail` or `wait` if the agent cannot be asked; by default like when another host leads
    :param timeout: maximum seconds to wait, or a timedelta, after which the task fails; None waits forever
    :param poke_interval: seconds between two questions of a rescheduled task
    :param push_term: whether to push the lease's term as the XCom `neli_term` before the work begins; it costs a
        request to Airflow's server, which takes several times as long as taking the lease
    :param end_within: seconds from the lease's end until the process of a task that goes on is ended; None means never
    """

    template_fields: "Sequence[str]" = ("role", "key", "partition", "neli_conn_id")

    def __init__(
        self,
        *,
        role: int | str | None = None,
        key: str | None = None,
        partition: int | str | None = None,
        neli_conn_id: str = CONNECTION_ID,
        when_not_leading: WhenNotLeading = "skip",
        when_away: WhenAway | None = None,
        timeout: float | timedelta | None = None,
        poke_interval: float | timedelta = 60.0,
        push_term: bool = False,
        end_within: float | None = END_MAX,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.role = role
        self.key = key
        self.partition = partition
        self.neli_conn_id = neli_conn_id
        self.when_not_leading = when_not_leading
        self.when_away = when_away
        self.timeout = seconds_of("timeout", timeout)
        self.poke_interval = seconds_of("poke_interval", poke_interval) or 0.0
        self.push_term = push_term
        self.end_within = seconds_of("end_within", end_within, least=-1e-9)
        require_literals(self.wanted().place, when_not_leading=when_not_leading, when_away=when_away or "fail")

    def wanted(self) -> RoleWanted:
        place = self.role, self.key, self.partition
        waiting = self.timeout, self.poke_interval
        return RoleWanted(
            place, self.neli_conn_id, self.when_not_leading, self.when_away, *waiting, self.push_term, self.end_within
        )


def _told(hook: NeliHook, role: object, right: AgentLease | Share) -> dict[str, Any]:
    told: dict[str, Any] = {"member": right.member} | ({} if role is None else {"role": str(role)})
    if FACET in conf.get("openlineage", "custom_run_facets", fallback=""):  # It takes a request.
        with suppress(NeliError):
            told["group"] = hook.group()
    if isinstance(right, Share):
        return told | {"terms": {str(partition): term for partition, term in right.terms.items()}}
    return told | {"partition": right.partition, "term": right.term}


def role_here(hook: NeliHook, place: Place, context: "Context") -> Role:
    """The role of a task, as leases take it. Raises GroupMismatch if its run was made with another layout."""
    if (layout := layout_of_run(context.get("dag"))) is not None:
        hook.layout(wanted=layout)  # Another layout would give this run's partition to the wrong host.
    return role_for(hook.layout, asked_role(*place, context=context))
