"""The listener: runs the host's agent inside an Airflow process, if `[neli] agent_in` names it.

    airflow scheduler --on_starting------> the agent starts
    airflow triggerer |
                      --before_stopping--> the agent hands over

    a thread of the process --starts, and starts again--> Companion: `neli agent`
    the process ends, for any reason: the kernel -SIGTERM---^  and the agent hands over

So a plain installation needs no separate service for the agent. The agent is a process, not a set of threads in the
scheduler. A scheduler that computes would hold up the agent's Beats, and the agent would lose its leases. And a
scheduler forks: its children would have copies of the agent's sockets, and of locks that none of their threads ever
releases.

The address of its ledger may come from `[neli] ledger`. It may hold a password, so the agent gets it in its
environment, which only processes of the same user can read.

On Linux, the kernel notifies a process of its parent's death: see `neli_router.hosts.leash`. A pipe would not do: the
executor's workers are forks of the scheduler, outlive it when it is killed, and would keep the pipe open. On other
systems, the agent of a killed process stays.

Airflow calls `on_starting` for all of its jobs alike, and also within each task. Only the class of the component, a
`Job`, and the command line identify the process. A wrong option ends the process before it begins: Airflow would log a
listener's error and go on without the agent.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.providers.common.compat.sdk import conf, hookimpl

from neli_router.core.exit_codes import EXIT_USAGE
from neli_router.errors import ConfigError
from neli_router.hosts.leash import leashed

__all__ = ["Companion", "before_stopping", "on_starting"]

SECTION = "neli"

PLACES = ("scheduler", "triggerer")

GRACE = 10.0
"""Seconds that an agent has to hand over before its parent process continues to end. The agent then goes on handing
over on its own."""

PAUSE_MIN, PAUSE_MAX = 1.0, 60.0
"""Seconds before the next start: a ledger that is away comes back on its own, and people read the log."""

CALM = 60.0
"""Seconds after which a command counts as having worked, so that its next pause is short again."""

_log = logging.getLogger(__name__)


class Companion:
    """A command that runs for as long as this process, and is started again if it dies.

    A command whose own arguments are wrong (exit code 2) would fail again, so it is not restarted.
    """

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
        """`environment` has variables of the command, beyond those of this process."""
        self._command, self._environment, self._process = command, environment or {}, os.getpid()
        self._child: subprocess.Popen[bytes] | None = None
        self._changing, self._ending = threading.Lock(), threading.Event()
        # A daemon, which lives as long as the process: the kernel reports the death of the *thread* that started the
        # command.
        self._thread = threading.Thread(target=self._keep, name="neli-companion", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the command to end, and wait for it, at most GRACE seconds."""
        if os.getpid() != self._process:
            return  # A fork has a copy of this object; the command belongs to its parent.
        self._ending.set()
        with self._changing:
            if self._child is not None:
                self._child.terminate()
        self._thread.join(GRACE)

    def _keep(self) -> None:
        pause = PAUSE_MIN
        while child := self._begun():
            began_at = time.monotonic()
            code = child.wait()
            if code == EXIT_USAGE:
                _log.error("The agent's configuration is not usable, as it says above: correct it, then restart")
                return
            if time.monotonic() - began_at > CALM:
                pause = PAUSE_MIN
            if not self._ending.is_set():
                _log.warning("The agent ended with the exit code %d; it is started again in %g s", code, pause)
            self._ending.wait(pause)
            pause = min(PAUSE_MAX, 2 * pause)

    def _begun(self) -> "subprocess.Popen[bytes] | None":
        with self._changing:
            if self._ending.is_set():
                return None
            command = leashed(self._command, by=signal.SIGTERM)
            # In a group of its own: Ctrl-C ends Airflow first, and Airflow ends the agent.
            self._child = subprocess.Popen(  # noqa: S603 - our own.
                command, env={**os.environ, **self._environment}, stdin=subprocess.DEVNULL, process_group=0
            )
            return self._child


_agent: Companion | None = None


@hookimpl
def on_starting(component: Any) -> None:
    global _agent  # noqa: PLW0603 - Airflow's listener is a module; a process has one agent.
    if type(component).__name__ != "Job" or _agent is not None:
        return
    here, where = sys.argv[1] if len(sys.argv) > 1 else "", conf.get(SECTION, "agent_in", fallback="")
    if where and where not in PLACES:
        raise SystemExit(f"neli: [neli] agent_in was wanted to be {' or '.join(PLACES)}, or empty, but it is {where!r}")
    if where and where == here:
        config = conf.get(SECTION, "agent_config", fallback="")
        command = [sys.executable, "-P", "-m", "neli_router", "agent", *(["--config", config] if config else [])]
        _agent = Companion(command, environment=_ledger())
        _agent.start()


def _ledger() -> dict[str, str]:
    """The variable that names the ledger, if `[neli] ledger` does. The process does not begin if that is wrong."""
    if said := conf.get(SECTION, "ledger", fallback=""):
        # Each task imports this module, and none needs SQLAlchemy for that.
        from airflow_provider._machinery.metadata import ledger_address  # noqa: PLC0415 - see above.

        try:
            return {"NELI_LEDGER": ledger_address(said, conf.get("database", "sql_alchemy_conn"))}
        except ConfigError as error:
            raise SystemExit(f"neli: {error}") from None
    return {}


@hookimpl
def before_stopping(component: Any) -> None:
    if type(component).__name__ == "Job" and _agent is not None:
        _agent.stop()
