"""`neli run`: runs a command only while this host leads a role.

    WAITING --acquired--> RUNNING --the command ends--------------------------> its exit code
     | ^                     |  '--SIGTERM, SIGINT: passed on, grace------> 128 + the signal
     | |                     |--revoked: SIGTERM, grace, SIGKILL--> 75
     | '---- with --keep ----'--fenced, or the lease is almost over: SIGKILL--> 75
     '--not led within --wait: the command was not started--> 69

It never waits silently: it says who leads the role, and again when that changes.

The role is given back only when nothing of the command is left. So two hosts never run it at the same time, not even if
it is slow to stop or leaves children behind. A guardian does the killing, even if this process was killed or stopped.
It begins a margin before the lease or the drain timeout ends: see `guardian.py`.

`neli run` cannot end a process of another user, which COMMAND can start with --allow-new-privileges. It then says so
each minute. While the role is held here, it keeps the role, because another host would run COMMAND alongside that
process. Once the role is lost, there is nothing left to protect: `neli run` ends with 77.
"""

import contextlib
import os
import select
import shlex
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from errno import ENOENT, ENOEXEC
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from neli_router.commands.conventions import (
    Seconds,
    agent_options,
    asking,
    complain,
    not_empty,
    partition_option,
    role_given,
)
from neli_router.core.clock import host_clock
from neli_router.core.exit_codes import (
    EXIT_CANNOT_START,
    EXIT_LOST,
    EXIT_NOT_ENDED,
    EXIT_NOT_EXECUTABLE,
    EXIT_NOT_LED,
)
from neli_router.core.keyspace import Role
from neli_router.errors import NeliError, NoAgent, plain
from neli_router.hosts.descendants import told_left
from neli_router.hosts.guardian import Guardian, guardian

if TYPE_CHECKING:
    from neli_router.agent.client.client import Client
    from neli_router.agent.client.leading import LeadingBlock
    from neli_router.agent.client.leases import AgentLease, AgentReport
    from neli_router.hosts.descendants import LeftProcess

__all__ = ["run_command"]

RETRY = 1.0
"""Seconds between two attempts to reach an agent that answered before, with --keep."""

WAIT_MAX = 3600.0

MOVES_ASKED = 1000
"""How many of the latest moves to search for the one that gave the role to its owner."""

TOLD_AFTER = 1.0
"""Seconds after a signal before a line says how long the command has to end. Most commands need less."""

NOT_STARTED = {
    ENOENT: "is there, but the interpreter that its first line names is not: correct that line, which may end with CR",
    ENOEXEC: "is not a program for this machine, and its first line names no interpreter: begin it with one, such as "
    "#!/bin/sh",
}
"""The kernel's error for an executable file -> what is wrong, with the remedy."""

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@click.command("run", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.option("--key", metavar="K", callback=not_empty, help="The role to lead: any text, also 42.")
@partition_option(help="The role to lead, if it is the number of a partition.")
@click.option(
    "--grace",
    type=Seconds(min=0),
    metavar="SECONDS",
    help="Seconds that COMMAND has to stop after SIGTERM.  [default: the group's drain timeout]",
)
@click.option(
    "--keep/--once",
    default=False,
    help="After the role was lost, or an agent ended that had answered, wait for it again; or exit.  [default: --once]",
)
@click.option(
    "--wait",
    "patience",
    type=Seconds(min=0),
    metavar="SECONDS",
    help="How long to wait for the role, each time.  [default: for as long as it takes]",
)
@click.option("--no-wait", is_flag=True, help="Run COMMAND only if this host leads the role now.")
@click.option(
    "--allow-new-privileges",
    is_flag=True,
    help="Let COMMAND use sudo and other set-user-ID programs. `neli run` may not be able to end them.",
)
@click.option("--pass-token", is_flag=True, help="Leave NELI_TOKEN in COMMAND's environment.")
@agent_options
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND [ARGUMENT]...")
def run_command(
    key: str | None,
    partition: int | None,
    grace: float | None,
    keep: bool,
    patience: float | None,
    no_wait: bool,
    allow_new_privileges: bool,
    pass_token: bool,
    agent: str | None,
    token_file: Path | None,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND while this host leads a role, which is a key or a partition, and nowhere else meanwhile.

    Waits until the agent's member leads it, then starts COMMAND in a session of its own, with these variables:

    \b
      NELI_ROLE       K or N             NELI_TERM       the fencing token: pass it on with each write
      NELI_PARTITION  its partition      NELI_MEMBER     the agent's name in the group

    COMMAND gets NELI_TOKEN only with --pass-token. It inherits the other variables of `neli run`.

    When the role is to go elsewhere, COMMAND gets SIGTERM, and SIGKILL after the grace, but before the drain timeout
    is over. When the role is lost, because the agent was fenced or is gone and the lease is almost over, COMMAND gets
    SIGKILL immediately. On Linux everything that COMMAND started is killed with it, even what left its process group.
    The same happens if `neli run` itself is killed or stopped. When COMMAND ends on its own, its children are killed,
    too. Only then does the host give the role back.

    COMMAND cannot gain privileges: sudo, su and mail by a set-group-ID program fail in it, because another user cannot
    end a process that became root. With --allow-new-privileges they work. If one of them cannot be ended, `neli run`
    says which, and waits for it while the role is held here.

    SIGTERM, SIGINT, SIGHUP and SIGQUIT are passed on to the group, which has the grace to end; a second SIGINT (Ctrl-C)
    kills it immediately. Signals that are ignored when `neli run` starts, such as SIGHUP under nohup, stay ignored for
    COMMAND, too.

    COMMAND has no controlling terminal, and must stay in the foreground: one that makes itself a daemon is ended.

    \b
    Examples:
      neli run --key nightly --no-wait -- ./nightly.sh --full
      neli run --partition 0 --keep --grace 5 -- python -m consumer

    \b
    Exit codes:
      COMMAND's own      it ended on its own; 128 + n if signal n ended it
      4                  no agent answered           69   the role was not led in time; nothing was run
      5                  the agent refused           75   the role was lost, and COMMAND was stopped
      128 + n            `neli run` got signal n     77   the role was lost, and a process of COMMAND goes on
                                                    126   COMMAND cannot be executed
                                                    127   COMMAND was not found
    """
    if no_wait and patience is not None:
        raise click.UsageError("either --wait or --no-wait was wanted, but both were given")
    if no_wait:
        patience = 0.0
    wanted = role_given(key, partition)
    if code := _missing(command[0]):
        raise SystemExit(code)
    guard = guardian()  # Before anything here starts a thread.
    try:
        with asking(agent, token_file) as client:
            client.guarded_by(guard.number)
            run = _Run(client, guard, wanted, key or str(partition), command, grace, patience)
            run.allow_new_privileges, run.pass_token = allow_new_privileges, pass_token
            code = run.run(keep=keep)
    finally:
        guard.close()
    raise SystemExit(code)


class _Run:
    """One `neli run`, on one thread: every event wakes it through one pipe."""

    def __init__(
        self,
        client: "Client",
        guard: Guardian,
        role: Role,
        spelled: str,
        command: Sequence[str],
        grace: float | None,
        patience: float | None,
    ) -> None:
        self._client, self._guard, self._role, self._spelled = client, guard, role, plain(spelled)
        self._command, self._grace = command, grace
        self._patience_to_lead = inf if patience is None else patience
        self.allow_new_privileges = self.pass_token = False
        self._signals: list[int] = []
        self._was_reached = False
        self._lease_end = -inf
        """End of the lease whose missing renewal killed the last command. Until then, a margin is left."""
        self._shared: object = None
        self._failed = ""
        """Why the command was killed, if the role was not lost."""
        self._waking, self._wake = os.pipe()
        os.set_blocking(self._waking, False)
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP, and means it.
                signal.signal(number, lambda number, _: self._signals.append(number))

    def run(self, *, keep: bool) -> int:
        while True:
            try:
                code = self._once()
            except NoAgent as error:
                # If no agent ever answered, the address is probably wrong; it is not an agent that is restarting.
                if not (keep and self._was_reached):
                    raise
                complain(error)
                self._sleep(RETRY)
                code = 128 + self._signals[0] if self._signals else EXIT_LOST
            if code != EXIT_LOST or not keep or self._guard.is_gone:  # No new one can be forked: there are threads.
                return code
            # In the margin, the agent still leads. A command started there would be killed immediately.
            while not self._signals and (left := self._lease_end - host_clock()) > 0:
                self._sleep(left)

    def _once(self) -> int:
        block = self._client.leading(self._role)
        report = block.report
        report.listeners += (self._poke,)
        give_up_at, told = host_clock() + self._patience_to_lead, ""
        block.start()
        try:
            # The agent's end of a lease is later than ours, by the time its answer took. In between, it still says
            # that it leads, and a command started there would be killed immediately.
            while not report.is_held or report.end <= self._lease_end + self._guard.margin:
                if self._signals:
                    return 128 + self._signals[0]
                if report.is_held and report.remaining() <= 0:
                    return EXIT_LOST
                if block.is_over:
                    raise block.trouble or report.not_leading(None)
                left = report.remaining() or WAIT_MAX
                if block.has_heard and not report.terms:
                    if (left := give_up_at - host_clock()) <= 0:
                        complain(report.not_leading(self._patience_to_lead))
                        return EXIT_NOT_LED
                    if report.why != told:
                        told = report.why
                        _say(f"waiting for role {self._spelled}: {plain(told)}{self._owned()}")
                self._sleep(min(left, WAIT_MAX))
            try:
                return self._guarded(block)
            except BaseException:
                self._guard.close()  # Nothing of the command may be left when the role is given back.
                raise
        finally:
            self._was_reached = self._was_reached or block.has_heard
            block.close()

    def _owned(self) -> str:
        """The role's owner, and since when, if the agent still knows: the reason to wait may be a different one."""
        with contextlib.suppress(NeliError):
            owner = self._client.owner_of_role(self._role)
            moves = reversed(self._client.moves(limit=MOVES_ASKED).moves)
            if move := next((move for move in moves if owner.partition in move.partitions), None):
                since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - move.ago))
                return f" ({plain(move.target)} has owned it since {since})" if move.target else ""
        return ""

    def _guarded(self, block: "LeadingBlock[AgentLease]") -> int:
        report, guard = block.report, self._guard
        until, stopping, status = report.end, False, 0
        lost, is_stuck, was_killed, tell_at = "", False, False, inf
        self._share(block)
        environment = self._environment(report)
        guard.start(self._command, environment, until=until, allow_new_privileges=self.allow_new_privileges)
        while True:
            self._share(block)
            if self._signals and not (stopping or lost):
                stopping, tell_at = True, host_clock() + TOLD_AFTER
                guard.finish(self._signals[0], self._patience(report))
            elif stopping and not was_killed and self._signals.count(signal.SIGINT) > 1:
                was_killed = True
                guard.kill()
            elif host_clock() >= tell_at:
                tell_at = inf
                self._tell_grace(report)
            if report.remaining() <= 0:
                if lost != "killed":
                    lost = "killed"
                    guard.kill()
            elif report.revoked and not lost:
                lost = "asked to stop"
                # The agent's drain timeout began before we heard of it, and the successor begins when it ends.
                guard.finish(signal.SIGTERM, min(self._patience(report), report.drain_timeout - guard.margin))
            elif report.end > until:
                until = report.end
                guard.extend(until)
            if is_stuck and report.remaining() <= 0:
                return EXIT_NOT_ENDED
            self._sleep(min(report.remaining() or WAIT_MAX, guard.patience(), max(0.0, tell_at - host_clock())), guard)
            for said in self._heard():
                if "failed" in said:
                    return self._cannot_start(said)
                if "left" in said:
                    is_stuck = True
                    self._complain_of(said["left"])
                if "ended" in said:
                    status, tell_at = said["ended"], inf
                    if stopping and said["killed"] and not was_killed:
                        _say("the command did not end in time, and was killed")
                    if lost == "asked to stop" and said["killed"]:
                        lost = "asked to stop, and killed when its time was over"
                    lost = lost or ("killed" if said["killed"] and not stopping else "")
                    if behind := said.get("behind"):
                        _say(
                            f"the command ended, and so what it left behind is ended, too ({', '.join(behind)}): "
                            "if that was to go on, let the command stay in the foreground"
                        )
                if "gone" in said:
                    self._lease_end = until if lost == "killed" and not report.is_lost else -inf
                    return self._code(block, status, lost, stopping=stopping)

    def _share(self, block: "LeadingBlock[AgentLease]") -> None:
        """If this process is killed, the agent holds the role until the guardian has ended every process."""
        if (stream := block.stream) is not self._shared and stream is not None:
            self._shared = stream
            self._guard.keep(stream.fileno())

    def _heard(self) -> list[dict[str, Any]]:
        try:
            if select.select([self._guard], [], [], 0)[0]:
                return self._guard.heard()
        except EOFError:
            pass  # It was killed.
        else:
            if self._guard.patience():
                return []
        self._failed = "its guardian was killed, or did not run"
        if left := self._guard.avenge():
            self._complain_of(left)
            raise SystemExit(EXIT_NOT_ENDED)
        return [{"ended": -signal.SIGKILL, "killed": True}, {"gone": True}]

    def _complain_of(self, left: "list[LeftProcess]") -> None:
        _say(
            f"{told_left(left)}. The role {self._spelled} is kept for as long as the agent holds it, "
            "and other hosts may act once it is lost: end them by hand"
        )

    def _tell_grace(self, report: "AgentReport") -> None:
        number = signal.Signals(self._signals[0])
        more = ", and another one kills it immediately" if number == signal.SIGINT else ""
        _say(f"the command was asked to end by {number.name}, and has {self._patience(report):g} s for it{more}")

    def _code(self, block: "LeadingBlock[AgentLease]", status: int, lost: str, *, stopping: bool) -> int:
        if stopping:
            return 128 + self._signals[0]
        if lost and self._failed and block.report.remaining() > 0:
            _say(f"the command was killed ({self._failed}), and role {self._spelled} given back")
            return EXIT_LOST
        if lost:
            _say(f"role {self._spelled} was lost ({plain(block.why_lost)}), and the command {lost}")
            return EXIT_LOST
        return status if status >= 0 else 128 - status

    def _cannot_start(self, said: Mapping[str, Any]) -> int:
        command = self._command[0]
        if code := _missing(command):  # It disappeared during the wait for the role.
            return code
        found = NOT_STARTED.get(said["failed"], f"cannot be started: {said['why']}")
        click.echo(f"Error: a command was wanted, but {plain(command)} {found}", err=True)
        return EXIT_CANNOT_START if said["failed"] == ENOENT else EXIT_NOT_EXECUTABLE

    def _environment(self, report: "AgentReport") -> dict[str, str]:
        ((partition, term),) = report.terms.items()
        inherited = {name: value for name, value in os.environ.items() if self.pass_token or name != "NELI_TOKEN"}
        return {
            **inherited,
            "NELI_ROLE": self._spelled,
            "NELI_PARTITION": str(partition),
            "NELI_TERM": str(term),
            "NELI_MEMBER": report.member,
        }

    def _patience(self, report: "AgentReport") -> float:
        return report.drain_timeout if self._grace is None else self._grace

    def _sleep(self, seconds: float, *others: Guardian) -> None:
        sources = [self._waking, *(other.fileno() for other in others)]
        ready, _, _ = select.select(sources, [], [], min(WAIT_MAX, seconds))
        if self._waking in ready:
            os.read(self._waking, 4096)

    def _poke(self) -> None:
        """Wake the loop up, from any thread."""
        with contextlib.suppress(BlockingIOError):  # It is full, so this process wakes up anyway.
            os.write(self._wake, b"\0")


def _say(what: str) -> None:
    click.echo(f"neli run: {what}", err=True)


def _missing(command: str) -> int:
    """The exit code for a missing command, which is found before the wait for its role: that may take days."""
    if not command:
        raise click.UsageError("a command was wanted behind `--`, and this is empty")
    if shutil.which(command) is not None:
        return 0
    is_there = "/" in command and Path(command).exists()
    what = "is not an executable file" if is_there else "was not found"
    remedy = "check its path and its mode"
    if not is_there and len(command.split()) > 1:
        remedy = f"if it is a line for the shell, write sh -c {shlex.quote(plain(command))}"
    click.echo(f"Error: a command was wanted, but {plain(command)} {what}: {remedy}", err=True)
    return EXIT_NOT_EXECUTABLE if is_there else EXIT_CANNOT_START
