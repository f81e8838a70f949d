"""gunicorn with uvicorn's workers: each worker is a member, opened after the fork, with a port of its own.

    shared port --any worker--> owner? --this one--> 200
                                  '-- another --> 421, with that worker's own port

    NELI_LEDGER=sqlite:orders.db POD_NAME=a POD_IP=127.0.0.1 gunicorn --config gunicorn_conf.py orders:app

All workers share one port, and the kernel gives a connection to any of them, so that port cannot be an owner's address.
The worker's own port can. The lifespan of orders.py opens the member, and it runs in the worker also with `--preload`.
"""

import os
import socket
from typing import Any

bind = "0.0.0.0:8000"
workers = 2
worker_class = "uvicorn_worker.UvicornWorker"
graceful_timeout = 45  # More than `drain_timeout` (30) and LINGER (1): gunicorn kills what is left then.


def post_fork(_server: Any, worker: Any) -> None:
    own = socket.create_server(("", 0))
    worker.sockets = [*worker.sockets, own]
    os.environ["PORT"] = str(own.getsockname()[1])
    os.environ["POD_NAME"] += f"-{worker.pid}"
