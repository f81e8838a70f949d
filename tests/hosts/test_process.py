"""The kernel's reports about the end of real processes."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from neli_router.hosts.process import HostProcess, ProcessMark, hurry
from tests.support.forking import in_child
from tests.support.processes.forked import state_of
from tests.support.waiting import PATIENCE


@contextmanager
def running(script: str, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that runs `script`, and has written its first line of output."""
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


SLEEPS = """
    import sys
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_process_has_ended_before_its_parent_waits_and_not_while_it_is_stopped() -> None:
    with running(SLEEPS) as child, closing(HostProcess.of(child.pid)) as process:
        assert not process.has_ended()
        os.kill(child.pid, signal.SIGKILL)
        assert process.has_ended(PATIENCE)
        assert "Z" == state_of(child.pid)
    with running(SLEEPS) as child, closing(HostProcess.of(child.pid)) as process:
        os.kill(child.pid, signal.SIGSTOP)
        assert not process.has_ended(0.2)
        process.kill()
        assert process.has_ended(PATIENCE)


def test_a_mark_is_of_one_process_and_of_no_other_with_its_number() -> None:
    with running(SLEEPS) as child:
        mark = ProcessMark.of(child.pid, parent=os.getpid())
        assert (child.pid, mark) == (mark.number, ProcessMark.of(child.pid))
        with closing(HostProcess.marked(mark)) as process:
            assert not process.has_ended()
        with pytest.raises(ProcessLookupError, match="is another process's by now"):
            HostProcess.marked(mark._replace(began=mark.began + 1))
        with pytest.raises(ProcessLookupError, match="is not a child of"):
            ProcessMark.of(child.pid, parent=child.pid)
        with ThreadPoolExecutor(1) as pool, pytest.raises(ProcessLookupError, match="is the number of a thread"):
            HostProcess.of(pool.submit(threading.get_native_id).result())
    with pytest.raises(ProcessLookupError):
        HostProcess.marked(mark)
    with pytest.raises(ProcessLookupError):
        HostProcess.of(child.pid)
    with pytest.raises(ProcessLookupError, match="nothing is known"):
        ProcessMark.of(child.pid)


def test_a_process_that_may_hurry_learns_how_it_was_scheduled_before() -> None:
    before = in_child(lambda: [found and (found[0], found[1].sched_priority) for found in (hurry(), hurry())])
    assert before in ([[os.SCHED_OTHER, 0], [os.SCHED_FIFO, 1]], [None, None])


@pytest.mark.parametrize("kernel", ["new", "old"])
def test_a_sockets_peer_is_who_connected_it(kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not a child that has the connection, too."""
    if kernel == "old":
        monkeypatch.setattr("neli_router.hosts.process._SO_PEERPIDFD", 9999)  # No such option: by its number, then.
    script = """
        import os, socket, sys
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(sys.argv[1])
        if os.fork() == 0:
            sys.stdin.read()  # It has the connection, and lives on.
            os._exit(0)
        print("ready", flush=True)
        os.waitpid(-1, 0)
    """
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        with running(script, listener.getsockname()) as process, closing(listener.accept()[0]) as connection:
            with closing(HostProcess.peer_of(connection)) as peer:
                assert not peer.has_ended()
                process.kill()
                assert peer.has_ended(PATIENCE)
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):  # The connection has not ended: the child still has it.
                connection.recv(1)
