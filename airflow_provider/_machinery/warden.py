"""The warden: a small program around `spark-submit` that leaves none of its processes behind, however the task ends.

    task --stdin: when the lease ends--> warden --> guardian --own session--> spark-submit = JVM --> Python driver
     |   '--and the agent's connection---' |                                     '--> pyspark.daemon --> its workers
     '<------ output, until all are gone ---'

    python -m airflow_provider._machinery.warden UNTIL COMMAND...

Killing `spark-submit` ends only the JVM. The Python driver is its child, lives on, and goes on writing. pyspark.daemon
moves to its own process group, so a signal to the group does not reach it either. The guardian of `neli run` was made
for such commands: it adopts orphans, and kills until no process is left.

It ends the command in each of the following cases. In each of them something ends, so the guardian needs no question
and no message:

    the task lets go, or is killed by SIGKILL    standard input ends
    the warden is killed                         its connection to the guardian ends
    the guardian is killed or stopped            the warden ends all processes in its place
    the lease is almost over                     the guardian's own clock, also while the task is stopped or slow
    the command itself ends                      the processes that it has started are ended, too

Standard input is a socket. At each renewal, the task writes the end of its lease to it, as a line. The output stays
open until the last process is gone: so when the output ends, all processes have ended.

Each line is accompanied by the connection on which the agent holds the role for the task. The warden and its guardian
keep copies of that connection. So if the task is killed, which closes its own copy, the agent goes on holding the role
until the whole job is gone.

The command gains no privileges: a set-user-ID program runs without them, like under `neli run`.

The exit code is the command's, or 75 if the lease was over.
"""

import os
import select
import signal
import socket
import sys
from collections.abc import Sequence

from neli_router.core.exit_codes import EXIT_CANNOT_START, EXIT_LOST
from neli_router.hosts.descendants import told_left
from neli_router.hosts.guardian import Guardian, guardian

__all__ = ["warded"]

KILLED = 128 + signal.SIGKILL

NO_INPUT = 0


def warded(command: Sequence[str], *, until: float) -> list[str]:
    """The command line that runs `command` under a warden. The warden's standard input must be a socket of the
    caller."""
    return [sys.executable, "-P", "-m", __name__, repr(until), *command]


def _ward(until: float, command: Sequence[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it like any signal, without a traceback.
    lifeline = socket.socket(fileno=os.dup(NO_INPUT))
    with open(os.devnull) as nothing:  # noqa: PTH123 - a file descriptor for the command's standard input.
        os.dup2(nothing.fileno(), NO_INPUT)
    hand = guardian()
    hand.start(command, os.environ, until=until)
    code, rest, kept = KILLED, b"", list[int]()
    while True:
        ready, _, _ = select.select([lifeline.fileno(), hand.fileno()], [], [], hand.patience())
        if hand.fileno() in ready:
            try:
                messages = hand.heard()
            except EOFError:
                _avenge(hand)
                return KILLED
            for message in messages:
                if "failed" in message:
                    sys.stderr.write(f"neli: {command[0]} was to be started, but: {message['why']}\n")
                    return EXIT_CANNOT_START
                if "ended" in message:
                    code = _code_of(message["ended"], is_over=message["killed"])
                if "left" in message:
                    sys.stderr.write(f"neli: {told_left(message['left'])}\n")
                if "gone" in message:
                    hand.close()
                    return code
        elif not hand.patience():
            _avenge(hand)
            return _code_of(-signal.SIGKILL, is_over=True)
        if lifeline.fileno() in ready:
            piece, given, *_ = socket.recv_fds(lifeline, 65536, 1)
            for connection in given:
                hand.keep(connection)
            kept += given  # A copy here, too: if the guardian is killed, this process ends the job.
            while len(kept) > 1:
                os.close(kept.pop(0))
            if not piece:
                hand.close()  # It kills all processes, and waits for their end.
                return KILLED
            *lines, rest = (rest + piece).split(b"\n")
            if lines:
                hand.extend(float(lines[-1]))


def _avenge(hand: Guardian) -> None:
    """Act for a guardian that was killed or does not work."""
    if left := hand.avenge():
        sys.stderr.write(f"neli: {told_left(left)}\n")


def _code_of(status: int, *, is_over: bool) -> int:
    if is_over:
        sys.stderr.write("neli: the lease of this task was over, so its job was ended\n")
        return EXIT_LOST
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(_ward(float(sys.argv[1]), sys.argv[2:]))
