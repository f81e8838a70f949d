"""Hosts of the pipeline on one machine: each is an agent and a Spark job, as real processes in one process group.

    host "alpha"   agent  --ledger--> the group         killed, stopped and woken together, like a whole machine
                   driver --share---> agent             Python, and the JVM that it starts
                      '----> table

No host outlives the program that started it. All are ended at the end of the block; if that program is killed, the
kernel kills agent and driver (on Linux), and the JVM ends with its driver.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from neli_router.core.closing import Closing
from neli_router.hosts.leash import leashed

__all__ = ["HostProcesses"]

GRACE = 5.0
"""Seconds an agent has to leave gracefully. It needs a few milliseconds."""

NICE = 5
"""The niceness of a job."""

SERVE = "from neli_router.commands.cli import main; main()"


class HostProcesses(Closing):
    """One host. Start it on the main thread: the kernel ends it when the thread that started it ends."""

    def __init__(
        self, name: str, folder: Path, *, agent: Sequence[str], job: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """`agent` is the options of `neli agent`, `job` the driver's program with its arguments."""
        self.name, self.log, self.agent_log = name, folder / f"{name}.log", folder / f"{name}.agent.log"
        self.socket = folder / f"{name}.sock"
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        # NELI_* options in our own environment may belong to another group, and must not reach these agents.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("NELI_")}
        self._environment = {**inherited, "PYTHONPATH": path, "NELI_AGENT": f"unix:{self.socket}", **environment}
        serve = ["-P", "-c", SERVE, "agent", "--name", name, "--socket", str(self.socket), *agent]
        self.agent = self._start(serve, self.agent_log, group=0)
        self._job = job
        self.start_job()

    def start_job(self, **environment: str) -> None:
        """Start the driver, or start it again after it has ended, with these additional variables."""
        # Niced: on few cores, the agent must not be the late one.
        self.driver = self._start(self._job, self.log, group=self.agent.pid, nice=NICE, **environment)

    def kill(self) -> None:
        """Kill agent, driver and JVM in one step, as if the machine had lost power."""
        self._signal(signal.SIGKILL)

    def resume(self) -> None:
        """Continue them, after something has stopped all of them."""
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """End what still runs: the agent gracefully, if it takes no longer than GRACE."""
        with suppress(subprocess.TimeoutExpired):
            self.resume()
            self.driver.kill()
            self.agent.terminate()
            self.agent.wait(GRACE)
        self.kill()
        self.agent.wait()
        self.driver.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # No process of the group is left.
            os.killpg(self.agent.pid, number)

    def _start(
        self, arguments: Sequence[str], log: Path, *, group: int, nice: int = 0, **environment: str
    ) -> "subprocess.Popen[bytes]":
        with log.open("ab") as out:
            return subprocess.Popen(  # noqa: S603 - our own programs, run by the interpreter that runs us.
                leashed(["nice", "-n", str(nice), sys.executable, *arguments]),
                env={**self._environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                process_group=group,
            )
