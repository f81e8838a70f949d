"""Servers started by `python -m tests.support.servers...` end with the program that started them."""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import require
from tests.support.servers import postgresql, redis
from tests.support.waiting import PATIENCE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    "server", [pytest.param(postgresql, marks=pytest.mark.postgresql), pytest.param(redis, marks=pytest.mark.redis)]
)
def test_a_server_goes_with_the_program_that_started_it(server: ModuleType, number: signal.Signals) -> None:
    require(server.missing())
    before = signal.signal(number, signal.SIG_IGN)  # Like a shell does for background programs.
    try:
        command, root = [sys.executable, "-m", server.__name__], Path(__file__).parents[1]
        program = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(number, before)
    with program:
        try:
            assert program.stdout is not None
            port = re.search(r"127\.0\.0\.1:(\d+)", program.stdout.readline())
            assert port is not None
            socket.create_connection(("127.0.0.1", int(port[1]))).close()
            program.send_signal(number)
            assert 0 == program.wait(PATIENCE)
        finally:
            program.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(port[1])))
