"""The switch: pauses Dags tagged `neli:ROLE` where this host does not lead the role, so no run is created there.

    scheduler starts --> all of them are paused, before its first loop --> a thread follows each role at the agent

    role   waiting --led here---------------------------> LED: the Dag is unpaused
              ^        '-- the lease runs short --> paused --renewed--> LED
              |        '-- lost, or the agent is away --> paused immediately -----.
              |        '-- revoked --> paused --open transactions end--> let go --|
              '-------------------------------------------------------------------'

The rule is about the state, not about changes: a Dag may run only while *all* roles of its tags are led here. The
switch applies it at each change, and every LOOK_EVERY seconds, which finds new Dags, new tags, and what users did
meanwhile.

**Whose pause it is.** The switch unpauses only what it paused itself. It records each of its acts in Airflow's audit
log, in the transaction of the act (event `neli_switch`, owner `neli`), so that a later scheduler knows, and users see
it. If a Dag is paused and its last row is not a pause of the switch, a user or Airflow paused it: it stays paused,
through takeovers and restarts, until that user unpauses it. A Dag without any row was paused by Airflow when it was
created, and the switch may unpause it. If a user unpauses a Dag where its role is not led, the switch pauses it again
at the next look: that is the promise of the tag, and it undoes no pause. A Dag that loses its last tag is left alone;
the switch then ignores it.

**What closes the gap.** A scheduler reads which Dags are not paused, and then creates their runs, in one transaction. A
pause in between comes too late for these runs.

- Handing over: the role is let go only after all transactions of this process that were open at the pause have ended.
  Other schedulers of the installation lock rows while they create runs (PostgreSQL, MySQL), and the pause waits for
  them. So the next leader begins after the last run.
- The agent dies, or loses its ledger: the lease is no longer renewed, and the Dags are paused when half of it is
  left. A scheduler that spends longer than that on creating runs, or is itself stopped for longer, creates them too
  late. The same holds for runs of partitions whose events came before the pause: Airflow also creates these for a
  paused Dag, but starts none of their tasks.
- The scheduler is killed: it creates nothing, and the next scheduler begins with the pause.

So no clock and no lock of ours can promise it for a process that stops between two instructions. The tables that the
tasks write to refuse lower terms (`neli_router.fence`). The promise is theirs; the switch saves the work.

**Several schedulers of one installation** each have a switch, and each pauses what its own agent does not lead. That is
safe, but useful only if they ask the same agent: with an agent each, those that do not lead undo what the leading one
does.

If the switch cannot pause the Dags at the start, the scheduler does not start. If the switch itself fails, it pauses
all.

**Forks.** A scheduler forks workers while this thread runs, and none of the thread's locks may stay held in them.

- What a database driver locks internally stays locked in a fork that happens during a query. SQLite locks its memory
  for each block that it allocates. A process with a thread in SQLite forked 700 times, and five children hung at their
  own first query (3.40.1). So a fork waits until the thread has its answer, for FORK_MAX at most: the answer may itself
  wait for a transaction of the thread that forks.
- What a first query imports is imported before the thread starts, unless the connection does not exist yet.
- The connection is read through Airflow's plain call. The async call leaves a thread pool behind (asgiref's). A fork
  has the pool without its threads, and tasks in it would wait for them.
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

from airflow_provider._arguments import asked_role
from airflow_provider.hooks.neli import NeliHook
from neli_router.errors import NeliError

if TYPE_CHECKING:
    from sqlalchemy.orm import SessionTransaction

    from neli_router.agent import AsyncAgentLease

__all__ = ["EVENT", "OWNER", "PREFIX", "Switch"]

PREFIX = "neli:"

EVENT, OWNER = "neli_switch", "neli"
"""How the switch signs in the audit log. The event name is its own, because a user may be called neli, too."""

OTHERS = ("patch_dag", "paused", "delete_dag")
"""The events by which Airflow logs that a user, or the scheduler after many failures, pauses a Dag; and the deletion of
a Dag: if a Dag is deleted and read again, its creation paused it. The command line and bulk changes do not log the Dag.
But if a Dag is paused, and its last row says that the switch unpaused it, someone else has paused it, too."""

LOOK_EVERY = 1.0
"""Seconds between two looks. For this long, a Dag runs that a user unpaused where it must not, or that begins
unpaused."""

RETRY_MIN, RETRY_MAX = 0.2, 2.0
"""Seconds until an agent or the database is asked again."""

START_MAX = 60.0
"""Seconds to pause all Dags before the scheduler gives up: a database that restarts comes back sooner."""

STOP_MAX = 10.0
"""Seconds that a scheduler waits for the switch when it ends. The next scheduler begins with a pause anyway."""

SHORT = 0.5
"""The fraction of a lease that is left when its Dags are paused. A healthy agent renews after each sixth of the lease;
a pause, with the transaction that it waits for, takes tens of milliseconds."""

TICK = 0.1
"""Seconds between two checks whether a lease runs short."""

FORK_MAX = 2.0
"""Seconds that a fork waits for an answer of the database."""

_log = logging.getLogger(__name__)

_asking = threading.Lock()
"""Held while the database is asked: see "Forks" above."""


class Switch:
    """The switch of one scheduler. `conn_id` is the connection to the agent."""

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self._roles: Mapping[str, _Role] = {}
        """The roles, by the text of their tags. The thread's loop replaces the mapping; others only read it."""
        self._others = _Transactions()
        self._told: frozenset[str] = frozenset()
        self._looking: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="neli-switch", daemon=True)

    def start(self) -> None:
        """Pause all Dags, and follow the roles from now on. Ends the process if it cannot."""
        self._others.follow()
        give_up_at = time.monotonic() + START_MAX
        while isinstance(error := self._tried(), Exception):
            if time.monotonic() > give_up_at:
                raise SystemExit(
                    "neli: the tagged Dags were to be paused before the scheduler starts, but the metadata database "
                    f"refuses it ({getattr(error, 'orig', error)}): fix it, or turn [neli] switch off"
                )
            time.sleep(RETRY_MIN)
        asyncio.run(self._ask_once())  # It imports what the first query imports: see "Forks" above.
        self._thread.start()

    def stop(self) -> None:
        """Pause all Dags, let go of all roles, and end."""
        loop, looking = self._loop, self._looking
        if loop is not None and looking is not None:
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(looking.cancel)
            self._thread.join(STOP_MAX)

    def act(self) -> set[str]:
        """Pause and unpause according to the leases now; return the roles that have tags.

        Calls must not overlap: a late unpausing would undo a pause. Raises SQLAlchemyError.
        """
        with _asking:
            with create_session(scoped=False) as session:
                dags = _tagged(session)
                wrong = [dag_id for dag_id, (paused, roles) in dags.items() if not paused and not self._may_run(roles)]
                for dag_id in sorted(wrong):  # In a fixed order, like everything that locks rows should.
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
                    if not self._may_run(roles):  # Check again before the commit, which may have waited.
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
        """Call `act`, or return why the database refused it."""
        try:
            return self.act()
        except SQLAlchemyError as error:
            return error

    # The thread

    def _run(self) -> None:
        while True:
            try:
                asyncio.run(self._look())
            except Exception:  # noqa: BLE001 - whatever failed, a scheduler must not go on without the switch.
                _log.exception("The switch failed: its Dags are paused, and it restarts")
            else:
                return
            time.sleep(RETRY_MAX)

    async def _look(self) -> None:
        """Follow the tags until cancelled. However it ends, all Dags are paused, and only then are the roles let go."""
        self._loop, self._looking = asyncio.get_running_loop(), asyncio.current_task()
        followers: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                if (names := await self._acted()) is not None:
                    for name in followers.keys() - names:
                        followers.pop(name).cancel()  # No Dag has its tag any longer.
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
        """Act, in a thread that may wait for the database; return None if the database refused."""
        found = await asyncio.to_thread(self._tried)
        if isinstance(found, Exception):
            _log.warning(
                "The metadata database refused to pause or unpause Dags, and is asked again: %s",
                getattr(found, "orig", found),
            )
            return None
        return found

    async def _follow(self, role: "_Role") -> None:
        """Hold the role whenever this host leads it, for as long as it may be held."""
        pause, told = RETRY_MIN, ""
        while True:
            try:
                async with NeliHook(self._conn_id) as hook:
                    await asyncio.to_thread(_connected, hook)
                    async with hook.aleading(_role_of_tag(role.name)) as lease:
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
        """Hold until another member is to take the role, and nothing of it is left here. Cancelled when the lease is
        lost."""
        role.take(lease)
        await self._acted()
        while not await lease.revoked.wait(max(TICK, role.spare())):
            if role.spare() <= 0:
                await self._acted()
        while await self._acted() is None:  # noqa: ASYNC110 - a pause, not a poll.
            await asyncio.sleep(RETRY_MIN)
        await self._others.ended()

    async def _ask_once(self) -> None:
        # The scheduler does the same a moment later. Without it, Airflow does not look for connections in its database.
        os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")
        with suppress(NeliError, AirflowException):
            async with NeliHook(self._conn_id) as hook:
                _connected(hook)
                await hook.amember()


def _role_of_tag(name: str) -> int | str:
    """`neli:orders` is a key, and `neli:partition=7` a partition. Raises BadKey for digits alone."""
    number = name.removeprefix("partition=")
    return asked_role(name) if number == name else asked_role(partition=number)


class _Role:
    """A role, named by the text of its tag, and its lease while this host leads it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lease: AsyncAgentLease | None = None
        self._longest = 0.0

    def take(self, lease: "AsyncAgentLease") -> None:
        self.lease, self._longest = lease, lease.remaining()

    def spare(self) -> float:
        """Seconds until the lease runs short; its duration is the longest remaining time seen so far."""
        if (lease := self.lease) is None:
            return 0.0
        rest = lease.remaining()
        self._longest = max(self._longest, rest)
        return rest - SHORT * self._longest

    def may_run(self) -> bool:
        lease = self.lease
        return lease is not None and not lease.revoked and self.spare() > 0


class _Transactions:
    """The open transactions of all sessions of this process.

    It uses no lock, because a fork may come at any moment: each step is atomic in the interpreter.
    """

    def __init__(self) -> None:
        self._open: dict[int, weakref.ref[SessionTransaction]] = {}
        """By `id`. Weak references: a forgotten transaction returns its connection when it is freed."""

    def follow(self) -> None:
        event.listen(Session, "after_transaction_create", self._began)
        event.listen(Session, "after_transaction_end", self._ended)

    async def ended(self) -> None:
        """Wait until all transactions that are open now have ended."""
        before = list(self._open.values())
        while any(one() is not None and self._open.get(id(one())) is one for one in before):  # noqa: ASYNC110
            await asyncio.sleep(TICK / 10)  # They end in other threads, within milliseconds.

    def _began(self, session: Session, transaction: "SessionTransaction") -> None:
        if transaction.parent is None:
            self._open[id(transaction)] = weakref.ref(transaction)

    def _ended(self, session: Session, transaction: "SessionTransaction") -> None:
        self._open.pop(id(transaction), None)


async def _sleep_unless_one_fails(followers: Iterable[asyncio.Task[None]]) -> None:
    """Sleep until the next look. Raises what ended a follower: a bug of ours, which must not be hidden."""
    if not (running := list(followers)):
        await asyncio.sleep(LOOK_EVERY)
        return
    failed, _ = await asyncio.wait(running, timeout=LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
    for follower in failed:
        # A follower's cancellation, raised here, would look like the switch's own, and the switch would end without an
        # error.
        error = None if follower.cancelled() else follower.exception()
        raise error or RuntimeError(f"{follower.get_name()} ended on its own")


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
    global _asking  # noqa: PLW0603 - the thread that may hold it does not exist here.
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
            continue  # Some databases compare case-insensitively.
        found[dag_id] = (paused, found.get(dag_id, (paused, frozenset()))[1] | {tag.removeprefix(PREFIX)})
    return found


def _set_paused(session: Session, dag_id: str, *, paused: bool, why: str) -> bool:
    """Return whether it changed anything. The change and its row in the audit log are one transaction."""
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
    """Whether a paused Dag was paused by the switch, or by its creation."""
    last = session.execute(
        select(Log.event, Log.extra)
        .where(Log.dag_id == dag_id, Log.event.in_((EVENT, *OTHERS)))
        .order_by(Log.id.desc())  # Not by its time, which another host's clock may have set.
        .limit(1)
    ).first()
    if last is None or last.event == "delete_dag":
        return True
    return last.event == EVENT and bool(json.loads(last.extra)["is_paused"])


def _named(roles: Iterable[str]) -> str:
    names = sorted(roles)
    return f"the role{'s' * (len(names) > 1)} {', '.join(map(repr, names))} {'are' if len(names) > 1 else 'is'}"
