"""The warden: a small program around `spark-submit`, which leaves nothing of it behind, however the task ends.

    task --stdin: when the lease ends--> warden --> guardian --own session--> spark-submit = JVM --> Python driver
     |   '--and the agent's connection---' |                                     '--> pyspark.daemon --> its workers
     '<------ output, until all is gone ---'

    python -m airflow_provider.warden UNTIL COMMAND...

To kill `spark-submit` ends the JVM alone. The Python driver is its child, lives on, and goes on writing. pyspark.daemon
moves to a process group of its own, so a signal to the group does not reach it either. The guardian of `neli run` was
made for such commands: orphans become its children, and it kills until none is left.

It ends the command in each of these cases, and each is an end of something, so nothing has to be asked or sent:

    the task lets go, or is killed by SIGKILL    standard input ends
    the warden is killed                         its connection to the guardian ends
    the guardian is killed or stopped            the warden ends all, in its place
    the lease is almost over                     the guardian's own clock: also while the task is stopped, or is slow
    the command itself ends                      what it has started is ended with it

Standard input is a socket. The task writes the end of its lease to it, as a line, each time that it is renewed. The
output is open until the last process is gone: so where the output ends, all of it has ended.

With a line comes the connection on which the agent holds the role for the task. The warden and its guardian keep copies
of it. So if the task is killed, which closes its own, the agent goes on holding the role until all of the job is gone.

It gains no privileges: a set-user-ID program runs without them, as under `neli run`.

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
    """The command line that runs `command` under a warden, whose standard input must be a socket of the caller."""
    return [sys.executable, "-P", "-m", __name__, repr(until), *command]


def _ward(until: float, command: Sequence[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it as any signal does, without a traceback.
    lifeline = socket.socket(fileno=os.dup(NO_INPUT))
    with open(os.devnull) as nothing:  # noqa: PTH123 - a number is wanted, for the command's standard input.
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
            kept += given  # Here, too: the guardian may be killed, and this process then ends the job.
            while len(kept) > 1:
                os.close(kept.pop(0))
            if not piece:
                hand.close()  # It kills all that there is, and waits for the end.
                return KILLED
            *lines, rest = (rest + piece).split(b"\n")
            if lines:
                hand.extend(float(lines[-1]))


def _avenge(hand: Guardian) -> None:
    """The guardian was killed, or does not work."""
    if left := hand.avenge():
        sys.stderr.write(f"neli: {told_left(left)}\n")


def _code_of(status: int, *, is_over: bool) -> int:
    if is_over:
        sys.stderr.write("neli: the lease of this task was over, so its job was ended\n")
        return EXIT_LOST
    return 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(_ward(float(sys.argv[1]), sys.argv[2:]))
