"""The job of `publish_prices`, with a weapon that goes off in its own commit: see `takeovers`.

    AIMED_AT=kill:3     the third commit of rows is made in the table's log; before the driver learns of it, the driver
                             and its JVM get SIGKILL
    AIMED_AT=stop:3     just before the third is made, and after all checks, the whole host gets SIGSTOP; when it
                             wakes up, it makes the commit

The weapon goes off in Delta's own call that makes an entry of the log. `AIMED_NOTE` names a file that records its
target.
"""

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark import SparkContext

JOB = Path(__file__).parents[2] / "dags" / "jobs" / "publish_prices.py"

__all__: list[str] = []

STOPPER = """
import signal, sys
from neli_router.lab.processes.group import send_at_rest

send_at_rest(signal.SIGSTOP, -int(sys.argv[2]), sys.argv[1])
"""


def _aim(kind: str, number: int, note: Path) -> None:
    original, count = DeltaTable.create_write_transaction, 0

    def aimed(table: DeltaTable, actions: Any, *arguments: Any, **named: Any) -> None:
        nonlocal count
        count += bool(actions)
        if not actions or count != number:
            return original(table, actions, *arguments, **named)
        note.write_text(" ".join(action.path for action in actions))
        if kind == "stop":  # By another process, which is not stopped while it holds the ledger.
            stopper = [sys.executable, "-c", STOPPER, os.environ["AIMED_LEDGER"], str(os.getpgrp())]
            subprocess.run(stopper, start_new_session=True, check=True)
        original(table, actions, *arguments, **named)
        if kind == "kill":
            gateway = SparkContext._gateway
            assert gateway is not None
            os.kill(gateway.proc.pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return None

    DeltaTable.create_write_transaction = aimed  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    if aim := os.environ.get("AIMED_AT"):
        what, _, which = aim.partition(":")
        _aim(what, int(which), Path(os.environ["AIMED_NOTE"]))
    sys.argv[0] = str(JOB)
    runpy.run_path(str(JOB), run_name="__main__")
