"""An agent in its own process, for the benchmark: pinned to one core, over a ledger in a folder.

    python -m benchmarks._agent FOLDER CORE

Like any agent, it ends on SIGTERM.
"""

import os
import sys

from neli_router.agent.server.server import run
from neli_router.config.agent_options import AgentOptions
from neli_router.config.config import Config
from neli_router.core.keyspace import Layout

__all__ = ["LEASE", "PARTITIONS", "configured", "main"]

LEASE = 1.0
PARTITIONS = 256


def configured(folder: str, name: str) -> Config:
    return Config(f"sqlite://{folder}/ledger.db", name=name, lease=LEASE, layout=Layout(partitions=PARTITIONS))


def main(folder: str, core: int) -> int:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})  # Before any thread starts: threads inherit it.
    return run(configured(folder, "agent"), AgentOptions(socket=f"{folder}/agent.sock"))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2])))
