"""Servers of the tests: those that `make kafka` and its like start end with it, and each has its ports for itself."""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import require
from tests.support.servers.process import free_port


@pytest.mark.redis
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_server_goes_with_the_program_that_started_it(number: signal.Signals) -> None:
    servers = pytest.importorskip("tests.support.servers.redis")
    require(servers.missing())
    before = signal.signal(number, signal.SIG_IGN)  # As a shell does for what it starts in the background.
    try:
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.support.servers.redis"],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(number, before)
    with program:
        try:
            assert program.stdout is not None
            port = re.search(r"127\.0\.0\.1:(\d+)", program.stdout.readline())
            assert port is not None
            socket.create_connection(("127.0.0.1", int(port[1]))).close()
            program.send_signal(number)
            assert 0 == program.wait(60)
        finally:
            program.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port[1])))


CLAIM = (
    "from tests.support.servers.process import free_port; print(*(free_port() for _ in range(50)), flush=True); input()"
)


def test_no_two_processes_of_the_tests_are_given_one_port_nor_one_that_the_kernel_gives_to_others() -> None:
    ours = {free_port() for _ in range(50)}
    with subprocess.Popen(
        [sys.executable, "-c", CLAIM],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        ours |= {free_port() for _ in range(50)}
        other.communicate("\n")
    with socket.create_server(("127.0.0.1", 0)) as any_port:
        given_out = any_port.getsockname()[1]
    assert (100, 50, set()) == (len(ours), len(theirs), ours & theirs)
    assert max(ours | theirs) < given_out
