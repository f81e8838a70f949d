"""examples/orders.py under a real uvicorn: its member leaves before its port closes, so no client request fails.

a router of the test's --owner's address--> GET, again and again --SIGTERM to the owner--> another owner
                                               '--refused? then it was named but could not be reached
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

import neli_router
from neli_router import Router
from neli_router.errors import NoOwner
from tests.examples.test_examples import owners
from tests.support.agents.running import rest
from tests.support.servers.process import free_port
from tests.support.waiting import until

FOLDER = Path(neli_router.__file__).parents[1] / "examples"
PATIENCE = 180.0
CUSTOMER = "customer-7"


@contextmanager
def server(ledger: str, name: str, folder: Path, app: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    port = free_port()
    told = {"NELI_LEDGER": ledger, "POD_NAME": name, "POD_IP": "127.0.0.1", "PORT": str(port), "NELI_LEASE": "2"}
    told["PYTHONPATH"] = os.pathsep.join([str(folder), str(FOLDER)])
    command = [sys.executable, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", str(port), *options]
    with (
        (folder / f"{name}.log").open("wb") as log,
        subprocess.Popen(command, env={**os.environ, **told}, stdout=log, stderr=log, process_group=0) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # And its workers.


def asked(router: Router) -> str:
    """The answer of the customer's owner: its name, or its status. "refused" if its port was closed while it was the
    owner: a table that was read after that still names it."""
    try:
        owner = router.owner(CUSTOMER)
        try:
            answer = httpx.get(f"http://{owner.address}/orders/{CUSTOMER}", timeout=PATIENCE)
        except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):  # Its port is closed, or closing.
            refused_at = time.monotonic()
            until(lambda: router.at.age < time.monotonic() - refused_at, "a newer table")
            return "refused" if router.owner(CUSTOMER) == owner else "moved"
    except NoOwner:
        return "no owner"
    return str(answer.json()["server"]) if answer.status_code == 200 else str(answer.status_code)


def at_work(address: str, seconds: float) -> socket.socket:
    """A connection whose request is being processed."""
    host, _, port = address.partition(":")
    connection = socket.create_connection((host, int(port)), PATIENCE)
    request = f"GET /orders/{CUSTOMER}?seconds={seconds} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    connection.sendall(request.encode())
    for _ in range(5):  # Each takes a turn of the server's loop; the first has read what was sent before.
        assert httpx.get(f"http://{address}/health", timeout=PATIENCE).status_code == 200
    return connection


@pytest.mark.process
def test_a_server_that_must_end_finishes_its_work_and_is_never_named_while_its_port_is_closed(tmp_path: Path) -> None:
    ledger = f"sqlite://{tmp_path}/ledger.db"
    with ExitStack() as stack:
        servers = {name: stack.enter_context(server(ledger, name, tmp_path, "orders:app")) for name in ("a", "b")}
        until((tmp_path / "ledger.db").exists, "a ledger")
        router = stack.enter_context(Router(ledger, timeout=PATIENCE))
        until(lambda: owners(router) == {"a", "b"}, "two servers that own")
        until(lambda: asked(router) in servers, "an answer")
        owner = router.owner(CUSTOMER)
        with at_work(owner.address, 1.0) as working:
            servers[owner.name].send_signal(signal.SIGTERM)
            answers = set()
            while servers[owner.name].poll() is None:
                answers.add(asked(router))
            until(lambda: asked(router) in {"a", "b"}, "another owner")
            assert b'"server":"' in rest(working)
    assert "refused" not in answers


@pytest.mark.process
def test_a_client_of_the_owner_is_served_by_any_worker_that_shares_its_port(tmp_path: Path) -> None:
    """If another worker answers, it sends the client to the address that the client has just asked."""
    code = 'import os\nos.environ["POD_NAME"] += f"-{os.getpid()}"\nimport orders\napp = orders.app\n'
    (tmp_path / "shared.py").write_text(code, encoding="utf-8")
    ledger = f"sqlite://{tmp_path}/ledger.db"
    with ExitStack() as stack:
        stack.enter_context(server(ledger, "a", tmp_path, "shared:app", "--workers", "2"))
        until((tmp_path / "ledger.db").exists, "a ledger")
        router = stack.enter_context(Router(ledger, timeout=PATIENCE))
        until(lambda: len(owners(router)) == 2, "two workers that own")
        address = router.owner(CUSTOMER).address
        found: set[tuple[int, str]] = set()

        def both_answered() -> bool:
            answer = httpx.get(f"http://{address}/orders/{CUSTOMER}", timeout=PATIENCE)  # On a new connection.
            found.add((answer.status_code, answer.json()["owner"] if answer.status_code == 421 else ""))
            return {(200, ""), (421, address)} <= found

        until(both_answered, "an answer of each worker")
