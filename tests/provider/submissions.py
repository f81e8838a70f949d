"""The processes of a Spark job that a task has submitted, according to /proc."""

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from tests.support.waiting import until

__all__ = ["Submission", "processes", "resume"]


class Submission:
    """The processes of one running job, according to /proc."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the job's own: it is on the command line of no other process."""
        every = {pid: (parent, command) for pid, parent, _, command in processes()}
        found = {pid: its for pid, its in every.items() if str(folder) in its[1]}
        first = {pid for pid, (_, command) in found.items() if "airflow_provider._machinery.warden" in command}
        guardians = {
            pid for pid, (parent, command) in every.items() if parent in first and command.strip() == "guardian"
        }
        self.wardens = sorted(first | guardians)
        (self.task,) = {every[pid][0] for pid in self.wardens} - set(self.wardens)
        (self.session,) = {pid for pid, (parent, _) in found.items() if parent in self.wardens} - set(self.wardens)

    @property
    def left(self) -> list[int]:
        """The processes of spark-submit's session, of any kind: Java, the driver, pyspark.daemon, its workers."""
        return [pid for pid, _, session, _ in processes() if session == self.session]

    def require_spark(self) -> None:
        commands = " ".join(command for _, _, session, command in processes() if session == self.session)
        for part in ("org.apache.spark.deploy.SparkSubmit", "spark_job.py", "pyspark.daemon"):
            assert part in commands, commands

    def await_end(self) -> None:
        wardens = set(self.wardens)
        until(lambda: not self.left and not wardens & {pid for pid, *_ in processes()}, "the end of all of the job")


def processes() -> Iterator[tuple[int, int, int, str]]:
    """All live processes: number, parent's number, session, and command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It has ended.
            state, parent, _, session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if state != "Z":
                yield int(folder.name), int(parent), int(session), (folder / "cmdline").read_text().replace("\0", " ")


def resume(pids: Collection[int]) -> None:
    """Let stopped processes go on. The first ones may end the others before their turn."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
