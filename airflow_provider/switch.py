"""The switch: Dags tagged `neli:ROLE` are paused where this host does not lead the role, so no run is created there.

    scheduler starts --> all of them are paused, before its first loop --> a thread follows each role at the agent

    role   waiting --led here---------------------------> LED: the Dag is unpaused
              ^        '-- the lease runs short --> paused --renewed--> LED
              |        '-- lost, or the agent is away --> paused at once ---------.
              |        '-- revoked --> paused --open transactions end--> let go --|
              '-------------------------------------------------------------------'

The rule is about the state and not about changes: a Dag may run only while *all* roles of its tags are led here. It is
applied at each change, and each LOOK_EVERY seconds, which finds new Dags, new tags, and what people did meanwhile.

**Whose pause it is.** The switch unpauses only what it paused itself. It writes each of its acts to Airflow's audit log
in the transaction of the act (event `neli_switch`, owner `neli`), so that a later scheduler knows, and people see it.
A Dag that is paused although the last row is not a pause of the switch was paused by another one: it stays paused, over
takeovers and restarts, until that one unpauses it. A Dag without any row was paused by Airflow when it was created, and
is the switch's. A Dag that a person unpauses where its role is not led is paused again at the next look: that is the
promise of the tag, and it undoes no pause. A Dag that loses its last tag stays as it is, and is no business of the
switch any more.

**What closes the gap.** A scheduler reads which Dags are not paused, and then creates their runs, in one transaction. A
pause in between comes too late for these runs.

- Handing over: the role is let go only after all transactions of this process that were open at the pause have ended.
  Other schedulers of the installation have rows locked while they create runs (PostgreSQL, MySQL), and the pause waits
  for them. So the next leader begins after the last run.
- The agent dies, or loses its ledger: the lease is no longer renewed, and the Dags are paused when half of it is
  left. A scheduler that creates runs for longer than that, or is itself stopped for longer, creates them too late. So
  do runs of partitions whose events came before the pause: Airflow creates these for a paused Dag, too, and starts no
  task of them.
- The scheduler is killed: it creates nothing, and the next one begins with the pause.

So no clock and no lock of ours can promise it for a process that stops between two instructions. The tables that the
tasks write to refuse lower terms (`neli_router.fence`). That is the promise; the switch saves the work.

**Several schedulers of one installation** each have a switch, and each pauses what its own agent does not lead. That is
safe, and of use only if they ask one agent: with an agent each, those that do not lead undo what the leading one does.

If the switch cannot pause at the start, the scheduler does not start. A fault of the switch pauses all.

**Forks.** A scheduler forks workers while this thread runs, and none of its locks may stay held in them.

- What the driver of a database locks within itself stays locked in a fork that falls into a question. SQLite locks its
  memory for each block that it takes. A process with a thread in SQLite forked 700 times, and five children hung at
  their first own question (3.40.1). So a fork waits until the thread has its answer, for FORK_MAX at most: the answer
  may itself wait for a transaction of the thread that forks.
- What a first question imports is imported before the thread starts, unless the connection is not there yet.
- The connection is read by Airflow's plain call. The async one leaves a pool of threads behind (asgiref's). A fork has
  the pool without the threads, and tasks in it would wait for these.
"""

import asyncio
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow.models.dag import DagModel, DagTag
from airflow.models.log import Log
from airflow.providers.common.compat.sdk import AirflowException
from airflow.utils.session import create_session
from sqlalchemy import event, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from airflow_provider.hooks.neli import NeliHook
from neli_router.core.keyspace import role_of
from neli_router.errors import NeliError

if TYPE_CHECKING:
    from sqlalchemy.orm import SessionTransaction

    from neli_router.agent import AsyncAgentLease

__all__ = ["EVENT", "OWNER", "PREFIX", "Switch"]

PREFIX = "neli:"

EVENT, OWNER = "neli_switch", "neli"
"""How the switch signs in the audit log. The event is its own: a person may be called neli, too."""

OTHERS = ("patch_dag", "paused", "delete_dag")
"""The events by which Airflow logs that a person, or the scheduler after many failures, pauses a Dag; and the end of a
Dag: one that is deleted and read again was paused by its creation. The command line and bulk changes log no Dag. But a
Dag that is paused, and whose last row is that the switch unpaused it, was paused by another one, too."""

LOOK_EVERY = 1.0
"""Seconds. For as long runs what a person unpaused where it must not, or a new Dag that begins unpaused."""

RETRY_MIN, RETRY_MAX = 0.2, 2.0
"""Seconds until an agent, or the database, is asked again."""

START_MAX = 60.0
"""Seconds to pause all before the scheduler gives up: a database that restarts comes back sooner."""

STOP_MAX = 10.0
"""Seconds that a scheduler waits for the switch at its end. The next one begins with a pause anyway."""

SHORT = 0.5
"""The part of a lease that is left when its Dags are paused. A healthy agent renews at each sixth; and a pause, with
the transaction that it waits for, takes tens of milliseconds."""

TICK = 0.1
"""Seconds between two looks at a lease that runs short."""

FORK_MAX = 2.0
"""Seconds that a fork waits for an answer of the database."""

_log = logging.getLogger(__name__)

_asking = threading.Lock()
"""Held while the database is asked: see above, on forks."""


class Switch:
    """Of one scheduler. `conn_id` is the connection to the agent."""

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._roles: Mapping[str, _Role] = {}
        """By the text of the tag. The thread's loop replaces it; all others only read it."""
        self._others = _Transactions()
        self._told: frozenset[str] = frozenset()
        self._looking: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="neli-switch", daemon=True)

    def start(self) -> None:
        """Pause all, and follow the roles from now on. Ends the process if it cannot."""
        self._others.follow()
        give_up_at = time.monotonic() + START_MAX
        while isinstance(error := self._tried(), Exception):
            if time.monotonic() > give_up_at:
                raise SystemExit(
                    "neli: the tagged Dags were to be paused before the scheduler starts, but the metadata database "
                    f"refuses it ({getattr(error, 'orig', error)}): mend it, or turn [neli] switch off"
                )
            time.sleep(RETRY_MIN)
        asyncio.run(self._ask_once())  # It imports what is imported at the first question. See above, on forks.
        self._thread.start()

    def stop(self) -> None:
        """Pause all, let go of all roles, and end."""
        loop, looking = self._loop, self._looking
        if loop is not None and looking is not None:
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(looking.cancel)
            self._thread.join(STOP_MAX)

    def act(self) -> set[str]:
        """Pause and unpause as the leases are now; the roles that there are tags of.

        One after the other: an unpausing that was late would undo a pause. Raises SQLAlchemyError.
        """
        with _asking:
            with create_session(scoped=False) as session:
                dags = _tagged(session)
                wrong = [dag_id for dag_id, (paused, roles) in dags.items() if not paused and not self._may_run(roles)]
                for dag_id in sorted(wrong):  # In one order, as others who lock rows should.
                    _set_paused(session, dag_id, paused=True, why=self._why_not(dags[dag_id][1]))
            if wrong:
                _log.info("Paused, because their roles are not led here: %s", ", ".join(sorted(wrong)))
            waiting = [dag_id for dag_id, (paused, roles) in dags.items() if paused and self._may_run(roles)]
            self._unpause(waiting, dags)
            return {role for _, roles in dags.values() for role in roles}

    def _unpause(self, waiting: Collection[str], dags: "Mapping[str, tuple[bool, frozenset[str]]]") -> None:
        others: set[str] = set()
        for dag_id in sorted(waiting):
            with create_session(scoped=False) as session:
                roles = dags[dag_id][1]
                if not _is_ours(session, dag_id):
                    others.add(dag_id)
                elif _set_paused(session, dag_id, paused=False, why=f"{_named(roles)} led by this host"):
                    if not self._may_run(roles):  # The last question before the commit, which may have waited.
                        session.rollback()
                        continue
                    _log.info("Unpaused, because %s led here: %s", _named(roles), dag_id)
        if news := others - self._told:
            _log.info("Left paused, because the switch did not pause them: %s", ", ".join(sorted(news)))
        self._told = frozenset(others)

    def _may_run(self, roles: Iterable[str]) -> bool:
        return all(role in self._roles and self._roles[role].may_run() for role in roles)

    def _why_not(self, roles: Iterable[str]) -> str:
        return f"{_named([role for role in roles if not self._may_run([role])])} not led by this host"

    def _tried(self) -> set[str] | Exception:
        """`act`, or why the database refused it."""
        try:
            return self.act()
        except SQLAlchemyError as error:
            return error

    # The thread

    def _run(self) -> None:
        while True:
            try:
                asyncio.run(self._look())
            except Exception:  # noqa: BLE001 - whatever it is, a scheduler must not go on without the switch.
                _log.exception("The switch failed: its Dags are paused, and it begins anew")
            else:
                return
            time.sleep(RETRY_MAX)

    async def _look(self) -> None:
        """Follow the tags, until it is cancelled. However it ends, all is paused, and only then let go."""
        self._loop, self._looking = asyncio.get_running_loop(), asyncio.current_task()
        followers: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                if (names := await self._acted()) is not None:
                    for name in followers.keys() - names:
                        followers.pop(name).cancel()  # No Dag has its tag any more.
                    for name in names - followers.keys():
                        role = _Role(name)
                        self._roles = {**self._roles, name: role}
                        followers[name] = asyncio.create_task(self._follow(role), name=f"neli-switch[{name}]")
                await _sleep_unless_one_fails(followers.values())
        except asyncio.CancelledError:
            pass  # The scheduler ends.
        finally:
            self._roles = {}
            while await self._acted() is None:  # noqa: ASYNC110 - a pause, not a poll.
                await asyncio.sleep(RETRY_MIN)
            for follower in followers.values():
                follower.cancel()
            await asyncio.gather(*followers.values(), return_exceptions=True)

    async def _acted(self) -> set[str] | None:
        """Act, in a thread that may wait for the database; None if that refused."""
        found = await asyncio.to_thread(self._tried)
        if isinstance(found, Exception):
            _log.warning(
                "The metadata database refused to pause or unpause Dags, and is asked again: %s",
                getattr(found, "orig", found),
            )
            return None
        return found

    async def _follow(self, role: "_Role") -> None:
        """Hold the role whenever it is led here, for as long as it may be held."""
        pause, told = RETRY_MIN, ""
        while True:
            try:
                async with NeliHook(self._conn_id) as hook:
                    await asyncio.to_thread(_connected, hook)
                    async with hook.aleading(role_of(role.name)) as lease:
                        pause, told = RETRY_MIN, ""
                        await self._hold(role, lease)
            except (NeliError, AirflowException) as error:
                if told != type(error).__name__:
                    told = type(error).__name__
                    _log.warning("The role %r is not led by this host for the switch: %s", role.name, error)
            finally:
                role.lease = None
            await self._acted()
            await asyncio.sleep(pause)
            pause = min(RETRY_MAX, 2 * pause)

    async def _hold(self, role: "_Role", lease: "AsyncAgentLease") -> None:
        """Until another member shall have the role, and nothing here is left of it. Cancelled when it is lost."""
        role.take(lease)
        await self._acted()
        while not await lease.revoked.wait(max(TICK, role.spare())):
            if role.spare() <= 0:
                await self._acted()
        while await self._acted() is None:  # noqa: ASYNC110 - a pause, not a poll.
            await asyncio.sleep(RETRY_MIN)
        await self._others.ended()

    async def _ask_once(self) -> None:
        # As the scheduler itself does a moment later: without it, Airflow looks for no connection in its database.
        os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
        with suppress(NeliError, AirflowException):
            async with NeliHook(self._conn_id) as hook:
                _connected(hook)
                await hook.amember()


class _Role:
    """A role, by the text of its tag, and its lease while this host leads it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lease: AsyncAgentLease | None = None
        self._longest = 0.0

    def take(self, lease: "AsyncAgentLease") -> None:
        self.lease, self._longest = lease, lease.remaining()

    def spare(self) -> float:
        """Seconds until the lease runs short; the longest rest that was seen is how long it lasts."""
        if (lease := self.lease) is None:
            return 0.0
        rest = lease.remaining()
        self._longest = max(self._longest, rest)
        return rest - SHORT * self._longest

    def may_run(self) -> bool:
        lease = self.lease
        return lease is not None and not lease.revoked and self.spare() > 0


class _Transactions:
    """The transactions of all sessions of this process that are open.

    Without a lock, because a fork may come at any moment: each step is one of the interpreter's.
    """

    def __init__(self) -> None:
        self._open: dict[int, weakref.ref[SessionTransaction]] = {}
        """By its `id`. Not the transaction itself: a forgotten one gives its connection back when it is freed."""

    def follow(self) -> None:
        event.listen(Session, "after_transaction_create", self._began)
        event.listen(Session, "after_transaction_end", self._ended)

    async def ended(self) -> None:
        """Once all that are open now have ended."""
        before = list(self._open.values())
        while any(one() is not None and self._open.get(id(one())) is one for one in before):  # noqa: ASYNC110
            await asyncio.sleep(TICK / 10)  # They end in other threads, within milliseconds.

    def _began(self, session: Session, transaction: "SessionTransaction") -> None:
        if transaction.parent is None:
            self._open[id(transaction)] = weakref.ref(transaction)

    def _ended(self, session: Session, transaction: "SessionTransaction") -> None:
        self._open.pop(id(transaction), None)


async def _sleep_unless_one_fails(followers: Iterable[asyncio.Task[None]]) -> None:
    """Until the next look. Raises what ended a follower: a fault of ours, which must be seen."""
    if not (running := list(followers)):
        await asyncio.sleep(LOOK_EVERY)
        return
    failed, _ = await asyncio.wait(running, timeout=LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
    for follower in failed:
        # A cancellation of it, raised here, would look like that of the switch, which then ends in peace.
        error = None if follower.cancelled() else follower.exception()
        raise error or RuntimeError(f"{follower.get_name()} ended by itself")


def _connected(hook: NeliHook) -> None:
    with _asking:
        hook.get_conn()


_held_by = threading.local()


def _before_fork() -> None:
    _held_by.fork = _asking.acquire(timeout=FORK_MAX)


def _after_fork() -> None:
    if _held_by.fork:
        _asking.release()


def _after_fork_in_child() -> None:
    global _asking  # noqa: PLW0603 - the thread that may hold it is not here, and will not let go of it.
    _asking = threading.Lock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


# The metadata database


def _tagged(session: Session) -> dict[str, tuple[bool, frozenset[str]]]:
    """Dag -> whether it is paused, and the roles of its tags."""
    found: dict[str, tuple[bool, frozenset[str]]] = {}
    rows = session.execute(
        select(DagModel.dag_id, DagModel.is_paused, DagTag.name)
        .join(DagTag, DagTag.dag_id == DagModel.dag_id)
        .where(DagTag.name.startswith(PREFIX, autoescape=True))
    )
    for dag_id, paused, tag in rows:
        if not tag.startswith(PREFIX):
            continue  # Some databases compare without regard to case.
        found[dag_id] = (paused, found.get(dag_id, (paused, frozenset()))[1] | {tag.removeprefix(PREFIX)})
    return found


def _set_paused(session: Session, dag_id: str, *, paused: bool, why: str) -> bool:
    """Whether it was otherwise. The change and its row in the audit log are one transaction."""
    changed: Any = session.execute(
        update(DagModel)
        .where(DagModel.dag_id == dag_id, DagModel.is_paused.is_(not paused))
        .values(is_paused=paused)
        .execution_options(synchronize_session=False)
    )
    if changed.rowcount:
        extra = json.dumps({"is_paused": paused, "why": why})
        session.add(Log(event=EVENT, owner=OWNER, owner_display_name="NELI Router", dag_id=dag_id, extra=extra))
    return bool(changed.rowcount)


def _is_ours(session: Session, dag_id: str) -> bool:
    """Whether the pause of a paused Dag is the switch's, or that of its creation."""
    last = session.execute(
        select(Log.event, Log.extra)
        .where(Log.dag_id == dag_id, Log.event.in_((EVENT, *OTHERS)))
        .order_by(Log.id.desc())  # Not by its time, which is of another host's clock.
        .limit(1)
    ).first()
    if last is None or last.event == "delete_dag":
        return True
    return last.event == EVENT and bool(json.loads(last.extra)["is_paused"])


def _named(roles: Iterable[str]) -> str:
    names = sorted(roles)
    return f"the role{'s' * (len(names) > 1)} {', '.join(map(repr, names))} {'are' if len(names) > 1 else 'is'}"
